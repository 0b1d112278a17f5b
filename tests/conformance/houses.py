"""Where the tests are played: real processes over real sockets, arranged as operators do."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from outlast.testing.fleet import Fleet
from outlast.testing.postgres_server import PostgresServer
from tests.conformance.acts import ROOT
from tests.conformance.transports import PATIENCE_S

WITH_WEBHOOKS = {"OUTLAST_PUSH_NOTIFICATIONS": "true"}
"""What has these tests applied to webhooks that need the card to promise them."""

AGENT = "tests.conformance.agent:agent"


@dataclass
class RoundRobin(httpx.AsyncBaseTransport):
    """Each request goes to the next gateway, as a balancer that knows nothing of tasks sends it."""

    urls: Iterator[httpx.URL]
    inner: httpx.AsyncHTTPTransport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        target = next(self.urls)
        request.url = request.url.copy_with(host=target.host, port=target.port)
        return await self.inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self.inner.aclose()


@asynccontextmanager
async def _client(urls: Sequence[str]) -> AsyncIterator[httpx.AsyncClient]:
    turns = RoundRobin(itertools.cycle(map(httpx.URL, urls)), httpx.AsyncHTTPTransport())
    async with httpx.AsyncClient(transport=turns, base_url=urls[0], timeout=PATIENCE_S) as client:
        yield client


@asynccontextmanager
async def one_file(folder: Path) -> AsyncIterator[Fleet]:
    """A SQLite file, on which `one_process` can be started again and again."""
    database = f"sqlite:///{folder / 'outlast.db'}"
    async with Fleet(database, folder / "logs", agent=AGENT, cwd=ROOT) as fleet:
        yield fleet


@asynccontextmanager
async def one_process(fleet: Fleet, **settings: str) -> AsyncIterator[httpx.AsyncClient]:
    """`outlast serve` with these settings, until it is told to stop."""
    child = await fleet.serve(environment=settings)
    async with _client([child.url]) as client:
        yield client
    await child.stop()


@asynccontextmanager
async def two_gateways(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Two gateways, of which each request meets the next, and two workers, on PostgreSQL."""
    with _postgres() as database:
        async with Fleet(
            database, folder / "fleet", agent=AGENT, cwd=ROOT, environment=WITH_WEBHOOKS
        ) as fleet:
            gateways = [await fleet.gateway(), await fleet.gateway()]
            workers = [await fleet.worker(), await fleet.worker()]
            async with _client([gateway.url for gateway in gateways]) as client:
                yield client
            for child in (*gateways, *workers):
                await child.stop()


@contextmanager
def _postgres() -> Iterator[str]:
    with PostgresServer() as server:
        yield server.create_database("conformance")
