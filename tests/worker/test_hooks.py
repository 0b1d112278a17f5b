"""What runs before a task is CANCELED or has FAILED: a step like any other, before the last event,
whatever the task was doing, and whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from outlast import Next, Retry, Workflow
from outlast.model.commit import Finish
from outlast.model.errors import CancelRequested
from outlast.model.ids import TaskId
from outlast.model.task import State
from tests.contract.stores import HOUR
from tests.worker.flows import Ctx, Gate, Notes, Outside, flow
from tests.worker.house import Hired, House, text_of
from tests.worker.wire import ends_with, is_commit

pytest_plugins = ["tests.worker.fixtures"]

LATER = Retry(attempts=3, first=timedelta(hours=1), longest=timedelta(hours=1))


def undoing(workflow: Workflow[Notes], outside: Outside) -> None:
    """A cancel step that undoes what was done."""

    @workflow.on_cancel
    async def undo(ctx: Ctx) -> None:
        for what in ctx.checkpoint.done:
            await ctx.once(f"undo {what}", outside.send, f"undo {what}")
        await ctx.commit("undone")


# --- cancel ---------------------------------------------------------------------------------------


async def test_a_running_step_is_left_at_its_next_await_and_the_hook_comes_before_the_end(
    house: House,
) -> None:
    outside, gate, left = Outside(), Gate(), list[BaseException]()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        ctx.checkpoint.done.append("grant")
        await ctx.commit("granted")
        ctx.checkpoint.done.append("never kept")
        try:
            await gate()
        except BaseException as stopped:
            left.append(stopped)
            raise

    undoing(workflow, outside)
    task_id = await house.send(workflow)
    await house.hire(workflow)
    await gate.reached()
    marked = await house.cancel(task_id)
    assert marked.state is State.WORKING
    assert marked.cancel_requested_at is not None
    await house.ended(task_id, State.CANCELED)
    assert outside.calls == ["undo grant"]
    assert await house.said(task_id) == [
        "task: hello",
        "working",
        "working: granted",
        "working: undone",
        "canceled",
    ]
    assert len(left) == 1
    (run,) = await house.runs(task_id)
    assert (run["outcome"], run["error"]) == ("canceled", None)


async def test_a_step_that_eats_the_cancel_gets_no_further_than_its_next_verb(
    house: House,
) -> None:
    outside, gate, caught = Outside(), Gate(), list[BaseException]()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await ctx.commit()
        for number in range(3):
            try:
                await gate()
                await ctx.once(f"mail {number}", outside.send, "mail")
            except BaseException as stopped:
                caught.append(stopped)
                gate.open()

    undoing(workflow, outside)
    task_id = await house.send(workflow)
    await house.hire(workflow)
    await gate.reached()
    await house.cancel(task_id)
    await house.ended(task_id, State.CANCELED)
    assert outside.calls == []
    assert len(caught) == 3
    assert all(isinstance(stopped, CancelRequested) for stopped in caught[1:])


async def test_an_effect_under_way_ends_first_and_the_hook_meets_its_result(house: House) -> None:
    outside, gate, left, hooked = Outside(), Gate(), asyncio.Event(), list[str]()
    outside.before_reply = gate
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        try:
            await ctx.once("mail", outside.send, "mail")
        finally:
            left.set()

    @workflow.on_cancel
    async def undo(ctx: Ctx) -> None:
        hooked.append(await ctx.once("mail", outside.send, "mail"))

    task_id = await house.send(workflow)
    hired = await house.hire(workflow)
    await gate.reached()
    await house.cancel(task_id)
    async with asyncio.timeout(10):
        await left.wait()
    await house.keeps(task_id, hired)
    assert hooked == []
    gate.open()
    await house.ended(task_id, State.CANCELED)
    assert hooked == ["mail #1"]
    assert outside.calls == ["mail"]


async def test_a_task_that_has_committed_nothing_is_canceled_at_once(house: House) -> None:
    outside = Outside()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None: ...

    undoing(workflow, outside)
    hired = await house.hire(workflow)
    await hired.stop()
    task_id = await house.send(workflow)
    assert (await house.cancel(task_id)).state is State.CANCELED
    assert await house.runs(task_id) == []
    assert await house.said(task_id) == ["task: hello", "canceled"]


async def _backs_off(house: House, hired: Hired, task_id: TaskId, gate: Gate) -> None:
    gate.open()
    await house.waiting(task_id)


async def _released(house: House, hired: Hired, task_id: TaskId, gate: Gate) -> None:
    await gate.reached()
    await hired.stop()
    await house.cancel(task_id)


async def _freed(house: House, hired: Hired, task_id: TaskId, gate: Gate) -> None:
    await gate.reached()
    await house.bury(hired)
    gate.open()


@pytest.mark.parametrize("brought", [_backs_off, _released, _freed])
async def test_a_task_that_nobody_runs_is_claimed_for_its_hook_at_once(
    house: House, brought: Callable[[House, Hired, TaskId, Gate], Awaitable[None]]
) -> None:
    outside, gate = Outside(), Gate()
    workflow = flow()

    @workflow.step(retry=LATER)
    async def work(ctx: Ctx) -> None:
        ctx.checkpoint.done.append("grant")
        await ctx.commit()
        await gate()
        raise ConnectionError("away")

    undoing(workflow, outside)
    task_id = await house.send(workflow)
    hired = await house.hire(workflow, grace_s=0)
    await brought(house, hired, task_id, gate)
    await house.cancel(task_id)
    await house.hire(workflow)
    await house.ended(task_id, State.CANCELED)
    assert outside.calls == ["undo grant"]


async def test_a_worker_that_dies_in_the_hook_is_followed_by_another_that_runs_it_again(
    house: House,
) -> None:
    outside, gate = Outside(), Gate()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        ctx.checkpoint.done.append("grant")
        await ctx.commit()
        await asyncio.Event().wait()

    @workflow.on_cancel
    async def undo(ctx: Ctx) -> None:
        await ctx.once("undo", outside.send, "undo")
        await gate()

    task_id = await house.send(workflow)
    first = await house.hire(workflow)
    await house.until(task_id, lambda task: task.step == "work" and task.generation >= 2)
    await house.cancel(task_id)
    await gate.reached()
    await house.bury(first)
    await house.hire(workflow)
    await gate.reached(2)
    assert (await house.store.task(task_id)).crashes == 1
    gate.open()
    await house.ended(task_id, State.CANCELED)
    assert outside.calls == ["undo"]
    runs = await house.runs(task_id)
    assert [run["outcome"] for run in runs] == ["lost", "canceled"]
    assert [run["step"] for run in runs] == ["start", "on_cancel"]


async def test_a_hook_that_fails_is_tried_again_and_ends_the_task_all_the_same(
    house: House,
) -> None:
    attempts = list[int]()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await asyncio.Event().wait()

    @workflow.on_cancel
    async def undo(ctx: Ctx) -> None:
        attempts.append(ctx.attempt)
        raise ConnectionError("the directory is away")

    task_id = await house.send(workflow)
    await house.hire(workflow)
    await house.until(task_id, lambda task: task.step == "work")
    await house.cancel(task_id)
    for failures in (1, 2):
        await house.backs_off(task_id, failures)
        await house.store.later(HOUR)
    task = await house.ended(task_id, State.CANCELED)
    assert text_of(task) is None
    assert attempts == [1, 2, 3]
    error = json.loads((await house.runs(task_id))[-1]["error"])
    assert error["text"] == "the directory is away"


async def test_a_hook_has_a_timeout(house: House) -> None:
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await asyncio.Event().wait()

    @workflow.on_cancel(timeout=timedelta(seconds=0.05))
    async def undo(ctx: Ctx) -> None:
        await asyncio.Event().wait()

    task_id = await house.send(workflow)
    await house.hire(workflow)
    await house.until(task_id, lambda task: task.step == "work")
    await house.cancel(task_id)
    for failures in (1, 2):
        await house.backs_off(task_id, failures)
        await house.store.later(HOUR)
    await house.ended(task_id, State.CANCELED)
    assert json.loads((await house.runs(task_id))[-1]["error"])["type"] == "TimeoutError"


async def test_a_hook_that_waits_breaks_a_rule_and_the_fixed_one_ends_the_task(
    house: House,
) -> None:
    is_fixed = asyncio.Event()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await asyncio.Event().wait()

    @workflow.on_cancel
    async def undo(ctx: Ctx) -> None:
        if not is_fixed.is_set():
            await ctx.ask("Really?")

    task_id = await house.send(workflow)
    await house.hire(workflow)
    await house.until(task_id, lambda task: task.step == "work")
    await house.cancel(task_id)
    assert "may not wait" in await house.held(task_id)
    is_fixed.set()
    await house.store.admin.unhold(task_id)
    await house.ended(task_id, State.CANCELED)


async def test_a_hook_that_is_gone_from_the_code_ends_the_task_without_it(house: House) -> None:
    gate = Gate()

    def review(*, has_hook: bool) -> Workflow[Notes]:
        workflow = flow()

        @workflow.step
        async def work(ctx: Ctx) -> None:
            await asyncio.Event().wait()

        if has_hook:

            @workflow.on_cancel
            async def undo(ctx: Ctx) -> None:
                await gate()

        return workflow

    task_id = await house.send(review(has_hook=True))
    first = await house.hire(review(has_hook=True), grace_s=0)
    await house.until(task_id, lambda task: task.step == "work")
    await house.cancel(task_id)
    await gate.reached()
    await first.stop()
    await house.hire(review(has_hook=False))
    await house.ended(task_id, State.CANCELED)


async def test_without_a_hook_the_run_stops_and_writes_nothing_after_the_end(
    house: House,
) -> None:
    gate, left, outside = Gate(), list[str](), Outside()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await ctx.commit("begun")
        try:
            await gate()
            await ctx.once("mail", outside.send, "mail")
        finally:
            left.append("left")
            await ctx.report("clean-up")

    task_id = await house.send(workflow)
    hired = await house.hire(workflow)
    await gate.reached()
    canceled = await house.cancel(task_id)
    assert canceled.state is State.CANCELED
    await house.until(task_id, lambda task: not hired.worker.running)
    assert left == ["left"]
    assert outside.calls == []
    assert (await house.said(task_id))[-2:] == ["working: begun", "canceled"]
    assert await house.outcomes(task_id) == ["canceled"]
    await house.logs("run.lease_lost", task_id=task_id)


@pytest.mark.parametrize("ends", [True, False], ids=["the last step", "a step before it"])
async def test_case_047_a_cancel_that_meets_the_commit_of_a_step_that_has_returned(
    house: House, ends: bool
) -> None:
    """The last commit is under way: it stands, and says what the cancel may still do."""
    outside = Outside()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        ctx.checkpoint.done.append("grant")

    if not ends:

        @workflow.step
        async def next_one(ctx: Ctx) -> None:
            await ctx.once("never", outside.send, "never")

    undoing(workflow, outside)
    hired = await house.hire(workflow)
    last = hired.wire.hold_call(
        "commit",
        when=ends_with(Finish)
        if ends
        else lambda batch: (
            is_commit(batch) and any(write.move.step == "next_one" for write in batch)
        ),
    )
    task_id = await house.send(workflow)
    await last.happened.wait()
    marked = await house.cancel(task_id)
    assert marked.state is State.WORKING
    last.release()
    if ends:
        await house.ended(task_id, State.COMPLETED)
        assert outside.calls == []
    else:
        await house.ended(task_id, State.CANCELED)
        assert outside.calls == ["undo grant"]


# --- failure --------------------------------------------------------------------------------------


def reporting(workflow: Workflow[Notes], outside: Outside) -> None:
    @workflow.on_failure
    async def report(ctx: Ctx) -> None:
        await ctx.once("report", outside.send, f"failed after {ctx.checkpoint.done}")
        await ctx.commit("reported")


async def test_a_step_that_fails_for_good_is_followed_by_the_hook_and_then_by_the_end(
    house: House,
) -> None:
    outside = Outside()
    workflow = flow()

    @workflow.step(retry=Retry(attempts=1))
    async def work(ctx: Ctx) -> None:
        ctx.checkpoint.done.append("grant")
        await ctx.commit("granted")
        raise ConnectionError("secret")

    reporting(workflow, outside)
    task_id = await house.send(workflow)
    await house.hire(workflow)
    task = await house.ended(task_id, State.FAILED)
    assert outside.calls == ["failed after ['grant']"]
    assert (await house.said(task_id))[-3:-1] == ["working: granted", "working: reported"]
    (run,) = await house.runs(task_id)
    error = json.loads(run["error"])
    assert (error["type"], error["text"]) == ("ConnectionError", "secret")
    assert text_of(task) == f"step work failed (reference {error['reference']})"


async def test_what_the_author_says_of_the_failure_stands_after_the_hook(house: House) -> None:
    outside = Outside()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        ctx.checkpoint.done.append("kept")
        return ctx.fail("The account has no funds.")

    reporting(workflow, outside)
    task_id = await house.send(workflow)
    await house.hire(workflow)
    assert text_of(await house.ended(task_id, State.FAILED)) == "The account has no funds."
    assert outside.calls == ["failed after ['kept']"]


async def test_the_error_that_failed_the_task_outlives_a_crash_in_the_hook(house: House) -> None:
    gate = Gate()
    workflow = flow()

    @workflow.step(retry=Retry(attempts=1))
    async def work(ctx: Ctx) -> None:
        raise ConnectionError("secret")

    @workflow.on_failure
    async def report(ctx: Ctx) -> None:
        await gate()

    task_id = await house.send(workflow)
    first = await house.hire(workflow)
    await gate.reached()
    await house.bury(first)
    gate.open()
    await house.hire(workflow)
    await house.ended(task_id, State.FAILED)
    lost, failed = await house.runs(task_id)
    assert (lost["outcome"], failed["outcome"]) == ("lost", "failed")
    assert json.loads(failed["error"])["text"] == "secret"


async def test_a_failure_before_the_first_commit_has_nothing_to_clean_up_after(
    house: House,
) -> None:
    outside = Outside()
    workflow = Workflow("review", 1, checkpoint=Notes)

    @workflow.start
    async def begin(message: object, ctx: Ctx) -> Notes:
        raise KeyError("a bug")

    @workflow.step
    async def work(ctx: Ctx) -> None: ...

    reporting(workflow, outside)
    task_id = await house.send(workflow)
    await house.hire(workflow)
    await house.ended(task_id, State.FAILED)
    assert outside.calls == []


async def test_a_cancel_during_the_failure_step_changes_nothing(house: House) -> None:
    gate = Gate()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        return ctx.fail("No.")

    @workflow.on_failure
    async def report(ctx: Ctx) -> None:
        await gate()

    undoing(workflow, Outside())
    task_id = await house.send(workflow)
    await house.hire(workflow)
    await gate.reached()
    await house.cancel(task_id)
    gate.open()
    assert text_of(await house.ended(task_id, State.FAILED)) == "No."
