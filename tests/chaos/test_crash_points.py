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
from collections.abc import Sequence
from pathlib import Path

import pytest

from outlast.testing.fleet import Fleet
from tests.chaos.databases import Databases
from tests.chaos.reviews import AGENT, Directory, Outcome, see_through, start_directory

AT_LEAST = 200
CHOSEN = 40
AT_ONCE = 2
LEASE_S = 0.8


@pytest.mark.crash_points
async def test_every_crash_point(databases: Databases, tmp_path: Path) -> None:
    points = await recorded(databases, tmp_path)
    await kill_at_each(points, databases, tmp_path)


async def test_crash_points(databases: Databases, tmp_path: Path) -> None:
    points = await recorded(databases, tmp_path)
    seed = os.environ.get("CHAOS_SEED") or str(random.SystemRandom().randrange(10**6))
    print(f"CHAOS_SEED={seed} chooses the same {CHOSEN} again")
    await kill_at_each(chosen(points, random.Random(seed)), databases, tmp_path)


async def recorded(databases: Databases, folder: Path) -> list[str]:
    """The points that a worker passes when nothing goes wrong."""
    file = folder / "points.txt"
    url = databases.fresh()
    async with Fleet(url, folder / "recorded", agent=AGENT, lease=LEASE_S) as fleet:
        directory = await start_directory(fleet)
        outcome = await see_through(fleet, directory, ("--record", str(file)), grace=0)
        assert outcome.broken == [], fleet.report()
    databases.drop(url)
    points = file.read_text().split()
    print(f"{databases.kind}: {len(points)} crash points")
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


async def kill_at_each(points: Sequence[str], databases: Databases, folder: Path) -> None:
    """One review per point, some at a time, each lane with a directory of its own."""
    waiting = iter(points)
    unreached: list[str] = []
    broken: list[str] = []

    async def lane(name: str) -> None:
        # The directory is started by a fleet, which wants a database; no one uses that one.
        url = databases.fresh()
        async with Fleet(url, folder / name, agent=AGENT) as services:
            directory = await start_directory(services)
            for point in waiting:
                outcome = await killed_at(point, databases, folder, directory)
                if not outcome.reached:
                    unreached.append(point)
                broken.extend(f"{point}: {text}" for text in outcome.broken)
        databases.drop(url)

    async with asyncio.TaskGroup() as lanes:
        for number in range(AT_ONCE):
            lanes.create_task(lane(f"lane-{number}"))

    print(f"{databases.kind}: killed at {len(points) - len(unreached)} of {len(points)} points")
    print(f"not reached, as the clock differed: {', '.join(unreached) or 'none'}")
    assert broken == []
    assert len(unreached) <= len(points) / 10


async def killed_at(
    point: str, databases: Databases, folder: Path, directory: Directory
) -> Outcome:
    url = databases.fresh()
    await directory.reset()
    place = folder / point.replace(":", ".")
    environment = {"DIRECTORY_URL": directory.url}
    fleet = Fleet(url, place, agent=AGENT, environment=environment, lease=LEASE_S)
    async with fleet:
        try:
            outcome = await see_through(fleet, directory, (point,))
        except Exception as error:
            outcome = Outcome(reached=True, broken=[f"the review did not end: {error!r}"])
        if outcome.broken:
            print(f"killed at {point}: {outcome.broken}", fleet.report(), sep="\n")
    databases.drop(url)
    return outcome
