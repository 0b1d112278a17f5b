"""An agent that tells its caller who it takes the caller for."""

from __future__ import annotations

import json

from pydantic import BaseModel

from outlast import Agent, Context, Next, Workflow


class Told(BaseModel):
    """Who began the task, as the first step saw it."""

    who: str = ""


who = Workflow("who", version=1, checkpoint=Told)


@who.step
async def begin(ctx: Context[Told, None]) -> None:
    ctx.checkpoint.who = _caller(ctx)


@who.step
async def ask(ctx: Context[Told, None]) -> None:
    await ctx.ask("Who is it now?")


@who.step
async def tell(ctx: Context[Told, None]) -> Next:
    return ctx.complete(f"{ctx.checkpoint.who} {_caller(ctx)}")


def _caller(ctx: Context[Told, None]) -> str:
    caller = ctx.caller
    said = [caller.subject, caller.tenant, list(caller.scopes), dict(caller.claims)]
    return json.dumps(said, separators=(",", ":"))


agent = Agent("who", description="Says who calls.", skills=[], workflows=[who])
