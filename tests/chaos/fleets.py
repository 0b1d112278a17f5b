"""Fixtures: a fleet of processes per test, and the counter sink that their effects go to.

When a test is over every law of the store must hold; when it failed, the children's last words
stand in its report.
"""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio

from outlast.testing.checker import check_store
from outlast.testing.fleet import PATIENCE_S, Child, Children, Fleet, until
from outlast.testing.proxy import Proxy

AGENT = "tests.cases.agents:agent"


@dataclass(frozen=True)
class Counts:
    """How often the sink was called under a key, and by how many idempotency keys: that many
    logical effects."""

    calls: int
    effects: int


ONCE = Counts(calls=1, effects=1)
NEVER = Counts(calls=0, effects=0)


@dataclass(frozen=True)
class CounterSink:
    """`examples.probe.sink`, as a test sees it. Tests share it, under keys of their own."""

    url: str

    @staticmethod
    def key(name: str = "K") -> str:
        return f"{name}-{uuid.uuid4().hex[:8]}"

    async def counts(self, key: str) -> Counts:
        async with httpx.AsyncClient(base_url=self.url) as http:
            counters = (await http.get("/counters")).json()
        return Counts(counters["calls"].get(key, 0), counters["distinct"].get(key, 0))

    async def is_called(self, key: str) -> bool:
        return (await self.counts(key)).calls > 0

    async def meets(self, **fault: object) -> None:
        """The next effect meets this fault; see `examples.services.faults`."""
        async with httpx.AsyncClient(base_url=self.url) as http:
            (await http.post("/faults", json={"kind": "effect", **fault})).raise_for_status()

    async def is_well(self) -> None:
        async with httpx.AsyncClient(base_url=self.url) as http:
            (await http.delete("/faults")).raise_for_status()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def sink(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CounterSink]:
    async with Children(tmp_path_factory.mktemp("sink")) as children:
        service = await children.service("sink", "examples.probe.sink:main", "--port", "0")
        yield CounterSink(service.url)


@asynccontextmanager
async def lawful(fleet: Fleet) -> AsyncIterator[Fleet]:
    """The fleet, in whose store all laws hold when the test is over."""
    try:
        async with fleet:
            yield fleet
            async with fleet.stores() as stores:
                assert await check_store(stores.inspect) == []
    finally:
        print(fleet.report())


def _fleet(database: str, folder: Path, sink: CounterSink) -> Fleet:
    return Fleet(database, folder / "fleet", agent=AGENT, environment={"PROBE_SINK": sink.url})


@pytest.fixture
async def fleet(database: str, tmp_path: Path, sink: CounterSink) -> AsyncIterator[Fleet]:
    """A fleet of this test's own, still without processes; once on each kind of database."""
    async with lawful(_fleet(database, tmp_path, sink)) as fleet:
        yield fleet


@pytest.fixture
async def sqlite_fleet(sqlite: str, tmp_path: Path, sink: CounterSink) -> AsyncIterator[Fleet]:
    async with lawful(_fleet(sqlite, tmp_path, sink)) as fleet:
        yield fleet


@pytest.fixture
async def postgres_fleet(postgres: str, tmp_path: Path, sink: CounterSink) -> AsyncIterator[Fleet]:
    async with lawful(_fleet(postgres, tmp_path, sink)) as fleet:
        yield fleet


async def all_ended(fleet: Fleet, *, within: float = PATIENCE_S) -> None:
    """Return when no task of the fleet's agent is in flight any more."""
    async with fleet.stores() as stores:

        async def none_is_left() -> bool:
            return not await stores.inspect.in_flight("cases")

        await until(none_is_left, within=within)


async def have_beaten(fleet: Fleet, times: int) -> None:
    """Return when every worker that lives now has beaten so many times more."""
    async with fleet.stores() as stores:
        before = {worker["worker_id"]: worker["beat"] for worker in await stores.inspect.workers()}

        async def all_have() -> bool:
            now = {worker["worker_id"]: worker["beat"] for worker in await stores.inspect.workers()}
            return all(now.get(name, 0) >= beat + times for name, beat in before.items())

        await until(all_have)


def claims_after_draining(worker: Child) -> list[dict[str, Any]]:
    """What a worker began to run after it was told to stop."""
    entries = worker.entries()
    (drains,) = (n for n, entry in enumerate(entries) if entry.get("event") == "worker.draining")
    return [entry for entry in entries[drains:] if entry.get("event") == "run.began"]


def is_sqlite(fleet: Fleet) -> bool:
    return str(fleet.settings["database"]).startswith("sqlite")


def lease_of(fleet: Fleet) -> float:
    return float(str(fleet.settings["lease"]))


async def freeze(fleet: Fleet, child: Child) -> None:
    """SIGSTOP, but not inside a write transaction on SQLite: whoever stops there keeps the file's
    one write lock, and stops everybody else on that machine until it runs on."""
    child.freeze()
    while is_sqlite(fleet) and not can_be_written(fleet):
        child.thaw()
        await asyncio.sleep(0.01)
        child.freeze()


def can_be_written(fleet: Fleet) -> bool:
    place = str(fleet.settings["database"]).removeprefix("sqlite:///")
    with closing(sqlite3.connect(place, timeout=0.2, isolation_level=None)) as connection:
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError:
            return False
        return True


@asynccontextmanager
async def cut_off(fleet: Fleet) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy before the database, and the database's URL by way of it."""
    url = str(fleet.settings["database"])
    server = urlsplit(url)
    assert server.port is not None
    async with Proxy("127.0.0.1", server.port) as proxy:
        yield proxy, proxy.url(url)
