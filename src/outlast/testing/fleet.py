"""Real processes on one database, for tests that kill, freeze and cut them.

    async with Fleet(url, tmp_path, agent="examples.probe.agent:agent") as fleet:
        gateway = await fleet.gateway()
        worker = await fleet.worker(lease=2)
        await worker.logged("run.began")
        worker.kill()

Each child is forked from one warm process (multiprocessing's forkserver), so a start costs a
twentieth of a second and not a whole one of imports; it then runs the same command line as
`outlast …`. A child logs into a file of its own in the fleet's folder, and what it logs is what a
test waits for. Nothing here sleeps for luck.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from outlast import compose
from outlast.configuration import PREFIX, Configuration, configuration
from outlast.testing.processes import Process, read_process

T = TypeVar("T")

OUTLAST: Final = "outlast.cli:app"
CRASHING: Final = "outlast.testing.crash:main"

SETTINGS: Final[Mapping[str, object]] = {
    "beat": 0.2,
    "lease": 2.0,
    "poll": 0.25,
    "recovery": 0.2,
    "grace": 5.0,
    "crash_backoff": 0.1,
    "database_timeout": 5.0,
    "port": 0,
    "log_style": "json",
}
"""Leases end about eight times sooner than in production."""

PATIENCE_S: Final = 30.0
LOOK_EVERY_S: Final = 0.02

_PRELOADED: Final = (
    "outlast.cli",
    "outlast.store.sqlite",
    "outlast.store.postgres",
    "outlast.testing.crash",
    "outlast.testing.fleet",
)
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(list(_PRELOADED))


class NotSeen(AssertionError):
    """What a test waited for did not come. The message ends with the child's latest words."""


async def until(
    condition: Callable[[], Awaitable[T]], *, within: float = PATIENCE_S, what: str = ""
) -> T:
    """The first result of `condition` that is true, asked for again and again."""
    deadline = time.monotonic() + within
    while not (result := await condition()):
        if time.monotonic() > deadline:
            raise NotSeen(f"not within {within:g} s: {what or condition}; last: {result!r}")
        await asyncio.sleep(LOOK_EVERY_S)
    return result


@dataclass(eq=False)
class Child:
    """One process of the fleet. Signals go to it and to no other that got its pid since."""

    name: str
    log_file: Path
    process: ForkServerProcess
    identity: Process | None
    url: str = ""
    fate: str = ""
    _entries: list[dict[str, Any]] = field(default_factory=list)
    _read: int = 0

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; the number of the signal that killed it, negative."""
        return self.process.exitcode

    @property
    def is_alive(self) -> bool:
        return self.exit_code is None

    # --- what is done to it -------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, closed or said. It is gone when this returns."""
        self._signal(signal.SIGKILL)
        self.process.join(PATIENCE_S)

    def freeze(self) -> None:
        """SIGSTOP: as on a machine that hangs."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM: please stop in good order."""
        self._signal(signal.SIGTERM)

    async def stop(self, *, within: float = PATIENCE_S) -> int:
        """SIGTERM, and its exit code when it has ended."""
        self.terminate()
        return await self.ended(within=within)

    async def ended(self, *, within: float = PATIENCE_S) -> int:
        """Its exit code: -9 after a SIGKILL."""

        async def has_ended() -> bool:
            return not self.is_alive

        await self._until(has_ended, within, "its end")
        assert self.exit_code is not None
        return self.exit_code

    def _signal(self, number: signal.Signals) -> None:
        self.fate = f"got {number.name}"
        if self.is_alive and self.identity is not None:
            self.identity.send(number)

    # --- what it says -------------------------------------------------------------------------

    def entries(self, event: str | None = None, **fields: object) -> list[dict[str, Any]]:
        """The log so far, or what of it has this event and these fields."""
        with self.log_file.open("rb") as file:
            file.seek(self._read)
            fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read += len(whole)
        self._entries.extend(map(_entry, whole.decode(errors="replace").splitlines()))
        return [
            entry
            for entry in self._entries
            if event in (None, entry.get("event")) and fields.items() <= entry.items()
        ]

    async def logged(
        self, event: str, *, within: float = PATIENCE_S, times: int = 1, **fields: object
    ) -> dict[str, Any]:
        """The `times`-th entry with this event and these fields, when it is there.

        Raises NotSeen, at once when the process has ended without it.
        """

        async def found() -> dict[str, Any] | None:
            entries = self.entries(event, **fields)
            return entries[times - 1] if len(entries) >= times else None

        told = " ".join(f"{name}={value}" for name, value in fields.items())
        entry = await self._until(found, within, f"{event} {told}".strip(), needs_life=True)
        assert entry is not None
        return entry

    async def says(self, pattern: str, *, within: float = PATIENCE_S) -> re.Match[str]:
        """The first match of `pattern` in a line of the log."""

        async def found() -> re.Match[str] | None:
            return re.search(pattern, self.text())

        match = await self._until(found, within, repr(pattern), needs_life=True)
        assert match is not None
        return match

    def text(self) -> str:
        return self.log_file.read_text(errors="replace")

    def tail(self, lines: int = 40) -> str:
        last = "\n".join(self.text().splitlines()[-lines:])
        state = "runs" if self.is_alive else f"ended with {self.exit_code}"
        return f"--- {self.name} ({', '.join(filter(None, [state, self.fate]))})\n{last}"

    async def _until(
        self,
        condition: Callable[[], Awaitable[T]],
        within: float,
        what: str,
        *,
        needs_life: bool = False,
    ) -> T:
        async def seen() -> T | bool:
            alive = self.is_alive
            result = await condition()  # once more after its end: its last words count
            return result or (needs_life and not alive)

        try:
            result = await until(seen, within=within, what=what)
        except NotSeen as error:
            raise NotSeen(f"{error}\n{self.tail()}") from None
        if result is True and needs_life:
            raise NotSeen(f"{self.name} has ended without {what}\n{self.tail()}")
        return result  # type: ignore[return-value]


def _entry(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {"text": line}
    return entry if isinstance(entry, dict) else {"text": line}


class Children:
    """Child processes, each with a log file in `folder`. Leaving the context kills what is left.

    environment: variables of every child, beside ours without Outlast's settings. cwd: where they
    work, and from where they import.
    """

    def __init__(
        self,
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.folder = folder
        self.environment = dict(environment or {})
        self.cwd = cwd or Path.cwd()
        self.children: list[Child] = []
        self._numbers: Counter[str] = Counter()
        folder.mkdir(parents=True, exist_ok=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for child in self.children:
            child.kill()

    def report(self, lines: int = 40) -> str:
        """The last words of every child."""
        return "\n".join(child.tail(lines) for child in self.children)

    async def service(self, name: str, entry: str, *arguments: str) -> Child:
        """A program that prints `… listening on <url>`; its `url` is set."""
        child = self.start(name, entry, *arguments)
        child.url = (await child.says(r"listening on (\S+)"))[1]
        return child

    def start(
        self,
        name: str,
        entry: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        patch: str | None = None,
    ) -> Child:
        """Start the program whose main function is `entry`, as `module:function`.

        patch: a function, in the same form, that is called before it.
        """
        self._numbers[name] += 1
        name = f"{name}-{self._numbers[name]}"
        log_file = self.folder / f"{name}.log"
        log_file.touch()
        variables = _inherited({**self.environment, **(environment or {})})
        process = _forks.Process(
            target=_become,
            args=(entry, arguments, variables, self.cwd, log_file, patch),
            name=name,
            daemon=True,
        )
        process.start()
        assert process.pid is not None
        child = Child(name, log_file, process, read_process(process.pid))
        self.children.append(child)
        return child


class Fleet(Children):
    """Gateways and workers of one agent on one database.

    settings: of every child, over `SETTINGS`; those given with a start win.
    """

    def __init__(
        self,
        database: str,
        folder: Path,
        *,
        agent: str,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        **settings: object,
    ) -> None:
        super().__init__(folder, environment=environment, cwd=cwd)
        self.agent = agent
        self.settings: dict[str, object] = {**SETTINGS, "database": database, **settings}

    async def __aenter__(self) -> Self:
        await compose.migrate(self.configuration)
        return self

    @property
    def configuration(self) -> Configuration:
        """That of a process of this fleet."""
        return configuration({}, **self.settings)

    @asynccontextmanager
    async def stores(self) -> AsyncIterator[compose.Stores]:
        """The fleet's store, opened by the test itself."""
        async with compose.open_stores(self.configuration) as stores:
            yield stores

    async def gateway(self, *, fault: Sequence[str] = (), **options: Any) -> Child:
        """A gateway that answers; its `url` is set. Options as for `start_role`."""
        return await _listening(self.start_role("gateway", fault=fault, **options))

    async def worker(self, *, fault: Sequence[str] = (), **options: Any) -> Child:
        """A worker that is registered. Options as for `start_role`."""
        child = self.start_role("worker", fault=fault, **options)
        await child.logged("worker.registered")
        return child

    async def serve(self, *, fault: Sequence[str] = (), **options: Any) -> Child:
        """Every role in one process. Options as for `start_role`."""
        child = self.start_role("serve", fault=fault, **options)
        await child.logged("worker.registered")
        return await _listening(child)

    def start_role(
        self,
        role: str,
        *,
        fault: Sequence[str] = (),
        agent: str | None = None,
        environment: Mapping[str, str] | None = None,
        patch: str | None = None,
        **settings: object,
    ) -> Child:
        """Start `outlast <role>` and return at once: it may be meant to die soon.

        fault: arguments of `outlast.testing.crash`.
        """
        ours = {
            PREFIX + name.upper(): str(value)
            for name, value in {**self.settings, **settings}.items()
        }
        return self.start(
            role,
            CRASHING if fault else OUTLAST,
            *fault,
            role,
            agent or self.agent,
            environment={**(environment or {}), **ours},
            patch=patch,
        )


async def _listening(child: Child) -> Child:
    child.url = (await child.logged("gateway.listening"))["url"]
    return child


def _inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Ours without Outlast's settings, and what the test says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return {**kept, **environment}


def _become(
    entry: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path,
    log_file: Path,
    patch: str | None,
) -> None:
    """In the child: turn the fork of the warm process into the program that is wanted."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    log = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = [entry, *arguments]
    if patch is not None:
        _named(patch)()
    _named(entry)()


def _named(path: str) -> Callable[[], None]:
    module, _, function = path.partition(":")
    found: Callable[[], None] = getattr(importlib.import_module(module), function)
    return found
