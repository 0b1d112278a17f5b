"""Plays calls against a gateway, as many and in the order in which Hypothesis thinks of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.calls import Call, calls
from tests.fuzz.house import House, house
from tests.fuzz.laws import check, still_answers


@contextmanager
def playing(name: str, database_url: str) -> Iterator[tuple[asyncio.Runner, House]]:
    """The gateway of this name on a loop of its own, which turns while it is asked something."""
    with asyncio.Runner() as runner:
        opening = house(name, database_url)
        opened = runner.run(opening.__aenter__())
        try:
            yield runner, opened
            runner.run(still_answers(opened))
        finally:
            runner.run(opening.__aexit__(None, None, None))


def play(runner: asyncio.Runner, opened: House, *, examples: int, seeded: int | None) -> None:
    """Ask so many calls; without a seed the same ones every time (Hypothesis also takes constants
    out of the code that is loaded, so another selection of tests may mean others). Raises Broken at
    the first that finds a law broken, made as small as it can be."""

    @given(call=calls())
    @settings(
        max_examples=examples,
        derandomize=seeded is None,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),  # calls are large, and answers take their time
    )
    def one(call: Call) -> None:
        runner.run(check(opened, call))

    (one if seeded is None else seed(seeded)(one))()
