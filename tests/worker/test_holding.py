"""What an operator must look at is held: never claimed until unheld, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from outlast import Context, Message, Next, Retry, Workflow
from outlast.model.ids import Fence, WriteNo
from outlast.model.task import State
from tests.worker.flows import Ctx, Gate, Notes, Outside, flow, single
from tests.worker.house import House, text_of

pytest_plugins = ["tests.worker.fixtures"]


# --- a rule that was broken -----------------------------------------------------------------------


async def test_a_broken_rule_holds_the_task_and_the_fix_loses_nothing(house: House) -> None:
    outside = Outside()

    def review(*, is_fixed: bool) -> Workflow[Notes]:
        workflow = flow()

        @workflow.step
        async def work(ctx: Ctx) -> None:
            if not ctx.checkpoint.done:
                ctx.checkpoint.done.append(await ctx.once("mail", outside.send, "mail"))
                await ctx.commit("half")
            for part in ("a", "b"):
                await ctx.memo(f"draft-{part}" if is_fixed else "draft", str, part)

        return workflow

    task_id = await house.send(review(is_fixed=False))
    first = await house.hire(review(is_fixed=False))
    reason = await house.held(task_id)
    assert "memo got the key 'draft' twice" in reason
    assert "Fix:" in reason
    task = await house.store.task(task_id)
    assert (task.state, task.lease_owner) == (State.WORKING, None)
    assert text_of(task) == "half"
    assert await house.outcomes(task_id) == ["held"]
    error = json.loads((await house.runs(task_id))[0]["error"])
    assert error["type"] == "AuthorError"
    assert "in work" in error["traceback"]

    await house.is_never_claimed(task_id, lambda: _another(house))
    await first.stop()
    await house.hire(review(is_fixed=True))
    assert await house.store.admin.unhold(task_id)
    await house.ended(task_id)
    assert outside.calls == ["mail"]
    assert await house.store.inspect.checkpoint(task_id) == '{"done":["mail #1"]}'
    assert await house.outcomes(task_id) == ["held", "completed"]


async def _another(house: House) -> None:
    workflow = single("another")
    helper = await house.hire(workflow)
    await house.ended(await house.send(workflow))
    await helper.stop()


async def test_a_broken_rule_that_the_step_has_eaten_holds_all_the_same(house: House) -> None:
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        try:
            for _ in range(2):
                await ctx.memo("draft", str, "x")
        except BaseException:
            pass

    task_id = await house.send(workflow)
    await house.hire(workflow)
    assert "twice" in await house.held(task_id)


async def test_a_broken_rule_in_the_start_and_one_outside_of_the_verbs(house: House) -> None:
    workflow = Workflow("review", 1, checkpoint=Notes)

    @workflow.start
    async def begin(message: Message) -> Notes:
        made: Any = Notes() if message.text == "go on" else {"done": []}
        return made  # type: ignore[no-any-return]

    @workflow.step
    async def work(ctx: Ctx) -> None:
        returned: Any = 42
        return returned  # type: ignore[no-any-return]

    start, step = await house.send(workflow), await house.send(workflow, "go on")
    await house.hire(workflow)
    assert "Fix:" in await house.held(start)
    assert "Step work returned int" in await house.held(step)


class Owned(BaseModel):
    """What a careless release has made of Notes."""

    done: list[str] = []
    owner: str


async def test_a_checkpoint_that_fits_its_type_no_more_is_held_with_the_place_and_the_fix(
    house: House,
) -> None:
    before, changed = flow(), Workflow("review", 1, checkpoint=Owned)

    @changed.start
    async def begin(message: Message) -> Owned:
        return Owned(owner="ann")

    after: Workflow[Any] = changed
    versions: list[Workflow[Any]] = [before, after]
    for workflow in versions:

        @workflow.step
        async def work(ctx: Context[Any, None]) -> None:
            await ctx.ask("Go on?")

    task_id = await house.send(before)
    first = await house.hire(before)
    await house.paused(task_id)
    await first.stop()
    second = await house.hire(after)
    await house.answer(task_id)
    reason = await house.held(task_id)
    assert "owner" in reason
    assert "give new fields a default" in reason
    await second.stop()
    await house.hire(before)
    await house.store.admin.unhold(task_id)
    await house.ended(task_id)


async def test_a_step_that_is_not_there_is_held_with_those_that_are(house: House) -> None:
    task_id = await house.store.new_task(first_step="gone")
    await house.hire(single())
    reason = await house.held(task_id)
    assert "'gone'" in reason
    assert "start, work" in reason


# --- what cannot be written, or not be known ------------------------------------------------------


async def test_what_the_database_refuses_holds_the_task_with_the_reason(house: House) -> None:
    """JSON deeper than its codec goes: no check before has found it."""
    deep: Any = "x"
    for _ in range(400):
        deep = [deep]
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        return ctx.complete(data=deep)

    task_id = await house.send(workflow)
    healthy = single("healthy")
    await house.hire(workflow, healthy)
    assert await house.held(task_id)
    await house.ended(await house.send(healthy))


async def test_case_073_an_effect_of_unknown_outcome_that_may_not_be_repeated_is_held(
    house: House,
) -> None:
    outside, gate = Outside(), Gate()
    outside.before_reply = gate
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        sent = await ctx.once("mail", outside.send, "mail", at_most_once=True)
        return ctx.complete(sent)

    task_id = await house.send(workflow)
    first = await house.hire(workflow)
    await gate.reached()
    await house.bury(first)
    second = await house.hire(workflow)
    reason = await house.held(task_id)
    assert "the outcome of effect 'mail' is unknown" in reason
    (lost, held) = await house.runs(task_id)
    assert (lost["outcome"], held["outcome"]) == ("lost", "held")
    named = re.search(r"`outlast resolve TASK (\w+) --fence (\d+) --write-no (\d+)`", reason)
    assert named is not None
    assert int(named[2]) == lost["fence"]
    assert await house.store.admin.resolve(
        task_id,
        f"effect:{named[1]}",
        fence=Fence(int(named[2])),
        write_no=WriteNo(int(named[3])),
        result='"what the operator found"',
    )
    await house.store.admin.unhold(task_id)
    assert text_of(await house.ended(task_id)) == "what the operator found"
    assert outside.calls == ["mail"]
    assert second.worker.problems() == []
    gate.open()


# --- threads --------------------------------------------------------------------------------------


async def test_a_thread_that_runs_on_at_twice_its_timeout_holds_the_task(house: House) -> None:
    may_end = threading.Event()
    began = list[int]()
    workflow = flow()

    @workflow.step(timeout=timedelta(seconds=0.1))
    async def work(ctx: Ctx) -> None:
        began.append(ctx.attempt)
        await ctx.thread(may_end.wait, 30)

    healthy = single("healthy")
    task_id = await house.send(workflow)
    hired = await house.hire(workflow, healthy)
    try:
        assert "a thread of step work runs on" in await house.held(task_id)
        assert "a thread of step work still runs" in str(hired.worker.problems())
        await house.ended(await house.send(healthy))
        assert began == [1]
    finally:
        may_end.set()
    await house.store.admin.unhold(task_id)
    await house.ended(task_id)
    assert began == [1, 1]


async def test_a_thread_that_outlives_the_timeout_keeps_the_lease_until_it_ends(
    house: House,
) -> None:
    may_end, left = threading.Event(), asyncio.Event()
    workflow = flow()

    @workflow.step(
        timeout=timedelta(seconds=1), retry=Retry(attempts=2, first=timedelta(hours=1),
                                                  longest=timedelta(hours=1))
    )  # fmt: skip
    async def work(ctx: Ctx) -> None:
        try:
            await ctx.thread(may_end.wait, 30)
        finally:
            left.set()

    task_id = await house.send(workflow)
    hired = await house.hire(workflow)
    try:
        async with asyncio.timeout(10):
            await left.wait()
        await house.keeps(task_id, hired)
    finally:
        may_end.set()
    await house.waiting(task_id)
    assert await house.outcomes(task_id) == ["retried"]
    assert hired.worker.problems() == []


async def test_threads_do_not_block_the_worker(house: House) -> None:
    """A slow blocking tool, and a hundred quick tasks beside it."""
    may_end = threading.Event()
    workflow, quick = flow("slow"), single("quick")

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        return ctx.complete(str(await ctx.thread(may_end.wait, 30)))

    slow = await house.send(workflow)
    await house.hire(workflow, quick, threads=1)
    try:
        for task_id in [await house.send(quick) for _ in range(20)]:
            await house.ended(task_id)
        assert (await house.store.task(slow)).state is State.WORKING
    finally:
        may_end.set()
    assert text_of(await house.ended(slow)) == "True"
