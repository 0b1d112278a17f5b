"""Where a measurement runs: a fresh database of either kind, durable as in production."""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from outlast.compose import Stores, migrate, open_stores
from outlast.configuration import Configuration, configuration
from outlast.testing.postgres_server import PostgresServer

DATABASES = ("sqlite", "postgres")


@contextlib.contextmanager
def place(kind: str, **options: object) -> Iterator[tuple[Configuration, PostgresServer | None]]:
    """A configuration for an empty database, and the server under it, if it has one."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder:
            url = f"sqlite:///{Path(folder) / 'bench.db'}"
            yield configuration({}, database=url, log_level="error", **options), None
    else:
        with PostgresServer(durable=True) as server:
            url = server.create_database("bench")
            yield configuration({}, database=url, log_level="error", **options), server


@contextlib.asynccontextmanager
async def stores_at(settings: Configuration) -> AsyncIterator[Stores]:
    await migrate(settings)
    async with open_stores(settings) as stores:
        yield stores


def machine() -> str:
    """The machine, as far as a reader of figures must know it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()},"
        f" Python {platform.python_version()}"
    )
