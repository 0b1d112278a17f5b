"""A process that kills itself at a named point, and one that lists the points it passes.

    python -m outlast.testing.crash after:tasks_commit#7 worker module:agent
    python -m outlast.testing.crash --record points.txt worker module:agent

Points are named by `outlast.model.points`; `#n` is the n-th time that the name is passed. The kill
is a SIGKILL: nothing is flushed, closed or said.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from outlast.model import points


class Passing:
    """Counts the points passed, in every thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: Counter[str] = Counter()

    def pass_by(self, name: str) -> str:
        """The full name of this passing, such as `after:tasks_commit#7`."""
        with self._lock:
            self._times[name] += 1
            return f"{name}#{self._times[name]}"


def kill_at(target: str) -> None:
    """From now on the process dies when it passes `target`."""
    passing = Passing()

    def listener(name: str) -> None:
        if passing.pass_by(name) == target:
            os.kill(os.getpid(), signal.SIGKILL)

    points.listen(listener)


def record_to(path: Path) -> None:
    """From now on each point passed is appended to the file."""
    passing = Passing()
    file = path.open("a", encoding="utf-8", buffering=1)

    def listener(name: str) -> None:
        file.write(passing.pass_by(name) + "\n")

    points.listen(listener)


def main(arguments: Sequence[str]) -> None:
    from outlast.cli import app

    if arguments[0] == "--record":
        record_to(Path(arguments[1]))
        rest = arguments[2:]
    else:
        kill_at(arguments[0])
        rest = arguments[1:]
    app(list(rest))


if __name__ == "__main__":
    main(sys.argv[1:])
