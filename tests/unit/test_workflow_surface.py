"""What authors and roles see of agents, workflows and steps."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

import outlast
from outlast import Agent, AuthorError, Context, Data, Message, Next, Rejected, Workflow
from outlast.model.commit import Event, EventKind, status_event
from outlast.model.errors import InvalidParams
from outlast.model.ids import StepName
from outlast.model.task import Caller, State
from outlast.workflow.next import Complete, Fail, Goto, Reject
from outlast.workflow.steps import ON_CANCEL, ON_FAILURE, START, call_step
from outlast.workflow.suspend import Suspended
from tests.unit.fake_session import context_of, fake_session


class Review(BaseModel):
    systems: list[str] = []


class Strict(BaseModel):
    systems: list[str]
    owner: str = Field(alias="ownerName", default="")


class Asked(BaseModel):
    quarter: int


def a_workflow(version: int = 1, *, name: str = "review", **more: Any) -> Workflow[Review]:
    workflow = Workflow(name, version, checkpoint=Review, **more)

    @workflow.step
    async def first(ctx: Context[Review, Any]) -> None: ...

    @workflow.step(timeout=None)
    async def second(ctx: Context[Review, Any]) -> Next:
        return ctx.complete("done")

    return workflow


def an_agent(*workflows: Workflow[Any], **more: Any) -> Agent:
    return Agent("compliance", description="…", skills=[], workflows=workflows, **more)


def test_what_is_exported() -> None:
    for name in outlast.__all__:
        assert hasattr(outlast, name)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert outlast.__version__ == project["project"]["version"]


# --- workflows ----------------------------------------------------------------------------------


def test_an_author_who_calls_nobody_loads_no_client() -> None:
    code = (
        "import sys, outlast\n"
        "early = {'httpx', 'a2a'} & set(sys.modules)\n"
        "print(early, outlast.Client.__name__, hasattr(outlast, 'Cleint'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["set()", "Client", "False"]


def test_the_steps_of_a_workflow() -> None:
    workflow = a_workflow()

    @workflow.on_cancel
    async def clean(ctx: Context[Review, Any]) -> None: ...

    @workflow.on_failure(timeout=timedelta(seconds=5))
    async def tell(ctx: Context[Review, Any]) -> None: ...

    assert [step.name for step in workflow.steps] == ["start", "first", "second"]
    assert [step.timeout for step in workflow.steps] == [timedelta(minutes=10)] * 2 + [None]
    assert workflow.step_after(START) == "first"
    assert workflow.step_after(StepName("first")) == "second"
    assert workflow.step_after(StepName("second")) is None
    assert workflow.step_after(ON_CANCEL) is None
    assert workflow.cancel_step is not None
    assert workflow.cancel_step.timeout == timedelta(seconds=60)
    assert workflow.failure_step is workflow.step_named(ON_FAILURE)
    assert workflow.failure_step is not None
    assert workflow.failure_step.timeout == timedelta(seconds=5)
    assert repr(workflow) == "<Workflow review version 1>"


def test_the_fingerprint_is_that_of_names_and_order() -> None:
    one, same, hooked = a_workflow(), a_workflow(2), a_workflow()

    @hooked.start
    async def begin(message: Message) -> Review:
        return Review()

    @hooked.on_cancel
    async def clean(ctx: Context[Review, Any]) -> None: ...

    assert one.fingerprint == same.fingerprint == hooked.fingerprint
    longer = a_workflow()

    @longer.step
    async def third(ctx: Context[Review, Any]) -> None: ...

    assert longer.fingerprint != one.fingerprint


def test_a_version_with_an_inbox_is_another_than_the_same_without() -> None:
    """One of its workers would end tasks past messages that the other's gateways take."""
    without, with_inbox = (
        Workflow("review", version=1, checkpoint=Review, inbox=inbox) for inbox in (False, True)
    )
    assert without.fingerprint != with_inbox.fingerprint


def test_decorated_functions_stay_what_they_are() -> None:
    workflow = Workflow("review", 1, checkpoint=Review)

    async def first(ctx: Context[Review, Any]) -> None: ...

    assert workflow.step(first) is first
    assert workflow.name_of_step(first) == "first"
    assert workflow.name_of_step("first") == "first"
    assert workflow.name_of_step("start") == "start"


# --- inputs -------------------------------------------------------------------------------------


def started(checkpoint: type[Any], **more: Any) -> Workflow[Any]:
    return Workflow("review", 1, checkpoint=checkpoint, **more)


@pytest.mark.parametrize(
    ("workflow", "message", "path"),
    [
        (started(Strict), Message.user("hi"), "message.parts"),
        (
            started(Strict),
            Message.user(Data({"systems": ["a", 1]})),
            "message.parts[0].data.systems.1",
        ),
        (started(Strict), Message.user("hi", Data({})), "message.parts[1].data.systems"),
        (started(Review), Message.user(Data([])), "message.parts[0].data"),
        (started(Review, input=Asked), Message.user("hi"), "message.parts"),
        (
            started(Review, input=Asked),
            Message.user(Data({"quarter": "q"})),
            "message.parts[0].data.quarter",
        ),
    ],
)
def test_input_that_does_not_fit(workflow: Workflow[Any], message: Message, path: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        workflow.check_input(message)
    assert caught.value.path == path


async def test_with_a_start_only_the_input_is_checked() -> None:
    workflow = started(Strict, input=Asked)

    @workflow.start
    async def begin(message: Message) -> Strict:
        return Strict(systems=[])

    workflow.check_input(Message.user(Data({"quarter": 3.0})))
    with pytest.raises(InvalidParams):
        workflow.check_input(Message.user(Data({"systems": []})))
    free = started(Strict)
    free.start(begin)
    free.check_input(Message.user("whatever"))


@pytest.mark.parametrize(
    ("message", "checkpoint"),
    [
        (Message.user("hi"), Review()),
        (Message.user("hi", Data({"systems": ["a"]})), Review(systems=["a"])),
    ],
)
async def test_without_a_start_the_data_part_is_the_checkpoint(
    message: Message, checkpoint: Review
) -> None:
    workflow = a_workflow()
    workflow.check_input(message)
    ctx = context_of(fake_session(None, message=message, step="start"), workflow)
    assert await call_step(ctx, ctx.step) is None
    assert ctx.checkpoint == checkpoint
    assert await ctx.take_commit() == ([], checkpoint.model_dump_json())


async def test_a_message_that_no_longer_fits_is_rejected() -> None:
    message = Message.user(Data({"systems": 1}))
    ctx = context_of(fake_session(None, message=message, step="start"), a_workflow())
    with pytest.raises(Rejected, match=r"message.parts\[0\].data.systems"):
        await call_step(ctx, ctx.step)


# --- steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_context", [False, True])
async def test_a_start(with_context: bool) -> None:
    workflow = a_workflow()

    async def bare(message: Message) -> Review:
        return Review(systems=[message.text])

    async def full(message: Message, ctx: Context[Review, Any]) -> Review:
        await ctx.commit("starting")
        return Review(systems=[message.text, ctx.task_id])

    workflow.start(full) if with_context else workflow.start(bare)
    session = fake_session(None, message=Message.user("hr"), step="start")
    ctx = context_of(session, workflow)
    assert ctx.encoded_checkpoint() is None
    await call_step(ctx, ctx.step)
    assert ctx.checkpoint.systems == (["hr", "task-1"] if with_context else ["hr"])
    if with_context:
        assert session.writes[0].move is not None
        assert session.writes[0].move.checkpoint is None


async def test_a_start_may_wait() -> None:
    workflow = a_workflow()

    @workflow.start
    async def begin(message: Message, ctx: Context[Review, Any]) -> Review:
        return Review(systems=[(await ctx.ask("Which one?")).text])

    session = fake_session(None, step="start")
    ctx = context_of(session, workflow)
    with pytest.raises(Suspended):
        await call_step(ctx, ctx.step)
    session.suspend()
    session.answer(Message.user("hr"))
    ctx = context_of(session, workflow)
    await call_step(ctx, ctx.step)
    assert ctx.checkpoint.systems == ["hr"]


async def test_what_a_step_may_return() -> None:
    workflow = a_workflow()
    ctx = context_of(fake_session("{}", step="second"), workflow)
    assert await call_step(ctx, ctx.step) == Complete("done")
    assert ctx.complete(data=Review(systems=["a"])) == Complete(None, {"systems": ["a"]})
    assert ctx.fail("no") == Fail("no")
    assert ctx.reject("no") == Reject("no")
    assert ctx.goto("first") == Goto(StepName("first"))
    assert ctx.goto(workflow.steps[1].fn) == Goto(StepName("first"))


# --- contexts -----------------------------------------------------------------------------------


async def test_what_a_context_knows() -> None:
    session = fake_session("{}", message=Message.user("hello"), step="first")
    session.resources = {"directory": 1}
    ctx = context_of(session, a_workflow())
    assert (ctx.task_id, ctx.context_id, ctx.attempt) == ("task-1", "context-1", 1)
    assert ctx.resources == {"directory": 1}
    assert ctx.metadata == {"priority": "high"}
    assert (ctx.message.text, ctx.latest.text) == ("hello", "hello")
    assert ctx.caller == Caller(subject="alice")
    assert ctx.log._context["step"] == "first"
    assert ctx.log._context["visit"] == 2
    assert ctx.message_json("hi")["taskId"] == "task-1"  # type: ignore[index]
    assert ctx.message_json(None) is None
    assert await ctx.thread(max, 1, 2) == 2


async def test_history_is_what_was_said_and_answered() -> None:
    session = fake_session("{}", step="first")
    for number in range(120):
        session.add(status_event(State.WORKING))
        session.add(
            status_event(State.INPUT_REQUIRED, Message.agent(f"q{number}").to_json(), ask={})
        )
        question = session.log[-1]
        session.add(
            answer_event(f"a{number}", question.seq),
        )
    session.add(status_event(State.INPUT_REQUIRED, Message.agent("open").to_json(), ask={}))
    ctx = context_of(session, a_workflow())
    said = [message.text for message in await ctx.history()]
    assert said == ["hello", *(f"{who}{n}" for n in range(120) for who in "qa")]
    assert [message.text for message in await ctx.history(last=3)] == ["a118", "q119", "a119"]
    assert await ctx.history(last=0) == []


def answer_event(text: str, question: int) -> Any:
    body = {"state": "working", "message": Message.user(text).to_json(), "answers": question}
    return Event(kind=EventKind.MESSAGE, body=body, is_message=True)


# --- agents -------------------------------------------------------------------------------------


async def test_versions_side_by_side() -> None:
    old, new = a_workflow(2), a_workflow(10)
    agent = an_agent(new, old)
    assert agent.workflows == (new, old)
    assert agent.default_workflow is new
    assert agent.workflow("review") is new
    assert agent.workflow("review", 2) is old
    assert agent.runs("review", 2)
    assert not agent.runs("review", 3)
    with pytest.raises(InvalidParams, match="no workflow 'review' version 3"):
        agent.workflow("review", 3)
    with pytest.raises(InvalidParams, match="no workflow 'other'"):
        agent.workflow("other")
    assert await agent.pick(Message.user("hi"), Caller()) is new


async def test_a_router_picks_or_answers() -> None:
    one, two = a_workflow(name="one"), a_workflow(name="two")
    agent = an_agent(one, two)

    @agent.route
    async def pick(message: Message, caller: Caller) -> Workflow[Any] | Message:
        known = {"one": one, "two": two, "foreign": a_workflow(name="one")}
        return known.get(message.text) or Message.agent("which one?")

    assert await agent.pick(Message.user("two"), Caller()) is two
    answer = await agent.pick(Message.user("hm"), Caller())
    assert isinstance(answer, Message)
    with pytest.raises(AuthorError, match="one of the agent's workflows"):
        await agent.pick(Message.user("foreign"), Caller())


async def test_resources_are_opened_by_the_worker() -> None:
    opened: list[str] = []

    @asynccontextmanager
    async def clients() -> AsyncIterator[str]:
        opened.append("in")
        yield "clients"
        opened.append("out")

    agent = an_agent(a_workflow(), resources=clients)
    assert opened == []
    async with agent.open_resources() as resources:
        assert resources == "clients"
    assert opened == ["in", "out"]
    async with an_agent(a_workflow()).open_resources() as nothing:
        assert nothing is None
