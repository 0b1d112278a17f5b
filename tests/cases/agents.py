"""The agent of the cases: the probe, and scenes that the probe's language has no words for.

One workflow of scenes and not one workflow each, because a worker asks for work per workflow.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from examples.probe.agent import Script, Sink, open_sink, probe
from outlast import Agent, Caller, Context, Message, Next, Permanent, Retry, Text, Workflow


class Scene(BaseModel):
    """What is played, with its arguments; how far it has come; whatever it wants to keep."""

    name: str
    arguments: list[str] = []
    turn: int = 0
    kept: str = ""


Stage = Context[Scene, Sink]
scenes = Workflow("scenes", version=1, checkpoint=Scene)


@scenes.start
async def begin(message: Message) -> Scene:
    name, *arguments = message.text.split()
    if (name, *arguments) == ("break", "start"):
        raise Permanent("as the scene wants it")
    return Scene(name=name, arguments=arguments)


@scenes.step(retry=Retry(attempts=25, first=timedelta(milliseconds=50), factor=1))
async def play(ctx: Stage) -> Next | None:
    return await _SCENES[ctx.checkpoint.name](ctx, *ctx.checkpoint.arguments)


@scenes.step
async def afterwards(ctx: Stage) -> Next:
    if ctx.checkpoint.arguments == ["later"]:
        raise Permanent("as the scene wants it")
    return ctx.complete("played")


# --- a talk -------------------------------------------------------------------------------------


class Talk(BaseModel):
    """What it does under which key, until when, and what it has heard meanwhile."""

    key: str
    place: str
    heard: list[str] = []


talks = Workflow("talks", version=1, checkpoint=Talk, inbox=True)


@talks.start
async def begin_talk(message: Message) -> Talk:
    key, place = message.text.split()
    return Talk(key=key, place=place)


@talks.step
async def talk(ctx: Context[Talk, Sink]) -> Next:
    """An effect, then a long work, which ends when the test has made the file."""
    await ctx.once(ctx.checkpoint.key, ctx.resources.post, ctx.checkpoint.key)
    is_over = False
    while not is_over:
        is_over = Path(ctx.checkpoint.place).exists()
        heard = [message.text for message in await ctx.inbox()]
        if heard:
            ctx.checkpoint.heard += heard
            await ctx.commit(f"heard {len(ctx.checkpoint.heard)}")
        await asyncio.sleep(0.05)
    return ctx.complete(", ".join(ctx.checkpoint.heard))


# --- scenes -------------------------------------------------------------------------------------


async def break_somewhere(ctx: Stage, where: str) -> Next | None:
    """Fails for good: in this step, in the next one, or after an answer."""
    if where == "pause":
        await ctx.ask("Break?")
    if where != "later":
        raise Permanent("as the scene wants it")
    return None


async def block(ctx: Stage, how: str, seconds: str) -> Next | None:
    """Keeps the process busy in a way that must not cost it its lease."""
    await ctx.report("blocking")
    if how == "loop":
        time.sleep(float(seconds))  # noqa: ASYNC251
    elif how == "executor":
        # The default executor has four threads more than there are processors: all, twice.
        count = 2 * min(32, (os.cpu_count() or 1) + 4)
        await asyncio.gather(
            *(asyncio.to_thread(time.sleep, float(seconds) / 2) for _ in range(count))
        )
    elif how == "gil":
        # A PyDLL keeps the interpreter's lock: nothing else in this process runs.
        for _ in range(4):
            ctypes.PyDLL(None).usleep(int(float(seconds) / 4 * 1e6))
            await asyncio.sleep(0.1)
    return None


async def until(ctx: Stage, place: str) -> Next | None:
    """A long step: it ends when the test has made the file."""
    while not Path(place).exists():
        await asyncio.sleep(0.1)
    return None


async def march(ctx: Stage, place: str) -> Next | None:
    """A commit every tenth of a second, until the test has made the file."""
    while not Path(place).exists():
        await ctx.commit("going on")
        await asyncio.sleep(0.1)
    return None


async def act(ctx: Stage, seconds: str, key: str) -> Next | None:
    """Waits, then has an effect, in one go: no commit stands between."""
    await ctx.report("waiting")
    await asyncio.sleep(float(seconds))
    await ctx.once(key, ctx.resources.post, key)
    return None


async def act_at_most_once(ctx: Stage, key: str) -> Next | None:
    """For a sink that knows no idempotency key: a call of unknown outcome is not repeated."""
    await ctx.once(key, ctx.resources.post, key, at_most_once=True)
    return None


async def retry(ctx: Stage) -> Next | None:
    """Five chunks in each of three attempts, of which the first two fail."""
    async with ctx.open_stream("chunks") as out:
        for number in range(1, 6):
            await out.write(f"{ctx.attempt}.{number} ")
    if ctx.attempt < 3:
        raise RuntimeError(f"attempt {ctx.attempt} fails, as the scene wants it")
    return None


async def turns(ctx: Stage) -> Next:
    """An artifact for every answer, until the answer is "stop"."""
    answer = await ctx.ask(f"Turn {ctx.checkpoint.turn + 1}?")
    if answer.text == "stop":
        return ctx.complete("stopped")
    ctx.checkpoint.turn += 1
    await ctx.artifact(f"turn-{ctx.checkpoint.turn}", Text(answer.text))
    return ctx.goto(play)


async def draw(ctx: Stage) -> Next | None:
    """Create, append three times, replace, append with the last chunk; another one in between."""
    if ctx.checkpoint.turn == 0:
        async with ctx.open_stream("first") as first, ctx.open_stream("second") as second:
            for piece in ("one ", "two ", "three ", "four "):
                await first.write(piece)
                await second.write(piece.upper())
        await ctx.commit()
        await ctx.artifact("first", Text("anew "))
        await ctx.commit()
        async with ctx.open_stream("first") as first:
            await first.write("and more")
        ctx.checkpoint.turn = 1
        await ctx.commit()
    await ctx.ask("Enough?")
    return None


async def sizes(ctx: Stage, *lengths: str) -> Next | None:
    """Chunks of these lengths, plain and of three bytes a character."""
    for length in lengths:
        for name, character in (("plain", "x"), ("wide", "€")):
            count = int(length) // len(character.encode())
            async with ctx.open_stream(f"{name}-{length}") as out:
                await out.write(character * count)
        await ctx.commit()
    return None


async def die(ctx: Stage, seconds: str) -> Next | None:
    """The process dies, every time."""
    await ctx.report("dying")
    await asyncio.sleep(float(seconds))
    os._exit(1)


async def grow(ctx: Stage) -> Next | None:
    """Commits, then wants to commit more than a checkpoint may hold."""
    await ctx.commit("small")
    ctx.checkpoint.kept = "x" * 2_000_000
    await ctx.commit("large")
    return None


async def poison(ctx: Stage) -> Next | None:
    """Says what no database takes."""
    await ctx.artifact("poison", Text("a\x00b"))
    await ctx.commit()
    return None


_SCENES: dict[str, Callable[..., Awaitable[Next | None]]] = {
    "break": break_somewhere,
    "block": block,
    "until": until,
    "march": march,
    "act": act,
    "act-at-most-once": act_at_most_once,
    "retry": retry,
    "turns": turns,
    "draw": draw,
    "sizes": sizes,
    "die": die,
    "grow": grow,
    "poison": poison,
}

agent = Agent(
    "cases",
    description="The probe, and scenes.",
    skills=[],
    workflows=[probe, scenes, talks],
    resources=open_sink,
)


@agent.route
async def pick(message: Message, caller: Caller) -> Workflow[Script] | Message:
    """The probe, unless the caller names another workflow, or only greets."""
    if message.text == "hello":
        return Message.agent(f"hello, caller number {uuid.uuid4()}")
    return probe
