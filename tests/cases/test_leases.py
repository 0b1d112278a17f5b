"""Leases: live work is never taken, dead work always, and by nobody's wall clock."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outlast.model.ids import LedgerId, TaskId
from outlast.testing.fleet import Child, Fleet, until
from tests.cases.patches import CLOCK
from tests.chaos.caller import Caller, Json, state_of
from tests.chaos.fleets import NEVER, ONCE, CounterSink, cut_off, freeze, have_beaten

LEASE_S, BEAT_S = 1.5, 0.1


@pytest.fixture(autouse=True)
def _short_leases(request: pytest.FixtureRequest) -> None:
    for name in {"fleet", "sqlite_fleet", "postgres_fleet"} & set(request.fixturenames):
        request.getfixturevalue(name).settings |= {"lease": LEASE_S, "beat": BEAT_S}


async def test_case_045_slow_task_is_not_failed(fleet: Fleet) -> None:
    gateway, _ = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with (
        Caller(gateway.url) as caller,
        caller.stream(f"wait {3 * LEASE_S}") as events,
    ):
        streamed = [event async for event in events]
    states = [state_of(event) for event in streamed]
    assert "FAILED" not in states
    assert states[-1] == "COMPLETED"
    assert await runs_of(fleet, streamed[0]["task"]["id"]) == 1


async def test_case_067_step_longer_than_the_lease_runs_once(
    fleet: Fleet, sink: CounterSink
) -> None:
    first, last = sink.key("K"), sink.key("L")
    gateway, *_ = await asyncio.gather(fleet.gateway(), fleet.worker(), fleet.worker())
    async with Caller(gateway.url) as caller:
        task = await caller.send(f"effect {first}; wait {3 * LEASE_S}; effect {last}")
    assert state_of(task) == "COMPLETED"
    assert await sink.counts(first) == await sink.counts(last) == ONCE
    assert await runs_of(fleet, task["id"]) == 1


async def test_case_068_blocking_code_does_not_starve_the_beat(fleet: Fleet) -> None:
    """The loop, the default executor and the interpreter's lock, each blocked for three leases in
    a process of its own. Half a lease at a time is what the lock may be held in one go."""
    gateway, *_ = await asyncio.gather(
        fleet.gateway(), *(fleet.worker(concurrency=1) for _ in range(4))
    )
    async with Caller(gateway.url) as caller:
        ways = [f"block {how}" for how in ("loop 4.5", "executor 4.5", "gil 3")]
        sends = [asyncio.create_task(caller.send(way, workflow="scenes")) for way in ways]
        # The fourth worker is free: a task that nobody blocks is served meanwhile.
        assert state_of(await caller.send("say I am served")) == "COMPLETED"
        assert await caller.healthz() == 200
        assert not any(send.done() for send in sends)
        for task in await asyncio.gather(*sends):
            assert state_of(task) == "COMPLETED"
            assert await runs_of(fleet, task["id"]) == 1


@pytest.mark.parametrize("moment", ["after the end", "half-way"])
async def test_case_069_worker_that_wakes_after_its_lease(
    fleet: Fleet, sink: CounterSink, moment: str
) -> None:
    before, after = sink.key("before"), sink.key("after")
    gateway, sleeper = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with Caller(gateway.url) as caller:
        task = await caller.send(f"effect {before}; wait 1; emit 3; effect {after}", wait=False)
        # Frozen between the call and its record, it would leave the call to be repeated.
        await until(lambda: is_recorded(fleet, task, before))
        await freeze(fleet, sleeper)
        successor = await fleet.worker()
        await successor.logged("run.began", task_id=task["id"])
        if moment == "half-way":
            sleeper.thaw()
        await until(lambda: has_state(caller, task, "COMPLETED"))
        ended = await caller.get(task)

        sleeper.thaw()
        await sleeper.logged("worker.declared_dead")
        await sleeper.logged("run.lease_lost", task_id=task["id"])
        await sleeper.logged("worker.registered", times=2)
        assert await caller.get(task) == ended
    assert await sink.counts(before) == await sink.counts(after) == ONCE
    async with fleet.stores() as stores:
        runs = await stores.inspect.runs(TaskId(task["id"]))
    assert [run["outcome"] for run in runs] == ["lost", "completed"]


async def is_recorded(fleet: Fleet, task: Json, key: str) -> bool:
    async with fleet.stores() as stores:
        entry = await stores.work.entry(LedgerId(task["id"]), f"effect:effect:{key}")
    return entry is not None and entry.done_at is not None


@pytest.mark.parametrize("offset", ["300", "-300"])
async def test_case_071_wrong_clock_steals_nothing(
    postgres_fleet: Fleet, tmp_path: Path, offset: str
) -> None:
    """One worker's wall clock is five minutes ahead, or behind."""
    clock = tmp_path / "clock"
    clock.write_text(offset)
    gateway, right = await asyncio.gather(postgres_fleet.gateway(), postgres_fleet.worker())
    async with Caller(gateway.url) as caller:
        asleep = await caller.send("sleep 4m", wait=False)
        await right.logged("run.ended", task_id=asleep["id"])
        tasks = await begun(caller, right)
        wrong = await with_clock(postgres_fleet, clock)

        await is_not_stolen(postgres_fleet, caller, tasks[0], watcher=wrong)
        await is_taken_over(caller, tasks[1], right, watcher=wrong)
        assert await runs_of(postgres_fleet, asleep["id"]) == 1, "its timer goes by the database"


async def test_case_071_jump_of_the_hosts_clock_steals_nothing(
    sqlite_fleet: Fleet, tmp_path: Path
) -> None:
    """Processes on one SQLite file share a host: its clock jumps for all of them, in the middle
    of a step. Timers go by that clock, as they must; leases do not."""
    clock = tmp_path / "clock"
    clock.write_text("0")
    gateway = await sqlite_fleet.gateway()
    worker = await with_clock(sqlite_fleet, clock)
    async with Caller(gateway.url) as caller:
        tasks = await begun(caller, worker)
        watcher = await with_clock(sqlite_fleet, clock)
        clock.write_text("300")
        await have_beaten(sqlite_fleet, int(LEASE_S / BEAT_S))
        clock.write_text("-300")

        await is_not_stolen(sqlite_fleet, caller, tasks[0], watcher=watcher)
        await is_taken_over(caller, tasks[1], worker, watcher=watcher)


async def begun(caller: Caller, worker: Child) -> list[Json]:
    """Two tasks that run: one for three leases, one until it is canceled."""
    tasks = [await caller.send(f"wait {time}", wait=False) for time in (3 * LEASE_S, 60)]
    for task in tasks:
        await worker.logged("run.began", task_id=task["id"])
    return tasks


async def with_clock(fleet: Fleet, clock: Path) -> Child:
    return await fleet.worker(
        patch="tests.cases.patches:other_clock", environment={CLOCK: str(clock)}
    )


async def is_not_stolen(fleet: Fleet, caller: Caller, task: Json, *, watcher: Child) -> None:
    await until(lambda: has_state(caller, task, "COMPLETED"))
    assert await runs_of(fleet, task["id"]) == 1
    assert not watcher.entries("worker.dead")


async def is_taken_over(caller: Caller, task: Json, worker: Child, *, watcher: Child) -> None:
    worker.kill()
    await watcher.logged("run.began", task_id=task["id"], within=LEASE_S + 2)
    await caller.cancel(task)


async def test_case_072_worker_that_cannot_renew_stops_first(
    postgres_fleet: Fleet, sink: CounterSink
) -> None:
    key = sink.key()
    gateway = await postgres_fleet.gateway()
    async with cut_off(postgres_fleet) as (proxy, url), Caller(gateway.url) as caller:
        lonely = await postgres_fleet.worker(database=url)
        task = await caller.send(f"act {3 * LEASE_S} {key}", workflow="scenes", wait=False)
        await lonely.logged("run.began", task_id=task["id"])
        successor = await postgres_fleet.worker()

        proxy.blackhole()
        lost = await lonely.logged("run.lease_lost", task_id=task["id"])
        began = await successor.logged("run.began", task_id=task["id"])
        assert lost["timestamp"] < began["timestamp"], "the holder stops first"
        assert await sink.counts(key) == NEVER
        await until(lambda: has_state(caller, task, "COMPLETED"))

        proxy.heal()
        await lonely.logged("worker.registered", times=2)
        assert await sink.counts(key) == ONCE


async def has_state(caller: Caller, task: Json, state: str) -> bool:
    return state_of(await caller.get(task)) == state


async def runs_of(fleet: Fleet, task_id: str) -> int:
    async with fleet.stores() as stores:
        return len(await stores.inspect.runs(TaskId(task_id)))
