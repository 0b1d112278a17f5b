"""Fixtures of the chaos suite; `tests/cases` has the same."""

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
