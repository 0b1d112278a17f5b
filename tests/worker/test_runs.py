"""`task_runs`: what operators read of each lease, written by the claim and by what ends it."""

from __future__ import annotations

import json
from datetime import timedelta

from outlast import Next, Retry
from outlast.model.task import State
from tests.contract.stores import HOUR
from tests.worker.flows import Ctx, Gate, flow, single
from tests.worker.house import House

pytest_plugins = ["tests.worker.fixtures"]


async def test_a_life_as_operators_read_it(house: House) -> None:
    gate, deadly = Gate(), Gate()
    workflow = flow()

    @workflow.step(retry=Retry(attempts=9, first=timedelta(hours=1), longest=timedelta(hours=1)))
    async def work(ctx: Ctx) -> None:
        match ctx.attempt, len(ctx.checkpoint.done):
            case (1, 0):
                raise ConnectionError("the directory is away")
            case (2, 0):
                ctx.checkpoint.done.append("one")
                await ctx.commit()
                await gate()  # released by a graceful stop
        await deadly()  # lost with its worker

    @workflow.step
    async def ask(ctx: Ctx) -> None:
        await ctx.sleep(timedelta(hours=1))
        await ctx.ask("Go on?")

    task_id = await house.send(workflow)
    first = await house.hire(workflow, grace_s=0)
    await house.backs_off(task_id, 1)
    await house.store.later(2 * HOUR)
    await gate.reached()
    first_id = first.worker_id
    await first.stop()
    second = await house.hire(workflow)
    second_id = second.worker_id
    await deadly.reached()
    await house.bury(second)
    deadly.open()
    third = await house.hire(workflow)
    await house.until(task_id, lambda task: task.fence == 8 and task.ready_at is not None)
    await house.store.later(2 * HOUR)
    await house.paused(task_id)
    await house.answer(task_id)
    await house.ended(task_id)

    runs = await house.runs(task_id)
    assert [(run["outcome"], run["step"], run["attempt"]) for run in runs] == [
        ("retried", "start", 1),
        ("released", "work", 2),
        ("lost", "work", 1),
        ("waiting", "work", 1),
        ("paused", "ask", 1),
        ("completed", "ask", 1),
    ]
    third_id = third.worker_id
    assert [run["worker_id"] for run in runs] == [
        first_id, first_id, second_id, third_id, third_id, third_id,
    ]  # fmt: skip
    fences = [run["fence"] for run in runs]
    assert fences == sorted(set(fences))
    for run in runs:
        assert run["started_at"] <= run["ended_at"]
        # Its own write has ended it, or somebody else's.
        assert (run["ended_write_no"] is None) == (run["outcome"] == "lost")
        assert (run["error"] is None) == (run["outcome"] != "retried")
    error = json.loads(runs[0]["error"])
    assert sorted(error) == ["reference", "text", "traceback", "type"]


async def test_a_run_is_there_as_long_as_it_lasts(house: House) -> None:
    gate = Gate()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await gate()

    task_id = await house.send(workflow)
    hired = await house.hire(workflow)
    await gate.reached()
    (run,) = await house.runs(task_id)
    assert run["worker_id"] == hired.worker_id
    assert (run["ended_at"], run["outcome"], run["ended_write_no"]) == (None, None, None)
    assert run["fence"] == (await house.store.task(task_id)).fence
    gate.open()
    await house.ended(task_id)


async def test_every_way_in_which_a_caller_sees_it_end_is_an_outcome(house: House) -> None:
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        match ctx.message.text:
            case "completed":
                return ctx.complete("done")
            case "failed":
                return ctx.fail("no")
            case _:
                return ctx.reject("not mine")

    await house.hire(workflow, single("idle"))
    for state in (State.COMPLETED, State.FAILED, State.REJECTED):
        task_id = await house.send(workflow, state.value)
        await house.ended(task_id, state)
        (run,) = await house.runs(task_id)
        assert (run["outcome"], run["error"]) == (state.value, None)
