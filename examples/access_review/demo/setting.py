"""Raises the demo's parts: database, directory, gateway, two workers; and takes them down again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Literal

from examples.access_review.agent import agent
from examples.access_review.demo import DemoFailed
from examples.access_review.demo.children import Child, Children
from examples.access_review.demo.folder import DemoFolder
from outlast import compose
from outlast.compose import Stores
from outlast.configuration import configuration

Kind = Literal["sqlite", "postgres"]

AGENT = "examples.access_review.agent:agent"
WORKERS = 2


@contextmanager
def open_database(kind: Kind, folder: DemoFolder) -> Iterator[str]:
    """The URL of the database: a file of the demo's folder, or a server of the demo's own."""
    if kind == "sqlite":
        yield f"sqlite:///{folder.database.resolve()}"
        return
    from outlast.testing.postgres_binaries import PostgresNotFound
    from outlast.testing.postgres_server import PostgresServer

    try:
        server = PostgresServer()
    except PostgresNotFound as error:
        raise DemoFailed(str(error)) from None
    with server:
        yield server.create_database("outlast")


async def set_unfinished_aside(url: str, folder: DemoFolder) -> str:
    """A review that an earlier demo left unfinished would be run by this one's workers: move the
    database away that holds it. Returns what was done, if anything."""
    if not folder.database.exists():
        return ""
    async with compose.open_stores(configuration({}, database=url)) as stores:
        unfinished = sum(row["tasks"] for row in await stores.inspect.in_flight(agent.name))
    if not unfinished:
        return ""
    aside = folder.set_database_aside()
    return f"An earlier demo did not come to its end; its database is now {aside}."


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All parts, at work. workers: by pid."""

    directory_url: str
    gateway_url: str
    gateway: Child
    workers: Mapping[int, Child]
    stores: Stores

    async def stop_outlast(self) -> None:
        """End gateway and workers in good order, all but those that were killed."""
        alive = [child for child in (self.gateway, *self.workers.values()) if child.is_alive]
        await asyncio.gather(*(child.stop() for child in alive))


@asynccontextmanager
async def raise_setting(children: Children, url: str, folder: DemoFolder) -> AsyncIterator[Setting]:
    """Start every part, and wait until each does its work. Raises ChildFailed."""
    directory = children.start(
        "directory",
        "examples.access_review.directory",
        *("--port", "0", "--state", str(folder.run.resolve() / "directory.jsonl")),
    )
    if url.startswith("postgresql:"):
        await _migrate(children)
    gateway = children.start("gateway", "outlast", "gateway", AGENT)
    directory_url = (await directory.says(r"directory listening on (\S+)"))[1]
    workers = [
        children.start(f"worker-{number}", "outlast", "worker", AGENT, DIRECTORY_URL=directory_url)
        for number in range(1, WORKERS + 1)
    ]
    for worker in workers:
        await worker.says(r"worker\.registered")
    listening = await gateway.says(r'"url": "([^"]+)".*gateway\.listening')
    async with compose.open_stores(configuration({}, database=url)) as stores:
        yield Setting(
            directory_url=directory_url,
            gateway_url=listening[1],
            gateway=gateway,
            workers={worker.pid: worker for worker in workers},
            stores=stores,
        )


async def _migrate(children: Children) -> None:
    migration = children.start("migrate", "outlast", "migrate")
    await migration.says(r"applied migrations")
