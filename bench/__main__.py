"""`make bench`: all measurements, or those that are named: commits, claims, takeover,
folds, streams.

`streams=100` measures with so many subscribers instead of 1,000.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from bench import claims, commits, folds, streams, takeover
from bench.places import machine
from outlast.telemetry import configure_logging

MEASUREMENTS: dict[str, Callable[..., None]] = {
    "commits": commits.main,
    "claims": claims.main,
    "takeover": takeover.main,
    "folds": folds.main,
    "streams": streams.main,
}

configure_logging("error")
print(machine())
for argument in sys.argv[1:] or MEASUREMENTS:
    name, _, size = argument.partition("=")
    MEASUREMENTS[name](*([int(size)] if size else []))
