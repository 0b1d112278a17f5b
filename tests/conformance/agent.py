"""The system under test: an ordinary agent that does what the message's first word asks for."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from pydantic import BaseModel

from outlast import Agent, Caller, Context, Data, File, Message, Next, Rejected, Skill, Workflow
from outlast.model.content import Part


class Asked(BaseModel):
    """The first word of the message."""

    prefix: str


Ctx = Context[Asked, None]
tck = Workflow("tck", version=1, checkpoint=Asked)

DIRECT = "tck-message-response"
LONG_S = 5.0

ARTIFACTS: dict[str, Part | str] = {
    "tck-artifact-text": "Generated text content",
    "tck-artifact-file": File(
        raw=b"Generated file content", name="report.txt", media_type="text/plain"
    ),
    "tck-artifact-file-url": File(
        url="https://example.com/report.txt", name="report.txt", media_type="text/plain"
    ),
    "tck-artifact-data": Data({"key": "value", "count": 3}),
}


@tck.start
async def begin(message: Message) -> Asked:
    prefix, _, _ = message.text.partition(" ")
    if prefix == "tck-reject-task":
        raise Rejected("the message asked for a rejection")
    return Asked(prefix=prefix)


@tck.step
async def act(ctx: Ctx) -> Next:
    prefix = ctx.checkpoint.prefix
    match prefix:
        case "tck-auth-required":
            await ctx.require_auth("Give me access.")
        case "tck-task-failure":
            return ctx.fail("the message asked for a failure")
        case "tck-input-required":
            await ctx.ask("What else?")
        case "tck-multi-turn":
            answer = await ctx.ask("Go on, or say done.")
            if answer.text != "done":
                return ctx.goto(act)
        case "tck-long-running":
            await ctx.report("working")
            await asyncio.sleep(LONG_S)
            await ctx.artifact("result", "It took a while")
        case "tck-cancel":
            await ctx.sleep(timedelta(hours=1))
        case "tck-stream-basic":
            await ctx.report("working")
            await ctx.artifact("streamed", "Streamed content")
        case "tck-stream-chunked":
            await chunks(ctx)
        case _ if prefix in ARTIFACTS:
            await ctx.artifact("result", ARTIFACTS[prefix])
        case _:
            pass
    return ctx.complete(f"Done: {prefix}")


async def chunks(ctx: Ctx) -> None:
    """One artifact in several events: each is said before the next is written."""
    async with ctx.open_stream("chunked") as out:
        for number in range(1, 5):
            await out.write(f"chunk {number} ")
            await asyncio.sleep(0.15)


agent = Agent(
    "tck",
    description="The agent of the conformance tests.",
    skills=[Skill(id="tck", name="Conformance", description="Does what its prefixes say.")],
    workflows=[tck],
)


@agent.route
async def pick(message: Message, caller: Caller) -> Workflow[Asked] | Message:
    """A direct answer, or the workflow."""
    if message.text.startswith(DIRECT):
        return Message.agent("Hello to you too")
    return tck
