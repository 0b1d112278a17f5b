"""Two gateways behind a proxy that is a real program, as its template in `proxies/` tells it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import pytest

from outlast.testing.fleet import Child, Fleet, until
from tests.conformance.houses import free_port
from tests.conformance.transports import CARD

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
AGENT: Final = "tests.conformance.paced:agent"
IDLE_S: Final = 2
"""How long a connection may be silent, by the proxy's settings; gateways speak every 0.5 s."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A proxy: its templates, the configuration first, and what starts it in the foreground.

    ends_with: the status when an answer does not begin in time.
    """

    name: str
    templates: tuple[str, ...]
    command: tuple[str, ...]
    ends_with: int = 504

    @property
    def is_here(self) -> bool:
        return shutil.which(self.name, path=_PATH) is not None


# Debian installs servers where only root looks for them.
_PATH: Final = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])

PROGRAMS: Final = {
    program.name: program
    for program in (
        Program(
            name="nginx",
            templates=("nginx.conf",),
            # As root it would give its workers another user, who may not write into the folder.
            command=("-p", "{folder}", "-c", "{configuration}", "-e", "stderr", "-g", "{globals}"),
        ),
        Program(
            name="haproxy",
            templates=("haproxy.cfg",),
            command=("-W", "-db", "-f", "{configuration}"),
        ),
        Program(
            name="caddy",
            templates=("Caddyfile",),
            command=("run", "--adapter", "caddyfile", "--config", "{configuration}"),
        ),
        Program(
            name="traefik",
            templates=("traefik.yaml", "traefik-routes.yaml"),
            command=("--configFile={configuration}",),
        ),
        Program(
            name="envoy",
            templates=("envoy.yaml",),
            command=("-c", "{configuration}", "--disable-hot-restart", "-l", "warning"),
        ),
    )
}


def wanted() -> list[str]:
    """The names in `$PROXIES`. Raises LookupError for one that there are no templates of."""
    names = os.environ.get("PROXIES", "").split()
    if unknown := set(names) - set(PROGRAMS):
        raise LookupError(f"PROXIES: {', '.join(unknown)}; known are {', '.join(PROGRAMS)}")
    return names


@dataclass
class Running:
    """A proxy's processes, a group of their own."""

    program: Program
    folder: Path
    port: int
    words: Mapping[str, str]
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Return when it takes requests."""
        for template in self.program.templates:
            text = (HERE / "proxies" / template).read_text()
            for word, value in self.words.items():
                text = text.replace(f"@{word}@", value)
            (self.folder / template).write_text(text)
        found = shutil.which(self.program.name, path=_PATH)
        assert found is not None
        user = "user root; " if os.geteuid() == 0 else ""
        filled = {
            "folder": str(self.folder),
            "configuration": str(self.folder / self.program.templates[0]),
            "globals": f"{user}daemon off; pid {self.folder}/nginx.pid;",
        }
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(found, *(word.format_map(filled) for word in self.program.command)),
                stdout=log,
                stderr=log,
                env={**os.environ, "HOME": str(self.folder)},
                start_new_session=True,
            )
        await until(self._answers, what=f"an answer through {self.program.name}")

    def kill(self) -> None:
        """SIGKILL to all its processes."""
        self._send(signal.SIGKILL, to_all=True)

    def reload(self, number: signal.Signals) -> None:
        """By its own signal for that, to its first process."""
        self._send(number)

    async def stop(self) -> None:
        if self._process is not None:
            self.kill()
            await self._process.wait()

    @property
    def log(self) -> Path:
        return self.folder / f"{self.program.name}.log"

    async def _answers(self) -> bool:
        assert self._process is not None
        if self._process.returncode is not None:
            pytest.fail(f"{self.program.name} has ended:\n{self.log.read_text()}")
        async with httpx.AsyncClient() as http:
            with contextlib.suppress(httpx.TransportError):
                return (await http.get(self.url + CARD)).status_code == 200
        return False

    def _send(self, number: signal.Signals, *, to_all: bool = False) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            if to_all:
                os.killpg(self._process.pid, number)
            elif self._process.returncode is None:
                self._process.send_signal(number)


@dataclass
class House:
    """The proxy, and what stands behind it."""

    proxy: Running
    gateways: list[Child]
    grpc: str = ""

    @property
    def url(self) -> str:
        return self.proxy.url


@asynccontextmanager
async def behind(program: Program, folder: Path) -> AsyncIterator[House]:
    """Two gateways and a worker behind this proxy, on one file."""
    names = ("PORT", "ONE", "TWO", "GRPC_PORT", "GRPC_ONE", "GRPC_TWO")
    ports = {name: free_port() for name in names}
    words = {name: str(port) for name, port in ports.items()}
    words |= {"IDLE": str(IDLE_S), "FOLDER": str(folder)}
    proxy = Running(program, folder, ports["PORT"], words)
    database = f"sqlite:///{folder}/outlast.db"
    async with Fleet(database, folder / "logs", agent=AGENT, cwd=ROOT) as fleet:
        _, *gateways = await asyncio.gather(
            fleet.worker(),
            *(
                fleet.gateway(
                    patch="tests.conformance.paced:speak_often",
                    url=proxy.url,
                    port=ports[name],
                    grpc_port=ports[f"GRPC_{name}"],
                )
                for name in ("ONE", "TWO")
            ),
        )
        try:
            await proxy.start()
            yield House(proxy, gateways, grpc=f"127.0.0.1:{ports['GRPC_PORT']}")
        finally:
            await proxy.stop()
