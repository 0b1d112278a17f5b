"""A play: one task that must get through whoever dies, and what must be true when it has.

A child runs it from its creation to its end. What callers do comes from the test, through the
gateway's own code in this very process.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import httpx

from outlast import Agent
from outlast.compose import Stores
from outlast.gateway.app import create_app
from outlast.gateway.cards import agent_card
from outlast.gateway.config import GatewayConfig
from outlast.gateway.handler import OutlastRequestHandler
from outlast.model.ids import TaskId
from outlast.testing.checker import Finding, check_effects, check_finished, check_store
from outlast.testing.fleet import PATIENCE_S, Child, Children, Fleet, NotSeen
from tests.chaos.caller import Caller

GRACE_S = 2.0


class Clerk(Protocol):
    """Plays the people around one task."""

    @property
    def task_id(self) -> TaskId: ...

    async def look(self) -> bool:
        """Whether the task has ended. What it waits for is done first."""
        ...

    async def complaints(self) -> list[str]:
        """What people and services saw that is not as it should be, at the end."""
        ...


class Play(Protocol):
    """A task's agent, and the service that it works with: a process of the test's own."""

    @property
    def agent(self) -> Agent: ...

    @property
    def place(self) -> str:
        """The agent as the command line names it."""
        ...

    @property
    def environment(self) -> Mapping[str, str]: ...

    async def reset(self) -> None:
        """The service forgets what was."""
        ...

    async def begin(self, caller: Caller) -> Clerk: ...

    async def applied(self, stores: Stores) -> Mapping[str, int]:
        """How often each effect was applied, under its downstream key."""
        ...


Start = Callable[[Children], Awaitable[Play]]


@dataclass(frozen=True)
class Outcome:
    """reached: whether the first worker came to its fault. broken: promises that were not kept."""

    reached: bool
    broken: list[str]


@asynccontextmanager
async def office(agent: Agent, stores: Stores) -> AsyncIterator[Caller]:
    """A caller, and a gateway in this very process: no socket, no child."""
    facts = await stores.admin.check()
    config = GatewayConfig(url="http://office", epoch=facts.epoch)
    handler = OutlastRequestHandler(
        agent, stores.tasks, stores.log, stores.database.wakeups, config
    )
    app = create_app(handler, agent_card(agent, config))
    async with Caller("http://office", transport=httpx.ASGITransport(app)) as caller:
        yield caller


async def see_through(
    play: Play, fleet: Fleet, fault: Sequence[str], *, grace: float = GRACE_S
) -> Outcome:
    """Have one worker run the play until it meets its fault, and another one finish it.

    grace: how long the fault is waited for once the play has ended without it.
    """
    async with fleet.stores() as stores, office(play.agent, stores) as caller:
        clerk = await play.begin(caller)
        victim = fleet.start_role("worker", fault=fault)
        successor: Child | None = None
        async with asyncio.timeout(PATIENCE_S):
            while not await clerk.look():
                if successor is None and not victim.is_alive:
                    successor = fleet.start_role("worker")
                await asyncio.sleep(0.02)
        with contextlib.suppress(NotSeen):
            # A point that comes with the clock, such as the twentieth beat, comes after the end.
            await victim.ended(within=grace)
        found: list[Finding] = [
            *await check_store(stores.inspect),
            *await check_effects(stores.inspect, await play.applied(stores)),
            *await check_finished(stores.inspect, clerk.task_id),
        ]
        broken = [*map(str, found), *await clerk.complaints()]
    if victim.exit_code not in (None, -signal.SIGKILL):
        broken.append(f"the first worker ended by itself, with {victim.exit_code}")
    return Outcome(reached=not victim.is_alive, broken=broken)
