"""A scripted store for each test, on each database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outlast.testing.scripted import ScriptedDatabase
from tests.statemachine.stage import Stage


@pytest.fixture
def stage(database_url: str) -> Iterator[Stage]:
    with ScriptedDatabase.at(database_url) as database:
        stage = Stage(database)
        stage.run(stage.admin.migrate())
        yield stage
