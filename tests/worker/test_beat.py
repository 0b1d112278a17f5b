"""The beat thread by itself, against a store that answers as the test has it: beats can only be
counted one by one where nothing else moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest

from outlast.model.errors import AuthorError, StoreUnavailable
from outlast.model.ids import Fence, TaskId, WorkerId
from outlast.model.lease import awake_seconds
from outlast.store.database import Database
from outlast.store.protocols import BeatStore, NewWorker, Standing, WorkStore
from outlast.worker.beat import BeatStores, BeatThread, Roll
from tests.contract.stores import until

pytest_plugins = ["tests.worker.fixtures"]
pytestmark = pytest.mark.usefixtures("logged")

TASK = TaskId("task-1")
Leased = Mapping[TaskId, Standing] | None
Reply = Leased | Exception


def leased(fence: int = 1) -> Leased:
    return {TASK: Standing(fence=Fence(fence), is_marked=False, ending_as=None)}


@dataclass
class FarSide:
    """The database and what is asked of it. `replies` are those to the next beats; the last one
    stays."""

    replies: list[Reply] = field(default_factory=lambda: [{}])
    dead: set[WorkerId] = field(default_factory=set)
    refuses: Exception | None = None
    before_reply: Callable[[], None] = lambda: None
    beats: list[WorkerId] = field(default_factory=list)
    registered: list[WorkerId] = field(default_factory=list)
    released: list[tuple[TaskId, Fence, int]] = field(default_factory=list)
    signed_off: list[WorkerId] = field(default_factory=list)
    present: set[str] = field(default_factory=set)
    is_open: bool = False

    async def beat(self, worker_id: WorkerId, *, presence: str | None) -> Leased:
        self.beats.append(worker_id)
        if worker_id in self.dead:
            return None
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        self.before_reply()
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def release(self, worker_id: WorkerId, task_id: TaskId, fence: Fence) -> bool:
        self.released.append((task_id, fence, len(self.beats)))
        return True

    async def register(self, worker: NewWorker) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.registered.append(worker.worker_id)

    async def sign_off(self, worker_id: WorkerId) -> None:
        self.signed_off.append(worker_id)

    async def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    async def keep_presence(self, name: str) -> None:
        self.present.add(name)

    async def drop_presence(self, name: str) -> None:
        self.present.discard(name)

    async def incarnation(self) -> str:
        return "incarnation"


@dataclass
class Stage:
    """A beat thread on its far side."""

    far: FarSide = field(default_factory=FarSide)
    roll: Roll = field(default_factory=Roll)
    standings: list[tuple[WorkerId, float, Leased]] = field(default_factory=list)
    lost: list[None] = field(default_factory=list)
    beat: BeatThread = field(init=False)

    @asynccontextmanager
    async def beating(self, *, every_ms: int = 5, lease_ms: int = 60_000) -> AsyncIterator[None]:
        stores = BeatStores(
            database=cast(Database, self.far),
            beats=cast(BeatStore, self.far),
            work=cast(WorkStore, self.far),
        )
        self.beat = BeatThread(
            connect=lambda: stores,
            worker=NewWorker(
                worker_id=WorkerId(""),
                agent="agent",
                host="here",
                beat_ms=every_ms,
                lease_ms=lease_ms,
                versions=[],
                presence=None,
            ),
            roll=self.roll,
            on_standing=lambda *seen: self.standings.append(seen),
            on_lost=lambda: self.lost.append(None),
        )
        await self.beat.start()
        try:
            yield
        finally:
            await self.beat.stop()

    async def beats(self, times: int) -> None:
        async def has_beaten() -> bool:
            return len(self.far.beats) >= times

        await until(has_beaten)

    async def until(self, holds: Callable[[], object]) -> None:
        async def look() -> object:
            return holds()

        await until(look)


@pytest.fixture
def stage() -> Stage:
    return Stage()


# --- leases without a run -------------------------------------------------------------------------


async def test_a_lease_without_a_run_is_given_back_when_two_beats_running_have_seen_it(
    stage: Stage,
) -> None:
    stage.far.replies = [{}, leased(), leased(), {}]
    async with stage.beating():
        await stage.beats(5)
    assert stage.far.released == [(TASK, 1, 3)]
    assert stage.roll.given_back == {(TASK, 1)}


async def test_not_when_it_was_another_lease_the_second_time(stage: Stage) -> None:
    stage.far.replies = [leased(1), leased(3), {}, leased(3), {}]
    async with stage.beating():
        await stage.beats(6)
    assert stage.far.released == []


async def test_not_what_runs_here(stage: Stage) -> None:
    stage.roll.running[TASK] = Fence(1)
    stage.far.replies = [leased(1)]
    async with stage.beating():
        await stage.beats(5)
    assert stage.far.released == []


async def test_but_an_older_run_of_the_same_task_does_not_count(stage: Stage) -> None:
    stage.roll.running[TASK] = Fence(1)
    stage.far.replies = [leased(3), leased(3), {}]
    async with stage.beating():
        await stage.beats(4)
    assert stage.far.released == [(TASK, 3, 2)]


async def test_not_while_a_claim_is_under_way(stage: Stage) -> None:
    """Its reply may be what tells of the lease."""
    stage.roll.claims = 1
    stage.far.replies = [leased()]
    async with stage.beating():
        await stage.beats(5)
        assert stage.far.released == []
        with stage.roll.lock:
            stage.roll.claims = 0
        await stage.until(lambda: stage.far.released)


async def test_a_claim_that_begins_while_the_beat_is_under_way_counts_too(stage: Stage) -> None:
    def claim_begins() -> None:
        stage.roll.claims = 1

    stage.far.before_reply = claim_begins
    stage.far.replies = [leased()]
    async with stage.beating():
        await stage.beats(5)
    assert stage.far.released == []


# --- how long a lease is good ---------------------------------------------------------------------


async def test_a_lease_counts_from_before_the_beat_was_sent(stage: Stage) -> None:
    """The watcher counts from after it saw the beat, so the holder stops first."""
    sent_before = list[float]()
    stage.far.before_reply = lambda: sent_before.append(awake_seconds())
    async with stage.beating(every_ms=50):
        await stage.beats(1)
        await stage.until(lambda: stage.standings)
        valid_until = stage.roll.valid_until
    assert valid_until - 60 <= sent_before[0]
    worker_id, sent, _ = stage.standings[0]
    assert sent <= sent_before[0]
    assert worker_id == stage.roll.worker_id


async def test_beats_that_fail_renew_nothing_and_are_tried_again_at_once(stage: Stage) -> None:
    stage.far.replies = [StoreUnavailable("away")]
    async with stage.beating(every_ms=60_000, lease_ms=200):
        worker_id = stage.roll.worker_id
        assert stage.roll.holds(worker_id)
        await stage.until(lambda: not stage.roll.holds(worker_id))
        assert len(stage.far.beats) >= 1
        stage.far.replies = [{}]
        await stage.until(lambda: stage.roll.holds(worker_id))
    assert set(stage.far.beats) == {worker_id}
    assert stage.lost == []


async def test_nobody_elses_lease_is_good(stage: Stage) -> None:
    async with stage.beating():
        assert stage.roll.holds(stage.roll.worker_id)
        assert not stage.roll.holds(WorkerId("somebody else"))


# --- who it is ------------------------------------------------------------------------------------


async def test_a_worker_that_is_dead_drops_everything_and_is_somebody_new(stage: Stage) -> None:
    stage.roll.given_back.add((TASK, Fence(1)))
    async with stage.beating():
        first = stage.roll.worker_id
        stage.far.dead.add(first)
        await stage.until(lambda: len(stage.far.registered) == 2)
        await stage.beats(len(stage.far.beats) + 2)
        second = stage.roll.worker_id
        assert stage.roll.holds(second)
        assert not stage.roll.holds(first)
        assert stage.far.present == {second}
    assert stage.lost == [None]
    assert stage.far.registered == [first, second]
    assert sorted(stage.far.beats, key=[first, second].index) == stage.far.beats


async def test_it_tries_again_to_become_somebody_new(stage: Stage) -> None:
    async with stage.beating():
        first = stage.roll.worker_id
        stage.far.refuses = StoreUnavailable("away")
        stage.far.dead.add(first)
        await stage.beats(len(stage.far.beats) + 3)
        assert stage.far.registered == [first]
        stage.far.refuses = None
        await stage.until(lambda: stage.roll.worker_id != first)
        assert len(stage.far.present) == 1


async def test_stopping_signs_off_and_shows_no_presence_any_more(stage: Stage) -> None:
    async with stage.beating(every_ms=60_000):
        worker_id = stage.roll.worker_id
        assert stage.far.present == {worker_id}
    assert stage.far.signed_off == [worker_id]
    assert stage.far.present == set()
    assert not stage.far.is_open
    assert not stage.beat.is_alive


async def test_what_registering_raises_is_raised_at_start(stage: Stage) -> None:
    stage.far.refuses = AuthorError("The steps changed.", "register a new version.")
    with pytest.raises(AuthorError, match="The steps changed"):
        async with stage.beating():
            raise AssertionError("it has started")
    assert not stage.far.is_open
    assert stage.far.present == set()


async def test_a_thread_that_ends_by_an_error_says_so_and_stops_all_runs(stage: Stage) -> None:
    stage.far.replies = [{}, RuntimeError("a fault of ours")]
    async with stage.beating():
        await stage.until(lambda: not stage.beat.is_alive)
    assert stage.lost == [None]
    assert str(stage.beat.failure) == "a fault of ours"
