"""A house for every test, on SQLite and on PostgreSQL; the laws must hold after it.

A module says `pytest_plugins = ["tests.worker.fixtures"]` to have it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from outlast.store.protocols import Settings
from outlast.telemetry import EVENTS
from tests.contract.conftest import shelf, store_url
from tests.contract.stores import Store, database_at
from tests.worker.house import House

__all__ = ["house", "logged", "shelf", "store_url"]


@pytest.fixture
def logged() -> Iterator[list[MutableMapping[str, Any]]]:
    """What is logged meanwhile: only events that `telemetry.EVENTS` lists."""
    with capture_logs() as lines:
        yield lines
    unknown = {line["event"] for line in lines} - set(EVENTS)
    assert not unknown, f"logged, but not in telemetry.EVENTS: {unknown}"


@pytest.fixture
async def house(store_url: str, logged: list[MutableMapping[str, Any]]) -> AsyncIterator[House]:
    """An open, migrated and empty store, with nobody at work. After the test and one sweep, all
    laws must hold."""
    database = database_at(store_url, listens=True)
    await database.open()
    house = House(Store(store_url, database, Settings(crash_backoff_ms=0)), logged)
    try:
        if house.store.is_sqlite:
            await house.store.admin.migrate()
        try:
            yield house
        finally:
            await house.close()
        await house.store.sweeping.free_orphans()
        assert await house.store.inspect.broken_laws() == {}
    finally:
        await house.store.close()
