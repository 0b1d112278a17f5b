"""Streams and calls of one gateway process, beside the SDK's DefaultRequestHandler.

The same agent and the same caller meet three servers in turn: Outlast's gateway, with a pool of
five PostgreSQL connections and a worker in a process of its own; the SDK's handler with its store
in memory; and the SDK's handler with its versioned database store and event stream, on PostgreSQL
with five connections too. The SDK runs the agent inside its server.

Latencies of events are from the moment when the agent begins to say something until a caller has
it: for Outlast a commit lies in between. "After the call" is from the moment when the agent's call
has returned, which for Outlast is when the commit is known to have happened; the SDK's call returns
before anything is stored, so there is nothing to compare.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.peers import CONNECTIONS, has_database_store
from bench.readers import Subscription, caller, stalled, subscribed
from outlast.testing.fleet import Child, Children, Fleet
from outlast.testing.postgres_server import PostgresServer

SUBSCRIBERS = 1000
CALLS = 500
SENDS = 500
SENDERS = 16
STALLED = 100
FLOODS, FLOOD_SIZE = 40, 50_000
TICKS_PER_S = 100
OURS, MEMORY, DATABASE = "outlast", "SDK, in memory", "SDK, database"
KIB = 1024

Figures = dict[str, float]


@dataclass(frozen=True)
class Server:
    """What answers at the URL, and its process."""

    child: Child

    @property
    def url(self) -> str:
        return self.child.url

    def memory(self) -> int:
        """Resident bytes."""
        pages = Path(f"/proc/{self.child.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


Measure = Callable[[Server, int], Coroutine[Any, Any, Figures]]


# --- servers --------------------------------------------------------------------------------------


@asynccontextmanager
async def ours(database: str, folder: Path, size: int) -> AsyncIterator[Server]:
    defaults: Any = {"beat": 1.0, "lease": 15.0, "poll": 1.0, "recovery": 1.0, "grace": 0.1}
    async with Fleet(database, folder, agent="bench.peers:agent", **defaults) as fleet:
        await fleet.worker(concurrency=2 * size)
        # The SDK knows no limits of owners, and all that comes here comes from one.
        limits: Any = {"owner_tasks": 0, "owner_calls": 0, "owner_sends": 0}
        yield Server(await fleet.gateway(database_pool=CONNECTIONS, **limits))


@asynccontextmanager
async def sdks(kind: str, database: str, folder: Path) -> AsyncIterator[Server]:
    async with Children(folder) as children:
        url = database.replace("postgresql://", "postgresql+asyncpg://")
        arguments = [kind] if kind == "memory" else [kind, url]
        yield Server(await children.service("sdk", "bench.peers:main", *arguments))


async def measured(name: str, measure: Measure, size: int, database: str) -> Figures:
    """The figures of a fresh server of this name."""
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as folder:
        server = {
            OURS: lambda: ours(database, Path(folder), size),
            MEMORY: lambda: sdks("memory", database, Path(folder)),
            DATABASE: lambda: sdks("database", database, Path(folder)),
        }[name]()
        async with server as running:
            return await measure(running, size)


# --- measurements ---------------------------------------------------------------------------------


async def calls_beside_silence(server: Server, size: int) -> Figures:
    """GetTask beside silent streams, each of a task of its own; and what such a stream weighs."""
    task_ids = await begun(server, ["park"] * size)
    before = server.memory()
    async with subscribed(server.url, task_ids):
        weight = (server.memory() - before) / size
        took = await get_task_s(server, task_ids)
    return {
        **of_latency(f"GetTask beside {size} silent streams", took),
        "KiB a silent stream, each of another task": weight / KIB,
    }


async def one_task_followed(server: Server, size: int) -> Figures:
    """What a stream weighs when all follow one task."""
    (task_id,) = await begun(server, ["park"])
    before = server.memory()
    async with subscribed(server.url, [task_id] * size):
        return {"KiB a silent stream, all of one task": (server.memory() - before) / size / KIB}


async def events_of_one_task(server: Server, size: int) -> Figures:
    figures: Figures = {}
    for subscribers in sizes(size):
        delay = 1 + subscribers / 100
        (task_id,) = await begun(server, [f"tick 21 0.3 {delay}"])
        async with subscribed(server.url, [task_id] * subscribers) as streams:
            await asyncio.gather(*(each.ended for each in streams))
        figures |= of_events(f"{subscribers} on one task", streams)
    return figures


async def events_of_many_tasks(server: Server, size: int) -> Figures:
    figures: Figures = {}
    dice = random.Random(1)
    for subscribers in sizes(size)[1:]:
        every = max(0.5, subscribers / TICKS_PER_S)
        delay = 1 + subscribers / 40
        scripts = [f"tick 4 {every} {delay + dice.random() * every}" for _ in range(subscribers)]
        task_ids = await begun(server, scripts)
        async with subscribed(server.url, task_ids) as streams, caller(server.url) as call:
            following = asyncio.gather(*(each.ended for each in streams))
            took = []
            while not following.done():
                took.append(await timed(call.call("GetTask", id=random.choice(task_ids))))
                await asyncio.sleep(0.1)
        figures |= of_events(f"{subscribers} on one task each", streams)
        figures |= of_latency(f"GetTask beside {subscribers} streams that get events", took)
    return figures


async def sends(server: Server, size: int) -> Figures:
    """Tasks that complete at once, from several connections."""
    began = time.perf_counter()
    await begun(server, ["end"] * SENDS)
    return {"SendMessage, non-blocking, per second": SENDS / (time.perf_counter() - began)}


async def readers_that_stop(server: Server, size: int) -> Figures:
    """Two megabytes go to readers that read nothing of it, beside one that reads all. The same
    without them went before: what the server needs for the task itself is there already."""
    weights = []
    for count in (0, STALLED):
        (task_id,) = await begun(server, [f"flood {FLOODS} {FLOOD_SIZE} 3"])
        async with (
            stalled(server.url, task_id, count),
            subscribed(server.url, [task_id]) as streams,
        ):
            before = server.memory()
            async with asyncio.timeout(120):
                while streams[0].events < FLOODS:
                    await asyncio.sleep(0.2)
            weights.append(server.memory() - before)
    return {"KiB a reader that stops reading": (weights[1] - weights[0]) / STALLED / KIB}


def sizes(size: int) -> list[int]:
    return sorted({1, min(100, size), size})


async def begun(server: Server, scripts: Sequence[str]) -> list[str]:
    """The ids of tasks with these scripts."""
    waiting = list(enumerate(scripts))
    begun: dict[int, str] = {}

    async def send() -> None:
        async with caller(server.url) as call:
            while waiting:
                number, script = waiting.pop()
                begun[number] = await call.send(script)

    await asyncio.gather(*(send() for _ in range(min(SENDERS, len(scripts)))))
    return [begun[number] for number in range(len(scripts))]


async def get_task_s(server: Server, task_ids: Sequence[str]) -> list[float]:
    async with caller(server.url) as call:
        return [
            await timed(call.call("GetTask", id=task_ids[number % len(task_ids)]))
            for number in range(CALLS)
        ]


async def timed(call: Coroutine[Any, Any, object]) -> float:
    began = time.perf_counter()
    await call
    return time.perf_counter() - began


# --- figures --------------------------------------------------------------------------------------


def of_latency(name: str, took: Sequence[float]) -> Figures:
    """The median and the 99th percentile, in milliseconds."""
    if len(took) < 2:
        return {f"{name}: none came": 0.0}
    cuts = statistics.quantiles(took, n=100, method="inclusive")
    return {f"{name}, ms, p50": cuts[49] * 1000, f"{name}, ms, p99": cuts[98] * 1000}


def of_events(name: str, streams: Sequence[Subscription]) -> Figures:
    said = [at - tick["said"] for each in streams for at, tick in each.ticks]
    stored = [
        at - after["stored"]
        for each in streams
        for (at, tick), (_, after) in pairwise(each.ticks)
        if after["n"] == tick["n"] + 1
    ]
    return {**of_latency(f"event, {name}", said), **of_latency(f"  after the call, {name}", stored)}


def tell(figures: dict[str, Figures]) -> None:
    """A line a figure: what each server had, and the ratio of ours to each other one."""
    for name, value in figures[OURS].items():
        others = {who: them.get(name) for who, them in figures.items() if who != OURS}
        told = "".join(
            f"{them:16.2f}" if them is not None else f"{'-':>16}" for them in others.values()
        )
        ratios = "".join(
            f"{value / them:9.2f}" if them else f"{'-':>9}" for them in others.values()
        )
        print(f"{name:60}{value:10.2f}{told}{ratios}", flush=True)


MEASURES: tuple[Measure, ...] = (
    calls_beside_silence,
    one_task_followed,
    sends,
    readers_that_stop,
    events_of_one_task,
    events_of_many_tasks,
)


def main(size: int = SUBSCRIBERS) -> None:
    names = [OURS, MEMORY, *([DATABASE] if has_database_store() else [])]
    if DATABASE not in names:
        print("without the SDK's database store: pip install sqlalchemy asyncpg")
    heads = "".join(f"{name:>16}" for name in names[1:])
    ratios = "".join(f"{'ratio':>9}" for _ in names[1:])
    print(f"{'streams and calls of one process':60}{OURS:>10}{heads}{ratios}")
    with PostgresServer(durable=True) as postgres:
        for number, measure in enumerate(MEASURES):
            figures: dict[str, Figures] = {}
            for name in names:
                database = postgres.create_database(f"bench_{number}_{names.index(name)}")
                figures[name] = asyncio.run(measured(name, measure, size, database))
            tell(figures)
