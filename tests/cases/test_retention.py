"""Time passes: what is over goes, in bounded pieces, and what is not stays."""

from __future__ import annotations

import pytest

from outlast import compose
from outlast.model.ids import Millis
from outlast.store.database import Query, Rows, Script, Statement
from outlast.testing.fleet import Fleet, until
from tests.chaos.caller import Caller, Refusal, state_of

FINISHED = 300

# Events and runs as those that a task of a few steps leaves; expired a minute after they ended.
_FILL = f"""
with numbers as (select n, 'filled-' || n as task_id from generate_series(1, {FINISHED}) as n),
tasks as (
    insert into tasks (task_id, agent, tenant, owner, context_id, workflow, version, state, status,
        status_at, step, visit, fence, next_seq, give_up_at, expires_at, ledger_id, metadata,
        created_at, updated_at)
    select task_id, 'cases', '', '', 'c', 'probe', 1, 'completed', '{{"state":"completed"}}', now,
        's', 1, 2, 21, now + 900000, now + 60000, task_id, '{{}}', now, now
      from numbers, clock)
insert into task_events (task_id, seq, fence, write_no, n, kind, body, created_at)
select task_id, seq, 1, 1, seq, 'status',
       case when seq < 20 then '{{"state":"working"}}' else '{{"state":"completed"}}' end, now
  from numbers, clock, generate_series(1, 20) as seq;
"""


async def sql(stores: compose.Stores, text: str) -> Rows:
    def script() -> Script[Rows]:
        return (yield Statement(Query("test_own", "", text), {}))

    return await stores.database.transact(script)


async def size_of(stores: compose.Stores) -> int:
    await stores.database.run_ddl("vacuum (full) task_events")
    rows = await sql(stores, "select pg_total_relation_size('task_events') as size")
    return int(rows[0]["size"])


async def test_case_117_what_has_finished_goes_and_nothing_else(postgres_fleet: Fleet) -> None:
    postgres_fleet.settings |= {"retention": 60, "resume_window": 30}
    async with postgres_fleet.stores() as stores:
        name = str(postgres_fleet.settings["database"]).rpartition("/")[2]
        # Whoever sends a statement that takes longer is refused it, and what is over would stay.
        await stores.database.run_ddl(f"alter database {name} set statement_timeout = '1s'")
        gateways = [await postgres_fleet.gateway() for _ in range(2)]
        for _ in range(2):
            await postgres_fleet.worker(patch="tests.cases.patches:sweep_often")
        async with Caller(gateways[0].url) as one, Caller(gateways[1].url) as other:
            long = await one.send("; ".join(["say more"] * 70))
            parked = await one.send("ask Well?; say thanks")
            working = await one.send("sleep 1h", wait=False)
            assert [state_of(long), state_of(parked)] == ["COMPLETED", "INPUT_REQUIRED"]
            shown = await other.get(long)
            await sql(stores, _FILL)
            filled = await size_of(stores)

            await stores.admin.move_clock(Millis(31_000))

            async def is_trimmed() -> bool:
                rows = await sql(
                    stores, f"select 1 as one from task_events where task_id = '{long['id']}'"
                )
                return len(rows) == 1

            await until(is_trimmed, what="the log is trimmed to its last event")
            assert [await caller.get(long) for caller in (one, other)] == [shown, shown]

            await stores.admin.move_clock(Millis(60_000))

            async def is_gone() -> bool:
                return len(await sql(stores, "select 1 as one from tasks")) == 2

            await until(is_gone, what="all that has finished is gone")
            for caller in (one, other):
                for task_id in (long["id"], "filled-7"):
                    with pytest.raises(Refusal, match="expired") as refused:
                        await caller.get(task_id)
                    assert refused.value.reason == "TASK_NOT_FOUND"
            assert await size_of(stores) < filled / 20
            assert state_of(await other.get(working)) == "WORKING"
            answered = await other.send("yes", task=parked)
            assert state_of(answered) == "COMPLETED"
            await one.cancel(working)
