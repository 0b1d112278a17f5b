"""Concurrency: one run at a time, and nobody's work erased by a copy of the past."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from outlast.model.ids import TaskId
from outlast.testing.checker import check_runs
from outlast.testing.fleet import until
from tests.cases.conftest import Town
from tests.chaos.caller import Caller, Json, Refusal, history_of, state_of, texts_of
from tests.chaos.fleets import ONCE

TURNS = 6


async def test_case_052_second_message_starts_no_second_execution(
    town: Town, one: Caller, other: Caller
) -> None:
    key = town.sink.key()
    task = await one.send(f"effect {key}; wait 0.7", wait=False)
    await until(lambda: town.sink.is_called(key))

    refusals = await asyncio.gather(
        *(caller.send("and more", task=task) for caller in (one, other)), return_exceptions=True
    )
    for refusal in refusals:
        assert isinstance(refusal, Refusal)
        assert (refusal.status, refusal.reason) == (400, "UNSUPPORTED_OPERATION")

    await until(lambda: is_completed(one, task))
    assert await town.sink.counts(key) == ONCE
    async with town.fleet.stores() as stores:
        assert len(await stores.inspect.runs(TaskId(task["id"]))) == 1


async def test_case_052_with_an_inbox_both_messages_are_read_before_the_end(
    town: Town, one: Caller, other: Caller, tmp_path: Path
) -> None:
    """Each is sent twice, through both gateways; the last comes when the work is done already."""
    key, end = town.sink.key(), tmp_path / "end"
    task = await one.send(f"{key} {end}", workflow="talks", wait=False)
    await until(lambda: town.sink.is_called(key))

    ids = {text: str(uuid.uuid4()) for text in ("left", "right", "last")}

    async def send_twice(text: str) -> None:
        sends = [
            caller.send(text, task=task, message_id=ids[text], wait=False)
            for caller in (one, other)
        ]
        for reply in await asyncio.gather(*sends):
            assert reply["id"] == task["id"]
            assert text in history_of(reply)

    await asyncio.gather(*map(send_twice, ("left", "right")))
    last = asyncio.create_task(send_twice("last"))
    end.touch()
    await asyncio.wait([last])
    await until(lambda: is_completed(one, task))

    ended = await other.get(task)
    heard = ended["status"]["message"]["parts"][0]["text"].split(", ")
    taken = ["left", "right", *(["last"] if last.exception() is None else [])]
    if isinstance(refusal := last.exception(), Exception):
        assert isinstance(refusal, Refusal), "it came after the end"
        assert refusal.reason == "UNSUPPORTED_OPERATION"
    assert sorted(heard) == sorted(taken)
    assert sorted(history_of(ended)[1:]) == sorted(taken)
    again = await other.send("left", task=task, message_id=ids["left"])
    assert again == ended, "a repeat after the end gets the task"
    assert await town.sink.counts(key) == ONCE
    async with town.fleet.stores() as stores:
        assert await check_runs(stores.inspect, stores.log, TaskId(task["id"])) == []


async def test_case_054_resume_on_another_replica_erases_nothing(
    town: Town, one: Caller, other: Caller
) -> None:
    callers = [one, other] * (TURNS // 2)
    task = await one.send("turns", workflow="scenes")
    for number, caller in enumerate(callers, start=1):
        task = await caller.send(f"said {number}", task=task)
        assert state_of(task) == "INPUT_REQUIRED"
    task = await other.send("stop", task=task)

    said = [f"said {number}" for number in range(1, TURNS + 1)]
    assert texts_of(task) == {f"turn-{n}": text for n, text in enumerate(said, start=1)}
    questions = [f"Turn {number}?" for number in range(1, TURNS + 2)]
    answers = [*said, "stop"]
    asked_and_said = [text for pair in zip(questions, answers, strict=True) for text in pair]
    assert history_of(task) == ["turns", *asked_and_said]
    assert await one.get(task) == task


async def is_completed(caller: Caller, task: Json) -> bool:
    return state_of(await caller.get(task)) == "COMPLETED"
