"""Group commit: what arrives together goes out together, and each write is repeated until its
outcome is known or its lease is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from outlast.model.commit import Busy, Committed, Lost, Marked, Refused, Verdict, Write
from outlast.model.errors import StoreUnavailable
from outlast.model.ids import Fence, LedgerId, Seq, TaskId, WriteNo
from outlast.store.protocols import WorkStore
from outlast.worker.committer import Committer

OK = Committed(last_seq=Seq(1))
Answer = Verdict | Exception


def write_of(task: int, *, fence: int = 1, write_no: int = 0) -> Write:
    return Write(
        task_id=TaskId(f"task-{task}"),
        ledger_id=LedgerId(f"task-{task}"),
        fence=Fence(fence),
        write_no=WriteNo(write_no),
    )


@dataclass(frozen=True)
class Sent:
    batch: tuple[Write, ...]
    patient: bool

    @property
    def tasks(self) -> list[int]:
        return [int(write.task_id.removeprefix("task-")) for write in self.batch]


@dataclass
class FakeWork:
    """What the committer sends to. `says` has the answers for a task, in order; then it commits."""

    says: dict[int, list[Answer]] = field(default_factory=dict)
    away: int = 0
    sent: list[Sent] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    lock_is_free: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.is_open.set()
        self.lock_is_free.set()

    async def commit(self, batch: Sequence[Write], *, patient: bool = False) -> list[Verdict]:
        sent = Sent(tuple(batch), patient)
        self.sent.append(sent)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        await (self.lock_is_free if patient else self.is_open).wait()
        self.under_way -= 1
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away")
        verdicts = [self._answer(task) for task in sent.tasks]
        for verdict in verdicts:
            if isinstance(verdict, Exception):
                raise verdict
        return cast(list[Verdict], verdicts)

    def _answer(self, task: int) -> Answer:
        answers = self.says.get(task)
        return answers.pop(0) if answers else OK


@pytest.fixture
async def work() -> FakeWork:
    return FakeWork()


@pytest.fixture
async def committer(work: FakeWork) -> AsyncIterator[Committer]:
    made = Committer(cast(WorkStore, work), lanes=1)
    yield made
    work.is_open.set()
    work.lock_is_free.set()
    await made.close()


def always() -> bool:
    return True


async def under_way(work: FakeWork, count: int = 1) -> None:
    while work.under_way < count:
        await asyncio.sleep(0)


# --- batches --------------------------------------------------------------------------------------


async def test_writes_that_arrive_together_share_a_transaction(
    committer: Committer, work: FakeWork
) -> None:
    verdicts = await asyncio.gather(*(committer.submit(write_of(n), always) for n in range(5)))
    assert verdicts == [OK] * 5
    assert [sent.tasks for sent in work.sent] == [[0, 1, 2, 3, 4]]


async def test_while_a_batch_is_under_way_the_next_one_gathers(
    committer: Committer, work: FakeWork
) -> None:
    work.is_open.clear()
    first = asyncio.create_task(committer.submit(write_of(0), always))
    await under_way(work)
    rest = [asyncio.create_task(committer.submit(write_of(n), always)) for n in (1, 2, 3)]
    await asyncio.sleep(0)
    work.is_open.set()
    await asyncio.gather(first, *rest)
    assert [sent.tasks for sent in work.sent] == [[0], [1, 2, 3]]


async def test_each_learns_of_its_own_verdict(committer: Committer, work: FakeWork) -> None:
    said: dict[int, Verdict] = {0: Lost(), 1: Marked(), 2: Refused(reason="no"), 3: OK}
    work.says = {task: [verdict] for task, verdict in said.items()}
    verdicts = await asyncio.gather(*(committer.submit(write_of(n), always) for n in said))
    assert verdicts == list(said.values())


async def test_a_batch_is_bounded(committer: Committer, work: FakeWork) -> None:
    await asyncio.gather(*(committer.submit(write_of(n), always) for n in range(600)))
    assert [len(sent.batch) for sent in work.sent] == [256, 256, 88]


async def test_batches_go_out_over_as_many_lanes_as_there_are(work: FakeWork) -> None:
    committer = Committer(cast(WorkStore, work), lanes=2)
    work.is_open.clear()
    tasks = [asyncio.create_task(committer.submit(write_of(0), always))]
    await under_way(work)
    tasks.append(asyncio.create_task(committer.submit(write_of(1), always)))
    await under_way(work, 2)
    tasks.append(asyncio.create_task(committer.submit(write_of(2), always)))
    for _ in range(10):
        await asyncio.sleep(0)
    work.is_open.set()
    await asyncio.gather(*tasks)
    assert work.most_under_way == 2
    assert len(work.sent) == 3


async def test_two_writes_of_one_task_never_share_a_batch(
    committer: Committer, work: FakeWork
) -> None:
    """The last write of a lease is repeated while the next lease writes: the store would refuse
    such a batch, and with it everybody who is in it."""
    old, new, other = write_of(0, fence=1), write_of(0, fence=3), write_of(1)
    await asyncio.gather(*(committer.submit(write, always) for write in (old, new, other)))
    assert [sent.batch for sent in work.sent] == [(old, other), (new,)]


async def test_a_submitter_that_left_takes_nobody_with_it(
    committer: Committer, work: FakeWork
) -> None:
    work.is_open.clear()
    left, stayed = (
        asyncio.create_task(committer.submit(write_of(task), always)) for task in (0, 1)
    )
    await under_way(work)
    left.cancel()
    await asyncio.wait([left])
    work.is_open.set()
    assert await stayed == OK


# --- locked elsewhere -----------------------------------------------------------------------------


async def test_a_locked_row_joins_the_next_batches_and_then_waits_alone(
    committer: Committer, work: FakeWork
) -> None:
    work.says = {0: [Busy()] * 3}
    assert await committer.submit(write_of(0), always) == OK
    assert [sent.patient for sent in work.sent] == [False, False, False, True]
    assert {sent.batch for sent in work.sent} == {(write_of(0),)}


async def test_a_locked_row_holds_up_nobody(committer: Committer, work: FakeWork) -> None:
    """Its patient wait takes no lane."""
    work.says = {0: [Busy()] * 3}
    work.lock_is_free.clear()
    locked = asyncio.create_task(committer.submit(write_of(0), always))
    while not any(sent.patient for sent in work.sent):
        await asyncio.sleep(0)
    assert await committer.submit(write_of(1), always) == OK
    assert not locked.done()
    work.lock_is_free.set()
    assert await locked == OK


async def test_the_verdict_is_never_busy(committer: Committer, work: FakeWork) -> None:
    work.says = {0: [Busy(), Busy(), Busy(), Busy(), Lost()]}
    assert await committer.submit(write_of(0), always) == Lost()


# --- the store is away ----------------------------------------------------------------------------


async def test_a_write_of_unknown_outcome_is_repeated_with_the_same_content(
    committer: Committer, work: FakeWork
) -> None:
    work.away = 3
    assert await committer.submit(write_of(0), always) == OK
    assert {sent.batch for sent in work.sent} == {(write_of(0),)}
    assert len(work.sent) == 4


async def test_once_the_lease_is_over_it_is_lost(committer: Committer, work: FakeWork) -> None:
    work.away = 1_000_000
    held = [True]
    task = asyncio.create_task(committer.submit(write_of(0), lambda: held[0]))
    while len(work.sent) < 2:
        await asyncio.sleep(0.01)
    assert not task.done()
    held[0] = False
    async with asyncio.timeout(5):
        assert await task == Lost()


async def test_one_lease_that_is_over_ends_no_other(committer: Committer, work: FakeWork) -> None:
    work.away = 1
    lost, kept = await asyncio.gather(
        committer.submit(write_of(0), lambda: False), committer.submit(write_of(1), always)
    )
    assert (lost, kept) == (Lost(), OK)
    assert [sent.tasks for sent in work.sent] == [[0, 1], [1]]


async def test_a_write_that_is_known_to_be_committed_needs_no_lease_any_more(
    committer: Committer, work: FakeWork
) -> None:
    """Whether the lease still holds is asked only when an outcome stays unknown."""
    assert await committer.submit(write_of(0), lambda: False) == OK


async def test_a_patient_write_too_is_repeated(committer: Committer, work: FakeWork) -> None:
    work.says = {0: [Busy(), Busy(), Busy(), StoreUnavailable("away")]}
    assert await committer.submit(write_of(0), always) == OK
    assert [sent.patient for sent in work.sent] == [False, False, False, True, False]


# --- our own faults -------------------------------------------------------------------------------


async def test_an_unexpected_error_reaches_whoever_waits(
    committer: Committer, work: FakeWork
) -> None:
    work.says = {0: [RuntimeError("a fault of ours")]}
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await committer.submit(write_of(0), always)
    assert await committer.submit(write_of(1), always) == OK


async def test_closing_waits_for_what_is_under_way(committer: Committer, work: FakeWork) -> None:
    work.is_open.clear()
    task = asyncio.create_task(committer.submit(write_of(0), always))
    await under_way(work)
    closing = asyncio.create_task(committer.close())
    await asyncio.sleep(0)
    assert not closing.done()
    work.is_open.set()
    await closing
    assert await task == OK
