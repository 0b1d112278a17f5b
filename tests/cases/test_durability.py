"""Durability: what was shown is stored, and what is stored is shown, whoever leaves or dies."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from outlast.model.ids import Seq, TaskId
from outlast.testing.fleet import Fleet, until
from tests.cases.conftest import Town
from tests.chaos.caller import Caller, Json, fold, generation_of, seen, state_of, texts_of
from tests.chaos.fleets import CounterSink

WRITERS = 20
CHUNKS = 50


@pytest.mark.parametrize("rounds", [30, pytest.param(300, marks=pytest.mark.soak)])
async def test_case_027_disconnect_at_the_end(
    town: Town, one: Caller, other: Caller, rounds: int
) -> None:
    """The clients leave at the last artifact frame, while the end is being written."""

    async def leave(caller: Caller) -> str:
        async with caller.stream("emit 3") as events:
            task_id: str = (await anext(events))["task"]["id"]
            async for event in events:
                if "artifactUpdate" in event and event["artifactUpdate"].get("lastChunk"):
                    break
        return task_id

    task_ids = await asyncio.gather(*(leave(caller) for caller in [one, other] * (rounds // 2)))

    async def all_ended() -> bool:
        tasks = await asyncio.gather(*map(one.get, task_ids))
        return {state_of(task) for task in tasks} == {"COMPLETED"}

    await until(all_ended, within=5)


@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=pytest.mark.soak)])
async def test_case_028_event_is_stored_before_it_is_shown(fleet: Fleet, rounds: int) -> None:
    """Every event that a caller gets is in GetTask of the other gateway by then; and after a kill
    of everybody it is in the log, word for word."""
    for _ in range(rounds):
        ours, theirs, worker = await asyncio.gather(
            fleet.gateway(), fleet.gateway(), fleet.worker()
        )
        shown: list[Json] = []
        async with (
            Caller(ours.url, extended=True) as caller,
            Caller(theirs.url, extended=True) as other,
            caller.stream("say a; emit 200 every 20ms") as events,
        ):
            task = (await anext(events))["task"]
            while len(shown) < 6:
                shown.append(await anext(events))
                assert generation_of(await other.get(task)) >= generation_of(shown[-1])
            for child in (worker, ours, theirs):
                child.kill()
        await are_logged(fleet, task["id"], shown)


async def are_logged(fleet: Fleet, task_id: str, shown: list[Json]) -> None:
    async with fleet.stores() as stores:
        log = await stores.log.events_since(TaskId(task_id), Seq(0))
        by_seq = {event.seq: event for event in log}
        for event in shown:
            logged = by_seq[Seq(generation_of(event))]
            if "artifactUpdate" in event:
                assert event["artifactUpdate"]["artifact"]["parts"] == [
                    {"text": part["text"]} for part in logged.body["artifact"]["parts"]
                ]
            else:
                assert state_of(event) == logged.body["state"].upper()


async def test_case_030_no_gap_for_any_subscriber(town: Town, one: Caller, other: Caller) -> None:
    """Many tasks write at once; each is followed from both gateways."""
    urls = [gateway.url for gateway in town.gateways]
    async with Caller(urls[0], extended=True) as here, Caller(urls[1], extended=True) as there:

        async def follow(caller: Caller, task: Json) -> list[Json]:
            async with caller.subscribe(task) as events:
                return [event async for event in events]

        async def one_task() -> None:
            task = await here.send(f"wait 1; emit {CHUNKS} every 5ms", wait=False)
            streams = await asyncio.gather(follow(here, task), follow(there, task))
            for stream in streams:
                generations = list(map(generation_of, stream))
                first = generations[0]
                assert generations == list(range(first, first + len(stream)))
                assert seen(fold(stream)) == seen(await here.get(task))

        await asyncio.gather(*(one_task() for _ in range(WRITERS)))


async def test_case_030_a_writer_that_keeps_its_transaction_open(
    postgres_fleet: Fleet,
) -> None:
    """Somebody holds a task's row for a second: its own events wait, no other task's do, and no
    follower misses any."""
    gateway, _ = await asyncio.gather(postgres_fleet.gateway(), postgres_fleet.worker())
    async with Caller(gateway.url, extended=True) as caller:
        async with (
            caller.stream("emit 40 every 20ms") as slow,
            caller.stream("emit 40 every 20ms") as free,
        ):
            first = await anext(slow)
            url = str(postgres_fleet.settings["database"])
            async with await psycopg.AsyncConnection.connect(url) as holder:
                await holder.execute(
                    "select 1 from tasks where task_id = %s for update", (first["task"]["id"],)
                )
                rest_of_free = [event async for event in free]
            streamed = [first, *[event async for event in slow]]
        assert state_of(rest_of_free[-1]) == "COMPLETED", "while the other's row was held"
        generations = list(map(generation_of, streamed))
        assert generations == list(range(generations[0], generations[0] + len(streamed)))
        assert texts_of(fold(streamed)) == {"chunks": "".join(f"{n}\n" for n in range(1, 41))}


async def test_case_031_events_larger_than_a_notification(
    town: Town, one: Caller, other: Caller
) -> None:
    lengths = (1_000, 7_900, 7_998, 8_000, 8_001, 64_000, 1_000_000)
    script = "sizes " + " ".join(map(str, lengths))
    async with one.stream(script, workflow="scenes") as events:
        streamed = [event async for event in events]
    task = await other.get(fold(streamed))
    assert state_of(task) == "COMPLETED"
    assert seen(fold(streamed)) == seen(task)
    assert texts_of(task) == {
        f"{name}-{length}": character * (length // len(character.encode()))
        for length in lengths
        for name, character in (("plain", "x"), ("wide", "€"))
    }


async def test_case_032_wake_ups_come_back(postgres_fleet: Fleet, sink: CounterSink) -> None:
    """All LISTEN sessions are terminated. With polls five seconds apart, what is quick again has
    been woken; until then the polls deliver."""
    gateway, _ = await asyncio.gather(postgres_fleet.gateway(poll=5), postgres_fleet.worker(poll=5))
    async with Caller(gateway.url) as caller:
        assert await latency(caller) < 2
        url = str(postgres_fleet.settings["database"])
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as operator:
            killed = await operator.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and query ilike 'listen %'"
            )
            assert killed.rowcount == 2, "the gateway's and the worker's"

        async def is_quick() -> bool:
            return await latency(caller) < 2

        await until(is_quick, within=30)
        assert await latency(caller) < 2


async def latency(caller: Caller) -> float:
    """How long a task takes from its creation to the last event on a stream."""
    clock = asyncio.get_running_loop().time
    began = clock()
    async with caller.stream("say x") as events:
        assert state_of([event async for event in events][-1]) == "COMPLETED"
    return clock() - began
