"""Artifacts: every way of looking at a task shows the same ones."""

from __future__ import annotations

from tests.cases.conftest import Town
from tests.chaos.caller import Caller, fold, seen, state_of, texts_of

DRAWN = {"first": "anew and more", "second": "ONE TWO THREE FOUR "}


async def test_case_088_artifact_is_the_fold_of_its_chunks(
    town: Town, one: Caller, other: Caller
) -> None:
    async with one.stream("draw", workflow="scenes") as events:
        streamed = [event async for event in events]
    task = fold(streamed)
    assert state_of(task) == "INPUT_REQUIRED"
    assert texts_of(task) == DRAWN

    polled = await other.get(task)
    async with other.subscribe(task) as events:
        snapshot = (await anext(events))["task"]
    assert seen(task) == seen(polled) == seen(snapshot)

    blocking = await other.send("draw", workflow="scenes")
    assert texts_of(blocking) == DRAWN
    ended = await other.send("yes", task=task)
    assert seen(ended) == seen(await one.get(task))
    assert texts_of(ended) == DRAWN
