"""An access review that must get through, whoever dies.

One small review (five systems, five findings) that a child runs from its creation to its end; the
answer to its question comes from the test, through the gateway's own code.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from examples.access_review.agent import agent
from outlast.compose import Stores
from outlast.gateway.app import create_app
from outlast.gateway.cards import agent_card
from outlast.gateway.config import GatewayConfig
from outlast.gateway.handler import OutlastRequestHandler
from outlast.model.ids import TaskId
from outlast.testing.checker import Finding, check_effects, check_finished, check_store
from outlast.testing.fleet import PATIENCE_S, Child, Children, Fleet, NotSeen
from tests.chaos.caller import PAUSED, TERMINAL, Caller, Json, history_of, texts_of

AGENT = "examples.access_review.agent:agent"
SYSTEMS = ("badges", "crm", "secrets", "source", "treasury")
GRACE_S = 2.0


@asynccontextmanager
async def office(stores: Stores) -> AsyncIterator[Caller]:
    """A caller, and a gateway in this very process: no socket, no child."""
    facts = await stores.admin.check()
    config = GatewayConfig(url="http://office", epoch=facts.epoch)
    handler = OutlastRequestHandler(
        agent, stores.tasks, stores.log, stores.database.wakeups, config
    )
    app = create_app(handler, agent_card(agent, config))
    async with Caller("http://office", transport=httpx.ASGITransport(app)) as caller:
        yield caller


async def start_directory(children: Children) -> Directory:
    """A directory of the test's own."""
    service = await children.service(
        "directory", "examples.access_review.directory:main", "--port", "0"
    )
    return Directory(service.url)


@dataclass(frozen=True)
class Directory:
    """The directory as a test sees it."""

    url: str

    async def reset(self) -> None:
        async with httpx.AsyncClient(base_url=self.url) as http:
            (await http.post("/reset")).raise_for_status()

    async def counters(self) -> Mapping[str, Any]:
        async with httpx.AsyncClient(base_url=self.url) as http:
            counters: Mapping[str, Any] = (await http.get("/counters")).json()
            return counters


async def begin(caller: Caller) -> Json:
    return await caller.send("Review", data={"systems": list(SYSTEMS)}, wait=False)


@dataclass
class Clerk:
    """Sees the review through: looks at it, and answers its question."""

    caller: Caller
    task: Json
    approved: list[str] = field(default_factory=list)

    async def look(self) -> bool:
        """Whether the review has ended; an open question is answered first."""
        self.task = await self.caller.get(self.task)
        state = self.task["status"]["state"]
        if state == PAUSED and not self.approved:
            self.approved = self._proposed()
            answer = {"approved": self.approved}
            await self.caller.send("Yes", task=self.task, wait=False, data=answer)
        return state in TERMINAL

    def _proposed(self) -> list[str]:
        question = self.task["status"]["message"]["parts"][1]["data"]
        return [finding["grant"] for finding in question["findings"]]


@dataclass(frozen=True)
class Outcome:
    """reached: whether the first worker came to its fault. broken: promises that were not kept."""

    reached: bool
    broken: list[str]


async def see_through(
    fleet: Fleet, directory: Directory, fault: Sequence[str], *, grace: float = GRACE_S
) -> Outcome:
    """Have one worker run a review until it meets its fault, and another one finish it.

    grace: how long the fault is waited for once the review has ended without it.
    """
    async with fleet.stores() as stores, office(stores) as caller:
        clerk = Clerk(caller, await begin(caller))
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
        broken = await _broken_promises(stores, directory, clerk)
    if victim.exit_code not in (None, -signal.SIGKILL):
        broken.append(f"the first worker ended by itself, with {victim.exit_code}")
    return Outcome(reached=not victim.is_alive, broken=broken)


async def _broken_promises(stores: Stores, directory: Directory, clerk: Clerk) -> list[str]:
    counters = await directory.counters()
    task_id = TaskId(clerk.task["id"])
    found: list[Finding] = [
        *await check_store(stores.inspect),
        *await check_effects(stores.inspect, counters["applied_by_key"]),
        *await check_finished(stores.inspect, task_id),
    ]
    return [*map(str, found), *_not_as_it_should(clerk, counters)]


def _not_as_it_should(clerk: Clerk, counters: Mapping[str, Any]) -> Iterator[str]:
    """What the caller and the directory saw, beside the laws that hold for every task."""
    task, approved = clerk.task, clerk.approved
    if task["status"]["state"] != "TASK_STATE_COMPLETED":
        yield f"the review did not complete: {task['status']}"
    if Counter(counters["applied"]) != Counter(approved):
        yield f"approved {approved}, applied {counters['applied']}"
    fetches = counters["fetches"]
    if set(fetches) != set(SYSTEMS) or sum(fetches.values()) > len(SYSTEMS) + 1:
        yield f"more than one fetch was repeated, or one was lost: {fetches}"
    if set(texts_of(task)) != {"report.md", "revocations.csv"}:
        yield f"the artifacts are {sorted(texts_of(task))}"
    if len(history_of(task)) != 3:
        yield f"a question, an answer or the request is lost or doubled: {history_of(task)}"
