"""The duty that deletes what has expired."""

from __future__ import annotations

import asyncio

from outlast.store.protocols import Settings
from outlast.sweeps.retention import Retention
from tests.contract.stores import DAY, HOUR, Store, database_at


async def test_case_117_two_sweeps_at_once_delete_all_that_is_finished_and_nothing_else(
    database_url: str,
) -> None:
    database = database_at(database_url)
    await database.open()
    store = Store(database_url, database, Settings(retention_ms=60_000))
    try:
        await store.admin.migrate()
        parked = await store.task_that_is("paused")
        working = await store.task_that_is("leased")
        for n in range(120):
            await (await store.claimed(f"w{n}", workflow=f"f{n}")).finish()
        await store.later(61_000)
        other = await store.another()
        duties = [
            Retention(each.sweeping, tombstone_ms=HOUR, window_ms=60_000) for each in (store, other)
        ]
        deleted = await asyncio.gather(*(duty.sweep() for duty in duties))
        assert sum(deleted) == 120
        left = await store.everything()
        assert {row["task_id"] for row in left["tasks"]} == {parked, working}
        assert {row["task_id"] for row in left["task_events"]} == {parked, working}
        assert len(left["tombstones"]) == 120
        await store.later(HOUR + 1)
        assert await duties[0].sweep() == 0
        left = await store.everything()
        assert left["tombstones"] == []
        assert {row["task_id"] for row in left["send_keys"]} == {parked, working}
        assert await store.inspect.broken_laws() == {}
    finally:
        await store.close()


async def test_keys_outlast_the_window_whatever_the_tombstones_do(database_url: str) -> None:
    database = database_at(database_url)
    await database.open()
    store = Store(database_url, database, Settings(retention_ms=1_000))
    try:
        await store.admin.migrate()
        await (await store.claimed()).finish()
        await store.later(2_000)
        duty = Retention(store.sweeping, tombstone_ms=1_000, window_ms=DAY)
        assert await duty.sweep() == 1
        await store.later(HOUR)
        await duty.sweep()
        assert len((await store.everything())["send_keys"]) == 1
        await store.later(DAY)
        await duty.sweep()
        assert (await store.everything())["send_keys"] == []
    finally:
        await store.close()
