"""Fixtures of the chaos suite; `tests/cases` has the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.databases import (
    database,
    databases,
    postgres,
    postgres_databases,
    sqlite,
    sqlite_files,
)
from tests.chaos.fleets import fleet, postgres_fleet, sink, sqlite_fleet

__all__ = [
    "database",
    "databases",
    "fleet",
    "postgres",
    "postgres_databases",
    "postgres_fleet",
    "sink",
    "sqlite",
    "sqlite_files",
    "sqlite_fleet",
]

_TOLD: pytest.StashKey[list[str]] = pytest.StashKey()


@pytest.fixture
def tell(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Say something at the end of the whole run, whether the test passes or fails."""
    lines = pytestconfig.stash.setdefault(_TOLD, [])
    return lines.append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if lines := config.stash.get(_TOLD, []):
        terminalreporter.section("crash points")
        for line in lines:
            terminalreporter.write_line(line)
