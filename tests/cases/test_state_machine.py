"""State machine: what a task in a terminal state takes, and how it gets there."""

from __future__ import annotations

import asyncio

import pytest

from outlast.testing.fleet import Fleet, until
from tests.cases.conftest import Town
from tests.chaos.caller import Caller, Json, Refusal, message, state_of

UNSUPPORTED = -32004
TERMINAL_BY = {"COMPLETED": "say x", "FAILED": "raise", "REJECTED": "reject", "CANCELED": "wait 60"}


async def ended(caller: Caller, state: str) -> Json:
    """A task that has ended in this state."""
    task = await caller.send(TERMINAL_BY[state], wait=state != "CANCELED")
    if state == "CANCELED":
        task = await caller.cancel(task)
    assert state_of(task) == state
    return await caller.get(task)


async def refuses_messages(caller: Caller, task: Json) -> None:
    """Blocking, not blocking and streaming, over both bindings: no."""
    for wait in (True, False):
        with pytest.raises(Refusal) as refusal:
            await caller.send("more", task=task, wait=wait)
        assert (refusal.value.status, refusal.value.reason) == (400, "UNSUPPORTED_OPERATION")
        params = {
            "message": message("more", taskId=task["id"]),
            "configuration": {"returnImmediately": not wait},
        }
        assert (await caller.rpc("SendMessage", params))["error"]["code"] == UNSUPPORTED

    with pytest.raises(Refusal) as refusal:
        async with caller.stream("more", task=task):
            pass
    assert (refusal.value.status, refusal.value.reason) == (400, "UNSUPPORTED_OPERATION")
    params = {"message": message("more", taskId=task["id"])}
    assert (await caller.rpc("SendStreamingMessage", params))["error"]["code"] == UNSUPPORTED


async def test_case_040_message_to_a_finished_task(fleet: Fleet) -> None:
    gateway, _ = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with Caller(gateway.url) as caller:
        tasks = [await ended(caller, state) for state in TERMINAL_BY]
        for task in tasks:
            await refuses_messages(caller, task)

    gateway.kill()
    async with Caller((await fleet.gateway()).url) as caller:
        for task in tasks:
            await refuses_messages(caller, task)
            assert await caller.get(task) == task, "the refused messages have changed nothing"


@pytest.mark.parametrize("where", ["start", "play", "later", "pause"])
async def test_case_042_agent_error_ends_the_task(town: Town, one: Caller, where: str) -> None:
    script = f"break {where}"
    step = {"start": "start", "later": "afterwards"}.get(where, "play")

    # In the background of a non-blocking send.
    task = await one.send(script, workflow="scenes", wait=False)
    if where == "pause":
        await until(lambda: is_in(one, task, "INPUT_REQUIRED"))
        await one.send("yes", task=task, wait=False)
    await until(lambda: is_in(one, task, "FAILED"))

    # On a stream.
    async with one.stream(script, workflow="scenes") as events:
        streamed = [event async for event in events]
    if where == "pause":
        async with one.subscribe(streamed[0]["task"]) as events:
            await one.send("yes", task=streamed[0]["task"], wait=False)
            streamed = [event async for event in events]
    assert state_of(streamed[-1]) == "FAILED"

    # Blocking.
    task = await one.send(script, workflow="scenes")
    if where == "pause":
        task = await one.send("yes", task=task)
    assert state_of(task) == "FAILED"
    reason = task["status"]["message"]["parts"][0]["text"]
    assert reason.startswith(f"step {step} failed (reference "), "short, and nothing of the inside"


async def is_in(caller: Caller, task: Json, state: str) -> bool:
    return state_of(await caller.get(task)) == state
