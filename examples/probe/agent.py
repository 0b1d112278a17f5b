"""An agent that obeys commands, for tests: `effect A; ask; effect B`. See `commands`.

It commits after each command, so a run that starts over repeats only the one it was in. Effects go
to the counter sink (`python -m examples.probe.sink`) at the URL in `PROBE_SINK`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_never
from urllib.parse import quote

import httpx
from pydantic import BaseModel

from examples.probe import commands
from outlast import Agent, Context, Failed, Message, Next, Permanent, Rejected, Retry, Workflow


class Script(BaseModel):
    """The checkpoint: the commands as they were sent, how many are done, the latest answer."""

    commands: list[str]
    done: int = 0
    answer: str = ""

    def fill(self, text: str) -> str:
        return text.replace("{answer}", self.answer)


@dataclass(frozen=True)
class Sink:
    """The counter sink, as the probe calls it."""

    http: httpx.AsyncClient

    async def post(self, key: str, *, idempotency_key: str) -> None:
        if not str(self.http.base_url):
            raise Failed("an effect needs the URL of a counter sink in PROBE_SINK")
        answer = await self.http.post(
            f"/effects/{quote(key, safe='')}", headers={"Idempotency-Key": idempotency_key}
        )
        answer.raise_for_status()


@asynccontextmanager
async def open_sink() -> AsyncIterator[Sink]:
    async with httpx.AsyncClient(base_url=os.environ.get("PROBE_SINK", ""), timeout=60) as http:
        yield Sink(http)


probe = Workflow("probe", version=1, checkpoint=Script)


@probe.start
async def read_script(message: Message) -> Script:
    script = commands.split(message.text)
    try:
        for text in script:
            commands.parse(text)
    except commands.NotACommand as error:
        raise Rejected(str(error)) from error
    return Script(commands=script)


# Tries more often than any test's `flaky`, and soon.
@probe.step(retry=Retry(attempts=25, first=timedelta(milliseconds=100), factor=1))
async def run(ctx: Context[Script, Sink]) -> Next:
    script = ctx.checkpoint
    while script.done < len(script.commands):
        await obey(ctx, commands.parse(script.commands[script.done]))
        script.done += 1
        await ctx.commit()
    return ctx.complete("done")


async def obey(ctx: Context[Script, Sink], command: commands.Command) -> None:
    """Do one command. Everything that a script may hold twice has its position in its key."""
    script = ctx.checkpoint
    match command:
        case commands.Emit(count, every):
            await emit(ctx, count, every)
        case commands.Effect(key):
            key = script.fill(key)
            await ctx.once(f"effect:{key}", ctx.resources.post, key)
        case commands.Ask(question, within):
            answer = await ctx.ask(question, deadline=within, key=f"ask-{script.done}")
            script.answer = answer.text
        case commands.Auth(question):
            # What it brings is a secret: it is used, and not kept in the checkpoint.
            await ctx.require_auth(question, key=f"auth-{script.done}")
        case commands.Sleep(delay):
            await ctx.sleep(delay, key=f"sleep-{script.done}")
        case commands.Wait(delay):
            await asyncio.sleep(delay.total_seconds())
        case commands.Block(delay):
            block(delay)
        case commands.Raise():
            raise Permanent("the script said raise")
        case commands.Flaky(failures):
            if ctx.attempt <= failures:
                raise RuntimeError(f"the script said flaky {failures}: attempt {ctx.attempt}")
        case commands.Exit():
            os._exit(1)
        case commands.Say(text):
            await ctx.report(script.fill(text))
        case commands.Reject():
            raise Rejected("the script said reject")
        case _:
            assert_never(command)


async def emit(ctx: Context[Script, Sink], count: int, every: timedelta) -> None:
    """Append numbered chunks. They are provisional until the command is done: a run that starts
    over rewinds them and begins again with the first."""
    async with ctx.open_stream("chunks") as out:
        for number in range(1, count + 1):
            if number > 1:
                await asyncio.sleep(every.total_seconds())
            await out.write(f"{number}\n")


def block(delay: timedelta) -> None:
    """Hold the thread, and with it the event loop: the fault that some tests are about."""
    time.sleep(delay.total_seconds())


agent = Agent(
    "probe",
    description="Obeys the commands in the message, for tests.",
    skills=[],
    workflows=[probe],
    resources=open_sink,
)
