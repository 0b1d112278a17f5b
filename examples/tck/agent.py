"""The system under test of the A2A conformance suite.

The first word of the message names what the agent shall do; any other message completes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta

from pydantic import BaseModel

from outlast import Agent, Caller, Context, Data, File, Message, Next, Rejected, Text, Workflow


class Behaviour(BaseModel):
    name: str


Ctx = Context[Behaviour, None]

tck = Workflow("tck", version=1, checkpoint=Behaviour)


@tck.start
async def begin(message: Message) -> Behaviour:
    return Behaviour(name=first_word(message))


@tck.step
async def behave(ctx: Ctx) -> Next:
    return await BEHAVIOURS.get(ctx.checkpoint.name, complete_task)(ctx)


@tck.step
async def converse(ctx: Ctx) -> Next:
    """One turn per visit, so that each question is a new one."""
    answer = await ctx.ask("What else? Say `done` to end.")
    return ctx.complete("done") if answer.text.strip() == "done" else ctx.goto(converse)


async def complete_task(ctx: Ctx) -> Next:
    return ctx.complete("Completed.")


async def input_required(ctx: Ctx) -> Next:
    await ctx.ask("What is your input?")
    return ctx.complete("Thank you.")


async def auth_required(ctx: Ctx) -> Next:
    raise Rejected("pausing for authorization is not supported yet")


async def reject_task(ctx: Ctx) -> Next:
    return ctx.reject("Rejected, as asked.")


async def task_failure(ctx: Ctx) -> Next:
    return ctx.fail("Failed, as asked.")


async def artifact_text(ctx: Ctx) -> Next:
    await ctx.artifact("text", Text("Some text."))
    return ctx.complete()


async def artifact_file(ctx: Ctx) -> Next:
    await ctx.artifact(
        "file", File(raw=b"Some bytes.\n", name="document.txt", media_type="text/plain")
    )
    return ctx.complete()


async def artifact_file_url(ctx: Ctx) -> Next:
    url = "https://example.com/document.txt"
    await ctx.artifact("file", File(url=url, name="document.txt", media_type="text/plain"))
    return ctx.complete()


async def artifact_data(ctx: Ctx) -> Next:
    await ctx.artifact("data", Data({"answer": 42, "items": ["one", "two"]}))
    return ctx.complete()


async def long_running(ctx: Ctx) -> Next:
    for second in range(1, 6):
        await asyncio.sleep(1)
        await ctx.report("working", done=second, total=5)
    return ctx.complete("Completed.")


async def multi_turn(ctx: Ctx) -> Next:
    return ctx.goto(converse)


async def cancel(ctx: Ctx) -> Next:
    await ctx.sleep(timedelta(days=1))
    return ctx.fail("Nobody canceled this task.")


async def stream_basic(ctx: Ctx) -> Next:
    await ctx.report("working")
    await ctx.artifact("result", Text("A result."))
    return ctx.complete("Completed.")


async def stream_chunked(ctx: Ctx) -> Next:
    await ctx.stream("result", chunks)
    return ctx.complete("Completed.")


async def chunks() -> AsyncIterator[str]:
    for number in range(1, 5):
        yield f"chunk {number}\n"
        await asyncio.sleep(0.2)  # apart in time, or they may go out as one


BEHAVIOURS: Mapping[str, Callable[[Ctx], Awaitable[Next]]] = {
    "tck-complete-task": complete_task,
    "tck-input-required": input_required,
    "tck-auth-required": auth_required,
    "tck-reject-task": reject_task,
    "tck-task-failure": task_failure,
    "tck-artifact-text": artifact_text,
    "tck-artifact-file": artifact_file,
    "tck-artifact-file-url": artifact_file_url,
    "tck-artifact-data": artifact_data,
    "tck-long-running": long_running,
    "tck-multi-turn": multi_turn,
    "tck-cancel": cancel,
    "tck-stream-basic": stream_basic,
    "tck-stream-chunked": stream_chunked,
}


def first_word(message: Message) -> str:
    return next(iter(message.text.split()), "")


agent = Agent(
    "tck",
    description="Behaves as the first word of the message says, for the conformance suite.",
    skills=[],
    workflows=[tck],
)


@agent.route
async def pick(message: Message, caller: Caller) -> Workflow[Behaviour] | Message:
    """Answer `tck-message-response` at once, without a task."""
    if first_word(message) == "tck-message-response":
        return Message.agent("A direct answer.")
    return tck
