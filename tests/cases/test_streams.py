"""Streams through two gateways behind a balancer, with gateways and workers that die in mid-run."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest

from outlast.model.ids import Seq, TaskId
from outlast.testing.fleet import Child, Fleet, until
from tests.cases.followers import ENDS, Follower, Pair, by_generation, running
from tests.chaos.caller import Caller, Events, Json, Refusal, generation_of, state_of, texts_of
from tests.chaos.fleets import all_ended, claims_after_draining

POOL = 5
STREAMS_CLOSED_S = 3.0
"""A second, and what a machine under load adds. A server that waited for them would take five."""

CHUNKS = "".join(f"{number}\n" for number in range(1, 41))


async def test_case_012_an_id_means_the_same_on_every_gateway_and_after_a_restart(
    pair: Pair,
) -> None:
    async with pair.caller() as caller:
        task = await caller.send("; ".join(f"say {number}" for number in range(8)), wait=False)
        first = Follower(caller, task)
        await first.run()
        async with caller.subscribe(task, after=first.last_id) as events:
            (last,) = [item async for item in events]
            assert state_of(last) == "COMPLETED", "nothing comes after the end"
        epoch = first.last_id.rpartition("-")[0]
        middle = generation_of(last) - 5

        for gateways_live_on in (True, False):
            if not gateways_live_on:
                pair.kill()
                await pair.start()
            for number in (0, 1):
                async with pair.caller_of(number) as direct:
                    again = Follower(direct, task)
                    await again.run(after=f"{epoch}-{middle}")
                    assert generation_of(again.items[0]) == middle
                    await again.missed_nothing(direct)


async def test_case_014_subscribing_at_once_after_everything_was_killed(pair: Pair) -> None:
    async with pair.caller() as caller:
        task = await caller.send("say began; emit 40 every 30ms", wait=False)
        with_cursor, without = Follower(caller, task), Follower(caller, task)
        async with running(with_cursor):
            await until(lambda: with_cursor.has_seen(6))
            pair.kill()
            await pair.start_gateways()
            async with caller.subscribe(task) as events:
                snapshot = (await anext(events))["task"]
                assert state_of(snapshot) == "WORKING", "stored, though no worker lives"
                assert texts_of(snapshot)["chunks"].startswith("1\n2\n")
            async with running(without):
                await asyncio.gather(pair.fleet.worker(), pair.fleet.worker())
        for follower in (with_cursor, without):
            assert state_of(follower.items[-1]) == "COMPLETED"
            await follower.missed_nothing(caller)
        assert texts_of(await caller.get(task)) == {"chunks": CHUNKS}
        assert len(with_cursor.streams) > 1, "its connection was cut"


async def test_case_016_subscribing_in_the_moment_of_the_end(pair: Pair) -> None:
    """The subscription brings the end, or is refused because the task has ended: it never hangs."""
    async with pair.caller() as caller:

        async def one(number: int) -> None:
            task = await caller.send(f"wait {number % 50}ms", wait=False)
            async with asyncio.timeout(20):
                states = await states_or_refusal(caller, task)
            assert not states or states[-1] == "COMPLETED"
            assert state_of(await caller.get(task)) == "COMPLETED"

        await asyncio.gather(*map(one, range(60)))


async def test_case_018_the_same_events_in_the_same_order_through_each_gateway(pair: Pair) -> None:
    async with pair.caller() as caller, pair.caller_of(0) as one, pair.caller_of(1) as other:
        task = await caller.send("wait 0.5; emit 40 every 20ms; say over", wait=False)
        followers = [Follower(each, task) for each in (one, other, caller, caller)]
        async with running(*followers):
            pass
        first = by_generation(followers[0])
        for follower in followers:
            await follower.missed_nothing(caller)
            assert all(first[number] == item for number, item in by_generation(follower).items())
            assert await median_lag(pair.fleet, task, follower) < 1


async def test_case_018_and_026_a_gateway_killed_in_mid_run_takes_nothing_with_it(
    pair: Pair,
) -> None:
    """Followers come back to the other gateway, and the runs know nothing of it: neither of the
    death, nor of the callers that left for good."""
    async with pair.caller() as caller:
        abandoned: list[Json] = []
        for _ in range(2):
            async with caller.stream("emit 40 every 30ms") as events:
                abandoned.append((await anext(events))["task"])
        tasks = [await caller.send("emit 40 every 30ms", wait=False) for _ in range(4)]
        followers = [Follower(caller, task) for task in tasks for _ in range(4)]
        async with running(*followers):
            for follower in followers:
                await until(lambda: follower.has_seen(4))  # noqa: B023
            pair.gateways[0].kill()
        for follower in followers:
            await follower.missed_nothing(caller)
        assert any(len(follower.streams) > 1 for follower in followers)
        await all_ended(pair.fleet)
        for task in (*tasks, *abandoned):
            ended = await caller.get(task)
            assert (state_of(ended), texts_of(ended)) == ("COMPLETED", {"chunks": CHUNKS})
        assert await outcomes_of(pair.fleet, [*tasks, *abandoned]) == ["completed"] * 6


@pytest.mark.parametrize("killed", [False, True], ids=["alive", "a gateway killed"])
async def test_case_019_every_stream_gets_the_end_whoever_brings_it(
    pair: Pair, killed: bool
) -> None:
    """A cancel through the other gateway, and an agent that fails."""
    async with pair.caller() as caller, pair.caller_of(0) as one, pair.caller_of(1) as other:
        canceled = await caller.send("say began; wait 60", wait=False)
        failing = await caller.send("say began; ask Go on?; raise")
        here = [Follower(caller if killed else one, task) for task in (canceled, failing)]
        there = [Follower(other, task) for task in (canceled, failing)]
        async with running(*here, *there):
            for follower in (*here, *there):
                await until(lambda: follower.has_seen(1))  # noqa: B023
            if killed:
                pair.gateways[0].kill()
            assert state_of(await other.cancel(canceled)) == "CANCELED"
            await other.send("yes", task=failing)
        for followers in (here, there):
            ends = [state_of(follower.items[-1]) for follower in followers]
            assert ends == ["CANCELED", "FAILED"]
        for follower in (*here, *there):
            await follower.missed_nothing(caller)


async def test_case_033_two_hundred_streams_and_a_pool_of_five(postgres_fleet: Fleet) -> None:
    gateway = await postgres_fleet.gateway(database_pool=POOL)
    async with Caller(gateway.url) as caller, AsyncExitStack() as stack:
        tasks = [await caller.send("say x", wait=False) for _ in range(10)]
        for task in tasks * 20:
            await anext(await stack.enter_async_context(caller.subscribe(task)))

        async def prompt(call: asyncio.Future[object]) -> None:
            began = time.monotonic()
            await call
            assert time.monotonic() - began < 0.5

        await prompt(asyncio.ensure_future(caller.get(tasks[0])))
        await prompt(asyncio.ensure_future(caller.page()))
        await prompt(asyncio.ensure_future(caller.send("say y", wait=False)))
        assert 0 < await sessions(postgres_fleet) <= POOL + 1, "a pool, and one that listens"


@pytest.mark.parametrize("roles", ["apart", "together"])
async def test_case_127_open_streams_do_not_keep_a_stopping_server(
    pair: Pair, tmp_path: Path, roles: str
) -> None:
    """Fifty streams and five steps; a gateway and a worker that runs some are told to stop."""
    if roles == "together":
        pair.kill()
        await pair.start_whole()
    end = tmp_path / "end"
    async with pair.caller() as caller:
        tasks = [await caller.send(f"march {end}", workflow="scenes", wait=False) for _ in range(5)]
        await until(lambda: have_begun(pair.workers, len(tasks)))
        busy = max(pair.workers, key=runs_begun)
        gateway = busy if roles == "together" else pair.gateways[0]
        followers = [Follower(caller, task) for task in tasks for _ in range(6)]
        async with running(*followers), AsyncExitStack() as stack:
            direct = await stack.enter_async_context(Caller(gateway.url))
            streams = [
                await stack.enter_async_context(direct.subscribe(task)) for task in tasks * 4
            ]
            await asyncio.gather(*map(anext, streams))
            for child in {gateway, busy}:
                child.terminate()
            async with asyncio.timeout(STREAMS_CLOSED_S):
                rests = await asyncio.gather(*map(rest_of, streams))
            assert not any(state_of(item) in ENDS for rest in rests for item in rest)
            for child in {gateway, busy}:
                assert await child.ended() == 0
            end.touch()
        assert claims_after_draining(busy) == []
        for follower in followers:
            assert state_of(follower.items[-1]) == "COMPLETED"
            await follower.missed_nothing(caller)
    outcomes = await outcomes_of(pair.fleet, tasks)
    assert {*outcomes} == {"released", "completed"}, "leases were handed over, and nobody died"


def runs_begun(worker: Child) -> int:
    return len(worker.entries("run.began"))


async def have_begun(workers: Sequence[Child], runs: int) -> bool:
    return sum(map(runs_begun, workers)) >= runs


# --- what came, and what was there ----------------------------------------------------------------


async def states_or_refusal(caller: Caller, task: Json) -> list[str | None]:
    """The states that a subscription brings; none when it is refused because the task has ended."""
    try:
        async with caller.subscribe(task) as events:
            return [state_of(item) async for item in events]
    except Refusal as refusal:
        if refusal.reason != "UNSUPPORTED_OPERATION":
            raise
        return []


async def rest_of(events: Events) -> list[Json]:
    return [event async for event in events]


async def median_lag(fleet: Fleet, task: Json, follower: Follower) -> float:
    """Seconds from an event's commit to its arrival, by this host's clock."""
    async with fleet.stores() as stores:
        log = await stores.log.events_since(TaskId(task["id"]), Seq(0))
    written_at = {event.seq: event.created_at / 1000 for event in log}
    return statistics.median(
        follower.arrived_at[number] - written_at[Seq(number)] for number in by_generation(follower)
    )


async def outcomes_of(fleet: Fleet, tasks: Sequence[Json]) -> list[str]:
    """What became of each run of these tasks."""
    async with fleet.stores() as stores:
        runs = [await stores.inspect.runs(TaskId(task["id"])) for task in tasks]
    return [str(run["outcome"]) for each in runs for run in each]


async def sessions(fleet: Fleet) -> int:
    """How many sessions the fleet's database has, beside the one that asks."""
    async with await psycopg.AsyncConnection.connect(str(fleet.settings["database"])) as connection:
        cursor = await connection.execute(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        (count,) = await cursor.fetchone() or (0,)
    return int(count)
