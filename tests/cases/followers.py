"""Two gateways behind a balancer, and callers that follow tasks whatever becomes of either."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from outlast.model.ids import Seq
from outlast.testing.checker import Sighting, check_seen
from outlast.testing.fleet import LOOK_EVERY_S, Child, Fleet
from outlast.testing.proxy import Proxy
from tests.chaos.caller import (
    STREAM_S,
    TERMINAL,
    Caller,
    Json,
    fold,
    generation_of,
    seen,
    state_of,
)

ENDS = frozenset(state.removeprefix("TASK_STATE_") for state in TERMINAL)


@dataclass
class Pair:
    """Two gateways and two workers; the proxy gives each connection to the next gateway."""

    fleet: Fleet
    proxy: Proxy
    gateways: list[Child] = field(default_factory=list)
    workers: list[Child] = field(default_factory=list)

    async def start(self) -> None:
        """Start all four."""
        await self.start_gateways()
        self.workers = list(await asyncio.gather(self.fleet.worker(), self.fleet.worker()))

    async def start_gateways(self) -> None:
        self.gateways = list(await asyncio.gather(self.fleet.gateway(), self.fleet.gateway()))
        self.proxy.lead_to(*(gateway.url for gateway in self.gateways))

    async def start_whole(self) -> None:
        """Start two processes that have both roles each."""
        self.gateways = list(await asyncio.gather(self.fleet.serve(), self.fleet.serve()))
        self.workers = self.gateways
        self.proxy.lead_to(*(gateway.url for gateway in self.gateways))

    def kill(self) -> None:
        """Kill all of them."""
        for child in (*self.gateways, *self.workers):
            child.kill()

    def caller(self) -> Caller:
        """One each of whose requests meets the next gateway."""
        return _caller(f"http://127.0.0.1:{self.proxy.port}")

    def caller_of(self, number: int) -> Caller:
        """A caller of this gateway, past the proxy."""
        return _caller(self.gateways[number].url)


def _caller(url: str) -> Caller:
    new_each_time = httpx.Limits(max_keepalive_connections=0)
    transport = httpx.AsyncHTTPTransport(limits=new_each_time)
    return Caller(url, extended=True, transport=transport)


class Follower:
    """Follows a task to its end. When its connection ends before, it comes back with the id of
    the last event that it has got. streams: what each connection brought."""

    def __init__(self, caller: Caller, task: Json) -> None:
        self.streams: list[list[Json]] = []
        self.arrived_at: dict[int, float] = {}
        self.last_id = ""
        self._caller = caller
        self._task = task

    @property
    def items(self) -> list[Json]:
        """All that came, in order, the Tasks of later connections too."""
        return [item for stream in self.streams for item in stream]

    @property
    def has_ended(self) -> bool:
        return bool(self.items) and state_of(self.items[-1]) in ENDS

    async def run(self, *, after: str = "") -> None:
        """Return when the task has ended."""
        self.last_id = after
        while not self.has_ended:
            with contextlib.suppress(httpx.TransportError):
                await self._follow()
            await asyncio.sleep(LOOK_EVERY_S)

    async def has_seen(self, events: int) -> bool:
        return len(self.arrived_at) >= events

    async def _follow(self) -> None:
        async with self._caller.subscribe(self._task, after=self.last_id or None) as events:
            self.streams.append([])
            async for item in events:
                self.streams[-1].append(item)
                self.last_id = events.last_id
                self.arrived_at.setdefault(generation_of(item), time.time())

    async def missed_nothing(self, caller: Caller) -> None:
        """Every event came once and in its place, each connection went on where the one before it
        had ended, and what came is the task as this caller gets it."""
        task = await caller.get(self._task)
        assert check_seen(map(_sighting, self.items), last=Seq(generation_of(task))) == []
        told = 0
        for stream in filter(None, self.streams):
            assert told in (0, generation_of(stream[0])), "a stream goes on where one had ended"
            assert seen(fold(stream[:1])) == seen(fold(self._items_up_to(stream[0])))
            told = generation_of(stream[-1])
        assert seen(fold(self._events())) == seen(task)

    def _items_up_to(self, item: Json) -> Iterable[Json]:
        """The first Task and the events up to this generation, without the Tasks in between."""
        last = generation_of(item)
        return [event for event in self._events() if generation_of(event) <= last]

    def _events(self) -> list[Json]:
        first, *others = self.items
        return [first, *(item for item in others if "task" not in item)]


def _sighting(item: Json) -> Sighting:
    return Sighting(generation=Seq(generation_of(item)), is_task="task" in item)


@asynccontextmanager
async def running(*followers: Follower) -> AsyncIterator[None]:
    """They follow meanwhile; leaving the context waits until their tasks have ended."""
    runs = [asyncio.create_task(follower.run()) for follower in followers]
    try:
        yield
        async with asyncio.timeout(STREAM_S):
            await asyncio.gather(*runs)
    finally:
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)


def by_generation(follower: Follower) -> dict[int, Json]:
    """The events that it got, without the Tasks."""
    return {generation_of(item): item for item in follower.items if "task" not in item}
