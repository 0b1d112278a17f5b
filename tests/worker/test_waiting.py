"""Questions, timers and ends of lives: a task that waits has no lease and no worker, and goes on
from its last commit when what it waits for has come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest
from pydantic import BaseModel

from outlast import DeadlinePassed, Next
from outlast.model.task import State, Task
from outlast.sweeps.deadlines import Deadlines
from tests.contract.stores import DAY, HOUR
from tests.worker.flows import Ctx, Gate, Outside, flow, single
from tests.worker.house import House, text_of

pytest_plugins = ["tests.worker.fixtures"]


class Approval(BaseModel):
    approved: list[str]


# --- questions ------------------------------------------------------------------------------------


async def test_a_question_ends_the_lease_and_its_answer_goes_to_the_step_that_asked(
    house: House,
) -> None:
    began = list[list[str]]()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        began.append(list(ctx.checkpoint.done))
        if not ctx.checkpoint.done:
            ctx.checkpoint.done.append("before")
            await ctx.commit("ready to ask")
        approval = await ctx.ask("Which?", answer=Approval)
        return ctx.complete(", ".join(approval.approved))

    task_id = await house.send(workflow)
    hired = await house.hire(workflow)
    paused = await house.paused(task_id)
    assert (paused.lease_owner, paused.ready_at) == (None, None)
    assert paused.pause_id == paused.generation
    assert text_of(paused) == "Which?"
    await house.until(task_id, lambda task: not hired.worker.running)
    await house.answer(task_id, {"approved": ["a", "b"]})
    task = await house.ended(task_id)
    assert text_of(task) == "a, b"
    assert began == [[], ["before"]]
    assert await house.outcomes(task_id) == ["paused", "completed"]
    assert [run["attempt"] for run in await house.runs(task_id)] == [1, 1]


async def test_case_079_a_parked_task_is_left_alone_however_long_it_takes(house: House) -> None:
    workflow = flow(longest_pause=timedelta(days=20))

    @workflow.step(timeout=timedelta(seconds=0.5))
    async def work(ctx: Ctx) -> None:
        await ctx.ask("Go on?")

    task_id = await house.send(workflow)
    hired = await house.hire(workflow)
    before = await house.paused(task_id)
    await house.sweep()
    await hired.stop()
    await house.store.later(19 * DAY)
    again = await house.hire(workflow)
    await again.stop()
    await house.hire(workflow)
    await house.paused(await house.send(workflow))  # sweeps and claims have come round meanwhile
    assert await house.store.task(task_id) == before
    await house.answer(task_id)
    await house.ended(task_id)


async def test_a_conversation_by_goto_asks_anew_in_each_visit(house: House) -> None:
    workflow = flow()

    @workflow.step
    async def talk(ctx: Ctx) -> Next:
        answer = await ctx.ask(f"Number {len(ctx.checkpoint.done) + 1}?")
        ctx.checkpoint.done.append(answer.text)
        return ctx.goto(talk) if len(ctx.checkpoint.done) < 3 else ctx.complete()

    task_id = await house.send(workflow)
    await house.hire(workflow)
    pause_id = None
    for text in ("one", "two", "three"):
        pause_id = (await house.paused(task_id, after=pause_id)).pause_id
        await house.answer(task_id, text)
    await house.ended(task_id)
    assert await house.store.inspect.checkpoint(task_id) == '{"done":["one","two","three"]}'


@pytest.mark.parametrize("on_deadline", ["fail", "cancel", "resume"])
async def test_when_nobody_answers_the_question_says_what_becomes_of_the_task(
    house: House, on_deadline: Literal["fail", "cancel", "resume"]
) -> None:
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        try:
            await ctx.ask("Now?", deadline=timedelta(hours=1), on_deadline=on_deadline)
        except DeadlinePassed:
            return ctx.complete("nobody answered, so I decided")
        return ctx.complete("answered")

    task_id = await house.send(workflow)
    await house.hire(workflow)
    await house.paused(task_id)
    await house.store.later(HOUR - 60_000)
    assert await Deadlines(house.store.sweeping).sweep() == []
    await house.store.later(60_000)
    await house.sweep()
    expected: dict[str, tuple[State, str | None]] = {
        "fail": (State.FAILED, "nobody answered the question before its deadline"),
        "cancel": (State.CANCELED, None),
        "resume": (State.COMPLETED, "nobody answered, so I decided"),
    }
    state, text = expected[on_deadline]
    assert text_of(await house.ended(task_id, state)) == text


@pytest.mark.parametrize("on_deadline", ["fail", "cancel"])
async def test_a_deadline_that_ends_the_task_goes_by_way_of_the_hook(
    house: House, on_deadline: Literal["fail", "cancel"]
) -> None:
    outside = Outside()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await ctx.ask("Now?", deadline=timedelta(hours=1), on_deadline=on_deadline)

    @workflow.on_cancel
    async def undo(ctx: Ctx) -> None:
        await ctx.once("hook", outside.send, "cancel")

    @workflow.on_failure
    async def report(ctx: Ctx) -> None:
        await ctx.once("hook", outside.send, "fail")

    task_id = await house.send(workflow)
    await house.hire(workflow)
    await house.sweep()
    await house.paused(task_id)
    await house.store.later(HOUR)
    await house.ended(task_id, State.FAILED if on_deadline == "fail" else State.CANCELED)
    assert outside.calls == [on_deadline]


# --- timers ---------------------------------------------------------------------------------------


async def test_a_sleeping_task_has_no_worker_and_goes_on_when_the_time_has_come(
    house: House,
) -> None:
    began, passed = list[int](), list[int]()
    workflow, quick = flow(), single("quick")

    @workflow.step
    async def work(ctx: Ctx) -> None:
        began.append(ctx.attempt)
        await ctx.sleep(timedelta(hours=1))
        passed.append(ctx.attempt)

    task_id = await house.send(workflow)
    hired = await house.hire(workflow, quick)
    task = await house.waiting(task_id)
    assert task.state is State.WORKING
    await house.until(task_id, lambda task: not hired.worker.running)
    await house.store.later(HOUR - 60_000)
    await house.ended(await house.send(quick))
    assert began == [1]
    await house.store.later(60_000)
    await house.ended(task_id)
    assert (began, passed) == ([1, 1], [1])
    assert await house.outcomes(task_id) == ["waiting", "completed"]


async def test_case_086_a_timer_that_came_due_while_nobody_ran_fires_once(house: House) -> None:
    outside = Outside()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await ctx.sleep(datetime.now(UTC) + timedelta(minutes=1))
        await ctx.once("mail", outside.send, "mail")

    task_id = await house.send(workflow)
    hired = await house.hire(workflow)
    await house.waiting(task_id)
    await hired.stop()
    await house.store.later(10 * 60_000)
    await house.hire(workflow)
    await house.ended(task_id)
    assert outside.calls == ["mail"]


async def test_a_sleep_in_a_loop_with_commits_sleeps_each_time(house: House) -> None:
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        for number in range(len(ctx.checkpoint.done), 3):
            await ctx.sleep(timedelta(hours=1), key=str(number))
            ctx.checkpoint.done.append(str(number))
            await ctx.commit()

    task_id = await house.send(workflow)
    await house.hire(workflow)

    def sleeps(times: int) -> Callable[[Task], bool]:
        return lambda task: task.ready_at is not None and task.fence == 2 * times

    for times in (1, 2, 3):
        await house.until(task_id, sleeps(times))
        await house.store.later(HOUR)
    await house.ended(task_id)
    assert await house.outcomes(task_id) == ["waiting"] * 3 + ["completed"]


# --- the longest life -----------------------------------------------------------------------------


async def test_a_task_at_the_end_of_its_longest_life_fails_whoever_runs_it(house: House) -> None:
    gate, left, outside = Gate(), list[str](), Outside()
    workflow = flow(max_age=timedelta(days=1))

    @workflow.step(timeout=None)
    async def work(ctx: Ctx) -> None:
        try:
            await gate()
            await ctx.once("mail", outside.send, "mail")
        finally:
            left.append("left")

    task_id = await house.send(workflow)
    hired = await house.hire(workflow)
    await house.sweep()
    await gate.reached()
    await house.store.later(DAY)
    task = await house.ended(task_id, State.FAILED)
    assert text_of(task) == "the task reached the end of its longest life"
    await house.until(task_id, lambda task: not hired.worker.running)
    assert left == ["left"]
    assert outside.calls == []
    assert await house.outcomes(task_id) == ["deadline"]


async def test_at_the_end_of_its_life_too_the_failure_step_comes_first(house: House) -> None:
    outside = Outside()
    workflow = flow(max_age=timedelta(days=1))

    @workflow.step(timeout=None)
    async def work(ctx: Ctx) -> None:
        await asyncio.Event().wait()

    @workflow.on_failure
    async def report(ctx: Ctx) -> None:
        await ctx.once("report", outside.send, "report")

    task_id = await house.send(workflow)
    await house.hire(workflow)
    await house.sweep()
    await house.until(task_id, lambda task: task.step == "work")
    await house.store.later(DAY)
    task = await house.ended(task_id, State.FAILED)
    assert text_of(task) == "the task reached the end of its longest life"
    assert outside.calls == ["report"]


async def test_a_failure_step_that_never_ends_does_not_outlive_it_by_much(house: House) -> None:
    workflow = flow(max_age=timedelta(days=1))

    @workflow.step(timeout=None)
    async def work(ctx: Ctx) -> None:
        await asyncio.Event().wait()

    @workflow.on_failure(timeout=timedelta(days=1))
    async def report(ctx: Ctx) -> None:
        await asyncio.Event().wait()

    task_id = await house.send(workflow)
    await house.hire(workflow)
    await house.sweep()
    await house.until(task_id, lambda task: task.step == "work")
    await house.store.later(DAY)
    await house.until(task_id, lambda task: task.step == "on_failure")
    await house.store.later(house.store.settings.hook_grace_ms)
    await house.ended(task_id, State.FAILED)
    assert await house.outcomes(task_id) == ["gave up"]
