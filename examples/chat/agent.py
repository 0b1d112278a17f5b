"""A conversation: reply, wait for the answer, and come round again.

However long it gets, the checkpoint is one number. What was said is in the task's log, and a turn
reads as much of it as its model needs.
"""

from __future__ import annotations

from pydantic import BaseModel

from examples.chat.stand_in import stand_in_reply
from outlast import Agent, Context, Message, Next, Skill, Workflow

REMEMBERED = 8
"""How many messages the model is shown."""


class Chat(BaseModel):
    turns: int = 0


chat = Workflow("chat", version=1, checkpoint=Chat)


@chat.start
async def begin(message: Message) -> Chat:
    return Chat()


@chat.step
async def turn(ctx: Context[Chat, None]) -> Next:
    async def reply() -> str:
        # Read in here: a run that starts over after the answer would find one message more.
        history = await ctx.history(last=REMEMBERED)
        return await stand_in_reply([said.text for said in history if said.role == "user"])

    answer = await ctx.ask(await ctx.memo("reply", reply))
    ctx.checkpoint.turns += 1
    if answer.text.strip().lower() == "bye":
        return ctx.complete(f"Goodbye, after {ctx.checkpoint.turns} turns.")
    return ctx.goto(turn)


agent = Agent(
    "chat",
    description="Talks for as long as you like.",
    skills=[Skill("chat", "Chat", "Replies to what you say, until you say bye.")],
    workflows=[chat],
)
