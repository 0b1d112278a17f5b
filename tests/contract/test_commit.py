"""The one write of a worker: `commit(batch) -> verdicts`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from outlast.model.commit import (
    Backoff,
    Busy,
    Committed,
    Ending,
    Event,
    Finish,
    Hold,
    Lost,
    Marked,
    Move,
    Pause,
    Refused,
    Release,
    Unread,
    Verdict,
    Wait,
    Write,
    status_event,
)
from outlast.model.errors import StoreUnavailable
from outlast.model.ids import Fence, Millis, Seq, StepName, TaskId, Visit, WorkerId, WriteNo
from outlast.model.ledger import Clear, Kept, LedgerKind, Result
from outlast.model.pause import DueBy
from outlast.model.task import State
from tests.contract.stores import (
    HOUR,
    SCOPE,
    Run,
    Store,
    asked,
    chunk,
    ended,
    intent,
    moved,
    said,
    statements,
)

ERROR = {"type": "OSError", "text": "away"}
DEADLINE = DueBy(after=Millis(HOUR))
EVERY_ENDING: dict[str, tuple[tuple[Event, ...], Ending]] = {
    "pause": ((asked(),), Pause(state=State.INPUT_REQUIRED, deadline=DEADLINE)),
    "wait": ((), Wait(until=DEADLINE, timer_key="1:sleep")),
    "backoff": ((), Backoff(delay=Millis(HOUR), error=ERROR)),
    "hold": ((), Hold(reason="look at this")),
    "release": ((), Release()),
    "finish": ((ended(),), Finish(state=State.COMPLETED)),
}


def _end(kind: str, run: Run) -> Write:
    events, ending = EVERY_ENDING[kind]
    return run.write(*events, ending=ending)


FORBIDDEN_BY_A_MARK: dict[str, Callable[[Run], Write]] = {
    "pause": lambda run: run.write(asked(), ending=EVERY_ENDING["pause"][1]),
    "wait": lambda run: run.write(ending=EVERY_ENDING["wait"][1]),
    "backoff": lambda run: run.write(ending=EVERY_ENDING["backoff"][1]),
    "hold": lambda run: run.write(ending=EVERY_ENDING["hold"][1]),
    "an intent": lambda run: run.write(said(), ledger=[intent()]),
    "an intent among others": lambda run: run.write(
        ledger=[Kept(key="1:memo", kind=LedgerKind.MEMO, result="1"), intent()], move=moved()
    ),
}
EVERY_KIND: dict[str, Callable[[Run], Write]] = {
    "an event": lambda run: run.write(said()),
    "chunks": lambda run: run.write(chunk(), chunk(), chunk()),
    "nothing": lambda run: run.write(),
    "an intent": lambda run: run.write(ledger=[intent("effect:new")]),
    "a result": lambda run: run.write(ledger=[Result(key="effect:open", result="1")]),
    "a memo": lambda run: run.write(ledger=[Kept(key="1:memo", kind=LedgerKind.MEMO, result="1")]),
    "a clear": lambda run: run.write(ledger=[Clear(key="effect:open", write_no=WriteNo(1))]),
    "a checkpoint": lambda run: run.write(said(), move=moved()),
    **{name: partial(_end, name) for name in EVERY_ENDING},
}


async def begun(store: Store, **task: Any) -> Run:
    """A run that has committed a checkpoint and left an open intent."""
    run = await store.claimed(**task)
    await run.commit(said(), ledger=[intent("effect:open")], move=moved())
    return run


class TestCommit:
    # --- the predicate ------------------------------------------------------------------------

    async def test_answers_in_the_order_of_the_batch(self, store: Store) -> None:
        """Apply each write by the one predicate `task_id and fence and write_no`, all in one
        transaction, and say per write, in the order of the batch, what became of it."""
        runs = [await store.claimed(workflow=f"w{n}", name=f"worker{n}") for n in range(6)]
        await store.tasks.cancel(SCOPE, runs[3].task_id)
        batch = [run.write(said(f"of {n}")) for n, run in enumerate(runs)]
        batch[1] = runs[1].write(said("refused"), ending=EVERY_ENDING["pause"][1])
        batch.reverse()
        verdicts = await store.work.commit(batch)
        assert [type(verdict) for verdict in verdicts] == [
            Committed,
            Committed,
            Lost,
            Committed,
            Refused,
            Committed,
        ]

    async def test_is_one_transaction(self, store: Store) -> None:
        """Apply each write by the one predicate `task_id and fence and write_no`, all in one
        transaction, and say per write, in the order of the batch, what became of it."""
        runs = [await store.claimed(workflow=f"w{n}", name=f"worker{n}") for n in range(4)]
        with statements() as sent:
            await store.work.commit([run.write(said()) for run in runs])
        assert sent.count("commit") == 1
        assert await store.work.commit([]) == []

    @pytest.mark.parametrize("number", ["fence", "write_no", "task_id"])
    async def test_under_other_numbers_changes_nothing(self, store: Store, number: str) -> None:
        """Apply each write by the one predicate `task_id and fence and write_no`, all in one
        transaction, and say per write, in the order of the batch, what became of it."""
        run = await begun(store)
        async with store.unchanged():
            for kind in EVERY_KIND:
                write = EVERY_KIND[kind](run)
                others: dict[str, list[Write]] = {
                    "fence": [
                        replace(write, fence=Fence(run.lease.fence + by)) for by in (-1, 1, 7)
                    ],
                    "write_no": [
                        replace(write, write_no=WriteNo(run.write_no + by)) for by in (1, 7)
                    ],
                    "task_id": [replace(write, task_id=TaskId("unknown"))],
                }
                for other in others[number]:
                    assert await store.commit(other) == Lost(), kind

    # --- committed ----------------------------------------------------------------------------

    async def test_puts_events_into_the_log(self, store: Store) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await store.claimed()
        assert await run.commit(said("one"), chunk(), said("two")) == Committed(last_seq=Seq(4))
        assert await run.commit(chunk()) == Committed(last_seq=Seq(5))
        events = await store.events(run.task_id)
        assert [event.seq for event in events] == [1, 2, 3, 4, 5]
        assert [event.body for event in events[1:]] == [
            {**said("one").body, "message": events[1].body["message"]},
            chunk().body,
            events[3].body,
            chunk().body,
        ]
        assert [(event.fence, event.write_no) for event in events[1:]] == [
            (1, 1),
            (1, 1),
            (1, 1),
            (1, 2),
        ]
        task = await store.task(run.task_id)
        assert task.generation == 5
        assert task.status == {"state": "working", "message": events[3].body["message"]}

    async def test_without_a_status_event_leaves_the_status_alone(self, store: Store) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await store.claimed()
        await run.commit(chunk())
        task = await store.task(run.task_id)
        assert (task.state, task.status) == (State.SUBMITTED, {"state": "submitted"})
        assert task.status_at == task.created_at

    async def test_puts_entries_into_the_ledger(self, store: Store) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await store.claimed()
        memo = Kept(key="1:memo", kind=LedgerKind.MEMO, result="[1]", digest="of arguments")
        await run.commit(ledger=[intent("effect:a"), intent("effect:b"), memo])
        await run.commit(
            ledger=[
                Result(key="effect:a", result='"sent"'),
                Clear(key="effect:b", write_no=WriteNo(1)),
            ]
        )
        a = await store.work.entry(run.ledger_id, "effect:a")
        kept = await store.work.entry(run.ledger_id, "1:memo")
        assert a is not None
        assert kept is not None
        assert (a.kind, a.result, a.is_done, a.write_no) == (LedgerKind.EFFECT, '"sent"', True, 1)
        assert (kept.kind, kept.result, kept.digest) == (LedgerKind.MEMO, "[1]", "of arguments")
        assert await store.work.entry(run.ledger_id, "effect:b") is None

    async def test_moves_the_checkpoint(self, store: Store) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await store.claimed()
        await run.commit(ending=Backoff(delay=Millis(0), error=ERROR))
        run = await store.claim_again(run.task_id)
        assert (run.lease.attempt, run.lease.checkpoint) == (2, None)
        hook = {"state": "canceled", "text": None, "hook": "on_cancel"}
        move = Move(checkpoint='{"n":1}', step=StepName("second"), visit=Visit(2), ending_as=hook)
        await run.commit(said(), move=move)
        await run.commit(chunk())
        task = await store.task(run.task_id)
        assert (task.step, task.visit, task.attempt, task.crashes) == ("second", 2, 1, 0)
        await run.commit(ending=Release())
        lease = (await store.claim_again(run.task_id)).lease
        assert (lease.checkpoint, lease.ending_as) == ('{"n":1}', hook)
        assert (lease.commit_seq, lease.last_seq) == (2, 3)

    async def test_raises_write_no(self, store: Store) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await store.claimed()
        for number in (1, 2, 3):
            await run.commit()
            assert (await store.sql("select write_no from tasks"))[0]["write_no"] == number

    @pytest.mark.parametrize("kind", EVERY_KIND)
    async def test_interleaving_07_a_repeat_learns_that_it_is_committed(
        self, store: Store, kind: str
    ) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await begun(store)
        write = EVERY_KIND[kind](run)
        first = await store.commit(write)
        assert isinstance(first, Committed)
        async with store.unchanged():
            for patient in (False, True):
                repeat = await store.commit(write, patient=patient)
                assert isinstance(repeat, Committed)
                assert (repeat.last_seq, repeat.marked) == (first.last_seq, False)

    @pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if kind not in EVERY_ENDING])
    async def test_the_original_arriving_late_changes_nothing(
        self, store: Store, kind: str
    ) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await begun(store)
        write = EVERY_KIND[kind](run)
        await store.commit(write)
        run.write_no = WriteNo(write.write_no + 1)
        await run.commit(said("the next write"), move=moved('{"n":2}', "second", 2))
        async with store.unchanged():
            assert isinstance(await store.commit(write), Committed)
        await run.commit(ending=Release())
        run = await store.claim_again(run.task_id)
        await run.commit(said("of the next run"))
        async with store.unchanged():
            late = await store.commit(write)
            assert isinstance(late, Committed if write.events else Lost)

    @pytest.mark.parametrize("kind", EVERY_ENDING)
    async def test_a_late_ending_is_known_by_the_log_or_the_runs(
        self, store: Store, kind: str
    ) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await begun(store)
        write = EVERY_KIND[kind](run)
        await store.commit(write)
        if kind != "finish":
            await store.sql(
                "update tasks set held_reason = null, pause_id = null,"
                " pause_deadline_at = null, state = 'working', ready_at = 1"
            )
            run = await store.claim_again(run.task_id)
            await run.commit(said("of the next run"))
        async with store.unchanged():
            assert isinstance(await store.commit(write), Committed)

    async def test_interleaving_08_the_timeouts_own_write_is_not_taken_for_the_commit(
        self, store: Store
    ) -> None:
        """The commit is repeated until its outcome is known, then comes the timeout's write."""
        run = await begun(store)
        commit = run.write(said("committed"), move=moved('{"n":2}', "second", 2))
        assert isinstance(await store.commit(commit), Committed)  # and the reply is lost
        assert isinstance(await store.commit(commit), Committed)
        run.write_no = WriteNo(run.write_no + 1)
        await run.commit(ending=Backoff(delay=Millis(0), error=ERROR))
        texts = [e.body["message"]["parts"][0]["text"] for e in (await store.events(run.task_id))]
        assert texts == ["hello", "so far so good", "committed"]
        run = await store.claim_again(run.task_id)
        assert (run.lease.checkpoint, run.lease.attempt) == ('{"n":2}', 2)

    async def test_a_repeat_beside_its_original_is_committed_once(self, store: Store) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        other = await store.another()
        run = await store.claimed()
        for _ in range(10):
            write = run.write(said(), chunk())

            async def send(to: Store, write: Write = write) -> Verdict:
                while isinstance(verdict := await to.commit(write), Busy):
                    pass
                return verdict

            verdicts = await asyncio.gather(send(store), send(other), send(store))
            assert all(isinstance(verdict, Committed) for verdict in verdicts)
            run.write_no = WriteNo(run.write_no + 1)
        assert (await store.task(run.task_id)).generation == 21

    # --- endings ------------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", EVERY_ENDING)
    async def test_an_ending_ends_the_lease(self, store: Store, kind: str) -> None:
        """An ending raises the fence, clears the lease and closes the run."""
        run = await begun(store)
        await run.commit(*EVERY_ENDING[kind][0], ending=EVERY_ENDING[kind][1])
        task = await store.task(run.task_id)
        assert (task.fence, task.lease_owner) == (run.lease.fence + 1, None)
        ran = await store.last_run(run.task_id)
        outcomes = {
            "pause": ("paused", None),
            "wait": ("waiting", None),
            "backoff": ("retried", '{"type":"OSError","text":"away"}'),
            "hold": ("held", '{"text":"look at this"}'),
            "release": ("released", None),
            "finish": ("completed", None),
        }
        assert (ran["outcome"], ran["error"]) == outcomes[kind]
        assert ran["ended_write_no"] == run.write_no
        assert ran["ended_at"] >= ran["started_at"]
        async with store.unchanged():
            assert await store.commit(run.write(said("later"))) == Lost()

    async def test_a_pause_waits_for_its_answer(self, store: Store) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await begun(store)
        ending = Pause(
            state=State.INPUT_REQUIRED, deadline=DEADLINE, remind=DueBy(after=Millis(60_000))
        )
        committed = await run.commit(chunk(), asked(), ending=ending)
        task = await store.task(run.task_id)
        assert (task.state, task.pause_id, task.ready_at) == (
            State.INPUT_REQUIRED,
            committed.last_seq,
            None,
        )
        assert task.pause_deadline_at is not None
        assert abs(task.pause_deadline_at - await store.now() - HOUR) < 60_000
        (row,) = await store.sql("select pause_deadline_at - remind_at as gap from tasks")
        assert abs(row["gap"] - (HOUR - 60_000)) < 1_000
        question = await store.log.event(run.task_id, committed.last_seq)
        assert question is not None
        assert question.is_message

    async def test_a_wait_records_when_its_timer_is_due(self, store: Store) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await begun(store)
        await run.commit(ending=Wait(until=DEADLINE, timer_key="1:sleep"))
        task = await store.task(run.task_id)
        timer = await store.work.entry(run.ledger_id, "1:sleep")
        assert timer is not None
        assert (timer.kind, timer.result) == (LedgerKind.TIMER, str(task.ready_at))
        assert task.state is State.WORKING

    async def test_a_wait_under_a_known_timer_keeps_the_first_time(self, store: Store) -> None:
        """A timer: one row, and its first due time stays."""
        run = await begun(store)
        await run.commit(ending=Wait(until=DueBy(after=Millis(0)), timer_key="1:sleep"))
        first = await store.work.entry(run.ledger_id, "1:sleep")
        run = await store.claim_again(run.task_id)
        await run.commit(ending=Wait(until=DEADLINE, timer_key="1:sleep"))
        assert await store.work.entry(run.ledger_id, "1:sleep") == first

    async def test_a_backoff_counts_the_attempt(self, store: Store) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await begun(store)
        for attempt in (2, 3):
            await run.commit(ending=Backoff(delay=Millis(500), error=ERROR))
            assert await store.claim() == []
            await store.later(500)
            run = await store.claim_again(run.task_id)
            assert run.lease.attempt == attempt
        await run.commit(move=moved())
        assert (await store.task(run.task_id)).attempt == 1

    async def test_case_079_only_a_backoff_costs_an_attempt(self, store: Store) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await begun(store)
        for ending in (Release(), Wait(until=DueBy(after=Millis(0)))):
            await run.commit(ending=ending)
            run = await store.claim_again(run.task_id)
            assert (run.lease.attempt, run.lease.crashes) == (1, 0)

    async def test_a_hold_says_why(self, store: Store) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await begun(store)
        await run.commit(ending=Hold(reason="look at this", error=ERROR))
        task = await store.task(run.task_id)
        assert (task.state, task.held_reason, task.is_held) == (
            State.WORKING,
            "look at this",
            True,
        )
        assert (await store.last_run(run.task_id))["error"] == '{"type":"OSError","text":"away"}'

    @pytest.mark.parametrize(
        "state", [State.COMPLETED, State.FAILED, State.CANCELED, State.REJECTED]
    )
    async def test_a_finish_is_the_end(self, store: Store, state: State) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await begun(store)
        await run.commit(said("the end", state), ending=Finish(state=state, error=ERROR))
        task = await store.task(run.task_id)
        assert (task.state, task.status["message"]["parts"]) == (state, [{"text": "the end"}])
        ran = await store.last_run(run.task_id)
        assert (ran["outcome"], ran["error"]) == (
            state.value,
            '{"type":"OSError","text":"away"}',
        )
        (row,) = await store.sql("select expires_at, status_at from tasks")
        assert abs(row["expires_at"] - row["status_at"] - store.settings.retention_ms) < 1_000

    # --- lost ---------------------------------------------------------------------------------

    async def test_after_a_take_over_changes_nothing(self, store: Store) -> None:
        """Lost: the lease is over; nothing changed."""
        run = await begun(store)
        writes = [EVERY_KIND[kind](run) for kind in EVERY_KIND]

        async def all_are_lost() -> None:
            async with store.unchanged():
                for write in writes:
                    for patient in (False, True):
                        assert await store.commit(write, patient=patient) == Lost()

        await run.dies()
        await all_are_lost()
        await store.worker("w2")
        successor = await store.claim_again(run.task_id, "w2")
        await all_are_lost()
        await successor.commit(said("of the successor"))
        await successor.finish()
        await all_are_lost()

    @pytest.mark.parametrize("by", ["a cancel", "the end of its life", "a release"])
    async def test_after_the_lease_was_ended_changes_nothing(self, store: Store, by: str) -> None:
        """Lost: the lease is over; nothing changed."""
        run = await begun(store)
        match by:
            case "a cancel":
                await store.tasks.cancel(SCOPE, run.task_id)
            case "the end of its life":
                await store.later(31 * 24 * HOUR)
                assert await store.sweeping.end_overdue_lives() == [run.task_id]
            case "a release":
                assert await store.beats.release(WorkerId("w1"), run.task_id, run.lease.fence)
        async with store.unchanged():
            for kind in EVERY_KIND:
                assert await store.commit(EVERY_KIND[kind](run)) == Lost()

    async def test_interleaving_14_a_write_that_the_restored_store_never_saw_is_lost(
        self, store: Store
    ) -> None:
        """Lost: the lease is over; nothing changed."""
        run = await begun(store)
        backup = await store.everything()
        await run.commit(said("of the lost future"))
        await store.sql("delete from task_events where seq = 3")
        row = next(row for row in backup["tasks"] if row["task_id"] == run.task_id)
        await store.sql(
            "update tasks set write_no = :write_no, next_seq = :next_seq, status_at = :status_at",
            write_no=row["write_no"],
            next_seq=row["next_seq"],
            status_at=row["status_at"],
        )
        async with store.unchanged():
            assert await store.commit(run.write(said("and of its future"))) == Lost()

    # --- marked -------------------------------------------------------------------------------

    @pytest.mark.parametrize("kind", FORBIDDEN_BY_A_MARK)
    async def test_interleaving_09_a_mark_stops_what_waits_or_begins(
        self, store: Store, kind: str
    ) -> None:
        """Marked: the task is marked for cancel and the write pauses, waits, backs off, holds or
        records an intent, and is not the hook's own; nothing changed."""
        run = await begun(store, on_cancel=True)
        await store.tasks.cancel(SCOPE, run.task_id)
        write = FORBIDDEN_BY_A_MARK[kind](run)
        async with store.unchanged():
            assert await store.commit(write) == Marked()
            assert await store.commit(write, patient=True) == Marked()
        assert isinstance(await store.commit(replace(write, in_hook=True)), Committed)

    @pytest.mark.parametrize(
        "kind", [kind for kind in EVERY_KIND if kind not in FORBIDDEN_BY_A_MARK]
    )
    async def test_a_mark_lets_everything_else_through(self, store: Store, kind: str) -> None:
        """Marked: the task is marked for cancel and the write pauses, waits, backs off, holds or
        records an intent, and is not the hook's own; nothing changed."""
        run = await begun(store, on_cancel=True)
        await store.tasks.cancel(SCOPE, run.task_id)
        verdict = await store.commit(EVERY_KIND[kind](run))
        assert isinstance(verdict, Committed)
        assert verdict.marked

    @pytest.mark.parametrize("kind", FORBIDDEN_BY_A_MARK)
    async def test_a_write_from_before_the_mark_is_committed(self, store: Store, kind: str) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await begun(store, on_cancel=True)
        write = FORBIDDEN_BY_A_MARK[kind](run)
        assert isinstance(await store.commit(write), Committed)  # and the reply is lost
        await store.tasks.cancel(SCOPE, run.task_id)
        async with store.unchanged():
            repeat = await store.commit(write)
            assert isinstance(repeat, Committed)
            assert repeat.marked

    async def test_a_mark_without_a_hook_is_an_end(self, store: Store) -> None:
        """Lost: the lease is over; nothing changed."""
        run = await begun(store)
        await store.tasks.cancel(SCOPE, run.task_id)
        for kind in FORBIDDEN_BY_A_MARK:
            assert await store.commit(FORBIDDEN_BY_A_MARK[kind](run)) == Lost()

    async def test_case_046_no_effect_begins_after_a_cancel(self, store: Store) -> None:
        """Lost: the lease is over; nothing changed."""
        run = await begun(store)
        await store.tasks.cancel(SCOPE, run.task_id)
        assert await store.commit(run.write(ledger=[intent("effect:2")])) == Lost()
        assert await store.work.entry(run.ledger_id, "effect:2") is None

    # --- unread -------------------------------------------------------------------------------

    async def test_nothing_closes_the_inbox_over_an_unread_message(self, store: Store) -> None:
        """Unread: the write closes the inbox, which holds a message that neither an earlier commit
        has read nor this one; nothing changed."""
        run = await begun(store)
        first = await store.receive(run.task_id, "one")
        last = await store.receive(run.task_id, "two")
        failing = replace(moved(read=first, closes=True), ending_as={"state": "failed"})
        async with store.unchanged():
            for read in (0, first):
                move = moved(read=read, closes=True)
                end = run.write(ended(), move=move, ending=Finish(state=State.COMPLETED))
                assert await store.commit(end) == Unread()
                assert await store.commit(end, patient=True) == Unread()
            assert await store.commit(run.write(move=failing)) == Unread()
        end = run.write(
            ended(), move=moved(read=last, closes=True), ending=Finish(state=State.COMPLETED)
        )
        assert isinstance(await store.commit(end), Committed)
        assert isinstance(await store.commit(end), Committed)  # and its repeat

    async def test_an_earlier_commit_may_have_read_it(self, store: Store) -> None:
        """Unread: the write closes the inbox, which holds a message that neither an earlier commit
        has read nor this one; nothing changed."""
        run = await begun(store)
        seq = await store.receive(run.task_id)
        await run.commit(move=moved(read=seq))
        await run.commit(move=moved())
        await run.commit(ending=Release())
        run = await store.claim_again(run.task_id)
        assert run.lease.read_seq == seq
        await run.commit(ended(), move=moved(closes=True), ending=Finish(state=State.COMPLETED))

    async def test_whatever_does_not_close_the_inbox_is_committed(self, store: Store) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        for state in (State.FAILED, State.CANCELED):
            run = await begun(store)
            await store.receive(run.task_id, f"to one that ends {state}")
            await run.commit(said(), move=moved())
            await run.finish(state)

    async def test_a_closing_write_of_an_old_lease_is_lost(self, store: Store) -> None:
        """Lost: the lease is over; nothing changed."""
        run = await begun(store)
        await store.receive(run.task_id)
        await run.commit(ending=Release())
        late = run.write(ended(), move=moved(closes=True), ending=Finish(state=State.COMPLETED))
        async with store.unchanged():
            assert await store.commit(late) == Lost()

    # --- busy ---------------------------------------------------------------------------------

    async def test_a_locked_row_is_busy(self, store: Store) -> None:
        """Busy: somebody else has the row locked; nothing changed (never when `patient`, which
        waits for the lock)."""
        run = await begun(store)
        write = run.write(said())
        impatient = await store.another(timeout=0.3)
        async with store.unchanged(), store.locked(run.task_id):
            if store.is_sqlite:
                with pytest.raises(StoreUnavailable) as caught:
                    await impatient.commit(write)
                assert caught.value.happened is False
            else:
                assert await impatient.commit(write) == Busy()
        assert isinstance(await store.commit(write), Committed)

    async def test_patience_waits_for_the_lock(self, store: Store) -> None:
        """Busy: somebody else has the row locked; nothing changed (never when `patient`, which
        waits for the lock)."""
        run = await begun(store)
        async with store.locked(run.task_id):
            committing = asyncio.create_task(store.commit(run.write(said()), patient=True))
            if store.is_sqlite:
                await asyncio.sleep(0.05)  # nothing tells that a writer tries again
            else:
                await (await store.another()).until_somebody_waits_for_a_lock()
            assert not committing.done()
        assert isinstance(await committing, Committed)

    async def test_patience_has_a_deadline(self, store: Store) -> None:
        """Busy: somebody else has the row locked; nothing changed (never when `patient`, which
        waits for the lock)."""
        run = await begun(store)
        write = run.write(said())
        impatient = await store.another(timeout=0.3)
        async with store.unchanged(), store.locked(run.task_id):
            with pytest.raises(StoreUnavailable) as caught:
                await impatient.commit(write, patient=True)
            assert caught.value.happened is False
        assert isinstance(await store.commit(write), Committed)

    async def test_one_locked_row_leaves_the_others_alone(self, store: Store) -> None:
        """Busy: somebody else has the row locked; nothing changed (never when `patient`, which
        waits for the lock)."""
        runs = await many(store, 256)
        batch = [run.write(said()) for run in runs]
        locked = runs[100]
        if store.is_sqlite:
            async with store.locked(locked.task_id):
                committing = asyncio.create_task(store.work.commit(batch))
                await asyncio.sleep(0.05)
                assert not committing.done()
            assert all(isinstance(verdict, Committed) for verdict in await committing)
            return
        async with store.locked(locked.task_id):
            verdicts = await store.work.commit(batch)
            assert verdicts[100] == Busy()
            others = [*verdicts[:100], *verdicts[101:]]
            assert all(isinstance(verdict, Committed) for verdict in others)
            assert len(others) == 255
            assert await store.work.commit(batch[99:102]) == [
                verdicts[99],
                Busy(),
                verdicts[101],
            ]
        assert isinstance(await store.commit(batch[100]), Committed)

    async def test_a_locked_row_whose_lease_is_over_is_lost(self, store: Store) -> None:
        """Lost: the lease is over; nothing changed."""
        run = await begun(store)
        await run.dies()
        async with store.locked(run.task_id):
            if not store.is_sqlite:
                assert await store.commit(run.write(said())) == Lost()

    # --- refused ------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "poison",
        [
            "a pause that asks nothing",
            "an end that says nothing",
            "an end that says something else",
            "a terminal status without the end",
            "a NUL in a key",
            "a NUL in a result",
            "a NUL in a checkpoint",
            "a NUL in a timer's key",
            "half a character in an event",
            "half a character in a result",
            "too deep an event",
            "a number of 70 bits",
        ],
    )
    async def test_one_poisoned_row_leaves_the_others_alone(
        self, store: Store, poison: str
    ) -> None:
        """Refused: the database refuses this write for its content; the others of the batch are
        committed without it."""
        runs = await many(store, 3)
        guilty = poisoned(runs[1], poison)
        batch = [runs[0].write(said()), guilty, runs[2].write(chunk(), move=moved())]
        verdicts = await store.work.commit(batch)
        assert isinstance(verdicts[0], Committed)
        assert isinstance(verdicts[2], Committed)
        assert isinstance(verdicts[1], Refused)
        assert verdicts[1].reason
        assert (await store.task(runs[1].task_id)).generation == 1
        assert (
            await store.sql(
                "select key from task_ledger where ledger_id = :id", id=runs[1].ledger_id
            )
            == []
        )
        async with store.unchanged():
            assert isinstance(await store.commit(guilty), Refused)
        await runs[1].commit(said("and goes on"))

    async def test_one_poisoned_row_among_256(self, store: Store) -> None:
        """Refused: the database refuses this write for its content; the others of the batch are
        committed without it."""
        runs = await many(store, 256)
        batch = [run.write(said()) for run in runs]
        batch[128] = poisoned(runs[128], "a pause that asks nothing")
        verdicts = await store.work.commit(batch)
        assert isinstance(verdicts[128], Refused)
        others = [verdict for n, verdict in enumerate(verdicts) if n != 128]
        assert others == [Committed(last_seq=Seq(2))] * 255
        (row,) = await store.sql("select count(*) as n from task_events where seq = 2")
        assert row["n"] == 255

    async def test_a_nul_in_what_an_agent_says_is_kept(self, store: Store) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await store.claimed()
        await run.commit(said("before\x00after"))
        event = await store.last_event(run.task_id)
        assert event.body["message"]["parts"] == [{"text": "before\x00after"}]

    # --- settled ------------------------------------------------------------------------------

    async def test_settled_are_results_under_the_writes_own_keys(self, store: Store) -> None:
        """`Committed.settled` holds what the ledger already had for keys whose intents or results
        the write carried: those calls must not be made, and those results stand."""
        run = await begun(store)
        for key in ("effect:a", "effect:b"):
            await run.commit(ledger=[intent(key)])
            await store.work.settle(run.ledger_id, key, f'"first of {key}"')
        committed = await run.commit(
            ledger=[
                intent("effect:a"),
                intent("effect:new"),
                intent("effect:open"),
                Result(key="effect:b", result='"second"'),
                Kept(key="1:memo", kind=LedgerKind.MEMO, result="1"),
            ]
        )
        assert committed.settled == {
            "effect:a": '"first of effect:a"',
            "effect:b": '"first of effect:b"',
        }
        a = await store.work.entry(run.ledger_id, "effect:a")
        b = await store.work.entry(run.ledger_id, "effect:b")
        assert a is not None
        assert b is not None
        assert (a.result, b.result) == ('"first of effect:a"', '"first of effect:b"')

    async def test_the_writes_own_result_is_not_settled(self, store: Store) -> None:
        """`Committed.settled` holds what the ledger already had for keys whose intents or results
        the write carried: those calls must not be made, and those results stand."""
        run = await begun(store)
        committed = await run.commit(ledger=[Result(key="effect:open", result="1")])
        assert committed.settled == {}

    async def test_a_repeat_learns_what_stands(self, store: Store) -> None:
        """`Committed.settled` holds what the ledger already had for keys whose intents or results
        the write carried: those calls must not be made, and those results stand."""
        run = await begun(store)
        write = run.write(ledger=[intent("effect:a"), Result(key="effect:open", result="2")])
        await store.work.settle(run.ledger_id, "effect:open", "1")
        first = await store.commit(write)
        assert first == Committed(last_seq=Seq(2), settled={"effect:open": "1"})
        await store.work.settle(run.ledger_id, "effect:a", "3")
        repeat = await store.commit(write)
        assert repeat == Committed(last_seq=Seq(2), settled={"effect:a": "3", "effect:open": "1"})

    # --- the ledger under a lease -------------------------------------------------------------

    async def test_interleaving_02_an_intent_is_taken_over_under_the_fence(
        self, store: Store
    ) -> None:
        """Lost: the lease is over; nothing changed."""
        run = await begun(store)
        await run.dies()
        await store.worker("w2")
        successor = await store.claim_again(run.task_id, "w2")
        await store.tasks.cancel(SCOPE, run.task_id)
        async with store.unchanged():
            verdict = await store.commit(successor.write(ledger=[intent("effect:open")]))
            assert verdict == Lost()

    async def test_an_open_intent_is_taken_over(self, store: Store) -> None:
        """Committed: its events are in the log with the next seqs, its ledger entries, checkpoint
        and ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this."""
        run = await begun(store)
        await run.dies()
        await store.worker("w2")
        successor = await store.claim_again(run.task_id, "w2")
        await successor.commit(ledger=[intent("effect:open")])
        entry = await store.work.entry(run.ledger_id, "effect:open")
        assert entry is not None
        assert (entry.fence, entry.write_no) == (successor.lease.fence, 1)
        assert entry.request == '{"to":"ann"}'

    async def test_interleaving_05_a_late_not_done_clears_nothing_newer(self, store: Store) -> None:
        """`NotDone` clears an intent only where it is still that call's own."""
        run = await begun(store)
        await run.commit(ledger=[intent("effect:open")])  # the second call of this run
        late = Clear(key="effect:open", write_no=WriteNo(1))
        await run.commit(ledger=[late])
        entry = await store.work.entry(run.ledger_id, "effect:open")
        assert entry is not None
        assert entry.write_no == 2
        await run.dies()
        await store.worker("w2")
        successor = await store.claim_again(run.task_id, "w2")
        await successor.commit(ledger=[intent("effect:open")])
        async with store.unchanged():
            assert await store.commit(run.write(ledger=[late])) == Lost()
        await successor.commit(ledger=[Result(key="effect:open", result="1")])
        await successor.commit(ledger=[Clear(key="effect:open", write_no=WriteNo(1))])
        entry = await store.work.entry(run.ledger_id, "effect:open")
        assert entry is not None
        assert entry.result == "1"

    async def test_a_kept_value_stays(self, store: Store) -> None:
        """A value computed here and kept: the first one stays."""
        run = await begun(store)
        for value in ("1", "2"):
            await run.commit(ledger=[Kept(key="1:memo", kind=LedgerKind.MEMO, result=value)])
        entry = await store.work.entry(run.ledger_id, "1:memo")
        assert entry is not None
        assert entry.result == "1"

    # --- the batch ----------------------------------------------------------------------------

    async def test_of_two_writes_to_one_task_is_refused(self, store: Store) -> None:
        """A batch holds at most one write per task (ValueError)."""
        run = await begun(store)
        batch = [run.write(said()), run.write(said(), write_no=run.write_no + 1)]
        async with store.unchanged():
            with pytest.raises(ValueError, match="one write per task"):
                await store.work.commit(batch)

    async def test_batches_in_opposite_order_do_not_deadlock(self, store: Store) -> None:
        """Apply each write by the one predicate `task_id and fence and write_no`, all in one
        transaction, and say per write, in the order of the batch, what became of it."""
        other = await store.another()
        runs = await many(store, 40)
        forth = [run.write(said()) for run in runs]
        back = list(reversed(forth))
        for patient in (False, True):
            first, second = await asyncio.gather(
                store.work.commit(forth, patient=patient), other.work.commit(back, patient=patient)
            )
            for one, two in zip(first, reversed(second), strict=True):
                assert isinstance(one, Committed) or isinstance(two, Committed)
        assert {(await store.task(run.task_id)).generation for run in runs} == {2}


async def many(store: Store, number: int) -> list[Run]:
    """As many runs of one worker."""
    await store.worker()
    await asyncio.gather(*(store.new_task() for _ in range(number)))
    leases = await store.claim(limit=number)
    assert len(leases) == number
    return [Run(store, lease, WorkerId("w1")) for lease in leases]


def poisoned(run: Run, poison: str) -> Write:
    """A write that no database should take."""
    deep: dict[str, Any] = {}
    for _ in range(2_000):
        deep = {"x": deep}
    match poison:
        case "a pause that asks nothing":
            return run.write(said(), ending=EVERY_ENDING["pause"][1])
        case "an end that says nothing":
            return run.write(ending=Finish(state=State.COMPLETED))
        case "an end that says something else":
            return run.write(said(), ending=Finish(state=State.COMPLETED))
        case "a terminal status without the end":
            return run.write(ended())
        case "a NUL in a key":
            return run.write(ledger=[intent("effect:\x00")])
        case "a NUL in a result":
            return run.write(ledger=[Kept(key="1:memo", kind=LedgerKind.MEMO, result='"\x00"')])
        case "a NUL in a checkpoint":
            return run.write(move=moved('{"n":"\x00"}'))
        case "a NUL in a timer's key":
            return run.write(ending=Wait(until=DEADLINE, timer_key="1:\x00"))
        case "half a character in an event":
            return run.write(said("\ud800"))
        case "half a character in a result":
            return run.write(ledger=[Kept(key="1:memo", kind=LedgerKind.MEMO, result='"\ud800"')])
        case "too deep an event":
            return run.write(status_event(State.WORKING, deep))
        case "a number of 70 bits":
            return run.write(ending=Wait(until=DueBy(at=Millis(1 << 70))))
        case _:
            raise ValueError(poison)
