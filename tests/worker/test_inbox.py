"""Messages that come while a task works: each reaches a step, whatever happens around it."""

from __future__ import annotations

import asyncio

import pytest

from outlast import Message, Next, Rejected, Workflow
from outlast.model.commit import Finish
from outlast.model.errors import UnsupportedOperation
from outlast.model.task import State
from outlast.workflow.context import Context
from tests.worker.flows import Ctx, Gate, Notes, Outside, flow
from tests.worker.house import House, text_of
from tests.worker.wire import When, Wire, ends_with, is_commit

pytest_plugins = ["tests.worker.fixtures"]


async def note(ctx: Context[Notes, object]) -> None:
    ctx.checkpoint.done += [message.text for message in await ctx.inbox()]


def reading(outside: Outside) -> Workflow[Notes]:
    """One step that has an effect, reads and ends."""
    workflow = flow(inbox=True)

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        await ctx.once("mail", outside.send, "mail")
        await note(ctx)
        return ctx.complete(", ".join(ctx.checkpoint.done))

    return workflow


async def test_a_message_that_comes_as_the_step_ends_is_read_by_the_next_run(house: House) -> None:
    outside = Outside()
    workflow = reading(outside)
    task_id = await house.send(workflow)
    await house.store.receive(task_id, "early")
    wire = Wire()
    ending = wire.hold_call("commit", ends_with(Finish))
    await house.hire(workflow, wire=wire)
    await ending.happened.wait()
    await house.store.receive(task_id, "late")
    ending.release()
    assert text_of(await house.ended(task_id)) == "early, late"
    assert outside.calls == ["mail"]
    assert await house.outcomes(task_id) == ["released", "completed"]
    with pytest.raises(UnsupportedOperation, match="has ended"):
        await house.store.receive(task_id, "too late")


@pytest.mark.parametrize("when", [ends_with(Finish), is_commit], ids=["the end", "a commit"])
async def test_the_reply_to_the_write_that_reads_is_lost(house: House, when: When) -> None:
    workflow = flow(inbox=True)

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        await note(ctx)
        await ctx.commit()
        await note(ctx)
        return ctx.complete(", ".join(ctx.checkpoint.done))

    task_id = await house.send(workflow)
    await house.store.receive(task_id, "one")
    wire = Wire()
    lost = wire.lose_reply("commit", when)
    await house.hire(workflow, wire=wire)
    assert text_of(await house.ended(task_id)) == "one"
    assert lost.happened.is_set


async def test_a_worker_that_dies_after_it_looked_has_read_nothing(house: House) -> None:
    gate = Gate()
    workflow = flow(inbox=True)

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        await note(ctx)
        if not gate.is_open:
            await gate()
        return ctx.complete(", ".join(ctx.checkpoint.done))

    task_id = await house.send(workflow)
    await house.store.receive(task_id, "one")
    first = await house.hire(workflow)
    await gate.reached()
    await house.bury(first)
    gate.open()
    await house.hire(workflow)
    assert text_of(await house.ended(task_id)) == "one"


async def test_what_is_sent_reaches_a_step_that_works_on(house: House) -> None:
    """No new run, no new lease: the run that is under way reads."""
    asked = asyncio.Event()
    workflow = flow(inbox=True)

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        while not ctx.checkpoint.done:
            await note(ctx)
            asked.set()
            await asyncio.sleep(0.01)
        await ctx.commit()
        return ctx.complete(f"{ctx.checkpoint.done[0]} by {ctx.caller.subject}")

    task_id = await house.send(workflow)
    await house.hire(workflow)
    async with asyncio.timeout(10):
        await asked.wait()
    await house.store.receive(task_id, "now", caller={"subject": "bob"})
    assert text_of(await house.ended(task_id)) == "now by bob"
    assert await house.outcomes(task_id) == ["completed"]


async def test_a_start_that_refuses_its_task_has_no_inbox_to_read(house: House) -> None:
    workflow = Workflow("review", version=1, checkpoint=Notes, inbox=True)

    @workflow.start
    async def begin(message: Message) -> Notes:
        raise Rejected("not for us")

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        return ctx.complete(str(await ctx.inbox()))

    task_id = await house.send(workflow)
    await house.store.receive(task_id, "one more thing")
    await house.hire(workflow)
    await house.ended(task_id, State.REJECTED)


async def test_the_latest_message_is_one_that_was_read(house: House) -> None:
    """Until then its sender is not the caller whose word the step acts on."""
    workflow = flow(inbox=True)

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        before = f"{ctx.latest.text} by {ctx.caller.subject}"
        await note(ctx)
        await ctx.commit()
        return ctx.complete(f"{before}, {ctx.latest.text} by {ctx.caller.subject}")

    task_id = await house.send(workflow)
    first = (await house.store.events(task_id))[0].body
    await house.store.receive(task_id, "unread", caller={"subject": "bob"})
    await house.hire(workflow)
    said = f"{first['message']['parts'][0]['text']} by {first['caller']['subject']}"
    assert text_of(await house.ended(task_id)) == f"{said}, unread by bob"


async def test_a_cancel_ends_the_task_without_reading(house: House) -> None:
    gate = Gate()
    workflow = flow(inbox=True)

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        await gate()
        return ctx.complete()

    @workflow.on_cancel
    async def undo(ctx: Ctx) -> None: ...

    task_id = await house.send(workflow)
    wire = Wire()
    ending = wire.hold_call("commit", ends_with(Finish))
    await house.hire(workflow, wire=wire)
    await gate.reached()
    gate.open()
    await ending.happened.wait()
    await house.store.receive(task_id, "unread")
    await house.cancel(task_id)
    ending.release()
    await house.ended(task_id, State.CANCELED)


async def test_interleaving_17_a_step_that_never_reads_is_held_and_loses_nothing(
    house: House,
) -> None:
    gate = Gate()
    deaf = flow(inbox=True)

    @deaf.step
    async def work(ctx: Ctx) -> Next:
        await gate()
        return ctx.complete("deaf")

    task_id = await house.send(deaf)
    first = await house.hire(deaf)
    await gate.reached()
    await house.store.receive(task_id, "hello?")
    gate.open()
    assert "read ctx.inbox()" in await house.held(task_id)
    assert await house.outcomes(task_id) == ["held"]
    assert gate.arrivals == 1
    await first.stop()

    await house.store.receive(task_id, "anybody?")
    await house.hire(reading(Outside()))
    assert await house.store.admin.unhold(task_id)
    assert text_of(await house.ended(task_id)) == "hello?, anybody?"
