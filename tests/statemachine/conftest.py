"""A scripted store for each test, on each database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.statemachine.stage import Stage, opened


@pytest.fixture
def stage(database_url: str) -> Iterator[Stage]:
    with opened(database_url) as stage:
        yield stage
