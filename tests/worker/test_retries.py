"""A step that fails: what is tried again, when, how often, and who is told what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from outlast import Context, Failed, Message, Next, Permanent, Rejected, Retry, RetryAfter, Workflow
from outlast.model.ids import TaskId
from outlast.model.task import State
from tests.contract.stores import HOUR
from tests.worker.flows import Ctx, Gate, Notes, flow, single
from tests.worker.house import House, text_of

pytest_plugins = ["tests.worker.fixtures"]

LATER = Retry(attempts=3, first=timedelta(hours=1), longest=timedelta(days=1))
"""Nothing is tried again before the test moves the clock."""


async def error_of(house: House, task_id: TaskId, run: int = 0) -> dict[str, Any]:
    """What operators read of a run that failed."""
    found: Mapping[str, Any] = (await house.runs(task_id))[run]
    assert found["error"] is not None, found
    error: dict[str, Any] = json.loads(found["error"])
    return error


# --- the timeout ----------------------------------------------------------------------------------


async def test_a_step_that_takes_too_long_is_tried_again_after_its_delay(house: House) -> None:
    gate, attempts = Gate(), list[int]()
    workflow = flow()

    @workflow.step(retry=LATER, timeout=timedelta(seconds=0.05))
    async def work(ctx: Ctx) -> None:
        attempts.append(ctx.attempt)
        await gate()

    task_id = await house.send(workflow)
    await house.hire(workflow)
    task = await house.waiting(task_id)
    assert (task.state, task.attempt, task.held_reason) == (State.WORKING, 2, None)
    assert await house.outcomes(task_id) == ["retried"]
    error = await error_of(house, task_id)
    assert error["type"] == "TimeoutError"
    assert error["text"] == "step work took longer than 0.05 s"
    gate.open()
    await house.is_never_claimed(task_id, lambda: another(house))
    await house.store.later(2 * HOUR)
    await house.ended(task_id)
    assert attempts == [1, 2]


async def another(house: House) -> None:
    """Another task comes and goes, in a whole round of claims."""
    workflow = single("another")
    helper = await house.hire(workflow)
    await house.ended(await house.send(workflow))
    await helper.stop()


async def test_the_timeout_counts_from_the_last_commit(house: House) -> None:
    workflow = flow()

    @workflow.step(retry=Retry(attempts=1), timeout=timedelta(seconds=1))
    async def work(ctx: Ctx) -> None:
        for _ in range(4):
            await asyncio.sleep(0.35)
            await ctx.commit()

    task_id = await house.send(workflow)
    await house.hire(workflow)
    await house.ended(task_id)


async def test_a_step_may_have_no_timeout_and_a_timeout_eaten_by_the_step_counts(
    house: House,
) -> None:
    workflow = flow()

    @workflow.step(timeout=None)
    async def first(ctx: Ctx) -> None:
        await asyncio.sleep(0.02)

    @workflow.step(retry=Retry(attempts=1), timeout=timedelta(seconds=0.05))
    async def second(ctx: Ctx) -> Next:
        try:
            await asyncio.sleep(600)
        except BaseException:
            return ctx.complete("I do not care")
        return ctx.complete("never")

    task_id = await house.send(workflow)
    await house.hire(workflow)
    await house.ended(task_id, State.FAILED)
    assert (await error_of(house, task_id))["type"] == "TimeoutError"


# --- attempts and delays --------------------------------------------------------------------------


async def test_delays_grow_and_attempts_are_counted_until_it_works(house: House) -> None:
    attempts = list[int]()
    workflow = flow()
    policy = Retry(attempts=4, first=timedelta(hours=1), longest=timedelta(days=1))

    @workflow.step(retry=policy)
    async def work(ctx: Ctx) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt < 4:
            raise ConnectionError("the directory is away")

    task_id = await house.send(workflow)
    await house.hire(workflow)
    for failures in (1, 2, 3):
        task = await house.backs_off(task_id, failures)
        assert task.ready_at is not None
        delay = task.ready_at - task.updated_at
        assert 0.8 * HOUR <= delay / 2 ** (failures - 1) <= 1.2 * HOUR
        await house.store.later(delay + 1)
    await house.ended(task_id)
    assert attempts == [1, 2, 3, 4]
    runs = await house.runs(task_id)
    assert [run["attempt"] for run in runs] == [1, 2, 3, 4]
    assert [run["outcome"] for run in runs] == ["retried", "retried", "retried", "completed"]


async def test_a_commit_sets_the_attempts_back(house: House) -> None:
    failed = set[str]()
    workflow = flow()

    @workflow.step(retry=Retry(attempts=2, first=timedelta(0)))
    async def work(ctx: Ctx) -> None:
        for part in ("one", "two", "three")[len(ctx.checkpoint.done) :]:
            if part not in failed:
                failed.add(part)
                raise ConnectionError(part)
            ctx.checkpoint.done.append(part)
            await ctx.commit()

    task_id = await house.send(workflow)
    await house.hire(workflow)
    await house.ended(task_id)
    assert failed == {"one", "two", "three"}
    assert [run["attempt"] for run in await house.runs(task_id)] == [1, 2, 2, 2]


async def test_retry_after_says_when_and_costs_an_attempt(house: House) -> None:
    workflow = flow()

    @workflow.step(retry=Retry(attempts=2, first=timedelta(0)))
    async def work(ctx: Ctx) -> None:
        raise RetryAfter(timedelta(hours=5), "429 from the directory")

    task_id = await house.send(workflow)
    await house.hire(workflow)
    task = await house.waiting(task_id)
    assert task.ready_at is not None
    assert task.ready_at - task.updated_at == 5 * HOUR
    await house.store.later(5 * HOUR)
    await house.ended(task_id, State.FAILED)
    assert await house.outcomes(task_id) == ["retried", "failed"]
    assert (await error_of(house, task_id, 1))["text"] == "429 from the directory"


@pytest.mark.parametrize(
    "error", [Permanent("the account is closed"), KeyError("grants"), SyntaxError("odd")], ids=repr
)
async def test_what_will_not_get_better_is_not_tried_again(house: House, error: Exception) -> None:
    workflow = flow()
    policy = Retry(attempts=9, on=(OSError, KeyError))

    @workflow.step(retry=policy)
    async def work(ctx: Ctx) -> None:
        raise error

    task_id = await house.send(workflow)
    await house.hire(workflow)
    await house.ended(task_id, State.FAILED)
    assert await house.outcomes(task_id) == ["failed"]


async def test_the_start_is_tried_again_as_any_step(house: House) -> None:
    workflow = Workflow("review", 1, checkpoint=Notes, retry=Retry(first=timedelta(0)))

    @workflow.start
    async def begin(message: Message, ctx: Ctx) -> Notes:
        if ctx.attempt < 3:
            raise ConnectionError("not yet")
        return Notes(done=["begun"])

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        return ctx.complete(", ".join(ctx.checkpoint.done))

    task_id = await house.send(workflow)
    await house.hire(workflow)
    assert text_of(await house.ended(task_id)) == "begun"
    assert await house.outcomes(task_id) == ["retried", "retried", "completed"]


# --- when the attempts are over -------------------------------------------------------------------


async def test_case_042_an_error_fails_the_task_and_its_text_is_for_operators_only(
    house: House,
) -> None:
    secret = "password hunter2 is wrong"
    workflow = flow()

    @workflow.step(retry=Retry(attempts=2, first=timedelta(0)))
    async def work(ctx: Ctx) -> None:
        ctx.checkpoint.done.append("never kept")
        raise ConnectionError(secret)

    task_id = await house.send(workflow)
    await house.hire(workflow)
    task = await house.ended(task_id, State.FAILED)
    error = await error_of(house, task_id, 1)
    assert text_of(task) == f"step work failed (reference {error['reference']})"
    assert error["type"] == "ConnectionError"
    assert error["text"] == secret
    assert "raise ConnectionError(secret)" in error["traceback"]
    assert (await error_of(house, task_id, 0))["reference"] != error["reference"]
    seen = str([event.body for event in await house.events(task_id)]) + str(task.status)
    assert secret not in seen
    assert "ConnectionError" not in seen
    line = await house.logs("step.failed", attempt=2)
    assert line["reference"] == error["reference"]
    assert await house.store.inspect.checkpoint(task_id) == '{"done":[]}'


async def test_an_error_that_no_text_column_takes_is_recorded_all_the_same(house: House) -> None:
    workflow = flow()

    @workflow.step(retry=Retry(attempts=1))
    async def work(ctx: Ctx) -> None:
        raise ValueError("nul \0 and half a character \ud800 " + "x" * 100_000)

    task_id = await house.send(workflow)
    await house.hire(workflow)
    await house.ended(task_id, State.FAILED)
    assert len((await house.runs(task_id))[0]["error"]) < 20_000


async def test_exhausted_hold_leaves_it_to_an_operator(house: House) -> None:
    is_fixed = asyncio.Event()
    attempts = list[int]()
    workflow = flow()

    @workflow.step(retry=Retry(attempts=2, first=timedelta(0), exhausted="hold"))
    async def work(ctx: Ctx) -> None:
        attempts.append(ctx.attempt)
        if not is_fixed.is_set():
            raise ConnectionError("the directory is away")

    task_id = await house.send(workflow)
    await house.hire(workflow)
    assert await house.held(task_id) == "step work failed: the directory is away"
    task = await house.store.task(task_id)
    assert (task.state, task.lease_owner, task.ready_at) == (State.WORKING, None, None)
    assert await house.outcomes(task_id) == ["retried", "held"]
    assert (await error_of(house, task_id, 1))["type"] == "ConnectionError"
    assert text_of(task) is None
    is_fixed.set()
    assert await house.store.admin.unhold(task_id)
    await house.ended(task_id)
    assert attempts == [1, 2, 1]


# --- what an author says --------------------------------------------------------------------------


async def test_failed_ends_the_task_with_the_authors_text(house: House) -> None:
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        ctx.checkpoint.done.append("kept")
        raise Failed("The account has no funds.")

    task_id = await house.send(workflow)
    await house.hire(workflow)
    task = await house.ended(task_id, State.FAILED)
    assert text_of(task) == "The account has no funds."
    assert await house.outcomes(task_id) == ["failed"]
    assert await house.store.inspect.checkpoint(task_id) == '{"done":["kept"]}'


async def test_fail_and_reject_are_returned_too(house: House) -> None:
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        return ctx.fail("No.") if ctx.message.text == "fail" else ctx.reject("Not mine.")

    failing, rejected = await house.send(workflow, "fail"), await house.send(workflow, "reject")
    await house.hire(workflow)
    assert text_of(await house.ended(failing, State.FAILED)) == "No."
    assert text_of(await house.ended(rejected, State.REJECTED)) == "Not mine."


async def test_a_start_may_reject_the_message(house: House) -> None:
    workflow = Workflow("review", 1, checkpoint=Notes)

    @workflow.start
    async def begin(message: Message) -> Notes:
        raise Rejected(f"{message.text} is none of my business")

    @workflow.step
    async def work(ctx: Ctx) -> None: ...

    task_id = await house.send(workflow)
    await house.hire(workflow)
    task = await house.ended(task_id, State.REJECTED)
    assert text_of(task) == "hello is none of my business"
    assert await house.store.inspect.checkpoint(task_id) is None


async def test_a_workflow_without_a_start_rejects_what_does_not_fit(house: House) -> None:
    """The gateway let it in under an older type."""

    class Plan(BaseModel):
        systems: list[str]

    workflow = Workflow("review", 1, checkpoint=Plan)

    @workflow.step
    async def work(ctx: Context[Plan, None]) -> None: ...

    task_id = await house.send(workflow, "no data part at all")
    await house.hire(workflow)
    await house.ended(task_id, State.REJECTED)


# --- beside each other ----------------------------------------------------------------------------


async def test_one_task_that_fails_disturbs_no_other(house: House) -> None:
    workflow = flow()

    @workflow.step(retry=Retry(attempts=1))
    async def work(ctx: Ctx) -> None:
        if ctx.message.text == "bad":
            raise RuntimeError("bad")
        await ctx.commit("half")

    tasks = {await house.send(workflow, text): text for text in ("ok", "bad", "ok", "bad", "ok")}
    await house.hire(workflow)
    for task_id, text in tasks.items():
        await house.ended(task_id, State.FAILED if text == "bad" else State.COMPLETED)
