"""The processes of this machine, as far as a test must know them: who started whom, who is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process. Pids are used again; together with the start time they name one for good."""

    pid: int
    started: str
    # Not compared: whoever outlives its parent is adopted by another.
    parent: int = field(compare=False)

    def is_alive(self) -> bool:
        """Whether it still runs. One that has ended and waits to be collected does not."""
        return read_process(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Signal this process, and no other that got its pid since; nothing if it has ended."""
        if self.is_alive():
            os.kill(self.pid, number)


def read_process(pid: int) -> Process | None:
    """Return the process under that pid; None where there is none, or it has ended."""
    if not _has_proc():
        return next(iter(_ps("-p", str(pid))), None)
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in brackets, may hold spaces and brackets itself.
    fields = text.rpartition(")")[2].split()
    state, parent, started = fields[0], int(fields[1]), fields[19]
    return None if state in "ZX" else Process(pid=pid, parent=parent, started=started)


def children_of(parent: int) -> list[Process]:
    """Return the processes that this one started and that have not ended."""
    if _has_proc():
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        entries = [entry for entry in map(read_process, pids) if entry is not None]
    else:
        entries = _ps("-A")
    return [entry for entry in entries if entry.parent == parent]


def wait_until_gone(processes: Iterable[Process], *, deadline_s: float) -> list[Process]:
    """Wait until all of them have ended; return those that have not by the deadline."""
    left = [entry for entry in processes if entry.is_alive()]
    until = time.monotonic() + deadline_s
    while left and time.monotonic() < until:
        time.sleep(0.01)
        left = [entry for entry in left if entry.is_alive()]
    return left


def _has_proc() -> bool:
    return Path("/proc/self/stat").exists()


def _ps(*which: str) -> list[Process]:
    answer = subprocess.run(
        ["ps", *which, "-o", "pid=,ppid=,stat=,lstart="],
        capture_output=True,
        text=True,
        check=False,
    )
    entries = []
    for line in answer.stdout.splitlines():
        pid, parent, state, started = line.split(maxsplit=3)
        if not state.startswith("Z"):
            entries.append(Process(pid=int(pid), parent=int(parent), started=started.strip()))
    return entries
