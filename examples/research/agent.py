"""Research: a model chooses tools, they run in parallel, and its answer is streamed.

Tools that change something outside wait for approval: one question for all of them, answered with
the list of those that may run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from pydantic import BaseModel, TypeAdapter

from examples.research.stand_in import stand_in_answer, stand_in_plan
from examples.research.tools import Call, Tools
from outlast import Agent, Context, ItemError, Message, Next, Skill, Workflow


class Research(BaseModel):
    """The checkpoint.

    dangerous: calls that want approval; after the answer, those that have it.
    notes: what the tools said, for the answer.
    """

    question: str
    lookups: list[Call] = []
    dangerous: list[Call] = []
    notes: list[str] = []


@dataclass(frozen=True)
class Clients:
    tools: Tools


@asynccontextmanager
async def open_clients() -> AsyncIterator[Clients]:
    yield Clients(Tools())


research = Workflow("research", version=1, checkpoint=Research)


@research.start
async def begin(message: Message) -> Research:
    return Research(question=message.text)


@research.step
async def plan(ctx: Context[Research, Clients]) -> None:
    calls = await ctx.memo("plan", stand_in_plan, ctx.checkpoint.question)
    ctx.checkpoint.lookups = [call for call in calls if not call.is_dangerous]
    ctx.checkpoint.dangerous = [call for call in calls if call.is_dangerous]


@research.step
async def look_up(ctx: Context[Research, Clients]) -> None:
    lookups = ctx.checkpoint.lookups
    answers = await ctx.map(
        lookups, ctx.resources.tools.look_up, key=call_id, limit=10, errors="return"
    )
    ctx.checkpoint.notes = [
        f"{call.tool}: no answer" if isinstance(answer, ItemError) else answer
        for call, answer in zip(lookups, answers, strict=True)
    ]


@research.step
async def ask_approval(ctx: Context[Research, Clients]) -> None:
    proposed = ctx.checkpoint.dangerous
    approved = await ctx.ask(
        f"Run these {len(proposed)} tools?",
        answer=TypeAdapter(list[str]),
        data={"calls": [call.model_dump() for call in proposed]},
    )
    ctx.checkpoint.dangerous = [call for call in proposed if call.id in approved]


@research.step
async def act(ctx: Context[Research, Clients]) -> None:
    done = await ctx.map(
        ctx.checkpoint.dangerous, ctx.resources.tools.act, key=call_id, effect=True
    )
    ctx.checkpoint.notes += [f"done: {what}" for what in done]


@research.step
async def answer(ctx: Context[Research, Clients]) -> Next:
    pieces = partial(stand_in_answer, ctx.checkpoint.question, ctx.checkpoint.notes)
    text = await ctx.stream("answer.md", pieces)
    return ctx.complete(f"Answered in {len(text.split())} words.")


def call_id(call: Call) -> str:
    return call.id


agent = Agent(
    "research",
    description="Answers a question with the help of tools.",
    skills=[Skill("research", "Research", "Looks up, asks before it acts, and answers.")],
    workflows=[research],
    resources=open_clients,
)
