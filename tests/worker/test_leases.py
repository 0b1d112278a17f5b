"""Leases: what loses one, what does not, and that whoever has lost it stops before it does harm."""

from __future__ import annotations

import time
from typing import Any

from outlast.model.errors import LeaseLost
from outlast.model.task import State
from outlast.model.topics import work_topic
from tests.contract.stores import SCOPE
from tests.worker.flows import Ctx, Gate, Outside, flow, single
from tests.worker.house import House
from tests.worker.wire import Wire, says

pytest_plugins = ["tests.worker.fixtures"]

SHORT: dict[str, Any] = {"beat_s": 0.1, "lease_s": 1.2}
"""For tests about the end of a lease. Long enough for a busy machine to beat within it."""


# --- what does not cost a lease -------------------------------------------------------------------


async def test_case_068_a_step_that_blocks_the_loop_longer_than_the_lease_loses_nothing(
    house: House,
) -> None:
    runs = list[int]()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        runs.append(ctx.attempt)
        time.sleep(1.6)  # noqa: ASYNC251  a synchronous tool, as authors write them

    async with house.watched_from_elsewhere():
        task_id = await house.send(workflow)
        hired = await house.hire(workflow, **SHORT)
        before = hired.worker_id
        await house.ended(task_id)
    assert runs == [1]
    assert await house.outcomes(task_id) == ["completed"]
    assert hired.worker_id == before


async def test_a_database_that_is_away_for_less_than_the_lease_costs_nothing(
    house: House,
) -> None:
    """Verbs wait for it; a step never hears of it."""
    gate, began, outside = Gate(), list[int](), Outside()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        began.append(ctx.attempt)
        await gate()
        ctx.checkpoint.done.append(await ctx.memo("draft", str, "x"))
        await ctx.commit("half")
        await ctx.once("mail", outside.send, "mail")

    task_id = await house.send(workflow)
    hired = await house.hire(workflow)
    await gate.reached()
    hired.wire.cut()
    gate.open()
    await house.logs("beat.failed")
    await house.logs("claim.failed")
    hired.wire.mend()
    await house.ended(task_id)
    assert began == [1]
    assert await house.outcomes(task_id) == ["completed"]
    assert outside.calls == ["mail"]


async def test_case_048_a_wake_up_brings_a_cancel_to_the_run(house: House) -> None:
    """Long before the next beat, which would bring it too."""
    gate = Gate()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await gate()

    @workflow.on_cancel
    async def undo(ctx: Ctx) -> None: ...

    task_id = await house.send(workflow)
    await house.hire(workflow, beat_s=60.0, lease_s=600.0, poll_s=600.0)
    await gate.reached()
    await house.cancel(task_id)
    house.store.database.wakeups.send([work_topic(SCOPE.agent)])
    await house.ended(task_id, State.CANCELED)


async def test_a_wake_up_of_a_lease_that_still_holds_stops_nothing(house: House) -> None:
    """Every commit of another process wakes the worker, which then looks at its leases."""
    gate = Gate()
    workflow, quick = flow(), single("quick")

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await gate()

    task_id = await house.send(workflow)
    await house.hire(workflow, quick)
    await gate.reached()
    for _ in range(5):
        await house.ended(await house.send(quick))
    gate.open()
    await house.ended(task_id)
    assert gate.arrivals == 1


# --- the holder stops first -----------------------------------------------------------------------


async def test_case_072_without_a_beat_for_a_whole_lease_the_run_stops_before_any_effect(
    house: House,
) -> None:
    gate, outside, stopped = Gate(), Outside(), list[BaseException]()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        try:
            await gate()
        except BaseException as reason:
            stopped.append(reason)
        await ctx.once("mail", outside.send, f"attempt of {len(stopped)}")

    task_id = await house.send(workflow)
    hired = await house.hire(workflow, **SHORT)
    await gate.reached()
    hired.wire.cut()
    await house.logs("run.lease_lost", task_id=task_id)
    assert len(stopped) == 1
    assert outside.calls == []
    assert hired.worker.hindrances() == ["the worker cannot reach the store to renew its leases"]
    gate.open()
    hired.wire.mend()
    await house.ended(task_id)
    assert outside.calls == ["attempt of 1"]
    assert hired.worker.problems() == []
    # Nobody has declared it dead, so it gives back what it has no run for and claims it anew.
    assert await house.outcomes(task_id) == ["released", "completed"]


async def test_a_step_that_goes_on_after_the_loss_cannot_call_or_commit(house: House) -> None:
    gate, outside, raised = Gate(), Outside(), list[type[BaseException]]()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        if ctx.attempt == 1 and not raised:
            try:
                await gate()
            except BaseException:
                pass
            for act in (
                lambda: ctx.once("mail", outside.send, "mail"),
                ctx.commit,
                lambda: ctx.memo("x", str, "x"),
                lambda: ctx.report("still here"),
            ):
                try:
                    await act()
                except BaseException as reason:
                    raised.append(type(reason))

    task_id = await house.send(workflow)
    first = await house.hire(workflow)
    await gate.reached()
    await house.bury(first)
    first.wire.mend()
    await house.ended(task_id)
    assert raised == [LeaseLost] * 4
    assert outside.calls == []
    assert "still here" not in str(await house.said(task_id))


async def test_case_069_a_worker_that_was_frozen_past_its_lease_writes_nothing_when_it_wakes(
    house: House,
) -> None:
    """Its commit was on its way when it froze, and arrives when its successor is half-way."""
    gate, names = Gate(), ["old", "new"]
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        name = names.pop(0)
        if name == "new":
            await gate()
        ctx.checkpoint.done.append(name)
        await ctx.commit(name)

    task_id = await house.send(workflow)
    old = await house.hire(workflow, **SHORT)
    late = old.wire.hold_call("commit", when=says("old"))
    await late.happened.wait()
    old.wire.cut()
    frozen = old.worker_id
    await house.sweep()
    await house.logs("worker.dead", worker_id=frozen, early=False)
    new = await house.hire(workflow)
    await gate.reached()
    old.wire.mend()
    late.release()
    await house.logs("run.lease_lost", task_id=task_id)
    gate.open()
    await house.ended(task_id)
    assert await house.store.inspect.checkpoint(task_id) == '{"done":["new"]}'
    assert "working: old" not in await house.said(task_id)
    runs = await house.runs(task_id)
    assert [run["outcome"] for run in runs] == ["lost", "completed"]
    assert [run["worker_id"] for run in runs] == [frozen, new.worker_id]


# --- declared dead --------------------------------------------------------------------------------


async def test_a_worker_that_finds_itself_dead_drops_everything_and_registers_anew(
    house: House,
) -> None:
    gates, stopped = [Gate(), Gate()], list[str]()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        number = int(ctx.message.text)
        try:
            await gates[number]()
        except BaseException as reason:
            stopped.append(type(reason).__name__)
            raise
        await ctx.commit("done")

    tasks = [await house.send(workflow, str(number)) for number in (0, 1)]
    hired = await house.hire(workflow)
    for gate in gates:
        await gate.reached()
    before = hired.worker_id
    await house.bury(hired)
    hired.wire.mend()
    await house.logs("worker.declared_dead", worker_id=before)
    for gate in gates:
        await gate.reached(2)
    assert hired.worker_id != before
    assert len(stopped) == 2
    for number, task_id in enumerate(tasks):
        gates[number].open()
        await house.ended(task_id)
        runs = await house.runs(task_id)
        assert [run["outcome"] for run in runs] == ["lost", "completed"]
        assert [run["worker_id"] for run in runs] == [before, hired.worker_id]
    living = await house.store.inspect.workers()
    assert [row["worker_id"] for row in living] == [hired.worker_id]


async def test_a_dead_identity_can_claim_nothing(house: House) -> None:
    """Also in the moment before the worker learns of its death."""
    workflow = single()
    hired = await house.hire(workflow)
    before = hired.worker_id
    await house.bury(hired)
    task_id = await house.send(workflow)
    assert await house.store.claim(before) == []
    hired.wire.mend()
    await house.ended(task_id)
    (run,) = await house.runs(task_id)
    assert run["worker_id"] == hired.worker_id != before


# --- leases that the worker does not know of ------------------------------------------------------


async def test_a_lease_whose_claim_was_never_answered_is_given_back_and_claimed_anew(
    house: House,
) -> None:
    workflow, wire = single(), Wire()
    wire.lose_reply("claim")
    task_id = await house.send(workflow)
    hired = await house.hire(workflow, wire=wire)
    line = await house.logs("lease.given_back", task_id=task_id)
    assert line["fence"] == 1
    await house.ended(task_id)
    runs = await house.runs(task_id)
    assert [run["outcome"] for run in runs] == ["released", "completed"]
    assert {run["worker_id"] for run in runs} == {hired.worker_id}


async def test_a_run_that_broke_leaves_a_lease_that_is_given_back(house: House) -> None:
    """A fault of ours, before the task had a step to be held in."""
    workflow, wire = single(), Wire()
    wire.fail("event", RuntimeError("a fault of ours"))
    task_id = await house.send(workflow)
    await house.hire(workflow, wire=wire)
    await house.logs("run.broke", task_id=task_id)
    await house.ended(task_id)
    assert await house.outcomes(task_id) == ["released", "completed"]


async def test_another_workers_leases_are_none_of_its_business(house: House) -> None:
    workflow = flow()
    gate = Gate()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await gate()

    task_id = await house.send(workflow)
    first = await house.hire(workflow)
    await gate.reached()
    second = await house.hire(workflow)
    await house.beats(second, 3)
    assert (await house.store.task(task_id)).lease_owner == first.worker_id
    gate.open()
    await house.ended(task_id)
    assert gate.arrivals == 1
