"""Effects: once, whatever dies between doing and recording, and however often a step starts."""

from __future__ import annotations

import asyncio

import pytest

from outlast.testing.fleet import Fleet, until
from tests.cases.conftest import Town
from tests.chaos.caller import Caller, fold, history_of, seen, state_of, texts_of
from tests.chaos.fleets import ONCE, CounterSink, Counts


@pytest.mark.parametrize(
    ("point", "counts"), [("before:effect#1", ONCE), ("after:effect#1", Counts(calls=2, effects=1))]
)
async def test_case_073_crash_between_doing_and_recording(
    fleet: Fleet, sink: CounterSink, point: str, counts: Counts
) -> None:
    key = sink.key()
    gateway = await fleet.gateway()
    async with Caller(gateway.url) as caller:
        task = await caller.send(f"effect {key}", wait=False)
        victim = fleet.start_role("worker", fault=(point,))
        assert await victim.ended() == -9
        await fleet.worker()

        await until(lambda: is_in(caller, task["id"], "COMPLETED"))
        assert await sink.counts(key) == counts


async def test_case_073_without_a_key_an_operator_is_asked(fleet: Fleet, sink: CounterSink) -> None:
    """A sink that cannot drop a repeat: a call of unknown outcome is never made again silently."""
    key = sink.key()
    gateway = await fleet.gateway()
    async with Caller(gateway.url) as caller, fleet.stores() as stores:
        task = await caller.send(f"act-at-most-once {key}", workflow="scenes", wait=False)
        victim = fleet.start_role("worker", fault=("after:effect#1",))
        assert await victim.ended() == -9
        await fleet.worker()

        (held,) = await until(lambda: stores.inspect.held("cases"))
        assert held.task_id == task["id"]
        assert held.held_reason is not None
        assert key in held.held_reason
        assert state_of(await caller.get(task)) == "WORKING"
        assert await sink.counts(key) == ONCE

        (run, *_) = await stores.inspect.runs(held.task_id)
        entry = await stores.work.entry(held.ledger_id, f"effect:{key}")
        assert entry is not None
        assert entry.fence == run["fence"], "the hold names the call of the run that died"
        resolve = fleet.start(
            "resolve", "outlast.cli:app", "resolve", task["id"], key,
            "--fence", str(entry.fence), "--write-no", str(entry.write_no), "--result", "null",
            "--database", str(fleet.settings["database"]),
        )  # fmt: skip
        assert await resolve.ended() == 0, resolve.tail()

        await until(lambda: is_in(caller, task["id"], "COMPLETED"))
        assert await sink.counts(key) == ONCE


async def test_case_074_output_of_a_retried_step_appears_once(town: Town, one: Caller) -> None:
    async with one.stream("retry", workflow="scenes") as events:
        streamed = [event async for event in events]

    task = await one.get(fold(streamed))
    assert state_of(task) == "COMPLETED"
    assert texts_of(task) == {"chunks": "3.1 3.2 3.3 3.4 3.5 "}
    assert seen(fold(streamed)) == seen(task)


async def test_case_075_resume_does_not_repeat_what_came_before(
    fleet: Fleet, sink: CounterSink
) -> None:
    keys = [sink.key(name) for name in "ABC"]
    script = "effect {}; ask first; effect {}; ask second; effect {}".format(*keys)
    server = await fleet.serve()
    async with Caller(server.url) as caller:
        task = await caller.send(script)
    for answer in ("one", "two"):
        assert state_of(task) == "INPUT_REQUIRED"
        server.kill()
        server = await fleet.serve()
        async with Caller(server.url) as caller:
            task = await caller.send(answer, task=task)

    assert state_of(task) == "COMPLETED"
    assert history_of(task)[1:] == ["first", "one", "second", "two"], "exactly two pauses"
    counts = await asyncio.gather(*map(sink.counts, keys))
    assert counts == [ONCE, ONCE, ONCE]


async def is_in(caller: Caller, task_id: str, state: str) -> bool:
    return state_of(await caller.get(task_id)) == state
