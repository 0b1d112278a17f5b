"""A worker is killed at every point that it passes during an access review.

The points are generated, not chosen: a first worker runs the review and records them; then, for
each, one worker is killed there and another finishes. Nothing may be lost and nothing doubled.

    make crash-points                        all points, on both databases
    CHAOS_SEED=… pytest tests/chaos          the same choice of points again
    CHAOS_POINT=after:tasks_commit#7 …       this one only
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from outlast.testing.fleet import Children, Fleet
from tests.chaos.databases import Databases
from tests.chaos.reviews import AGENT, GRACE_S, Directory, Outcome, see_through, start_directory

Tell = Callable[[str], None]

AT_LEAST = 200
CHOSEN = 40
AT_ONCE = 2
LEASE_S = 1.2


@pytest.mark.crash_points
async def test_every_crash_point(databases: Databases, tmp_path: Path, tell: Tell) -> None:
    points = await recorded(databases, tmp_path, tell)
    await kill_at_each(points, databases, tmp_path, tell)


async def test_crash_points(databases: Databases, tmp_path: Path, tell: Tell) -> None:
    points = await recorded(databases, tmp_path, tell)
    seed = os.environ.get("CHAOS_SEED") or str(random.SystemRandom().randrange(10**6))
    some = chosen(points, random.Random(seed))
    tell(f"{databases.kind}: CHAOS_SEED={seed} chooses the same {len(some)} again")
    await kill_at_each(some, databases, tmp_path, tell)


async def recorded(databases: Databases, folder: Path, tell: Tell) -> list[str]:
    """The points that a worker passes when nothing goes wrong."""
    file = folder / "points.txt"
    async with Children(folder / "services") as services:
        directory = await start_directory(services)
        fault = ("--record", str(file))
        outcome = await review(databases, folder / "recorded", directory, *fault, grace=0)
    assert outcome.broken == []
    points = file.read_text().split()
    tell(f"{databases.kind}: {len(points)} crash points")
    assert len(points) >= AT_LEAST, "fewer points than there were: does the store still name them?"
    return points


def chosen(points: Sequence[str], dice: random.Random) -> list[str]:
    """Some of every kind: a name that is passed a hundred times does not crowd out the others."""
    if point := os.environ.get("CHAOS_POINT"):
        return [point]
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for point in points:
        by_name[point.partition("#")[0]].append(point)
    piles = [dice.sample(pile, len(pile)) for pile in by_name.values()]
    dice.shuffle(piles)
    found: list[str] = []
    while len(found) < CHOSEN:
        piles = [pile for pile in piles if pile]
        found.extend(pile.pop() for pile in piles[: CHOSEN - len(found)])
    return found


async def kill_at_each(
    points: Sequence[str], databases: Databases, folder: Path, tell: Tell
) -> None:
    """One review per point, some at a time, each lane with a directory of its own."""
    waiting = iter(points)
    unreached: list[str] = []
    broken: list[str] = []

    async def lane(name: str) -> None:
        async with Children(folder / name) as services:
            directory = await start_directory(services)
            for point in waiting:
                place = folder / point.replace(":", ".")
                outcome = await review(databases, place, directory, point)
                if not outcome.reached:
                    unreached.append(point)
                broken.extend(f"{point}: {text}" for text in outcome.broken)

    async with asyncio.TaskGroup() as lanes:
        for number in range(AT_ONCE):
            lanes.create_task(lane(f"lane-{number}"))

    tell(f"{databases.kind}: killed at {len(points) - len(unreached)} of {len(points)} points")
    if unreached:
        tell(f"{databases.kind}: not reached, as the clock differed: {', '.join(unreached)}")
    assert broken == []
    assert len(unreached) <= len(points) / 10


async def review(
    databases: Databases,
    folder: Path,
    directory: Directory,
    *fault: str,
    grace: float = GRACE_S,
) -> Outcome:
    """One review on a database of its own, with one fault."""
    url = await asyncio.to_thread(databases.fresh)
    await directory.reset()
    environment = {"DIRECTORY_URL": directory.url}
    async with Fleet(url, folder, agent=AGENT, environment=environment, lease=LEASE_S) as fleet:
        try:
            outcome = await see_through(fleet, directory, fault, grace=grace)
        except TimeoutError:
            outcome = Outcome(reached=True, broken=["the review did not end"])
        if outcome.broken:
            print(fault, outcome.broken, fleet.report(), sep="\n")
    await asyncio.to_thread(databases.drop, url)
    return outcome
