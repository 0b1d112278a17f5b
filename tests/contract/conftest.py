"""A store for every test of the suite, on SQLite and on PostgreSQL; the laws must hold after it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import psycopg
import pytest

from outlast.store.admin import Admin
from outlast.store.protocols import Settings, StoreFacts
from outlast.testing.postgres_server import PostgresServer
from tests.contract.stores import Store, database_at

_EMPTY = (
    "set lock_timeout = '2s'; delete from tasks; delete from task_events; delete from task_runs;"
    " delete from task_ledger; delete from task_folds; delete from webhooks;"
    " delete from send_keys; delete from api_keys; delete from audit;"
    " delete from workers; delete from versions; delete from tombstones;"
    " update store set clock_offset = 0, swept_at = null,"
    " schema_version = %(schema_version)s, readable_from = %(readable_from)s"
)


@dataclass
class Shelf:
    """PostgreSQL databases, copies of one that was migrated once. A copy costs a tenth of a
    second, so what a test gives back is emptied and used again."""

    server: PostgresServer
    template: str
    facts: StoreFacts
    free: list[str] = field(default_factory=list)

    def take(self) -> str:
        if not self.server.is_running:
            self.server.start()
        if self.free:
            return self.free.pop()
        return self.server.create_database(f"contract_{uuid.uuid4().hex}", template=self.template)

    def give_back(self, url: str) -> None:
        try:
            with psycopg.connect(url) as connection:
                connection.execute(_EMPTY % vars(self.facts))
        except psycopg.Error:  # something still holds it: the next test gets another one
            self.server.drop_database(url.rpartition("/")[2])
        else:
            self.free.append(url)


@pytest.fixture(scope="session")
def shelf(postgres_server: PostgresServer) -> Iterator[Shelf]:
    template = f"contract_template_{uuid.uuid4().hex}"
    url = postgres_server.create_database(template)
    shelf = Shelf(postgres_server, template, asyncio.run(_migrate(url)))
    yield shelf
    for name in [template, *(url.rpartition("/")[2] for url in shelf.free)]:
        if postgres_server.is_running:
            postgres_server.drop_database(name)


async def _migrate(url: str) -> StoreFacts:
    database = database_at(url)
    await database.open()
    try:
        await Admin(database).migrate()
        return await Admin(database).check()
    finally:
        await database.close()


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database of this test's own. Only the one on PostgreSQL is migrated."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_url")
        return
    shelf: Shelf = request.getfixturevalue("shelf")
    url = shelf.take()
    yield url
    shelf.give_back(url)


@pytest.fixture
async def empty_store(database_url: str) -> AsyncIterator[Store]:
    """An open database without a schema."""
    database = database_at(database_url)
    await database.open()
    opened = Store(database_url, database, Settings())
    yield opened
    await opened.close()


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    """An open, migrated and empty store. After the test and one sweep, all laws must hold."""
    database = database_at(store_url)
    await database.open()
    opened = Store(store_url, database, Settings())
    try:
        if opened.is_sqlite:
            await opened.admin.migrate()
        yield opened
        if not opened.laws_are_broken_on_purpose:
            await opened.sweeping.free_orphans()
            assert await opened.inspect.broken_laws() == {}
    finally:
        await opened.close()
