"""Fresh databases, as many as a test wants, on SQLite and on PostgreSQL: copies of one that was
migrated once.
"""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from outlast import compose
from outlast.configuration import configuration
from outlast.testing.postgres_server import PostgresServer


class Databases(Protocol):
    """Where fresh databases come from."""

    kind: str

    def fresh(self) -> str:
        """The URL of a migrated, empty database that nobody else uses."""
        ...

    def drop(self, url: str) -> None:
        """It is not needed any more."""
        ...


@dataclass
class SqliteFiles:
    """Files in one folder."""

    folder: Path
    kind: str = "sqlite"

    def fresh(self) -> str:
        place = self.folder / uuid.uuid4().hex / "outlast.db"
        place.parent.mkdir()
        shutil.copy(self._template(), place)
        return f"sqlite:///{place}"

    def drop(self, url: str) -> None:
        shutil.rmtree(Path(url.removeprefix("sqlite:///")).parent)

    def _template(self) -> Path:
        template = self.folder / "template.db"
        if not template.exists():
            asyncio.run(_migrate(f"sqlite:///{template}"))
        return template


@dataclass
class PostgresDatabases:
    """Databases of one server, which a test may have killed meanwhile."""

    server: PostgresServer
    template: str = ""
    kind: str = "postgres"
    urls: list[str] = field(default_factory=list)

    def fresh(self) -> str:
        if not self.server.is_running:
            self.server.start()
        if not self.template:
            self.template = f"chaos_template_{uuid.uuid4().hex}"
            asyncio.run(_migrate(self.server.create_database(self.template)))
        name = f"chaos_{uuid.uuid4().hex}"
        self.urls.append(self.server.create_database(name, template=self.template))
        return self.urls[-1]

    def drop(self, url: str) -> None:
        self.server.thaw()
        if not self.server.is_running:
            self.server.start()
        self.urls.remove(url)
        self.server.drop_database(url.rpartition("/")[2])

    def drop_all(self) -> None:
        for url in list(self.urls):
            self.drop(url)
        if self.template and self.server.is_running:
            self.server.drop_database(self.template)


async def _migrate(url: str) -> None:
    await compose.migrate(configuration({}, database=url))


@pytest.fixture(scope="session")
def sqlite_files(tmp_path_factory: pytest.TempPathFactory) -> SqliteFiles:
    files = SqliteFiles(tmp_path_factory.mktemp("sqlite"))
    files._template()
    return files


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: PostgresServer) -> Iterator[PostgresDatabases]:
    databases = PostgresDatabases(postgres_server)
    databases.drop(databases.fresh())  # now, while no loop runs: the template is migrated by one
    yield databases
    databases.drop_all()


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def databases(request: pytest.FixtureRequest) -> Databases:
    """A test that takes it runs once on each kind of database."""
    name = {"sqlite": "sqlite_files", "postgres": "postgres_databases"}[request.param]
    found: Databases = request.getfixturevalue(name)
    return found


@pytest.fixture
def database(databases: Databases) -> Iterator[str]:
    """The URL of a migrated, empty database of this test's own, on each kind."""
    url = databases.fresh()
    yield url
    databases.drop(url)


@pytest.fixture
def sqlite(sqlite_files: SqliteFiles) -> Iterator[str]:
    """As `database`, on SQLite only."""
    url = sqlite_files.fresh()
    yield url
    sqlite_files.drop(url)


@pytest.fixture
def postgres(postgres_databases: PostgresDatabases) -> Iterator[str]:
    """As `database`, on PostgreSQL only."""
    url = postgres_databases.fresh()
    yield url
    postgres_databases.drop(url)
