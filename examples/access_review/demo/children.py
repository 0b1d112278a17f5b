"""The processes of the demo: each a real command, with a log file of its own."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from examples.access_review.demo import DemoFailed
from outlast.configuration import PREFIX

ROOT = Path(__file__).parents[3]
"""The children work here, so that `examples` can be imported."""

STARTED_WITHIN_S = 30.0
STOPPED_WITHIN_S = 10.0
_LOOK_EVERY_S = 0.02


class ChildFailed(DemoFailed):
    """A process of the demo did not do what it was started for. The text ends with its log."""


@dataclass(eq=False)
class Child:
    """One process. Its pid is ours until we have waited for it, so a signal never goes astray."""

    name: str
    log_file: Path
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, closed or said."""
        self.process.kill()

    async def stop(self) -> None:
        """SIGTERM, and wait. Raises ChildFailed when it does not end, or ends badly."""
        self.process.terminate()
        if await self.ended(STOPPED_WITHIN_S) != 0:
            raise self._failed("did not stop in good order")

    async def ended(self, within: float) -> int | None:
        """Its exit code; None when it has not ended by then."""
        for _ in range(int(within / _LOOK_EVERY_S)):
            if not self.is_alive:
                break
            await asyncio.sleep(_LOOK_EVERY_S)
        return self.process.poll()

    async def says(self, pattern: str) -> re.Match[str]:
        """The first match in a line of its log. Raises ChildFailed when none comes."""
        for _ in range(int(STARTED_WITHIN_S / _LOOK_EVERY_S)):
            alive = self.is_alive
            if match := re.search(pattern, self._log()):
                return match
            if not alive:
                break
            await asyncio.sleep(_LOOK_EVERY_S)
        raise self._failed("did not start")

    def _log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def _failed(self, what: str) -> ChildFailed:
        state = "still runs" if self.is_alive else f"ended with {self.process.returncode}"
        tail = "\n".join(self._log().splitlines()[-15:])
        return ChildFailed(f"{self.name} {what}; it {state}. The end of {self.log_file}:\n{tail}")


@dataclass(eq=False)
class Children:
    """All processes of one demo. Leaving the context kills those that are left, whatever happened.

    folder: where their logs go. inherits: descriptors that stay open in them. settings: of
    Outlast, which no setting of the caller's environment changes.
    """

    folder: Path
    inherits: Sequence[int] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    _started: list[Child] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in self._started:
            child.kill()
        for child in self._started:
            child.process.wait()

    def start(self, name: str, module: str, *arguments: str, **environment: str) -> Child:
        """Start `python -m module …` in a session of its own: a Ctrl-C in the terminal is for us,
        who then end it."""
        log_file = self.folder / f"{name}.log"
        with log_file.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=self._environment() | environment,
                start_new_session=True,
                pass_fds=self.inherits,
            )
        child = Child(name, log_file, process)
        self._started.append(child)
        return child

    def _environment(self) -> dict[str, str]:
        """Ours, without settings of Outlast and without a proxy between parts of one machine."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        ours = {PREFIX + name.upper(): value for name, value in self.settings.items()}
        return kept | ours | dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1")
