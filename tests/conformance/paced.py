"""An agent that goes on when the test says so, by a file of that name, and asks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic import BaseModel

from outlast import Agent, Context, Message, Next, Skill, Workflow
from outlast.gateway.config import GatewayConfig

KEEPALIVE_S = 0.5


class Order(BaseModel):
    """What is to be done, and where the files of the test are."""

    what: str
    place: str = ""


paced = Workflow("paced", version=1, checkpoint=Order)


@paced.start
async def begin(message: Message) -> Order:
    what, _, place = message.text.partition(" ")
    return Order(what=what, place=place)


@paced.step
async def act(ctx: Context[Order, None]) -> Next:
    order = ctx.checkpoint
    match order.what:
        case "write":
            await _write(ctx, Path(order.place))
        case "wait":
            await _until(Path(order.place))
        case "ask":
            answer = await ctx.ask("Which one?")
            return ctx.complete(f"You said {answer.text}.")
        case _:
            pass
    return ctx.complete(f"Done: {order.what}")


async def _write(ctx: Context[Order, None], place: Path) -> None:
    """Chunks `1 ` to `6 `: none is written before there is a file named after the one before."""
    async with ctx.open_stream("chunks") as out:
        for number in range(1, 7):
            await out.write(f"{number} ")
            await _until(place / str(number))


async def _until(file: Path) -> None:
    while not file.exists():
        await asyncio.sleep(0.02)


def speak_often() -> None:
    """The gateways of this process break a silence twice a second, not every 15 seconds."""
    defaults = GatewayConfig.__init__.__kwdefaults__
    assert defaults is not None
    defaults["keepalive_s"] = KEEPALIVE_S


agent = Agent(
    "paced",
    description="Writes, waits and asks.",
    skills=[Skill(id="paced", name="Paced", description="Goes on when it is told to.")],
    workflows=[paced],
)
