"""Where the tests are played: real processes over real sockets, arranged as operators do."""

from __future__ import annotations

import itertools
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx

from outlast.testing.fleet import Fleet
from outlast.testing.postgres_server import PostgresServer
from tests.conformance.acts import ROOT
from tests.conformance.grpc_transport import Grpc
from tests.conformance.transports import CARD, PATIENCE_S, JsonRpc, Rest, Transport

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
async def _transports(urls: Sequence[str]) -> AsyncIterator[list[Transport]]:
    """One for each binding of what answers there."""
    turns = RoundRobin(itertools.cycle(map(httpx.URL, urls)), httpx.AsyncHTTPTransport())
    async with (
        AsyncExitStack() as stack,
        httpx.AsyncClient(transport=turns, base_url=urls[0], timeout=PATIENCE_S) as client,
    ):
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(place))
            for place in [await _grpc_place(url) for url in urls]
        ]
        yield [JsonRpc(client), Rest(client), Grpc(client, channels)]


async def _grpc_place(url: str) -> str:
    """Where the gateway at this URL speaks gRPC, by its card."""
    async with httpx.AsyncClient() as client:
        card = (await client.get(url + CARD)).json()
    return next(
        str(interface["url"])
        for interface in card["supportedInterfaces"]
        if interface["protocolBinding"] == "GRPC"
    )


@asynccontextmanager
async def one_file(folder: Path) -> AsyncIterator[Fleet]:
    """A SQLite file, on which `one_process` can be started again and again."""
    database = f"sqlite:///{folder / 'outlast.db'}"
    async with Fleet(database, folder / "logs", agent=AGENT, cwd=ROOT, grpc_port=0) as fleet:
        yield fleet


@asynccontextmanager
async def one_process(fleet: Fleet, **settings: str) -> AsyncIterator[list[Transport]]:
    """`outlast serve` with these settings, until it is told to stop."""
    child = await fleet.serve(environment=settings)
    async with _transports([child.url]) as transports:
        yield transports
    await child.stop()


@asynccontextmanager
async def two_gateways(folder: Path) -> AsyncIterator[list[Transport]]:
    """Two gateways, of which each request meets the next, and two workers, on PostgreSQL."""
    with _postgres() as database:
        async with Fleet(
            database,
            folder / "fleet",
            agent=AGENT,
            cwd=ROOT,
            environment=WITH_WEBHOOKS,
            grpc_port=0,
        ) as fleet:
            gateways = [await fleet.gateway(), await fleet.gateway()]
            workers = [await fleet.worker(), await fleet.worker()]
            async with _transports([gateway.url for gateway in gateways]) as transports:
                yield transports
            for child in (*gateways, *workers):
                await child.stop()


@contextmanager
def _postgres() -> Iterator[str]:
    with PostgresServer() as server:
        yield server.create_database("conformance")


def free_port() -> int:
    """One that nobody listens on right now: for who must be named before it starts."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
