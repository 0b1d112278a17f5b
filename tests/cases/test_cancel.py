"""Cancel: the run stops, the end is told once, and nothing comes after it."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import pytest

from outlast.model.ids import Millis, TaskId
from outlast.testing.fleet import Fleet, until
from tests.cases.conftest import Town
from tests.chaos.caller import Caller, Refusal, state_of
from tests.chaos.fleets import NEVER, ONCE, CounterSink

AT_ONCE = 8
SHORT = "wait 0.05"
BEAT_S = 0.1
FIVE_MINUTES = Millis(300_000)


async def test_case_046_cancel_stops_the_run(fleet: Fleet, sink: CounterSink) -> None:
    before, after = sink.key("before"), sink.key("after")
    gateway, worker = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with Caller(gateway.url) as caller:
        task = await caller.send(f"effect {before}; wait 2; effect {after}", wait=False)
        async with caller.subscribe(task) as events:
            await until(lambda: sink.is_called(before))
            assert state_of(await caller.cancel(task)) == "CANCELED"
            assert state_of([event async for event in events][-1]) == "CANCELED"

        await worker.logged("run.lease_lost", task_id=task["id"])
        async with fleet.stores() as stores:
            await stores.admin.move_clock(FIVE_MINUTES)
        # A task that comes after it is done: had the canceled one gone on, it would have by now.
        assert state_of(await caller.send("wait 0.2")) == "COMPLETED"
        assert state_of(await caller.get(task)) == "CANCELED"
        assert await sink.counts(before) == ONCE
        assert await sink.counts(after) == NEVER


@pytest.mark.parametrize("rounds", [40, pytest.param(2000, marks=pytest.mark.soak)])
async def test_case_047_cancel_racing_completion(
    town: Town, one: Caller, other: Caller, rounds: int
) -> None:
    """Cancels of tasks that end by themselves at about that moment, through two gateways."""
    dice = random.Random(47)
    longest = max(await asyncio.gather(*(lasts(one if n % 2 else other) for n in range(AT_ONCE))))

    async def race(number: int) -> str | None:
        caller, canceler = (one, other) if number % 2 else (other, one)
        async with caller.stream(SHORT) as events:
            task = (await anext(events))["task"]
            await asyncio.sleep(dice.uniform(0.0, 1.5 * longest))
            reply = await canceled(canceler, task["id"])
            end = state_of([event async for event in events][-1])
        assert end == state_of(await caller.get(task)) == state_of(await canceler.get(task))
        assert reply == ("CANCELED" if end == "CANCELED" else "TASK_NOT_CANCELABLE")
        return end

    ends: Counter[str | None] = Counter()
    for first in range(0, rounds, AT_ONCE):
        ends.update(await asyncio.gather(*map(race, range(first, first + AT_ONCE))))
    assert set(ends) == {"CANCELED", "COMPLETED"}, "each side wins; the laws count the ends"


async def lasts(caller: Caller) -> float:
    """Seconds that such a task takes here and now, among others."""
    began = time.monotonic()
    async with caller.stream(SHORT) as events:
        async for _ in events:
            pass
    return time.monotonic() - began


async def canceled(caller: Caller, task_id: str) -> str | None:
    """The state that CancelTask answers with, or its reason not to."""
    try:
        return state_of(await caller.cancel(task_id))
    except Refusal as refusal:
        return refusal.reason


async def test_case_048_cancel_through_another_gateway(fleet: Fleet, sink: CounterSink) -> None:
    key = sink.key()
    ours, theirs, worker = await asyncio.gather(fleet.gateway(), fleet.gateway(), fleet.worker())
    async with Caller(ours.url) as caller, Caller(theirs.url) as other:
        task = await caller.send(f"wait 1.5; effect {key}", wait=False)
        await worker.logged("run.began", task_id=task["id"])
        await fleet.worker()

        assert state_of(await other.cancel(task)) == "CANCELED"
        await worker.logged("run.lease_lost", task_id=task["id"], within=BEAT_S * 10)
        assert await runs_of(fleet, task["id"]) == 1, "nobody begins it anew"

        assert state_of(await caller.send("wait 1.5")) == "COMPLETED"
        assert await sink.counts(key) == NEVER


async def test_case_048_cancel_after_gateway_and_worker_were_killed(
    fleet: Fleet, sink: CounterSink
) -> None:
    key = sink.key()
    ours, theirs, worker = await asyncio.gather(fleet.gateway(), fleet.gateway(), fleet.worker())
    async with Caller(ours.url) as caller:
        task = await caller.send(f"wait 0.5; effect {key}", wait=False)
        await worker.logged("run.began", task_id=task["id"])
    ours.kill()
    worker.kill()

    async with Caller(theirs.url) as other:
        assert state_of(await other.cancel(task)) == "CANCELED"
        successor = await fleet.worker()
        await successor.logged("worker.dead")
        assert state_of(await other.send("wait 0.5")) == "COMPLETED"
        assert state_of(await other.get(task)) == "CANCELED"
    assert await runs_of(fleet, task["id"]) == 1
    assert await sink.counts(key) == NEVER


async def test_case_050_cancel_while_paused(fleet: Fleet) -> None:
    server = await fleet.serve()
    async with Caller(server.url) as caller:
        task = await caller.send("ask Go on? within 1h")
        assert state_of(task) == "INPUT_REQUIRED"
    server.kill()

    server = await fleet.serve()
    async with Caller(server.url) as caller:
        async with caller.subscribe(task) as events:
            assert state_of(await anext(events)) == "INPUT_REQUIRED"
            assert state_of(await caller.cancel(task)) == "CANCELED"
            assert state_of([event async for event in events][-1]) == "CANCELED"
        with pytest.raises(Refusal, match="UNSUPPORTED_OPERATION"):
            await caller.send("yes", task=task)
    async with fleet.stores() as stores:
        row = await stores.inspect.find(TaskId(task["id"]))
        assert row is not None
        assert (row.pause_id, row.pause_deadline_at, row.ready_at) == (None, None, None)


async def runs_of(fleet: Fleet, task_id: str) -> int:
    async with fleet.stores() as stores:
        return len(await stores.inspect.runs(TaskId(task_id)))
