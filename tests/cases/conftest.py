"""Fixtures of the cases: those of the chaos suite, a standing fleet for what needs no kill, and two
gateways behind a balancer for what does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from outlast.testing.fleet import Child, Fleet
from outlast.testing.proxy import Proxy
from tests.cases.followers import Pair
from tests.chaos.caller import Caller
from tests.chaos.databases import (
    Databases,
    database,
    databases,
    postgres,
    postgres_databases,
    sqlite,
    sqlite_files,
)
from tests.chaos.fleets import (
    AGENT,
    CounterSink,
    fleet,
    lawful,
    postgres_fleet,
    sink,
    sqlite_fleet,
)

__all__ = [
    "database",
    "databases",
    "fleet",
    "postgres",
    "postgres_databases",
    "postgres_fleet",
    "sink",
    "sqlite",
    "sqlite_files",
    "sqlite_fleet",
]


@dataclass(frozen=True)
class Town:
    """Two gateways and two workers on one database. Nobody dies here; tests share it."""

    fleet: Fleet
    gateways: tuple[Child, Child]
    workers: tuple[Child, Child]
    sink: CounterSink


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def town(
    databases: Databases, sink: CounterSink, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Town]:
    fleet = Fleet(
        databases.fresh(),
        tmp_path_factory.mktemp("town"),
        agent=AGENT,
        environment={"PROBE_SINK": sink.url},
    )
    async with lawful(fleet):
        gateways = (await fleet.gateway(), await fleet.gateway())
        workers = (await fleet.worker(), await fleet.worker())
        yield Town(fleet, gateways, workers, sink)
    databases.drop(str(fleet.settings["database"]))


@pytest.fixture
async def one(town: Town) -> AsyncIterator[Caller]:
    """A caller of the town's first gateway."""
    async with Caller(town.gateways[0].url) as caller:
        yield caller


@pytest.fixture
async def other(town: Town) -> AsyncIterator[Caller]:
    """A caller of the town's second gateway."""
    async with Caller(town.gateways[1].url) as caller:
        yield caller


@pytest.fixture
async def pair(postgres_fleet: Fleet) -> AsyncIterator[Pair]:
    """Two gateways and two workers of this test's own, on PostgreSQL, behind a balancer."""
    async with Proxy("127.0.0.1", 9) as proxy:
        pair = Pair(postgres_fleet, proxy)
        await pair.start()
        yield pair
