"""The duties of every worker."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import psycopg
import pytest

from outlast.model import points
from outlast.model.commit import Event, EventKind, Lost, Move, Pause, Release, Wait
from outlast.model.errors import LogTrimmed, TaskNotFound, UnsupportedOperation
from outlast.model.ids import Millis, Seq, StepName, TaskId, Visit, WorkerId
from outlast.model.lease import Death, Vitals
from outlast.model.pause import DueBy, OnDeadline
from outlast.model.task import Fold, State
from outlast.store.database import catalog
from outlast.store.protocols import TakenOver
from outlast.store.retention import expire, trim
from tests.contract.stores import (
    DAY,
    HOUR,
    SCOPE,
    Run,
    Store,
    chunk,
    database_at,
    intent,
    moved,
    new_task,
    said,
    scope_with,
    statements,
    until,
)

W1 = WorkerId("w1")
GAP = Millis(60_000)
LONGEST = Millis(DAY)


async def death_of(store: Store, name: str = "w1") -> Death:
    return Death(worker_id=WorkerId(name), beat=await store.beat_of(name), early=False)


class TestVitals:
    async def test_are_the_beats_of_the_living(self, store: Store) -> None:
        """The beats of all living workers, with their presence where it can be known: a presence
        taken under another server incarnation is not known."""
        await store.worker("w1")
        await store.worker("w2", lease_ms=3_000)
        await store.worker("dead")
        await store.worker("gone")
        await store.beats.beat(WorkerId("w2"), presence=None)
        await store.bury("dead")
        await store.work.sign_off(WorkerId("gone"))
        assert await store.sweeping.vitals() == [
            Vitals(worker_id=W1, beat=1, lease_s=15.0, beat_s=1.0, present=None),
            Vitals(worker_id=WorkerId("w2"), beat=2, lease_s=3.0, beat_s=1.0, present=None),
        ]
        assert len(await store.sweeping.vitals(limit=1)) == 1

    async def test_say_who_is_present(self, store: Store) -> None:
        """The beats of all living workers, with their presence where it can be known: a presence
        taken under another server incarnation is not known."""
        beating = database_at(store.url, size=1)
        await beating.open()
        await beating.keep_presence("w1")
        here = await beating.incarnation()
        await store.worker("w1", presence=here)
        await store.worker("earlier", presence="an earlier start of the server")

        async def present() -> dict[str, bool | None]:
            return {one.worker_id: one.present for one in await store.sweeping.vitals()}

        assert await present() == {"w1": True, "earlier": None}
        await beating.close()

        async def is_seen() -> bool:
            return (await present()) == {"w1": False, "earlier": None}

        await until(is_seen)


class TestTakeOver:
    async def test_marks_the_worker_dead_and_frees_its_tasks(self, store: Store) -> None:
        """In one transaction: the worker is marked dead where its beat is still the one seen, and
        the leases it held end: fences rise, runs close as lost, tasks are claimable again."""
        first = await store.claimed(workflow="one")
        second = await store.claimed(workflow="two")
        other = await store.claimed("w2", workflow="three")
        taken = await store.sweeping.take_over(await death_of(store))
        assert taken is not None
        assert (set(taken.freed), taken.failed) == ({first.task_id, second.task_id}, [])
        for run in (first, second):
            task = await store.task(run.task_id)
            assert (task.fence, task.lease_owner) == (run.lease.fence + 1, None)
            ran = await store.last_run(run.task_id)
            assert (ran["outcome"], ran["ended_write_no"]) == ("lost", None)
        assert (await store.task(other.task_id)).lease_owner == "w2"
        assert [row["worker_id"] for row in await store.inspect.workers()] == ["w2"]
        again = await store.claim("w2", workflow="one")
        assert [lease.fence for lease in again] == [first.lease.fence + 2]

    async def test_is_one_transaction(self, store: Store) -> None:
        """In one transaction: the worker is marked dead where its beat is still the one seen, and
        the leases it held end: fences rise, runs close as lost, tasks are claimable again."""
        await store.claimed()
        counting, others = store.interrupted()
        seen: list[str] = []

        async def note() -> None:
            seen.append("transaction")

        others.before_next_transaction(note)
        others.before_next_transaction(note)
        await counting.sweeping.take_over(await death_of(store))
        assert seen == ["transaction", "transaction"]  # both before the one there is

    async def test_where_the_beat_has_moved_changes_nothing(self, store: Store) -> None:
        """None: the beat has moved or somebody else was first; nothing changed."""
        await store.claimed()
        death = await death_of(store)
        await store.beats.beat(W1, presence=None)
        async with store.unchanged():
            assert await store.sweeping.take_over(death) is None

    async def test_by_the_second_watcher_changes_nothing(self, store: Store) -> None:
        """None: the beat has moved or somebody else was first; nothing changed."""
        await store.claimed()
        death = await death_of(store)
        assert await store.sweeping.take_over(death) is not None
        await store.worker("w2")
        await store.claim("w2")
        async with store.unchanged():
            assert await store.sweeping.take_over(death) is None
            unknown = Death(worker_id=WorkerId("unknown"), beat=1, early=True)
            assert await store.sweeping.take_over(unknown) is None

    async def test_by_two_at_once_is_done_once(self, store: Store) -> None:
        """None: the beat has moved or somebody else was first; nothing changed."""
        other = await store.another()
        for n in range(5):
            run = await store.claimed(f"w{n}", workflow=f"w{n}")
            death = await death_of(store, f"w{n}")
            taken = await asyncio.gather(
                store.sweeping.take_over(death), other.sweeping.take_over(death)
            )
            assert sorted(one is None for one in taken) == [False, True]
            task = await store.task(run.task_id)
            assert (task.fence, task.crashes) == (run.lease.fence + 1, 1)

    async def test_counts_a_crash(self, store: Store) -> None:
        """Each freed task whose run began before the death counts a crash; at the store's crash
        limit it has failed instead ("the process died N times in step S")."""
        run = await store.claimed()
        await run.dies()
        task = await store.task(run.task_id)
        assert (task.crashes, task.attempt) == (1, 1)

    async def test_of_a_run_that_began_after_the_death_counts_no_crash(self, store: Store) -> None:
        """Each freed task whose run began before the death counts a crash; at the store's crash
        limit it has failed instead ("the process died N times in step S")."""
        run = await store.claimed()
        await store.sql("update task_runs set started_at = started_at + 60000")
        await run.dies()
        assert (await store.task(run.task_id)).crashes == 0

    async def test_case_066_at_the_crash_limit_the_task_has_failed(self, store: Store) -> None:
        """Each freed task whose run began before the death counts a crash; at the store's crash
        limit it has failed instead ("the process died N times in step S")."""
        run = await killed(store, 2)
        taken = await store.sweeping.take_over(await death_of(store, run.worker_id))
        assert taken == TakenOver(freed=[], failed=[run.task_id])
        task = await store.task(run.task_id)
        assert (task.state, task.fence) == (State.FAILED, run.lease.fence + 1)
        text = "the process died 3 times in step first"
        assert task.status["message"]["parts"] == [{"text": text}]
        assert (await store.last_event(run.task_id)).body["state"] == "failed"
        ran = await store.last_run(run.task_id)
        assert (ran["outcome"], text in ran["error"]) == ("lost", True)
        assert await store.claim("w2") == []

    async def test_at_the_crash_limit_the_failure_step_runs_first(self, store: Store) -> None:
        """Each freed task whose run began before the death counts a crash; at the store's crash
        limit it has failed instead ("the process died N times in step S")."""
        run = await killed(store, 2, on_failure=True, commits=True)
        taken = await store.sweeping.take_over(await death_of(store, run.worker_id))
        assert taken == TakenOver(freed=[], failed=[run.task_id])
        await store.worker("w9", on_failure=True)
        hook = await store.claim_again(run.task_id, "w9")
        assert (hook.lease.step, hook.lease.attempt, hook.lease.crashes) == ("on_failure", 1, 0)
        assert hook.lease.ending_as == {
            "state": "failed",
            "text": "the process died 3 times in step second",
            "hook": "on_failure",
        }

    async def test_a_failure_step_that_kills_too_ends_the_task(self, store: Store) -> None:
        """Each freed task whose run began before the death counts a crash; at the store's crash
        limit it has failed instead ("the process died N times in step S")."""
        run = await killed(store, 3, on_failure=True, commits=True)
        for n in range(3):
            await store.later(HOUR)
            await store.worker(f"hook{n}", on_failure=True)
            run = await store.claim_again(run.task_id, f"hook{n}")
            assert run.lease.step == "on_failure"
            await run.dies()
        assert (await store.task(run.task_id)).state is State.FAILED

    async def test_a_commit_of_a_checkpoint_sets_the_crashes_back(self, store: Store) -> None:
        """Each freed task whose run began before the death counts a crash; at the store's crash
        limit it has failed instead ("the process died N times in step S")."""
        run = await killed(store, 2)
        await run.commit(chunk_and_report())
        assert (await store.task(run.task_id)).crashes == 2
        await run.commit(move=moved())
        assert (await store.task(run.task_id)).crashes == 0
        await run.dies()
        assert (await store.task(run.task_id)).state is State.WORKING

    @pytest.mark.parametrize("how", ["a release", "a wait", "a sign-off", "given back"])
    async def test_what_is_no_death_counts_no_crash(self, store: Store, how: str) -> None:
        """Each freed task whose run began before the death counts a crash; at the store's crash
        limit it has failed instead ("the process died N times in step S")."""
        task_id = await store.new_task()
        await store.sql("update tasks set crashes = 2")  # one more would be the end
        for n in range(4):
            await store.worker(f"w{n}")
            run = await store.claim_again(task_id, f"w{n}")
            match how:
                case "a release":
                    await run.commit(ending=Release())
                case "a wait":
                    await run.commit(ending=Wait(until=DueBy(after=Millis(0))))
                case "a sign-off":
                    await store.work.sign_off(run.worker_id)
                    await store.sweeping.free_orphans()
                case "given back":
                    await store.beats.release(run.worker_id, task_id, run.lease.fence)
        task = await store.task(task_id)
        assert (task.crashes, task.attempt, task.state) == (2, 1, State.SUBMITTED)

    async def test_the_first_crash_costs_no_delay_and_each_further_one_doubles_it(
        self, store: Store
    ) -> None:
        """Repeated crashes delay the next run, each task of one worker longer than the one
        before."""
        patient = await store.another(crash_limit=9, crash_backoff_ms=2_000)
        task_id = await store.new_task()
        for n, delay in enumerate([0, 2_000, 4_000, 8_000]):
            await store.worker(f"w{n}")
            await store.claim_again(task_id, f"w{n}")
            before = await store.now()
            await patient.sweeping.take_over(await death_of(store, f"w{n}"))
            ready_at = (await store.task(task_id)).ready_at
            assert ready_at is not None
            assert delay <= ready_at - before < delay + 1_500
            await store.later(delay)

    async def test_tasks_that_died_together_again_come_back_one_after_the_other(
        self, store: Store
    ) -> None:
        """Repeated crashes delay the next run, each task of one worker longer than the one
        before."""
        patient = await store.another(crash_limit=9, crash_backoff_ms=2_000)
        together = [await store.new_task() for _ in range(3)]
        before = await store.now()
        for name in ("w1", "w2"):
            await store.worker(name)
            assert len(await store.claim(name)) == 3
            before = await store.now()
            await patient.sweeping.take_over(await death_of(store, name))
        ready = sorted([(await store.task(task_id)).ready_at or 0 for task_id in together])
        assert [round((at - before) / 2_000) for at in ready] == [1, 2, 3]

    async def test_of_more_tasks_than_its_limit_leaves_the_rest_to_the_next_sweep(
        self, store: Store
    ) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        await store.worker()
        for _ in range(5):
            await store.new_task()
        await store.claim()
        taken = await store.sweeping.take_over(await death_of(store), limit=2)
        assert taken is not None
        assert len(taken.freed) == 2
        assert [len((await store.sweeping.free_orphans(limit=2)).freed) for _ in range(3)] == [
            2,
            1,
            0,
        ]

    async def test_goes_round_a_row_that_somebody_has_locked(self, store: Store) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        runs = [await store.claimed(workflow=f"w{n}") for n in range(3)]
        if store.is_sqlite:
            return  # a lock is on the whole file there
        async with store.locked(runs[1].task_id):
            taken = await store.sweeping.take_over(await death_of(store))
        assert taken is not None
        assert set(taken.freed) == {runs[0].task_id, runs[2].task_id}
        assert (await store.sweeping.free_orphans()).freed == [runs[1].task_id]

    async def test_of_a_marked_task_lets_the_hook_run_elsewhere(self, store: Store) -> None:
        """In one transaction: the worker is marked dead where its beat is still the one seen, and
        the leases it held end: fences rise, runs close as lost, tasks are claimable again."""
        run = await store.claimed(on_cancel=True)
        await run.commit(said(), move=moved())
        await store.tasks.cancel(SCOPE, run.task_id)
        await run.dies()
        await store.worker("w2", on_cancel=True)
        again = await store.claim_again(run.task_id, "w2")
        assert again.lease.cancel_requested

    async def test_keeps_the_checkpoint_and_the_log(self, store: Store) -> None:
        """In one transaction: the worker is marked dead where its beat is still the one seen, and
        the leases it held end: fences rise, runs close as lost, tasks are claimable again."""
        run = await store.claimed()
        await run.commit(said(), move=moved('{"n":1}', "second", 2))
        await run.commit(chunk_and_report(), ledger=[intent()])
        async with store.unchanged(but=["tasks", "task_runs", "workers"]):
            await run.dies()
        await store.worker("w2")
        lease = (await store.claim_again(run.task_id, "w2")).lease
        assert (lease.checkpoint, lease.step, lease.visit) == ('{"n":1}', "second", 2)
        assert (lease.commit_seq, lease.last_seq) == (2, 3)


class TestFreeOrphans:
    async def test_frees_what_is_leased_to_the_dead_and_to_nobody(self, store: Store) -> None:
        """Free whatever is leased to a worker that is dead or has no row, as `take_over` does:
        what a claim slipped in beside a take-over, and what its limit left."""
        dead = await store.claimed("dead", workflow="one")
        gone = await store.claimed("gone", workflow="two")
        unknown = await store.claimed("unknown", workflow="three")
        alive = await store.claimed("alive", workflow="four")
        await store.sql(
            "update workers set dead_at = (select now from clock) where worker_id = 'dead'"
        )
        await store.work.sign_off(WorkerId("gone"))
        await store.sql("delete from workers where worker_id = 'unknown'")
        freed = await store.sweeping.free_orphans()
        assert set(freed.freed) == {dead.task_id, gone.task_id, unknown.task_id}
        assert list(freed.failed) == []
        for run, crashes in ((dead, 1), (gone, 0), (unknown, 0)):
            task = await store.task(run.task_id)
            assert (task.fence, task.lease_owner) == (run.lease.fence + 1, None)
            assert task.crashes == crashes
            assert (await store.last_run(run.task_id))["outcome"] == "lost"
        assert (await store.task(alive.task_id)).lease_owner == "alive"
        async with store.unchanged():
            assert await store.sweeping.free_orphans() == TakenOver(freed=(), failed=())

    async def test_interleaving_01_a_claim_beside_a_take_over_is_freed(self, store: Store) -> None:
        """Free whatever is leased to a worker that is dead or has no row, as `take_over` does:
        what a claim slipped in beside a take-over, and what its limit left."""
        await store.worker()
        death = await death_of(store)
        task_id = await store.new_task()
        await store.sweeping.take_over(death)
        # The claim read the worker's row before its death and is executed after it.
        await store.sql("update workers set dead_at = null")
        run = await store.claim_again(task_id)
        await store.sql("update workers set dead_at = 1")
        assert "laws_nothing_leased_to_the_dead" in await store.inspect.broken_laws()
        assert (await store.sweeping.free_orphans()).freed == [task_id]
        assert (await store.task(task_id)).crashes == 0
        async with store.unchanged():
            assert await store.commit(run.write(said())) == Lost()

    async def test_leaves_alone_what_another_worker_has_claimed_meanwhile(
        self, store: Store
    ) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        run = await store.claimed()
        await store.worker("w2")
        await store.work.sign_off(W1)
        if store.is_sqlite:
            return  # nobody else writes during a transaction there

        def meanwhile(name: str) -> None:
            if name != "before:tasks_take_free":
                return
            points.listen(None)
            with psycopg.connect(store.url, autocommit=True) as another:
                another.execute("update task_runs set ended_at = 1, outcome = 'lost'")
                another.execute("update tasks set lease_owner = 'w2', fence = fence + 2")
                another.execute(
                    "insert into task_runs (task_id, fence, worker_id, step, attempt, started_at)"
                    " select task_id, fence, 'w2', step, attempt, 1 from tasks"
                )

        points.listen(meanwhile)
        try:
            assert await store.sweeping.free_orphans() == TakenOver(freed=[], failed=[])
        finally:
            points.listen(None)
        task = await store.task(run.task_id)
        assert (task.lease_owner, task.fence) == ("w2", run.lease.fence + 2)

    async def test_is_bounded(self, store: Store) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        await store.worker()
        for _ in range(5):
            await store.new_task()
        await store.claim()
        await store.work.sign_off(W1)
        assert len((await store.sweeping.free_orphans(limit=3)).freed) == 3
        assert len((await store.sweeping.free_orphans(limit=3)).freed) == 2

    async def test_two_at_once_free_each_once(self, store: Store) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        other = await store.another()
        await store.worker()
        for _ in range(20):
            await store.new_task()
        runs = [Run(store, lease, W1) for lease in await store.claim()]
        await store.work.sign_off(W1)
        freed = await asyncio.gather(store.sweeping.free_orphans(), other.sweeping.free_orphans())
        tasks = [task for one in freed for task in one.freed]
        assert sorted(tasks) == sorted(run.task_id for run in runs)
        assert {(await store.task(task)).fence for task in tasks} == {2}


class TestEndOverduePauses:
    @pytest.mark.parametrize("state", [State.INPUT_REQUIRED, State.AUTH_REQUIRED])
    async def test_fails_the_task(self, store: Store, state: State) -> None:
        """End the pauses whose deadline has passed, as their questions said: FAILED, CANCELED (by
        the cancel step where there is one), or resumed with the deadline as the outcome in the
        ledger."""
        paused = await store.paused(on_deadline=OnDeadline.FAIL, state=state)
        await store.later(2 * HOUR)
        assert await store.sweeping.end_overdue_pauses() == [paused.task_id]
        task = await store.task(paused.task_id)
        assert (task.state, task.pause_id, task.pause_deadline_at) == (State.FAILED, None, None)
        assert "deadline" in task.status["message"]["parts"][0]["text"]
        assert (await store.last_event(paused.task_id)).fence == task.fence

    async def test_cancels_the_task(self, store: Store) -> None:
        """End the pauses whose deadline has passed, as their questions said: FAILED, CANCELED (by
        the cancel step where there is one), or resumed with the deadline as the outcome in the
        ledger."""
        paused = await store.paused(on_deadline=OnDeadline.CANCEL)
        await store.later(2 * HOUR)
        assert await store.sweeping.end_overdue_pauses() == [paused.task_id]
        task = await store.task(paused.task_id)
        assert (task.state, task.status) == (State.CANCELED, {"state": "canceled"})

    @pytest.mark.parametrize(
        ("on_deadline", "hook"),
        [(OnDeadline.CANCEL, "on_cancel"), (OnDeadline.FAIL, "on_failure")],
    )
    async def test_goes_by_way_of_the_hook(
        self, store: Store, on_deadline: OnDeadline, hook: str
    ) -> None:
        """End the pauses whose deadline has passed, as their questions said: FAILED, CANCELED (by
        the cancel step where there is one), or resumed with the deadline as the outcome in the
        ledger."""
        hooks: Any = {hook: True}
        paused = await store.paused(on_deadline=on_deadline, commits=True, **hooks)
        await store.later(2 * HOUR)
        assert await store.sweeping.end_overdue_pauses() == [paused.task_id]
        task = await store.task(paused.task_id)
        assert (task.state, task.pause_id) == (State.WORKING, None)
        assert (await store.last_event(paused.task_id)).body == {"state": "working"}
        lease = (await store.claim_again(paused.task_id)).lease
        assert lease.cancel_requested
        assert lease.ending_as is not None
        assert lease.ending_as["hook"] == hook
        async with store.unchanged():
            assert await store.sweeping.end_overdue_pauses() == []

    async def test_case_086_resumes_with_the_deadline_in_the_ledger(self, store: Store) -> None:
        """End the pauses whose deadline has passed, as their questions said: FAILED, CANCELED (by
        the cancel step where there is one), or resumed with the deadline as the outcome in the
        ledger."""
        paused = await store.paused(on_deadline=OnDeadline.RESUME)
        await store.later(2 * HOUR)
        assert await store.sweeping.end_overdue_pauses() == [paused.task_id]
        entry = await store.work.entry(paused.ledger_id, paused.key)
        assert entry is not None
        assert entry.result == '{"deadline_passed":true}'
        event = await store.last_event(paused.task_id)
        assert (event.kind, event.body) == (EventKind.STATUS, {"state": "working"})
        run = await store.claim_again(paused.task_id)
        assert (run.lease.state, run.lease.attempt) == (State.WORKING, 1)
        async with store.unchanged():
            assert await store.sweeping.end_overdue_pauses() == []
            with pytest.raises(UnsupportedOperation):
                await store.answer(paused)

    async def test_a_question_that_says_nothing_about_its_deadline_fails(
        self, store: Store
    ) -> None:
        """One odd question must not stop the sweep of all others."""
        run = await store.claimed("odd", workflow="odd")
        await run.commit(
            Event(kind=EventKind.STATUS, body={"state": "auth-required"}, is_message=True),
            ending=Pause(state=State.AUTH_REQUIRED, deadline=DueBy(after=Millis(1_000))),
        )
        paused = await store.paused()
        await store.later(2 * HOUR)
        assert await store.sweeping.end_overdue_pauses() == [run.task_id, paused.task_id]
        assert (await store.task(run.task_id)).state is State.FAILED

    async def test_case_079_leaves_a_pause_alone_before_its_deadline(self, store: Store) -> None:
        """End the pauses whose deadline has passed, as their questions said: FAILED, CANCELED (by
        the cancel step where there is one), or resumed with the deadline as the outcome in the
        ledger."""
        paused = await store.paused(after=7 * DAY)
        async with store.unchanged(but=["store"]):
            await store.later(6 * DAY)
            assert await store.sweeping.end_overdue_pauses() == []
            assert await store.sweeping.end_overdue_lives() == []
            assert await store.sweeping.free_orphans() == TakenOver(freed=(), failed=())
        await store.answer(paused)
        run = await store.claim_again(paused.task_id)
        assert (run.lease.attempt, run.lease.crashes) == (1, 0)

    async def test_leaves_alone_a_pause_that_was_answered_meanwhile(self, store: Store) -> None:
        """A pause that was answered meanwhile is left alone."""
        paused = await store.paused()
        await store.later(2 * HOUR)
        sweeping, others = store.interrupted()
        others.before_next_transaction(lambda: store.answer(paused))
        assert await sweeping.sweeping.end_overdue_pauses() == []
        task = await store.task(paused.task_id)
        assert (task.state, task.generation) == (State.WORKING, 3)

    async def test_leaves_alone_the_next_question_of_the_same_task(self, store: Store) -> None:
        """A pause that was answered meanwhile is left alone."""
        paused = await store.paused()
        await store.later(2 * HOUR)
        sweeping, others = store.interrupted()

        async def answer_and_ask_again() -> None:
            await store.answer(paused)
            await (await store.claim_again(paused.task_id)).pause(key="1:ask:second", after=0)

        others.before_next_transaction(answer_and_ask_again)
        assert await sweeping.sweeping.end_overdue_pauses() == []
        assert (await store.task(paused.task_id)).state is State.INPUT_REQUIRED

    async def test_leaves_alone_a_deadline_that_was_moved_meanwhile(self, store: Store) -> None:
        """A pause that was answered meanwhile is left alone."""
        paused = await store.paused()
        await store.sweeping.excuse_outage(longest=LONGEST, gap=GAP)
        await store.later(2 * HOUR)
        await store.sql("update store set swept_at = swept_at - 7200000")
        sweeping, others = store.interrupted()
        others.before_next_transaction(
            lambda: store.sweeping.excuse_outage(longest=LONGEST, gap=GAP)
        )
        assert await sweeping.sweeping.end_overdue_pauses() == []
        assert (await store.task(paused.task_id)).state is State.INPUT_REQUIRED

    async def test_two_at_once_end_each_once(self, store: Store) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        other = await store.another()
        paused = [await store.paused(f"w{n}", workflow=f"w{n}") for n in range(5)]
        await store.later(2 * HOUR)
        swept = await asyncio.gather(
            store.sweeping.end_overdue_pauses(), other.sweeping.end_overdue_pauses()
        )
        left = await store.sweeping.end_overdue_pauses()
        tasks = [*swept[0], *swept[1], *left]
        assert sorted(tasks) == sorted(one.task_id for one in paused)

    async def test_is_bounded_and_takes_the_longest_overdue_first(self, store: Store) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        tasks = []
        for n in (3, 1, 2):
            paused = await store.paused(f"w{n}", workflow=f"w{n}", after=n * 60_000)
            tasks.append((n, paused.task_id))
        await store.later(HOUR)
        wanted = [task for _, task in sorted(tasks)]
        assert await store.sweeping.end_overdue_pauses(limit=2) == wanted[:2]
        assert await store.sweeping.end_overdue_pauses(limit=2) == wanted[2:]


class TestRemindOfPauses:
    async def test_says_the_question_again_once(self, store: Store) -> None:
        """Say the questions again whose reminder has come, each once: the question's status as a
        new event."""
        paused = await store.paused(after=3 * HOUR, remind=HOUR)
        await store.later(HOUR - 60_000)
        async with store.unchanged():
            assert await store.sweeping.remind_of_pauses() == []
        await store.later(60_000)
        assert await store.sweeping.remind_of_pauses() == [paused.task_id]
        question, reminder = (await store.events(paused.task_id))[1:]
        assert (reminder.kind, reminder.is_message) == (EventKind.STATUS, False)
        assert reminder.body["state"] == "input-required"
        assert reminder.body["message"] == question.body["message"]
        asked = {"pause": question.seq, "asked_at": question.created_at}
        assert reminder.body["again"] == {**question.body["ask"], **asked}
        async with store.unchanged():
            assert await store.sweeping.remind_of_pauses() == []

    async def test_keeps_the_pause_as_it_is(self, store: Store) -> None:
        """The pause, its id and its deadline stay."""
        paused = await store.paused(after=3 * HOUR, remind=HOUR, on_deadline=OnDeadline.RESUME)
        before = await store.task(paused.task_id)
        await store.later(2 * HOUR)
        await store.sweeping.remind_of_pauses()
        after = await store.task(paused.task_id)
        assert (after.state, after.status) == (before.state, before.status)
        assert (after.pause_id, after.pause_deadline_at) == (
            before.pause_id,
            before.pause_deadline_at,
        )
        assert (after.fence, after.generation) == (before.fence, before.generation + 1)
        await store.answer(paused)
        assert (await store.last_event(paused.task_id)).body["answers"] == paused.pause_id

    async def test_does_not_keep_the_deadline_from_ending_it(self, store: Store) -> None:
        """The pause, its id and its deadline stay."""
        paused = await store.paused(after=2 * HOUR, remind=HOUR, on_deadline=OnDeadline.RESUME)
        await store.later(HOUR)
        await store.sweeping.remind_of_pauses()
        await store.later(HOUR)
        assert await store.sweeping.end_overdue_pauses() == [paused.task_id]
        assert (await store.task(paused.task_id)).state is State.WORKING

    async def test_leaves_alone_a_pause_that_was_answered_meanwhile(self, store: Store) -> None:
        """A pause that was answered meanwhile is left alone."""
        paused = await store.paused(after=3 * HOUR, remind=HOUR)
        await store.later(2 * HOUR)
        sweeping, others = store.interrupted()
        others.before_next_transaction(lambda: store.answer(paused))
        assert await sweeping.sweeping.remind_of_pauses() == []
        assert (await store.last_event(paused.task_id)).kind is EventKind.MESSAGE

    async def test_two_at_once_say_it_once(self, store: Store) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        paused = await store.paused(after=3 * HOUR, remind=HOUR)
        await store.later(2 * HOUR)
        sweeping, others = store.interrupted()
        others.before_next_transaction(store.sweeping.remind_of_pauses)
        assert await sweeping.sweeping.remind_of_pauses() == []
        assert (await store.task(paused.task_id)).generation == 3

    async def test_is_bounded(self, store: Store) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        for n in range(3):
            await store.paused(f"w{n}", workflow=f"w{n}", after=3 * HOUR, remind=HOUR)
        await store.later(2 * HOUR)
        assert [len(await store.sweeping.remind_of_pauses(limit=2)) for _ in range(3)] == [2, 1, 0]


class TestEndOverdueLives:
    @pytest.mark.parametrize(
        "condition",
        [
            "submitted",
            "leased",
            "paused",
            "waiting for authorisation",
            "waiting",
            "backing off",
            "held",
            "released",
        ],
    )
    async def test_fails_the_task_whoever_runs_it(self, store: Store, condition: str) -> None:
        """Fail the tasks that have reached the end of their longest life, whoever runs them; by
        way of the failure step where there is one."""
        task_id = await store.task_that_is(condition, max_age=Millis(2 * DAY))
        before = await store.task(task_id)
        await store.later(DAY)
        assert await store.sweeping.end_overdue_lives() == []
        await store.later(DAY + 1)
        assert await store.sweeping.end_overdue_lives() == [task_id]
        task = await store.task(task_id)
        assert (task.state, task.lease_owner, task.ready_at) == (State.FAILED, None, None)
        assert (task.held_reason, task.pause_id) == (None, None)
        assert task.fence == before.fence + 1
        assert "longest life" in task.status["message"]["parts"][0]["text"]
        async with store.unchanged():
            assert await store.sweeping.end_overdue_lives() == []

    @pytest.mark.parametrize("condition", ["completed", "failed", "canceled", "rejected"])
    async def test_leaves_alone_what_has_ended(self, store: Store, condition: str) -> None:
        """Fail the tasks that have reached the end of their longest life, whoever runs them; by
        way of the failure step where there is one."""
        await store.task_that_is(condition)
        await store.later(60 * DAY)
        async with store.unchanged():
            assert await store.sweeping.end_overdue_lives() == []

    async def test_closes_the_run_of_a_task_that_runs(self, store: Store) -> None:
        """Fail the tasks that have reached the end of their longest life, whoever runs them; by
        way of the failure step where there is one."""
        run = await store.claimed()
        await store.later(31 * DAY)
        await store.sweeping.end_overdue_lives()
        ran = await store.last_run(run.task_id)
        assert (ran["outcome"], ran["ended_write_no"]) == ("deadline", None)
        assert await store.commit(run.write(said())) == Lost()

    async def test_goes_by_way_of_the_failure_step(self, store: Store) -> None:
        """Fail the tasks that have reached the end of their longest life, whoever runs them; by
        way of the failure step where there is one."""
        paused = await store.paused(on_failure=True, commits=True, after=40 * DAY)
        await store.later(31 * DAY)
        assert await store.sweeping.end_overdue_lives() == [paused.task_id]
        run = await store.claim_again(paused.task_id)
        assert run.lease.ending_as is not None
        assert run.lease.ending_as["state"] == "failed"
        hook = Move(
            checkpoint='{"n":1}',
            step=StepName("on_failure"),
            visit=Visit(3),
            ending_as=run.lease.ending_as,
        )
        await run.commit(move=hook, in_hook=True)
        async with store.unchanged():
            assert await store.sweeping.end_overdue_lives() == []
        await run.finish(State.FAILED)

    async def test_a_failure_step_that_never_ends_is_given_up(self, store: Store) -> None:
        """Fail the tasks that have reached the end of their longest life, whoever runs them; by
        way of the failure step where there is one."""
        paused = await store.paused(on_failure=True, commits=True, after=40 * DAY)
        await store.later(31 * DAY)
        await store.sweeping.end_overdue_lives()
        await store.later(store.settings.hook_grace_ms)
        assert await store.sweeping.end_overdue_lives() == [paused.task_id]
        assert (await store.task(paused.task_id)).state is State.FAILED

    async def test_two_at_once_let_the_failure_step_run(self, store: Store) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        run = await store.claimed(on_failure=True, max_age=Millis(HOUR))
        await run.commit(said(), move=moved())
        await store.later(HOUR + 1)
        sweeping, others = store.interrupted()
        others.before_next_transaction(lambda: store.sweeping.end_overdue_lives())
        assert await sweeping.sweeping.end_overdue_lives() == []
        assert (await store.task(run.task_id)).state is State.WORKING

    async def test_is_bounded(self, store: Store) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        for _ in range(5):
            await store.new_task()
        await store.later(31 * DAY)
        assert [len(await store.sweeping.end_overdue_lives(limit=2)) for _ in range(4)] == [
            2,
            2,
            1,
            0,
        ]


class TestExcuseOutage:
    async def sweep(self, store: Store) -> Millis:
        return await store.sweeping.excuse_outage(longest=LONGEST, gap=GAP)

    async def away(self, store: Store, for_ms: int) -> None:
        """Nobody sweeps for so long."""
        await store.later(for_ms)
        await store.sql("update store set swept_at = swept_at - :by", by=for_ms)

    async def test_notes_that_a_sweep_runs(self, store: Store) -> None:
        """Note that a sweep runs."""
        assert (await store.sql("select swept_at from store"))[0]["swept_at"] is None
        assert await self.sweep(store) == 0
        before = (await store.sql("select swept_at from store"))[0]["swept_at"]
        assert abs(before - await store.now()) < 60_000
        await self.away(store, 30_000)
        assert await self.sweep(store) == 0
        after = (await store.sql("select swept_at from store"))[0]["swept_at"]
        assert after >= before + 30_000

    async def test_moves_deadlines_that_passed_meanwhile(self, store: Store) -> None:
        """If the last one was more than `gap` ago, move the deadlines of pauses and lives that
        passed meanwhile by that gap, at most `longest`, once; return by how much (0: no
        outage)."""
        await self.sweep(store)
        passed = await store.paused("w1", workflow="one", after=HOUR)
        later = await store.paused("w2", workflow="two", after=5 * HOUR)
        lived = await store.new_task(workflow="three", max_age=Millis(HOUR))
        before = {t: await store.task(t) for t in (passed.task_id, later.task_id, lived)}
        await self.away(store, 2 * HOUR)
        moved_by = await self.sweep(store)
        assert 2 * HOUR <= moved_by < 2 * HOUR + 60_000
        assert await store.sweeping.end_overdue_pauses() == []
        assert await store.sweeping.end_overdue_lives() == []
        after = {task_id: await store.task(task_id) for task_id in before}
        for task_id, by in ((passed.task_id, moved_by), (later.task_id, 0)):
            was, now = before[task_id].pause_deadline_at, after[task_id].pause_deadline_at
            assert was is not None
            assert now == was + by
        assert after[lived].give_up_at == before[lived].give_up_at + moved_by
        assert after[later.task_id].give_up_at == before[later.task_id].give_up_at
        await store.later(HOUR + 60_000)
        assert await store.sweeping.end_overdue_pauses() == [passed.task_id]
        assert await store.sweeping.end_overdue_lives() == [lived]

    async def test_moves_them_once(self, store: Store) -> None:
        """If the last one was more than `gap` ago, move the deadlines of pauses and lives that
        passed meanwhile by that gap, at most `longest`, once; return by how much (0: no
        outage)."""
        await self.sweep(store)
        await store.paused(after=HOUR)
        await self.away(store, 2 * HOUR)
        assert await self.sweep(store) > 0
        async with store.unchanged(but=["store"]):
            assert await self.sweep(store) == 0

    async def test_two_at_once_move_them_once(self, store: Store) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        other = await store.another()
        await self.sweep(store)
        paused = await store.paused(after=HOUR)
        before = (await store.task(paused.task_id)).pause_deadline_at
        assert before is not None
        await self.away(store, 2 * HOUR)
        gaps = await asyncio.gather(*(self.sweep(one) for one in (store, other, store, other)))
        assert [gap > 0 for gap in gaps].count(True) == 1
        after = (await store.task(paused.task_id)).pause_deadline_at
        assert after == before + max(gaps)

    async def test_moves_at_most_a_day(self, store: Store) -> None:
        """If the last one was more than `gap` ago, move the deadlines of pauses and lives that
        passed meanwhile by that gap, at most `longest`, once; return by how much (0: no
        outage)."""
        await self.sweep(store)
        paused = await store.paused(after=HOUR)
        await self.away(store, 3 * DAY)
        assert await self.sweep(store) == DAY
        assert await store.sweeping.end_overdue_pauses() == [paused.task_id]

    async def test_moves_all_however_many_at_a_time(self, store: Store) -> None:
        """All of them move together, `limit` with each statement."""
        await self.sweep(store)
        paused = [
            await store.paused(f"w{n}", workflow=f"w{n}", after=HOUR + n % 2) for n in range(5)
        ]
        before = [(await store.task(one.task_id)).pause_deadline_at for one in paused]
        await self.away(store, 2 * HOUR)
        with statements() as sent:
            moved_by = await store.sweeping.excuse_outage(longest=LONGEST, gap=GAP, limit=2)
        assert sent.count("tasks_spare") == 4, "two, two, one, none"
        after = [(await store.task(one.task_id)).pause_deadline_at for one in paused]
        assert after == [deadline + moved_by for deadline in before if deadline is not None]

    async def test_moves_each_once_though_it_stays_due(self, store: Store) -> None:
        """All of them move together, `limit` with each statement."""
        await self.sweep(store)
        paused = [await store.paused(f"w{n}", workflow=f"w{n}", after=HOUR) for n in range(3)]
        before = [(await store.task(one.task_id)).pause_deadline_at for one in paused]
        await self.away(store, 3 * DAY)
        await store.sweeping.excuse_outage(longest=LONGEST, gap=GAP, limit=1)
        after = [(await store.task(one.task_id)).pause_deadline_at for one in paused]
        assert after == [deadline + LONGEST for deadline in before if deadline is not None]

    async def test_a_first_sweep_finds_no_outage(self, store: Store) -> None:
        """If the last one was more than `gap` ago, move the deadlines of pauses and lives that
        passed meanwhile by that gap, at most `longest`, once; return by how much (0: no
        outage)."""
        await store.paused(after=HOUR)
        await store.later(2 * HOUR)
        async with store.unchanged(but=["store"]):
            assert await self.sweep(store) == 0

    async def test_does_not_move_what_had_passed_before(self, store: Store) -> None:
        """If the last one was more than `gap` ago, move the deadlines of pauses and lives that
        passed meanwhile by that gap, at most `longest`, once; return by how much (0: no
        outage)."""
        paused = await store.paused(after=HOUR)
        lived = await store.new_task(workflow="lived", max_age=Millis(HOUR))
        await store.later(2 * HOUR)
        await self.sweep(store)
        await self.away(store, 2 * HOUR)
        async with store.unchanged(but=["store"]):
            assert await self.sweep(store) > 0
        assert await store.sweeping.end_overdue_pauses() == [paused.task_id]
        assert await store.sweeping.end_overdue_lives() == [lived]

    async def test_timers_do_not_move(self, store: Store) -> None:
        """Timers do not move."""
        await self.sweep(store)
        waiting = await store.task_that_is("waiting")
        backing_off = await store.task_that_is("backing off")
        before = [await store.task(task) for task in (waiting, backing_off)]
        await self.away(store, 2 * HOUR)
        assert await self.sweep(store) > 0
        assert [await store.task(task) for task in (waiting, backing_off)] == before
        await store.worker()
        for condition in ("waiting", "backing off"):
            assert len(await store.claim(workflow=condition)) == 1


class TestForgetWorkers:
    async def test_drops_the_long_dead(self, store: Store) -> None:
        """Drop the rows of workers that died long ago and lease nothing."""
        for name in ("alive", "dead", "gone", "just dead"):
            await store.worker(name)
        await store.bury("dead")
        await store.work.sign_off(WorkerId("gone"))
        await store.later(2 * DAY)
        await store.bury("just dead")
        await store.sweeping.forget_workers(older_than=Millis(DAY))
        rows = await store.sql("select worker_id from workers order by 1")
        assert [row["worker_id"] for row in rows] == ["alive", "just dead"]

    async def test_keeps_whoever_still_leases_something(self, store: Store) -> None:
        """Drop the rows of workers that died long ago and lease nothing."""
        run = await store.claimed()
        await store.work.sign_off(W1)
        await store.later(2 * DAY)
        await store.sweeping.forget_workers(older_than=Millis(DAY))
        assert await store.is_known("w1")
        await store.sweeping.free_orphans()
        assert (await store.task(run.task_id)).crashes == 0
        await store.sweeping.forget_workers(older_than=Millis(DAY))
        assert not await store.is_known("w1")

    async def test_is_bounded(self, store: Store) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        for n in range(5):
            await store.worker(f"w{n}")
            await store.work.sign_off(WorkerId(f"w{n}"))
        await store.later(2 * DAY)
        await store.sweeping.forget_workers(older_than=Millis(DAY), limit=3)
        assert len(await store.sql("select worker_id from workers")) == 2


async def killed(
    store: Store, times: int, *, on_failure: bool = False, commits: bool = False
) -> Run:
    """A run of a task whose worker has died so often; with `commits`, after its checkpoint."""
    run = await store.claimed("w0", on_failure=on_failure)
    if commits:
        await run.commit(said(), move=moved())
    for n in range(1, times + 1):
        await run.dies()
        await store.later(HOUR)
        if n == store.settings.crash_limit:
            break
        await store.worker(f"w{n}", on_failure=on_failure)
        run = await store.claim_again(run.task_id, f"w{n}")
        assert run.lease.crashes == n
    return run


def chunk_and_report() -> Event:
    return said("still at it")


async def finished(store: Store, name: str = "w1", **task: Any) -> Run:
    run = await store.claimed(name, **task)
    await run.commit(said(), ledger=[intent()], move=moved())
    await store.work.settle(run.ledger_id, "effect:mail", "1")
    await run.finish()
    return run


async def webhook_of(store: Store, task_id: str, due_at: str, exhausted_at: str) -> None:
    await store.sql(
        "insert into webhooks (task_id, config_id, url, secrets, due_at, exhausted_at, created_at)"
        f" values (:task_id, 'c', 'https://x', 's3cret', {due_at}, {exhausted_at}, 1)",
        task_id=task_id,
    )


class TestExpireTasks:
    async def test_deletes_the_task_and_all_that_is_its_own(self, store: Store) -> None:
        """Delete the finished tasks whose retention is over, each in a transaction of its own, and
        leave a tombstone of each: log, runs, folds and webhooks go, and the ledger with the last
        task that names it. Returns the tasks that this call deleted."""
        run = await finished(store)
        await store.sql(
            "insert into task_folds (task_id, seq, task) values (:task_id, 1, :task)",
            task_id=run.task_id,
            task=b"fold",
        )
        await webhook_of(store, run.task_id, "null", "null")
        async with store.unchanged():
            assert await store.sweeping.expire_tasks() == []
        await store.later(30 * DAY + 1)
        other = await finished(store, "w2", workflow="other")
        assert await store.sweeping.expire_tasks() == [run.task_id]
        assert await store.sweeping.expire_tasks() == []
        left = await store.everything()
        for table in ("tasks", "task_events", "task_runs", "task_folds", "webhooks"):
            assert {row["task_id"] for row in left[table]} <= {other.task_id}, table
        assert {row["ledger_id"] for row in left["task_ledger"]} == {other.ledger_id}
        assert [row["task_id"] for row in left["tombstones"]] == [run.task_id]

    async def test_case_117_deletes_a_long_log_in_pieces(self, store: Store) -> None:
        """Of a long log the first transaction deletes `piece` events, and others after it the rest,
        also those that an earlier call has left."""
        runs = [await long_log(store, 99, f"w{n}", workflow=f"w{n}") for n in range(2)]
        for run in runs:
            await run.finish()
        await store.later(31 * DAY)
        first = runs[0].task_id
        stopped = partial(expire, catalog(store.database.dialect), first, first, piece=30)
        assert await store.database.transact(stopped)
        assert len(await log_of(store, first)) == 70
        assert await store.inspect.broken_laws() == {}
        await store.later(DAY)
        assert await store.sweeping.forget_expired(older_than=Millis(1)) == 0
        with pytest.raises(LogTrimmed):
            await store.log.events_since(first, Seq(3))
        with statements() as sent:
            assert await store.sweeping.expire_tasks(piece=30) == [runs[1].task_id]
        assert sent.count("task_events_delete") == 3 + 4
        left = await store.everything()
        assert left["task_events"] == []
        await store.later(DAY)
        assert await store.sweeping.forget_expired(older_than=Millis(1)) == 2

    async def test_case_117_leaves_what_is_not_finished(self, store: Store) -> None:
        """Delete the finished tasks whose retention is over, each in a transaction of its own, and
        leave a tombstone of each: log, runs, folds and webhooks go, and the ledger with the last
        task that names it."""
        for condition in ("submitted", "leased", "paused", "waiting", "held"):
            await store.task_that_is(condition)
        await store.later(31 * DAY)
        async with store.unchanged():
            assert await store.sweeping.expire_tasks() == []

    async def test_tells_its_owner_and_nobody_else(self, store: Store) -> None:
        """Delete the finished tasks whose retention is over, each in a transaction of its own, and
        leave a tombstone of each: log, runs, folds and webhooks go, and the ledger with the last
        task that names it."""
        run = await finished(store)
        await store.later(31 * DAY)
        await store.sweeping.expire_tasks()
        for scope, expired in ((SCOPE, True), (scope_with(owner="bob"), False)):
            with pytest.raises(TaskNotFound) as caught:
                await store.tasks.snapshot(scope, run.task_id)
            assert caught.value.expired is expired

    @pytest.mark.parametrize(
        ("due_at", "exhausted_at", "stays"), [("1", "null", True), ("1", "1", False)]
    )
    async def test_waits_for_its_webhooks(
        self, store: Store, due_at: str, exhausted_at: str, stays: bool
    ) -> None:
        """A task with a webhook that is neither finished nor exhausted stays."""
        run = await finished(store)
        await webhook_of(store, run.task_id, due_at, exhausted_at)
        await store.later(31 * DAY)
        assert await store.sweeping.expire_tasks() == ([] if stays else [run.task_id])

    async def test_interleaving_13_the_ledger_goes_with_the_last_task_that_names_it(
        self, store: Store
    ) -> None:
        """Log, runs, folds and webhooks go, and the ledger with the last task that names it, also
        when two that share it expire at once."""
        other = await store.another()
        old = await finished(store)
        new = await store.claimed("w2", workflow="again")
        await store.sql(
            "update tasks set ledger_id = :ledger_id where task_id = :task_id",
            ledger_id=old.ledger_id,
            task_id=new.task_id,
        )
        await store.later(31 * DAY)
        assert await store.sweeping.expire_tasks() == [old.task_id]
        assert await store.work.entry(old.ledger_id, "effect:mail") is not None
        third = await store.claimed("w3", workflow="third")
        await new.finish()
        await third.finish()
        await store.sql(
            "update tasks set ledger_id = :ledger_id where task_id = :task_id",
            ledger_id=old.ledger_id,
            task_id=third.task_id,
        )
        await store.later(31 * DAY)
        both = await asyncio.gather(store.sweeping.expire_tasks(), other.sweeping.expire_tasks())
        assert sorted([*both[0], *both[1]]) == sorted([new.task_id, third.task_id])
        assert await store.work.entry(old.ledger_id, "effect:mail") is None

    async def test_interleaving_18_a_repeated_send_of_an_expired_task_starts_no_second(
        self, store: Store
    ) -> None:
        """Expired, and no second task: `create` finds the first, which can no longer be read."""
        run = await finished(store)
        await store.later(31 * DAY)
        await store.sweeping.expire_tasks()
        repeat = new_task(send_key=f"send {run.task_id}")
        async with store.unchanged():
            with pytest.raises(TaskNotFound) as recalled:
                await store.tasks.recall(SCOPE, repeat.send_key, repeat.digest)
            sent = await store.tasks.create(repeat)
        assert recalled.value.expired
        assert (sent.task_id, sent.is_repeat) == (run.task_id, True)


class TestForgetExpired:
    async def test_drops_old_tombstones_and_the_keys_of_their_sends(self, store: Store) -> None:
        """Drop the tombstones of tasks that expired longer ago than this, and the keys of their
        sends with them. Returns how many."""
        await finished(store)
        await store.later(31 * DAY)
        await store.sweeping.expire_tasks()
        async with store.unchanged():
            assert await store.sweeping.forget_expired(older_than=Millis(DAY)) == 0
        await store.later(2 * DAY)
        assert await store.sweeping.forget_expired(older_than=Millis(DAY)) == 1
        left = await store.everything()
        assert (left["tombstones"], left["send_keys"]) == ([], [])


class TestForgetReplies:
    async def test_drops_old_replies_only(self, store: Store) -> None:
        """Drop the keys of direct Messages that are older than this; the keys of tasks stay."""
        task_id = await store.new_task()
        await store.tasks.reply(SCOPE, "old", "digest", {"messageId": "m"})
        await store.later(2 * DAY)
        await store.tasks.reply(SCOPE, "new", "digest", {"messageId": "m"})
        await store.sweeping.forget_replies(older_than=Millis(DAY))
        keys = await store.sql("select key from send_keys order by key")
        assert [row["key"] for row in keys] == ["new", f"send {task_id}"]


async def long_log(store: Store, events: int, name: str = "w1", **task: Any) -> Run:
    """A leased task whose log has so many events."""
    run = await store.claimed(name, **task)
    await run.commit(*[chunk(text=str(n)) for n in range(events - 1)])
    return run


async def folded(store: Store, run: Run, seq: int, *, next_at: int) -> bool:
    kept = Fold(seq=Seq(seq), packed=b"up to %d" % seq)
    return await store.keep_fold(run.task_id, kept, next_at=next_at)


async def folds_of(store: Store, run: Run) -> list[int]:
    rows = await store.sql(
        "select seq from task_folds where task_id = :task_id order by seq", task_id=run.task_id
    )
    return [row["seq"] for row in rows]


class TestUnfolded:
    async def test_finds_logs_that_have_grown(self, store: Store) -> None:
        """Tasks whose next fold is due: their logs have grown by 256 events since the last one, or
        as far as that one said; or they have ended, with logs of at least `Settings.fold_from`."""
        run = await long_log(store, 255)
        assert await store.sweeping.unfolded() == []
        await run.commit(said())
        assert await store.sweeping.unfolded() == [run.task_id]
        await folded(store, run, 256, next_at=300)
        assert await store.sweeping.unfolded() == []
        await run.commit(*[said() for _ in range(43)])
        assert await store.sweeping.unfolded() == []
        await run.commit(said())
        assert await store.sweeping.unfolded() == [run.task_id]

    @pytest.mark.parametrize("by_cancel", [False, True])
    async def test_finds_what_has_ended(self, store: Store, by_cancel: bool) -> None:
        """Tasks whose next fold is due: their logs have grown by 256 events since the last one, or
        as far as that one said; or they have ended, with logs of at least `Settings.fold_from`."""
        least = store.settings.fold_from
        short = await long_log(store, least - 2, workflow="short")
        long = await long_log(store, least - 1, "w2", workflow="long")
        for run in (short, long):
            if by_cancel:
                await store.tasks.cancel(SCOPE, run.task_id)
            else:
                await run.finish()
        assert await store.sweeping.unfolded() == [long.task_id]

    async def test_is_bounded(self, store: Store) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        for n in range(3):
            await long_log(store, 256, f"w{n}", workflow=f"w{n}")
        assert len(await store.sweeping.unfolded(limit=2)) == 2


class TestToFold:
    async def test_returns_a_piece_of_the_log(self, store: Store) -> None:
        """The task, its newest fold and the next `limit` events after it, from one read."""
        run = await long_log(store, 10)
        log = await store.events(run.task_id)
        first = await store.sweeping.to_fold(run.task_id, limit=4)
        assert first is not None
        assert first.task == await store.task(run.task_id)
        assert (first.fold, first.events, first.seq) == (None, log[:4], 4)
        await folded(store, run, 4, next_at=256)
        await folded(store, run, 8, next_at=256)
        last = await store.sweeping.to_fold(run.task_id, limit=4)
        assert last is not None
        assert last.fold == Fold(seq=Seq(8), packed=b"up to 8")
        assert (last.events, last.seq) == (log[8:], 10)

    async def test_knows_that_a_task_is_gone(self, store: Store) -> None:
        """None: the task is gone."""
        assert await store.sweeping.to_fold(TaskId("gone")) is None


class TestKeepFold:
    async def test_keeps_the_newest_three(self, store: Store) -> None:
        """Keep the fold, and of this task's the newest three."""
        run = await long_log(store, 10)
        other = await long_log(store, 10, "w2", workflow="other")
        await folded(store, other, 1, next_at=256)
        for seq in (2, 4, 6, 8):
            assert await folded(store, run, seq, next_at=256)
        assert await folds_of(store, run) == [4, 6, 8]
        assert await folds_of(store, other) == [1]

    async def test_twice_is_once(self, store: Store) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        run = await long_log(store, 10)
        other = await store.another()
        both = await asyncio.gather(*(folded(one, run, 5, next_at=256) for one in (store, other)))
        assert True in both
        assert await folds_of(store, run) == [5]

    async def test_of_a_log_that_has_grown_meanwhile(self, store: Store) -> None:
        """The next one is due when the log is `next_at` long, or at once if the task has ended with
        more than this fold holds."""
        run = await long_log(store, 300)
        await folded(store, run, 40, next_at=300)
        assert await store.sweeping.unfolded() == [run.task_id]
        await folded(store, run, 40, next_at=301)
        assert await store.sweeping.unfolded() == []
        await run.finish()
        await folded(store, run, 300, next_at=900)
        assert await store.sweeping.unfolded() == [run.task_id]
        await folded(store, run, 301, next_at=900)
        assert await store.sweeping.unfolded() == []

    async def test_of_another_log_before_a_restore_writes_nothing(self, store: Store) -> None:
        """False: the task is gone or locked by somebody else, or its last event in the fold is not
        of this fence but of another log, before a restore; and nothing was written."""
        run = await long_log(store, 10)
        lost = Fold(seq=Seq(10), packed=b"of the lost future")
        fence = (await store.last_event(run.task_id)).fence
        await store.sql("delete from task_events where seq > 5")
        await store.sql("update tasks set next_seq = 6, commit_seq = 5")
        await store.admin.restored()
        again = await store.worker("w2")
        successor = await store.claim_again(run.task_id, again)
        await successor.commit(*[chunk(text=str(n)) for n in range(5)])
        async with store.unchanged():
            assert not await store.sweeping.keep_fold(run.task_id, lost, fence=fence, next_at=256)
            beyond = Fold(seq=Seq(50), packed=b"of the lost future")
            assert not await store.sweeping.keep_fold(run.task_id, beyond, fence=fence, next_at=256)

    async def test_of_a_task_that_is_gone_or_locked_writes_nothing(self, store: Store) -> None:
        """False: the task is gone or locked by somebody else, or its last event in the fold is not
        of this fence but of another log, before a restore; and nothing was written."""
        run = await long_log(store, 10)
        async with store.unchanged():
            gone = Fold(seq=Seq(1), packed=b"x")
            assert not await store.keep_fold(TaskId("gone"), gone, next_at=256)
            if not store.is_sqlite:
                async with store.locked(run.task_id):
                    assert not await folded(store, run, 5, next_at=256)


async def trimmable(store: Store, events: int = 100, name: str = "w1", **task: Any) -> Run:
    """A finished task with a fold of its whole log, whose time to resume is over."""
    run = await long_log(store, events - 1, name, **task)
    await run.finish()
    await folded(store, run, events - 1, next_at=256)
    await folded(store, run, events, next_at=256)
    await store.later(store.settings.resume_window_ms + 1)
    return run


async def log_of(store: Store, task_id: str) -> list[int]:
    rows = await store.sql(
        "select seq from task_events where task_id = :task_id order by seq", task_id=task_id
    )
    return [row["seq"] for row in rows]


class TestTrimLogs:
    async def test_leaves_the_last_event_and_its_fold(self, store: Store) -> None:
        """Trim the logs of tasks that ended `Settings.resume_window_ms` ago and whose last fold is
        kept: all events but the last are deleted, `piece` in a transaction, also those that an
        earlier call has left. Returns the tasks whose logs this call trimmed."""
        run = await trimmable(store)
        young = await long_log(store, 99, "w2", workflow="young")
        await young.finish()
        await folded(store, young, 100, next_at=256)
        with statements() as sent:
            assert await store.sweeping.trim_logs(piece=40) == [run.task_id]
        assert sent.count("task_events_delete") == 3, "40, 40, 19"
        assert await store.sweeping.trim_logs() == []
        assert await log_of(store, run.task_id) == [100]
        assert await folds_of(store, run) == [100]
        assert len(await log_of(store, young.task_id)) == 100
        assert (await store.task(run.task_id)).trimmed == 99

    async def test_goes_on_where_another_has_stopped(self, store: Store) -> None:
        """All events but the last are deleted, `piece` in a transaction, also those that an
        earlier call has left. From the first on they are out of the log."""
        run = await trimmable(store)
        stopped = partial(trim, catalog(store.database.dialect), run.task_id, piece=30)
        assert await store.database.transact(stopped) == 30
        assert len(await log_of(store, run.task_id)) == 70
        for seq in (None, Seq(40), Seq(99), Seq(100)):
            snapshot = await store.tasks.snapshot(SCOPE, run.task_id, until=seq)
            assert (snapshot.seq, snapshot.events) == (100, [])
        assert await store.sweeping.trim_logs() == [run.task_id]
        assert await log_of(store, run.task_id) == [100]

    @pytest.mark.parametrize(
        ("due_at", "exhausted_at", "stays"), [("1", "null", True), ("1", "1", False)]
    )
    async def test_waits_for_webhooks(
        self, store: Store, due_at: str, exhausted_at: str, stays: bool
    ) -> None:
        """A task with a webhook that is neither finished nor exhausted keeps its log."""
        run = await trimmable(store)
        await webhook_of(store, run.task_id, due_at, exhausted_at)
        assert await store.sweeping.trim_logs() == ([] if stays else [run.task_id])

    async def test_needs_the_last_fold(self, store: Store) -> None:
        """One that has lost its last fold keeps its log too, and the fold is due again."""
        run = await trimmable(store)
        await store.sql("delete from task_folds where seq = 100")
        assert await store.sweeping.trim_logs() == []
        assert len(await log_of(store, run.task_id)) == 100
        assert await store.sweeping.unfolded() == [run.task_id]
        await folded(store, run, 100, next_at=256)
        assert await store.sweeping.trim_logs() == [run.task_id]

    async def test_of_two_at_once_each_event_goes_once(self, store: Store) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        runs = [await trimmable(store, 70, f"w{n}", workflow=f"w{n}") for n in range(3)]
        other = await store.another()
        await asyncio.gather(*(one.sweeping.trim_logs(piece=20) for one in (store, other)))
        await store.sweeping.trim_logs()
        for run in runs:
            assert await log_of(store, run.task_id) == [70]

    async def test_is_bounded(self, store: Store) -> None:
        """Each is harmless when two run at once, and bounded by `limit`."""
        for n in range(3):
            await trimmable(store, 70, f"w{n}", workflow=f"w{n}")
        assert len(await store.sweeping.trim_logs(limit=2)) == 2


class TestPutOffFold:
    async def test_makes_it_due_later(self, store: Store) -> None:
        """The fold cannot be made: it is due again when the log has grown by so many events."""
        run = await long_log(store, 256)
        await store.sweeping.put_off_fold(run.task_id, events=10)
        assert await store.sweeping.unfolded() == []
        await run.commit(*[said() for _ in range(10)])
        assert await store.sweeping.unfolded() == []
        await run.commit(said())
        assert await store.sweeping.unfolded() == [run.task_id]

    async def test_leaves_alone_what_is_locked(self, store: Store) -> None:
        """A task that is locked by somebody else is left as it is."""
        run = await long_log(store, 256)
        if not store.is_sqlite:
            async with store.locked(run.task_id):
                await store.sweeping.put_off_fold(run.task_id, events=10)
        assert await store.sweeping.unfolded() == [run.task_id]
