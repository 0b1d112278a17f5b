"""What a child of a fleet may be given before it starts: another host name, clock or pace."""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from pathlib import Path
from typing import Any

from outlast.sweeps.sweeper import Sweeper

CLOCK = "CASES_CLOCK"
"""Names a file that holds by how many seconds this process's wall clock is wrong, at any time."""

_EPOCH_AS_JULIAN_DAY = 2440587.5


def other_host() -> None:
    """As if the process ran on another machine."""
    socket.gethostname = lambda: "elsewhere"


def other_clock() -> None:
    """A wall clock that a test moves while the process runs, for Python and for SQLite.

    libfaketime would do it below both, but it is not on every machine that runs these tests. The
    monotonic clocks stay right, as they do on a host whose wall clock jumps.
    """
    place = Path(os.environ[CLOCK])
    right, right_ns = time.time, time.time_ns

    def offset() -> float:
        return float(place.read_text())

    def julian_day(_now: str) -> float:
        return (right() + offset()) / 86400 + _EPOCH_AS_JULIAN_DAY

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect_rightly(*arguments, **options)
        connection.create_function("julianday", 1, julian_day)
        return connection

    connect_rightly = sqlite3.connect
    sqlite3.connect = connect  # type: ignore[assignment]
    time.time = lambda: right() + offset()
    time.time_ns = lambda: right_ns() + int(offset() * 1e9)


def sweep_often() -> None:
    """Retention is looked at all the time, so that a test need not wait for it."""
    defaults = Sweeper.__init__.__kwdefaults__
    assert defaults is not None
    assert defaults["retention_s"] > 1
    defaults["retention_s"] = 0.1
