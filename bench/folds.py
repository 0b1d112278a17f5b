"""GetTask on a task with 50,000 events, from its log alone and from its folds, as its log was when
the next fold was nearly due; and what the folds cost.

Two tasks: one that reports, so that its Task stays small, and one that writes an artifact in
chunks, so that its Task is as large as its log. The time is that of the gateway's handler, without
the binding's rendering, which is the same either way.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence

from bench.commits import SCOPE, count, create
from bench.places import DATABASES, place, stores_at
from outlast.compose import Stores
from outlast.gateway.config import GatewayConfig
from outlast.gateway.reading import Readings
from outlast.model.artifacts import artifact_event
from outlast.model.commit import Committed, Event, Write, status_event
from outlast.model.content import Message
from outlast.model.ids import TaskId, WorkerId, WriteNo
from outlast.model.lease import Lease
from outlast.model.task import State
from outlast.store.database import Query, Rows, Script, Statement
from outlast.store.protocols import NewWorker
from outlast.sweeps.folds import Folds
from outlast.wire.extension import PLAIN

EVENTS = 50_000
ROUNDS = 9
WORKER = WorkerId("bench")


def reports(n: int) -> list[Event]:
    return [status_event(State.WORKING, Message.agent("half way").to_json()) for _ in range(n)]


def chunks(n: int) -> list[Event]:
    body = {"artifactId": "report", "parts": [{"text": "a few words at a time"}]}
    return [artifact_event(body, append=True, last_chunk=False)] * n


async def write(stores: Stores, lease: Lease, write_no: int, events: Sequence[Event]) -> None:
    (verdict,) = await stores.work.commit(
        [
            Write(
                task_id=lease.task_id,
                ledger_id=lease.ledger_id,
                fence=lease.fence,
                write_no=WriteNo(write_no),
                events=tuple(events),
            )
        ],
        patient=True,
    )
    assert isinstance(verdict, Committed), verdict


async def get_task_ms(stores: Stores, task_id: TaskId) -> float:
    readings = Readings(stores.tasks, stores.log, GatewayConfig())
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await readings.now(SCOPE, task_id, PLAIN)
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


async def sql(stores: Stores, text: str) -> Rows:
    def script() -> Script[Rows]:
        return (yield Statement(Query("bench_own", "", text), {}))

    return await stores.database.transact(script)


async def measure(stores: Stores, name: str, kind: str) -> None:
    make = {"reports": reports, "chunks": chunks}[name]
    task_id = await create(stores, "1")
    (lease,) = await stores.work.claim(WORKER, SCOPE.agent, count.name, 1, limit=1)
    folding, written, folds, after = 0.0, 0, 0, 0
    sweep = Folds(stores.sweeping).sweep
    for n in range(EVENTS // 250):
        await write(stores, lease, n, make(250))
        began = time.perf_counter()
        if n < EVENTS // 250 - 1 and await sweep():
            rows = await sql(
                stores,
                "select seq, length(task) as size from task_folds order by seq desc limit 1",
            )
            folds, written, after = folds + 1, written + rows[0]["size"], rows[0]["seq"]
        folding += time.perf_counter() - began
    with_folds = await get_task_ms(stores, task_id)
    await sql(stores, "delete from task_folds")
    without = await get_task_ms(stores, task_id)
    await sql(stores, "delete from tasks")
    print(
        f"{kind:9} {name:8} {without:8.1f} {with_folds:8.1f} {EVENTS + 1 - after:6}"
        f" {folds:6} {written / 2**20:9.1f} {folding:7.1f}",
        flush=True,
    )


async def run(kind: str) -> None:
    with place(kind) as (settings, _):
        async with stores_at(settings) as stores:
            await stores.work.register(
                NewWorker(
                    worker_id=WORKER,
                    agent=SCOPE.agent,
                    host="bench",
                    beat_ms=1000,
                    lease_ms=15_000,
                    versions=[],
                    presence=None,
                )
            )
            for name in ("reports", "chunks"):
                await measure(stores, name, kind)


def main() -> None:
    print(f"GetTask, milliseconds (median of {ROUNDS}), on a task with {EVENTS:,} events")
    print("                        log    folds  after  folds  MiB written  s")
    for kind in DATABASES:
        asyncio.run(run(kind))
