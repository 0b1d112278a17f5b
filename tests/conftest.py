"""Databases for tests: real ones, and each test has its own.

A test that takes ``database_url`` runs on SQLite and on PostgreSQL. A machine without a PostgreSQL
server fails such tests, with a message that says what to install; it never skips them.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from outlast.testing.postgres_server import PostgresServer

# The same examples on every run of CI: what it finds must be found again.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The session's PostgreSQL server, started when the first test wants it.

    A test may kill, restart or freeze it: whoever uses it next finds it running.
    """
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """The name of the database that every test's own is a copy of.

    What all tests need in it is put there once, here.
    """
    name = "outlast_template"
    postgres_server.create_database(name)
    return name


@pytest.fixture
def postgres_dsn(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """The URL of a PostgreSQL database of this test's own, dropped after it."""
    name = f"test_{uuid.uuid4().hex}"
    yield postgres_server.create_database(name, template=postgres_template)
    postgres_server.thaw()
    if not postgres_server.is_running:
        postgres_server.start()
    postgres_server.drop_database(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite database of this test's own. The file does not exist yet."""
    return f"sqlite:///{tmp_path / 'outlast.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database of this test's own: the test runs once on each kind."""
    name = {"sqlite": "sqlite_url", "postgres": "postgres_dsn"}[request.param]
    url = request.getfixturevalue(name)
    assert isinstance(url, str)
    return url
