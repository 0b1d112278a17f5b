"""`make bench`: all measurements, or those that are named: commits, claims, takeover, folds."""

from __future__ import annotations

import sys

from bench import claims, commits, folds, takeover
from bench.places import machine
from outlast.telemetry import configure_logging

MEASUREMENTS = {
    "commits": commits.main,
    "claims": claims.main,
    "takeover": takeover.main,
    "folds": folds.main,
}

configure_logging("error")
print(machine())
for name in sys.argv[1:] or MEASUREMENTS:
    MEASUREMENTS[name]()
