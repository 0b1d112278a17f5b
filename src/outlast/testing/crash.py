"""A process that meets its fault at a named point, and one that lists the points it passes.

    python -m outlast.testing.crash after:tasks_commit#7 worker module:agent
    python -m outlast.testing.crash --freeze after:tasks_claim#1 worker module:agent
    python -m outlast.testing.crash --lose after:commit:task_runs_open#1 worker module:agent
    python -m outlast.testing.crash --record points.txt worker module:agent

Points are named by `outlast.model.points`; `#n` is the n-th time that the name is passed. A commit
carries the name of the statement that it follows (`before:commit:task_events_append#3`): a beat's
commits, which come as the clock will have it, are counted apart from those of the work.

The kill is a SIGKILL: nothing is flushed, closed or said. `--freeze` stops the process where it is
(SIGSTOP). `--lose` loses a reply: the caller hears that the store is away, though what stands
before the point has happened.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path

from outlast.model import points
from outlast.model.errors import StoreUnavailable

_latest: ContextVar[str] = ContextVar("latest statement")
"""Of this call of the store. A call is a task of its own, or has its thread for itself."""


class Passing:
    """Counts the points passed, in every thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: Counter[str] = Counter()

    def pass_by(self, point: str) -> str:
        """The full name of this passing, such as `after:tasks_commit#7`."""
        name = _with_context(point)
        with self._lock:
            self._times[name] += 1
            return f"{name}#{self._times[name]}"


def _with_context(point: str) -> str:
    moment, _, what = point.partition(":")
    if what == "commit":
        return f"{moment}:commit:{_latest.get('nothing')}"
    if moment == "after":
        _latest.set(what)
    return point


def act_at(target: str, act: Callable[[str], None]) -> None:
    """From now on `act` is called when the process passes `target`, once."""
    passing = Passing()

    def listener(point: str) -> None:
        if passing.pass_by(point) == target:
            act(target)

    points.listen(listener)


def kill(point: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def freeze(point: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def lose(point: str) -> None:
    raise StoreUnavailable(f"the reply was lost at {point}, as a test wanted")


def record_to(path: Path) -> None:
    """From now on each point passed is appended to the file."""
    passing = Passing()
    file = path.open("a", encoding="utf-8", buffering=1)

    def listener(point: str) -> None:
        file.write(passing.pass_by(point) + "\n")

    points.listen(listener)


_ACTS: Mapping[str, Callable[[str], None]] = {"--freeze": freeze, "--lose": lose}


def main(arguments: Sequence[str] | None = None) -> None:
    from outlast.cli import app

    first, *rest = sys.argv[1:] if arguments is None else arguments
    if first == "--record":
        record_to(Path(rest.pop(0)))
    elif first in _ACTS:
        act_at(rest.pop(0), _ACTS[first])
    else:
        act_at(first, kill)
    app(rest)


if __name__ == "__main__":
    main()
