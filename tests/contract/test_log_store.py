"""Reading the log."""

from __future__ import annotations

import pytest

from outlast.model.commit import EventKind
from outlast.model.errors import LogTrimmed
from outlast.model.ids import Seq, TaskId, new_task_id
from tests.contract.stores import Paused, Store, chunk, kinds, said, statements


async def talk(store: Store) -> TaskId:
    """A task whose log is: its message, a report, a chunk of two artifacts each, one more chunk, a
    report, a question, the answer, a chunk."""
    run = await store.claimed()
    await run.commit(said(), chunk(append=False), chunk("other", append=False))
    await run.commit(chunk(), said())
    pause_id = await run.pause()
    await store.answer(Paused(run.task_id, run.ledger_id, pause_id, "1:ask"))
    run = await store.claim_again(run.task_id)
    await run.commit(chunk("other"))
    await (await store.claimed("w2", workflow="other")).commit(said("of another task"))
    return run.task_id


class TestEventsSince:
    async def test_come_in_order_without_a_gap(self, store: Store) -> None:
        """The next events after `seq`, in order, without a gap, at most `limit`."""
        task_id = await talk(store)
        events = await store.log.events_since(task_id, Seq(0))
        assert [event.seq for event in events] == list(range(1, 10))
        assert kinds(events) == [
            EventKind.TASK,
            EventKind.STATUS,
            EventKind.ARTIFACT,
            EventKind.ARTIFACT,
            EventKind.ARTIFACT,
            EventKind.STATUS,
            EventKind.STATUS,
            EventKind.MESSAGE,
            EventKind.ARTIFACT,
        ]
        assert await store.log.events_since(task_id, Seq(6)) == events[6:]
        assert await store.log.events_since(task_id, Seq(9)) == []

    async def test_are_at_most_limit(self, store: Store) -> None:
        """The next events after `seq`, in order, without a gap, at most `limit`."""
        task_id = await talk(store)
        page = await store.log.events_since(task_id, Seq(2), limit=3)
        assert [event.seq for event in page] == [3, 4, 5]

    async def test_are_never_skipped(self, store: Store) -> None:
        """Where the next one has been trimmed or has expired, while later ones are still there:
        LogTrimmed."""
        task_id = await talk(store)
        await store.sql("delete from task_events where task_id = :id and seq < 4", id=task_id)
        store.laws_are_broken_on_purpose = True
        for seq in (0, 2):
            with pytest.raises(LogTrimmed):
                await store.log.events_since(task_id, Seq(seq))
        assert (await store.log.events_since(task_id, Seq(3)))[0].seq == 4
        assert await store.log.events_since(task_id, Seq(9)) == []

    async def test_say_who_wrote_them_and_when(self, store: Store) -> None:
        """The next events after `seq`, in order, without a gap, at most `limit`."""
        task_id = await talk(store)
        events = await store.events(task_id)
        assert [event.fence for event in events] == [0, 1, 1, 1, 1, 1, 1, 2, 3]
        assert [event.write_no for event in events] == [None, 1, 1, 1, 2, 2, 3, None, 1]
        assert [event.created_at for event in events] == sorted(e.created_at for e in events)
        assert abs(events[0].created_at - await store.now()) < 60_000

    async def test_case_031_are_of_any_size(self, store: Store) -> None:
        """The next events after `seq`, in order, without a gap, at most `limit`."""
        run = await store.claimed()
        for size in (1_000, 7_900, 8_000, 65_536, 1_000_000):
            text = ("ä€😀" * size)[:size]
            await run.commit(chunk(text=text))
            event = await store.last_event(run.task_id)
            assert event.body["artifact"]["parts"] == [{"text": text}]


class TestEvent:
    async def test_is_found_by_its_seq(self, store: Store) -> None:
        """One event."""
        task_id = await talk(store)
        events = await store.events(task_id)
        for event in events:
            assert await store.log.event(task_id, event.seq) == event
        assert await store.log.event(task_id, Seq(10)) is None
        assert await store.log.event(new_task_id(), Seq(1)) is None


class TestEndsOf:
    async def test_are_those_of_all_that_exist(self, store: Store) -> None:
        """The last seq of each of these logs, from one statement. A task that does not exist is
        left out."""
        task_id = await talk(store)
        other = (await store.claimed("w3", workflow="third")).task_id
        with statements() as sent:
            ends = await store.log.ends_of([task_id, other, new_task_id()])
        assert ends == {task_id: 9, other: 1}
        assert [name for name in sent if name.startswith("tasks")] == ["tasks_ends"]
        assert await store.log.ends_of([]) == {}


class TestMessages:
    async def test_are_what_history_is_made_of(self, store: Store) -> None:
        """The newest events that history is made of (callers' messages and questions) below
        `before`, in order, at most `limit`."""
        task_id = await talk(store)
        events = await store.events(task_id)
        messages = await store.log.messages(task_id)
        assert messages == [event for event in events if event.seq in (1, 7, 8)]
        assert all(event.is_message for event in messages)

    async def test_below_before_the_newest_are_taken(self, store: Store) -> None:
        """The newest events that history is made of (callers' messages and questions) below
        `before`, in order, at most `limit`."""
        task_id = await talk(store)

        async def seqs(before: int | None, limit: int = 100) -> list[int]:
            before_seq = None if before is None else Seq(before)
            found = await store.log.messages(task_id, before=before_seq, limit=limit)
            return [event.seq for event in found]

        assert await seqs(None, limit=2) == [7, 8]
        assert await seqs(8, limit=2) == [1, 7]
        assert await seqs(8, limit=1) == [7]
        assert await seqs(7) == [1]
        assert await seqs(1) == await seqs(0) == []


class TestReceived:
    async def test_are_what_callers_said_since(self, store: Store) -> None:
        """The next messages of callers after `after`, in order, at most `limit`; answers are among
        them, and the one that created the task is not."""
        run = await store.claimed()
        first = await store.receive(run.task_id, "one")
        pause_id = await run.pause()
        await store.answer(Paused(run.task_id, run.ledger_id, pause_id, "1:ask"))
        answer = (await store.last_event(run.task_id)).seq
        last = await store.receive(run.task_id, "two")

        async def seqs(after: int, limit: int = 100) -> list[int]:
            found = await store.log.received(run.task_id, after=Seq(after), limit=limit)
            return [event.seq for event in found]

        assert await seqs(0) == [first, answer, last]
        assert await seqs(0, limit=2) == [first, answer]
        assert await seqs(first) == [answer, last]
        assert await seqs(last) == []


class TestArtifactEvents:
    async def test_are_those_of_the_range(self, store: Store) -> None:
        """The artifact events with after < seq <= until, in order."""
        task_id = await talk(store)

        async def seqs(after: int, until: int) -> list[int]:
            found = await store.log.artifact_events(task_id, after=Seq(after), until=Seq(until))
            assert all(event.kind is EventKind.ARTIFACT for event in found)
            return [event.seq for event in found]

        assert await seqs(0, 9) == [3, 4, 5, 9]
        assert await seqs(3, 9) == [4, 5, 9]
        assert await seqs(2, 4) == [3, 4]
        assert await seqs(5, 8) == []
