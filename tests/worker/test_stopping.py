"""A graceful stop: nothing is claimed any more, steps reach their next commit, leases are given
back so that another worker resumes at once, and the worker signs off."""

from __future__ import annotations

import asyncio

from tests.worker.flows import Ctx, Gate, Outside, flow, single
from tests.worker.house import House

pytest_plugins = ["tests.worker.fixtures"]


async def test_a_step_reaches_its_next_commit_and_another_worker_resumes_at_once(
    house: House,
) -> None:
    gate, began = Gate(), list[list[str]]()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        began.append(list(ctx.checkpoint.done))
        for name in ("one", "two", "three")[len(ctx.checkpoint.done) :]:
            if name == "two":
                await gate()
            ctx.checkpoint.done.append(name)
            await ctx.commit(name)

    task_id = await house.send(workflow)
    first = await house.hire(workflow)
    await gate.reached()
    second = await house.hire(workflow)
    stopping = asyncio.create_task(first.stop())
    await house.logs("worker.draining")
    gate.open()
    await stopping
    await house.ended(task_id)
    assert began == [[], ["one", "two"]]
    released, completed = await house.runs(task_id)
    assert (released["outcome"], released["worker_id"]) == ("released", first.worker_id)
    assert (completed["outcome"], completed["worker_id"]) == ("completed", second.worker_id)
    assert completed["attempt"] == 1
    assert released["error"] is None


async def test_a_step_that_ends_meanwhile_leaves_the_next_one_to_another_worker(
    house: House,
) -> None:
    gate, ran = Gate(), list[str]()
    workflow = flow()

    @workflow.step
    async def first(ctx: Ctx) -> None:
        ran.append("first")
        await gate()

    @workflow.step
    async def second(ctx: Ctx) -> None:
        ran.append("second")

    task_id = await house.send(workflow)
    hired = await house.hire(workflow)
    await gate.reached()
    stopping = asyncio.create_task(hired.stop())
    await house.logs("worker.draining")
    gate.open()
    await stopping
    task = await house.store.task(task_id)
    assert (task.step, task.lease_owner, task.is_held) == ("second", None, False)
    assert ran == ["first"]
    await house.hire(workflow)
    await house.ended(task_id)
    assert ran == ["first", "second"]
    assert await house.outcomes(task_id) == ["released", "completed"]


async def test_when_the_grace_is_over_the_step_is_left_as_it_is(house: House) -> None:
    gate, left = Gate(), list[str]()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        if not gate.is_open:
            ctx.checkpoint.done.append("kept")
            await ctx.commit()
            ctx.checkpoint.done.append("gone")
        try:
            await gate()
        finally:
            left.append("cleaned up")

    task_id = await house.send(workflow)
    hired = await house.hire(workflow, grace_s=0.05)
    await gate.reached()
    await hired.stop()
    assert left == ["cleaned up"]
    assert await house.store.inspect.checkpoint(task_id) == '{"done":["kept"]}'
    assert await house.outcomes(task_id) == ["released"]
    gate.open()
    await house.hire(workflow)
    await house.ended(task_id)
    assert await house.store.inspect.checkpoint(task_id) == '{"done":["kept"]}'


async def test_an_effect_under_way_is_not_left_and_its_result_is_kept(house: House) -> None:
    gate, left, outside = Gate(), asyncio.Event(), Outside()
    outside.before_reply = gate
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        try:
            ctx.checkpoint.done.append(await ctx.once("mail", outside.send, "mail"))
        finally:
            left.set()

    task_id = await house.send(workflow)
    hired = await house.hire(workflow, grace_s=0.05)
    await gate.reached()
    stopping = asyncio.create_task(hired.stop())
    async with asyncio.timeout(10):
        await left.wait()
    await house.keeps(task_id, hired)
    gate.open()
    await stopping
    assert await house.outcomes(task_id) == ["released"]
    await house.hire(workflow)
    await house.ended(task_id)
    assert outside.calls == ["mail"]
    assert await house.store.inspect.checkpoint(task_id) == '{"done":["mail #1"]}'


async def test_a_run_that_has_just_begun_is_released_too(house: House) -> None:
    """The grace is over between the claim and the first step."""
    ran = list[str]()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        ran.append("work")

    hired = await house.hire(workflow, grace_s=0)
    beginning = hired.wire.hold_reply("commit")
    task_id = await house.send(workflow)
    await beginning.happened.wait()
    stopping = asyncio.create_task(hired.stop())
    await house.logs("worker.draining")
    await asyncio.sleep(0.05)  # the run has heard of it by now, or hears of it within its start
    beginning.release()
    await stopping
    assert await house.outcomes(task_id) == ["released"]
    assert ran == []
    assert not [line for line in house.logged if line["event"] == "run.broke"]
    await house.hire(workflow)
    await house.ended(task_id)


async def test_nothing_is_claimed_while_it_drains(house: House) -> None:
    gate = Gate()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await gate()

    first = await house.send(workflow)
    hired = await house.hire(workflow)
    await gate.reached()
    stopping = asyncio.create_task(hired.stop())
    await house.logs("worker.draining")
    second = await house.send(workflow)
    gate.open()
    await stopping
    assert await house.outcomes(first) == ["completed"]
    assert (await house.store.task(second)).fence == 0


async def test_it_signs_off(house: House) -> None:
    """Nobody has to prove its death, and nothing can be claimed for it any more."""
    workflow = single()
    hired = await house.hire(workflow)
    worker_id = hired.worker_id
    await hired.stop()
    assert await house.store.inspect.workers() == []
    rows = await house.store.sql(
        "select signed_off from workers where worker_id = :id", id=worker_id
    )
    assert [bool(row["signed_off"]) for row in rows] == [True]
    await house.send(workflow)
    assert await house.store.claim(worker_id) == []


async def test_an_idle_worker_stops_at_once(house: House) -> None:
    hired = await house.hire(single(), poll_s=600, grace_s=600)
    await hired.stop()
    assert not [line for line in house.logged if line["event"] == "worker.draining"]


async def test_releases_cost_no_attempts_and_no_crashes(house: House) -> None:
    gate = Gate()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await gate()

    task_id = await house.send(workflow)
    for times in range(1, 5):
        hired = await house.hire(workflow, grace_s=0)
        await gate.reached(times)
        await hired.stop()
    task = await house.store.task(task_id)
    assert (task.attempt, task.crashes) == (1, 0)
    assert await house.outcomes(task_id) == ["released"] * 4


async def test_a_worker_whose_beat_has_ended_stops_and_says_so(house: House) -> None:
    """Declared dead, it registers anew; when it may not, nobody would renew its leases."""
    gate = Gate()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await gate()

    task_id = await house.send(workflow)
    hired = await house.hire(workflow)
    await gate.reached()
    await house.store.sql("update versions set fingerprint = 'other', steps = '[]'")
    await house.bury(hired)
    hired.wire.mend()
    async with asyncio.timeout(10):
        await asyncio.wait([hired.running])
    assert "the beat thread has ended" in str(hired.running.exception())
    assert "changed" in (await house.logs("beat.died"))["error"]
    assert (await house.store.task(task_id)).lease_owner is None
