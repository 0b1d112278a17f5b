"""`inbox`: what a step reads, when that counts as read, and how the task ends past it."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from outlast import AuthorError, Context, Message, Next, Retry, Workflow
from outlast.model.task import State
from outlast.testing import Held, run_workflow
from outlast.workflow.suspend import BrokenRule, Suspended
from tests.unit.fake_session import FakeSession, context_of, fake_session


class Notes(BaseModel):
    said: list[str] = []


Ctx = Context[Notes, None]

flow = Workflow("notes", 1, checkpoint=Notes, inbox=True)


@flow.step
async def work(ctx: Ctx) -> None: ...


def noting(**options: object) -> Workflow[Notes]:
    """A workflow that begins with empty notes. The test adds its steps."""
    made = Workflow("notes", 1, checkpoint=Notes, **options)  # type: ignore[arg-type]

    @made.start
    async def begin(message: Message) -> Notes:
        return Notes()

    return made


@pytest.fixture
def session() -> FakeSession:
    return fake_session("{}")


@pytest.fixture
def ctx(session: FakeSession) -> Ctx:
    return context_of(session, flow)


async def texts(ctx: Ctx) -> list[str]:
    return [message.text for message in await ctx.inbox()]


# --- reading --------------------------------------------------------------------------------------


async def test_it_holds_what_came_while_the_task_works(session: FakeSession, ctx: Ctx) -> None:
    assert await texts(ctx) == []
    session.receive("one")
    session.receive("two")
    assert await texts(ctx) == ["one", "two"]


async def test_until_a_commit_a_second_look_finds_the_same_and_more(
    session: FakeSession, ctx: Ctx
) -> None:
    session.receive("one")
    assert await texts(ctx) == ["one"]
    session.receive("two")
    assert await texts(ctx) == ["one", "two"]
    await ctx.commit()
    assert await texts(ctx) == []


async def test_a_commit_reads_what_was_looked_at_and_no_more(
    session: FakeSession, ctx: Ctx
) -> None:
    session.receive("one")
    await ctx.inbox()
    session.receive("two")
    await ctx.commit()
    move = session.writes[-1].move
    assert move is not None
    assert (move.read, move.closes) == (2, False)
    assert await texts(ctx) == ["two"]


async def test_a_run_that_starts_over_gets_what_no_commit_has_read(
    session: FakeSession, ctx: Ctx
) -> None:
    session.receive("one")
    await ctx.inbox()
    await ctx.commit()
    session.receive("two")
    await ctx.inbox()
    session.again()
    assert await texts(context_of(session, flow)) == ["two"]


async def test_answers_are_not_in_it(session: FakeSession, ctx: Ctx) -> None:
    session.receive("one")
    with pytest.raises(Suspended):
        await ctx.ask("Sure?")
    session.suspend()
    session.answer(Message.user("yes"))
    again = context_of(session, flow)
    assert await texts(again) == ["one"]
    assert (await again.ask("Sure?")).text == "yes"


async def test_a_workflow_without_one_has_nothing_to_read(session: FakeSession) -> None:
    without = Workflow("notes", 1, checkpoint=Notes)

    @without.step
    async def work(ctx: Ctx) -> None: ...

    with pytest.raises(BrokenRule, match="inbox=True"):
        await context_of(session, without).inbox()


# --- whole tasks ----------------------------------------------------------------------------------


async def test_each_message_is_kept_once_though_every_commit_is_followed_by_a_crash() -> None:
    workflow = noting(inbox=True)

    @workflow.step
    async def work(ctx: Ctx) -> Next | None:
        for _ in range(2):
            ctx.checkpoint.said += await texts(ctx)
            await ctx.commit()
        ctx.checkpoint.said += await texts(ctx)
        return ctx.complete(" ".join(ctx.checkpoint.said))

    said = ["one", "two", "three", "four", "five", "six"]
    run = await run_workflow(workflow, "hello", inbox=said)
    assert (run.state, run.text) == (State.COMPLETED, " ".join(said))
    assert run.checkpoint.said == said


@pytest.mark.parametrize("end", ["complete", "reject", "fail"])
async def test_no_step_ends_the_task_past_a_message(end: str) -> None:
    """It comes when the step has looked for the last time, and the step starts over."""
    workflow = noting(inbox=True)
    seen: list[list[str]] = []

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        seen.append(await texts(ctx))
        ends: dict[str, Next] = {
            "complete": ctx.complete("done"),
            "reject": ctx.reject("done"),
            "fail": ctx.fail("done"),
        }
        return ends[end]

    run = await run_workflow(workflow, "hello", inbox=["one", "two", "three"])
    assert seen == [["one"], ["one", "two", "three"]]
    assert run.text == "done"


async def test_nor_goes_to_its_failure_step_past_one() -> None:
    workflow = noting(inbox=True)
    seen: list[list[str]] = []

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        seen.append(await texts(ctx))
        return ctx.fail("no")

    @workflow.on_failure
    async def undo(ctx: Ctx) -> None:
        seen.append([f"undo after {len(seen)}"])

    run = await run_workflow(workflow, "hello", inbox=["one", "two"], crash_after_commits=False)
    assert run.state is State.FAILED
    assert seen == [["one"], ["one", "two"], ["undo after 2"]]


async def test_an_error_ends_it_without_reading() -> None:
    """There is no step that could read: each of its attempts fails."""
    workflow = noting(inbox=True, retry=Retry(attempts=2))

    @workflow.step
    async def work(ctx: Ctx) -> None:
        raise OSError("away")

    run = await run_workflow(workflow, "hello", inbox=["one"])
    assert run.state is State.FAILED


async def test_interleaving_17_a_step_that_never_reads_is_held() -> None:
    workflow = noting(inbox=True)
    runs: list[int] = []

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        runs.append(ctx.attempt)
        return ctx.complete("deaf")

    with pytest.raises(Held, match=r"read ctx\.inbox\(\)"):
        await run_workflow(workflow, "hello", inbox=["one"])
    assert runs == [1]
    assert (await run_workflow(workflow, "hello")).text == "deaf"


async def test_a_rehearsal_without_an_inbox_refuses_messages() -> None:
    with pytest.raises(AuthorError, match="inbox=True"):
        await run_workflow(noting(), "hello", inbox=["one"])


async def test_the_latest_message_is_the_last_one_read() -> None:
    workflow = noting(inbox=True)
    latest: list[str] = []

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        await ctx.inbox()
        latest.append(ctx.latest.text)
        return ctx.complete()

    await run_workflow(workflow, "hello", inbox=["one", "two"])
    assert latest == ["one", "two"]
