"""Folds on a real store: written by the sweep, and a cache that changes no read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from a2a.types import a2a_pb2 as pb

from outlast.gateway.config import GatewayConfig
from outlast.gateway.listing import Listing
from outlast.gateway.reading import Readings, Seen
from outlast.model.ids import Seq, TaskId
from outlast.model.task import State
from outlast.store.protocols import Settings
from outlast.sweeps.folds import Folds
from outlast.wire.extension import View
from outlast.wire.folds import make_fold
from tests.contract.stores import (
    SCOPE,
    Paused,
    Run,
    Store,
    answer_to,
    chunk,
    database_at,
    said,
    statements,
)

VIEWS = (View(epoch="e1"), View(extended=True, epoch="e1"))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    database = database_at(url)
    await database.open()
    store = Store(url, database, Settings())
    try:
        await store.admin.migrate()
        yield store
        assert await store.inspect.broken_laws() == {}
    finally:
        await store.close()


async def fold_now(store: Store, task_id: TaskId) -> None:
    """A fold of the log as it is, whether one is due or not."""
    snapshot = await store.sweeping.to_fold(task_id)
    assert snapshot is not None
    fold = make_fold(snapshot.task, snapshot.events, fold=snapshot.fold)
    assert await store.keep_fold(task_id, fold, next_at=1_000)


async def reads(store: Store, task_id: TaskId, end: int) -> list[Any]:
    """Everything that a gateway can read of the task."""
    readings = Readings(store.tasks, store.log, GatewayConfig())
    listing = Listing(store.tasks, GatewayConfig())
    found: list[Any] = []
    for view in VIEWS:
        for artifacts in (True, False):
            request = pb.ListTasksRequest(include_artifacts=artifacts)
            found.append(await listing.page(request, SCOPE, view))
        for length in (None, 0, 2):
            found.append(await readings.now(SCOPE, task_id, view, history_length=length))
        for seq in (None, *range(end + 2)):
            seen = Seen(seq=None if seq is None else Seq(seq))
            found.append(await readings.as_of(SCOPE, task_id, seen, view))
    return found


async def test_with_and_without_folds_every_read_is_the_same(database_url: str) -> None:
    async with opened(database_url) as store:
        run = await store.claimed()
        task_id, acts = run.task_id, 0

        async def fold() -> None:
            nonlocal acts
            acts += 1
            await fold_now(store, task_id)
            if acts == 3:
                await store.sql("delete from task_folds")  # the next begins anew

        await run.commit(said(), chunk(append=False), chunk("other", append=False))
        await fold()
        for text in ("yes", "no"):
            pause_id = await run.pause(remind=1_000)
            await fold()
            await store.later(1_001)
            assert await store.sweeping.remind_of_pauses() == [task_id]
            await fold()
            paused = Paused(task_id, run.ledger_id, pause_id, "1:ask")
            await store.tasks.answer(answer_to(paused, text))
            run = await store.claim_again(task_id)
            await run.commit(chunk(), chunk("other", append=False), said(text))
            await fold()
        end = (await run.finish()).last_seq
        await fold()
        rows = await store.sql("select seq from task_folds")
        assert len(rows) == 3

        with_folds = await reads(store, task_id, end)
        await store.sql("delete from task_folds")

        assert with_folds == await reads(store, task_id, end)
        assert (with_folds[-1].state, with_folds[-1].seq) == (State.COMPLETED, end)


async def grown(store: Store, run: Run, events: int) -> None:
    for _ in range(events // 100):
        await run.commit(*[chunk(text=str(n)) for n in range(100)])


async def test_the_sweep_folds_what_has_grown_and_what_has_ended(database_url: str) -> None:
    async with opened(database_url) as store:
        run = await store.claimed()
        await grown(store, run, 200)
        sweep = Folds(store.sweeping).sweep
        assert await sweep() == 0
        await grown(store, run, 100)
        assert (await sweep(), await sweep()) == (1, 0)
        await run.finish()
        assert (await sweep(), await sweep()) == (1, 0)
        folds = await store.sql("select seq from task_folds order by seq")
        assert [row["seq"] for row in folds] == [301, 302]
        with statements() as sent:
            snapshot = await store.tasks.snapshot(SCOPE, run.task_id)
        assert (snapshot.events, snapshot.seq) == ([], 302)
        assert "task_events_since" not in sent


async def test_a_long_log_without_folds_is_folded_in_pieces(sqlite_url: str) -> None:
    async with opened(sqlite_url) as store:
        run = await store.claimed()
        await grown(store, run, 700)
        assert await Folds(store.sweeping, piece=200).sweep() == 3
        folds = await store.sql("select seq from task_folds order by seq")
        assert [row["seq"] for row in folds] == [200, 400, 600]


async def test_a_task_that_cannot_be_folded_stops_no_other(sqlite_url: str) -> None:
    async with opened(sqlite_url) as store:
        bad = await store.claimed()
        await grown(store, bad, 300)
        good = await store.claimed("w2", workflow="good")
        await grown(store, good, 300)
        await store.sql(
            "insert into task_folds (task_id, seq, task) values (:task_id, 200, :task)",
            task_id=bad.task_id,
            task=b"no protobuf",
        )
        sweep = Folds(store.sweeping).sweep
        assert (await sweep(), await sweep()) == (1, 0)
        folds = await store.sql("select task_id from task_folds where seq > 200")
        assert [row["task_id"] for row in folds] == [good.task_id]
