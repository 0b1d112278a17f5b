"""A worker is killed at every point that it passes during a play: an access review, or an errand
that is authorized and talked to.

The points are generated, not chosen: a first worker runs the play and records them; then, for each,
one worker is killed there and another finishes. Nothing may be lost and nothing doubled.

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
from dataclasses import dataclass
from pathlib import Path

import pytest

from outlast.testing.fleet import Children, Fleet
from tests.chaos.databases import Databases
from tests.chaos.errands import start_errand
from tests.chaos.plays import GRACE_S, Outcome, Play, Start, see_through
from tests.chaos.reviews import start_review

Tell = Callable[[str], None]

AT_ONCE = 2
LEASE_S = 1.2


@dataclass(frozen=True)
class Bill:
    """What is played: how many points it has at least, and at how many of them a run of the whole
    suite kills."""

    start: Start
    at_least: int
    chosen: int


BILLS = {
    "review": Bill(start_review, at_least=200, chosen=40),
    "errand": Bill(start_errand, at_least=200, chosen=6),
}
every_bill = pytest.mark.parametrize("bill", BILLS.values(), ids=BILLS.keys())


@every_bill
@pytest.mark.crash_points
async def test_every_crash_point(
    bill: Bill, databases: Databases, tmp_path: Path, tell: Tell
) -> None:
    points = await recorded(bill, databases, tmp_path, tell)
    await kill_at_each(bill, points, databases, tmp_path, tell)


@every_bill
async def test_crash_points(bill: Bill, databases: Databases, tmp_path: Path, tell: Tell) -> None:
    points = await recorded(bill, databases, tmp_path, tell)
    seed = os.environ.get("CHAOS_SEED") or str(random.SystemRandom().randrange(10**6))
    some = chosen(points, bill.chosen, random.Random(seed))
    tell(f"{databases.kind}: CHAOS_SEED={seed} chooses the same {len(some)} again")
    await kill_at_each(bill, some, databases, tmp_path, tell)


async def recorded(bill: Bill, databases: Databases, folder: Path, tell: Tell) -> list[str]:
    """The points that a worker passes when nothing goes wrong."""
    file = folder / "points.txt"
    async with Children(folder / "services") as services:
        play = await bill.start(services)
        fault = ("--record", str(file))
        outcome = await once_through(play, databases, folder / "recorded", *fault, grace=0)
    assert outcome.broken == []
    points = file.read_text().split()
    tell(f"{databases.kind}: {len(points)} crash points")
    assert len(points) >= bill.at_least, "fewer points than there were: does the store name them?"
    return points


def chosen(points: Sequence[str], count: int, dice: random.Random) -> list[str]:
    """Some of every kind: a name that is passed a hundred times does not crowd out the others."""
    if point := os.environ.get("CHAOS_POINT"):
        return [point]
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for point in points:
        by_name[point.partition("#")[0]].append(point)
    piles = [dice.sample(pile, len(pile)) for pile in by_name.values()]
    dice.shuffle(piles)
    found: list[str] = []
    while len(found) < count:
        piles = [pile for pile in piles if pile]
        found.extend(pile.pop() for pile in piles[: count - len(found)])
    return found


async def kill_at_each(
    bill: Bill, points: Sequence[str], databases: Databases, folder: Path, tell: Tell
) -> None:
    """One play per point, some at a time, each lane with a service of its own."""
    waiting = iter(points)
    unreached: list[str] = []
    broken: list[str] = []

    async def lane(name: str) -> None:
        async with Children(folder / name) as services:
            play = await bill.start(services)
            for point in waiting:
                place = folder / point.replace(":", ".")
                outcome = await once_through(play, databases, place, point)
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
    assert len(unreached) <= max(2, len(points) / 10)


async def once_through(
    play: Play, databases: Databases, folder: Path, *fault: str, grace: float = GRACE_S
) -> Outcome:
    """The play on a database of its own, with one fault."""
    url = await asyncio.to_thread(databases.fresh)
    await play.reset()
    place, environment = play.place, play.environment
    async with Fleet(url, folder, agent=place, environment=environment, lease=LEASE_S) as fleet:
        try:
            outcome = await see_through(play, fleet, fault, grace=grace)
        except TimeoutError:
            outcome = Outcome(reached=True, broken=["the play did not end"])
        if outcome.broken:
            print(fault, outcome.broken, fleet.report(), sep="\n")
    await asyncio.to_thread(databases.drop, url)
    return outcome
