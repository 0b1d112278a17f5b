"""Claim latency: an empty table beside one with 10,000 leased, 100,000 paused and 100,000
finished tasks. A claim must not look at any of those.
"""

from __future__ import annotations

import asyncio
import statistics
import time

from bench.commits import SCOPE, count, create
from bench.places import DATABASES, place, stores_at
from outlast.compose import Stores
from outlast.model.ids import WorkerId
from outlast.store.database import Query, Rows, Script, Statement
from outlast.store.protocols import NewWorker

ROUNDS = 300
WORKER = WorkerId("bench")

_FILL = """
with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < {n})
insert into tasks (task_id, agent, tenant, owner, context_id, workflow, version, state, status,
    status_at, step, visit, checkpoint, lease_owner, fence, next_seq, pause_id, pause_deadline_at,
    give_up_at, ledger_id, metadata, created_at, updated_at)
select '{name}-' || n, 'bench', '', '', 'c', 'count', 1, '{state}', '{{}}', 0, 'commit', 1, '{{}}',
    {owner}, 1, 2, {pause}, {deadline}, 9000000000000, '{name}-' || n, '{{}}', 0, 0
from numbers
"""


async def fill(stores: Stores) -> None:
    kinds = [
        ("leased", 10_000, "working", "'other'", "null", "null"),
        ("paused", 100_000, "input-required", "null", "1", "9000000000000"),
        ("finished", 100_000, "completed", "null", "null", "null"),
    ]
    for name, n, state, owner, pause, deadline in kinds:
        text = _FILL.format(
            name=name, n=n, state=state, owner=owner, pause=pause, deadline=deadline
        )

        def script(text: str = text) -> Script[Rows]:
            return (yield Statement(Query("bench_fill", "", text), {}))

        await stores.database.transact(script, timeout=300)
    if stores.database.dialect == "postgres":
        await stores.database.run_ddl("analyze")


async def claim_ms(stores: Stores) -> list[float]:
    """One task becomes ready, one claim takes it; only the claim is timed."""
    took = []
    for _ in range(ROUNDS):
        await create(stores, "1")
        began = time.perf_counter()
        leases = await stores.work.claim(WORKER, SCOPE.agent, count.name, 1, limit=100)
        took.append((time.perf_counter() - began) * 1000)
        assert len(leases) == 1
    return took


async def measure(kind: str, *, filled: bool) -> list[float]:
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
            if filled:
                await fill(stores)
            return await claim_ms(stores)


def main() -> None:
    print("claim latency, milliseconds (median, 95th percentile)")
    for kind in DATABASES:
        medians = {}
        for name, filled in (("empty", False), ("210,000 tasks", True)):
            took = asyncio.run(measure(kind, filled=filled))
            medians[name] = statistics.median(took)
            p95 = statistics.quantiles(took, n=20)[-1]
            print(f"{kind:9} {name:14} {medians[name]:7.2f} {p95:7.2f}", flush=True)
        print(f"{kind:9} ratio          {medians['210,000 tasks'] / medians['empty']:7.2f}")
