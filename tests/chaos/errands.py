"""An errand that must get through, whoever dies: it has to be authorized, and people talk to it
while it works.

Two messages come before anybody runs it; the third comes when it has looked into its inbox for the
last time, so that it cannot end before it has started over. What its steps wait for is no read of
the store, so that its crash points are the same each time.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from examples.probe.agent import Sink, open_sink
from outlast import Agent, Context, Message, Next, Workflow
from outlast.compose import Stores
from outlast.model.ids import TaskId
from outlast.testing.fleet import Children
from tests.chaos.caller import TERMINAL, Caller, Json, history_of, pause_of, state_of
from tests.chaos.fleets import CounterSink

SECRET = "s3cret"
SAID = ("one", "two", "three")


# --- the agent ------------------------------------------------------------------------------------


class Errand(BaseModel):
    """Which file says that all has been said, and what it has heard."""

    place: str
    heard: list[str] = []


Ctx = Context[Errand, Sink]

errand = Workflow("errand", 1, checkpoint=Errand, inbox=True)


@errand.start
async def begin(message: Message) -> Errand:
    return Errand(place=message.text)


@errand.step
async def log_in(ctx: Ctx) -> None:
    token = await ctx.require_auth("Log in to the shop")
    await ctx.once("log-in", ctx.resources.post, f"{ctx.task_id}-{token}")


@errand.step
async def listen(ctx: Ctx) -> None:
    ctx.checkpoint.heard += [message.text for message in await ctx.inbox()]
    await ctx.commit(f"heard {len(ctx.checkpoint.heard)}")


@errand.step
async def pay(ctx: Ctx) -> Next:
    ctx.checkpoint.heard += [message.text for message in await ctx.inbox()]
    await ctx.once("pay", ctx.resources.post, f"{ctx.task_id}-paid")
    while not Path(ctx.checkpoint.place).exists():
        await asyncio.sleep(0.02)
    return ctx.complete(", ".join(ctx.checkpoint.heard))


agent = Agent(
    "errands", description="Buys things.", skills=[], workflows=[errand], resources=open_sink
)


# --- the play -------------------------------------------------------------------------------------


async def start_errand(children: Children) -> ErrandPlay:
    """An errand, with a sink of its own."""
    service = await children.service("sink", "examples.probe.sink:main", "--port", "0")
    return ErrandPlay(children.folder, CounterSink(service.url))


@dataclass(frozen=True)
class ErrandPlay:
    folder: Path
    sink: CounterSink
    place: str = "tests.chaos.errands:agent"

    @property
    def agent(self) -> Agent:
        return agent

    @property
    def environment(self) -> Mapping[str, str]:
        return {"PROBE_SINK": self.sink.url}

    async def reset(self) -> None:
        """Its keys hold the id of its task: nothing of another one is counted."""

    async def begin(self, caller: Caller) -> Customer:
        place = self.folder / f"said-{uuid.uuid4().hex}"
        task = await caller.send(str(place), wait=False)
        customer = Customer(self.sink, caller, task, place)
        await customer.say(*SAID[:2])
        return customer

    async def applied(self, stores: Stores) -> Mapping[str, int]:
        """By the sink's count of the idempotency keys that came under each of our keys."""
        found: dict[str, int] = {}
        for effect in await stores.inspect.effects():
            name = effect["key"].removeprefix("effect:")
            key = {"log-in": SECRET, "pay": "paid"}[name]
            counts = await self.sink.counts(f"{effect['ledger_id']}-{key}")
            found[f"{effect['ledger_id']}:{name}"] = counts.effects
        return found


@dataclass
class Customer:
    """Authorizes the errand, and talks to it."""

    sink: CounterSink
    caller: Caller
    task: Json
    place: Path
    authorized: bool = False
    said: list[str] = field(default_factory=list)

    @property
    def task_id(self) -> TaskId:
        return TaskId(self.task["id"])

    async def look(self) -> bool:
        self.task = await self.caller.get(self.task)
        if state_of(self.task) == "AUTH_REQUIRED" and not self.authorized:
            self.authorized = True
            await self.caller.authorize(self.task, SECRET, pause=pause_of(self.task))
        elif len(self.said) == 2 and await self.sink.is_called(f"{self.task_id}-paid"):
            await self.say(SAID[2])
            self.place.touch()
        return self.task["status"]["state"] in TERMINAL

    async def say(self, *texts: str) -> None:
        for text in texts:
            self.said.append(text)
            await self.caller.send(text, task=self.task, wait=False)

    async def complaints(self) -> list[str]:
        return list(self._complaints())

    def _complaints(self) -> Iterator[str]:
        if state_of(self.task) != "COMPLETED":
            yield f"the errand did not complete: {self.task['status']}"
        elif (told := self.task["status"]["message"]["parts"][0]["text"]) != ", ".join(SAID):
            yield f"it heard {told}, and was told {self.said}"
        # A pause for authorization is answered by no message, so its question is not history.
        if history_of(self.task) != [str(self.place), *SAID]:
            yield f"a message is lost or doubled: {history_of(self.task)}"
