"""Fixtures of the chaos suite; `tests/cases` has the same."""

from tests.chaos.databases import (
    database,
    databases,
    postgres,
    postgres_databases,
    sqlite,
    sqlite_files,
)

__all__ = ["database", "databases", "postgres", "postgres_databases", "sqlite", "sqlite_files"]
