"""The interleavings that the store alone can meet, each line of a test one statement or call on
one of several real connections. The numbers are those of `interleavings.md`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import psycopg
import pytest

from outlast.model.commit import Backoff, Busy, Hold, Lost, Marked, Wait
from outlast.model.errors import ConfigError, UnsupportedOperation
from outlast.model.ids import Millis, TaskId, WorkerId, WriteNo
from outlast.model.lease import Lease
from outlast.model.ledger import Clear, Intent, Kept, LedgerKind, Result
from outlast.model.pause import DEADLINE_PASSED, DueBy, OnDeadline
from outlast.model.task import State
from outlast.store.codec import to_text
from outlast.testing.scripted import Call
from tests.statemachine.stage import (
    AGENT,
    FLOW,
    HOOKED,
    HOUR,
    PLAIN,
    SCOPE,
    SETTINGS,
    Stage,
    answer_to,
    committed,
    finish,
    move,
    new_task,
    opened,
    question,
    said,
    write,
)

KEY = "effect:mail"


@pytest.fixture
def stage(database_url: str) -> Iterator[Stage]:
    with opened(database_url) as stage:
        yield stage
        stage.database.abandon_all()
        stage.run(stage.sweeping.free_orphans())
        stage.check_laws()


def claim_of(stage: Stage, worker_id: WorkerId) -> Call[list[Lease]]:
    return stage.start(stage.work.claim(worker_id, AGENT, FLOW, PLAIN, limit=10))  # type: ignore[arg-type]


def intent(key: str = KEY) -> Intent:
    return Intent(key=key, kind=LedgerKind.EFFECT)


# --- 1 ------------------------------------------------------------------------------------------


def test_interleaving_01_a_claim_arrives_after_its_worker_was_declared_dead(stage: Stage) -> None:
    task_id, worker = stage.create(), stage.hire()
    late = claim_of(stage, worker)
    stage.bury(worker)
    assert late.finish() == []
    assert stage.task(task_id).lease_owner is None


def test_interleaving_01_a_claim_commits_beside_the_take_over(stage: Stage) -> None:
    task_id, worker = stage.create(), stage.hire()
    claim = claim_of(stage, worker).run_until("commit")
    take_over = stage.start(stage.sweeping.take_over(stage.death_of(worker)))
    if stage.database.dialect == "postgres":
        take_over.finish()
        claim.finish()
        assert stage.task(task_id).lease_owner == worker  # the claim has slipped in
    else:
        take_over.run_until_it_waits()
        claim.finish()
        take_over.finish()
    stage.run(stage.sweeping.free_orphans())
    assert stage.task(task_id).lease_owner is None
    assert stage.claim(stage.hire("w2")).task_id == task_id


def test_interleaving_01_a_claim_arrives_after_the_sign_off(stage: Stage) -> None:
    task_id, worker = stage.create(), stage.hire()
    late = claim_of(stage, worker)
    beside = claim_of(stage, worker).run_until("commit")
    sign_off = stage.start(stage.work.sign_off(worker))
    if stage.database.dialect == "postgres":
        sign_off.finish()
        beside.finish()
    else:
        beside.finish()
        sign_off.finish()
    assert late.finish() == []
    stage.run(stage.sweeping.free_orphans())
    task = stage.task(task_id)
    assert (task.lease_owner, task.crashes) == (None, 0)  # it left in good order


# --- 5 ------------------------------------------------------------------------------------------


def test_interleaving_05_not_done_arrives_after_the_successors_intent(stage: Stage) -> None:
    frozen = stage.begin(stage.hire("w1"))
    stage.commit(write(frozen, ledger=[intent()]))
    not_done = write(frozen, 1, ledger=[Clear(key=KEY, write_no=WriteNo(1))])
    late = stage.start(stage.work.commit([not_done]))
    stage.bury(WorkerId("w1"))
    successor = stage.claim(stage.hire("w2"))
    committed(stage.commit(write(successor, ledger=[intent()])))
    assert late.finish() == [Lost()]
    entry = stage.entry(frozen.task_id, KEY)
    assert entry is not None
    assert (entry.fence, entry.write_no) == (successor.fence, 1)
    committed(stage.commit(write(successor, 1, ledger=[Result(key=KEY, result='"sent"')])))
    assert stage.result_of(frozen.task_id, KEY) == '"sent"'


def test_interleaving_05_not_done_of_an_earlier_call_of_the_same_run(stage: Stage) -> None:
    lease = stage.begin(stage.hire())
    stage.commit(write(lease, 0, ledger=[intent()]))
    stage.commit(write(lease, 1, ledger=[intent()]))
    stage.commit(write(lease, 2, ledger=[Clear(key=KEY, write_no=WriteNo(1))]))
    entry = stage.entry(lease.task_id, KEY)
    assert entry is not None
    assert entry.write_no == 2


# --- 6 ------------------------------------------------------------------------------------------


def unknown_effect(stage: Stage) -> tuple[Lease, Lease]:
    """An effect whose worker died over it, and the run that came after."""
    first = stage.begin(stage.hire("w1"))
    stage.commit(write(first, ledger=[intent()]))
    stage.bury(WorkerId("w1"), is_gone=True)
    return first, stage.claim(stage.hire("w2"))


def resolve(stage: Stage, lease: Lease, result: str | None, *, force: bool = False) -> Call[bool]:
    """A word about the first call of that run."""
    return stage.start(
        stage.admin.resolve(
            lease.task_id, KEY, fence=lease.fence, write_no=WriteNo(1), result=result, force=force
        )
    )


def test_interleaving_06_an_operators_result_arrives_after_the_real_one(stage: Stage) -> None:
    first, second = unknown_effect(stage)
    late = resolve(stage, first, '"as told"')
    assert stage.run(stage.work.settle(first.ledger_id, KEY, '"as it was"'))
    told = committed(stage.commit(write(second, ledger=[intent()])))
    assert told.settled == {KEY: '"as it was"'}
    assert late.finish() is False
    assert stage.result_of(first.task_id, KEY) == '"as it was"'


def test_interleaving_06_an_operators_result_and_the_real_one_at_once(stage: Stage) -> None:
    first, _ = unknown_effect(stage)
    told = resolve(stage, first, '"as told"').run_until("commit")
    real = stage.start(stage.work.settle(first.ledger_id, KEY, '"as it was"')).run_until_it_waits()
    assert told.finish() is True
    assert real.finish() is False
    assert stage.result_of(first.task_id, KEY) == '"as told"'


def test_interleaving_06_not_done_arrives_twice(stage: Stage) -> None:
    """The copy comes when a newer call has been made, and must not clear that one."""
    first, second = unknown_effect(stage)
    copy = resolve(stage, first, None)
    assert resolve(stage, first, None).finish() is True
    stage.commit(write(second, ledger=[intent()]))
    assert copy.finish() is False
    entry = stage.entry(first.task_id, KEY)
    assert entry is not None
    assert entry.fence == second.fence


@pytest.mark.parametrize("is_declared_dead", [False, True])
def test_interleaving_06_not_done_while_the_worker_may_only_be_frozen(
    stage: Stage, is_declared_dead: bool
) -> None:
    """A lease without a beat says that somebody else may go on, and not that the call is over."""
    frozen = stage.begin(stage.hire("w1"))
    stage.commit(write(frozen, ledger=[intent()]))
    if is_declared_dead:
        stage.bury(WorkerId("w1"))
    with pytest.raises(ConfigError, match="not proven dead"):
        resolve(stage, frozen, None).finish()
    assert stage.entry(frozen.task_id, KEY) is not None
    assert resolve(stage, frozen, None, force=True).finish() is True
    assert stage.entry(frozen.task_id, KEY) is None


# --- 7 ------------------------------------------------------------------------------------------

TRACELESS = [intent(), Kept(key="1:memo", kind=LedgerKind.MEMO, result="1")]


@pytest.mark.parametrize("entry", TRACELESS, ids=["intent", "memo"])
def test_interleaving_07_the_reply_to_a_write_without_event_is_lost(
    stage: Stage, entry: Intent | Kept
) -> None:
    lease = stage.begin(stage.hire())
    first = write(lease, ledger=[entry])
    stage.start(stage.work.commit([first])).lose_reply()
    committed(stage.commit(first))
    committed(stage.commit(write(lease, 1, events=[said("and on")])))
    assert len(stage.events(lease.task_id)) == 2


@pytest.mark.parametrize("entry", TRACELESS, ids=["intent", "memo"])
def test_interleaving_07_the_original_arrives_after_its_repeat(
    stage: Stage, entry: Intent | Kept
) -> None:
    lease = stage.begin(stage.hire())
    first = write(lease, ledger=[entry])
    late = stage.start(stage.work.commit([first]))
    committed(stage.commit(first))
    committed(stage.commit(write(lease, 1, ledger=[Kept(key="k", kind=entry.kind, result="2")])))
    late.finish()
    committed(stage.commit(write(lease, 2, events=[said("and on")])))
    kept = stage.entry(lease.task_id, entry.key)
    assert kept is not None
    assert kept.write_no == 1


def test_interleaving_07_the_connection_is_lost_before_the_commit(stage: Stage) -> None:
    lease = stage.begin(stage.hire())
    first = write(lease, ledger=[intent()])
    stage.start(stage.work.commit([first])).run_until("commit").drop()
    assert stage.entry(lease.task_id, KEY) is None
    committed(stage.commit(first))
    assert stage.entry(lease.task_id, KEY) is not None


# --- 9 ------------------------------------------------------------------------------------------

RESTS = {
    "paused": lambda lease: question(lease, 1),
    "sleeping": lambda lease: write(lease, 1, ending=Wait(until=DueBy(after=Millis(8 * HOUR)))),
    "backing off": lambda lease: write(lease, 1, ending=Backoff(delay=Millis(HOUR), error={})),
    "held": lambda lease: write(lease, 1, ending=Hold(reason="look")),
}


@pytest.mark.parametrize("rest", RESTS)
def test_interleaving_09_cancel_of_a_task_at_rest(stage: Stage, rest: str) -> None:
    worker = stage.hire()
    lease = stage.begin(worker, version=HOOKED)
    committed(stage.commit(RESTS[rest](lease)))
    task = stage.cancel(lease.task_id)
    assert (task.state, task.held_reason, task.pause_id) == (State.WORKING, None, None)
    run = stage.claim(worker, HOOKED)
    assert run.cancel_requested
    assert run.ending_as is not None


FORBIDDEN = {
    "intent": lambda lease, **hook: write(lease, 1, ledger=[intent()], **hook),
    "wait": lambda lease, **hook: write(
        lease, 1, ending=Wait(until=DueBy(after=Millis(HOUR))), **hook
    ),
    "hold": lambda lease, **hook: write(lease, 1, ending=Hold(reason="look"), **hook),
    "pause": lambda lease, **hook: question(lease, 1, **hook),
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_interleaving_09_cancel_commits_just_before(stage: Stage, kind: str) -> None:
    """Before the step asks, waits or calls: nothing new starts, but for the cancel step's own."""
    lease = stage.begin(stage.hire(), version=HOOKED)
    cancel = stage.start(stage.tasks.cancel(SCOPE, lease.task_id)).run_until("commit")
    new = stage.start(stage.work.commit([FORBIDDEN[kind](lease)]))
    if stage.database.dialect == "postgres":
        assert new.finish() == [Busy()]  # the row is the cancel's; the worker tries again
        new = stage.start(stage.work.commit([FORBIDDEN[kind](lease)], patient=True))
    new.run_until_it_waits()
    cancel.finish()
    assert new.finish() == [Marked()]
    assert stage.entry(lease.task_id, KEY) is None
    assert stage.task(lease.task_id).lease_owner == "w1"
    committed(stage.commit(FORBIDDEN[kind](lease, in_hook=True)))


@pytest.mark.parametrize("kind", ["wait", "hold", "pause"])
def test_interleaving_09_cancel_commits_just_after(stage: Stage, kind: str) -> None:
    worker = stage.hire()
    lease = stage.begin(worker, version=HOOKED)
    rests = stage.start(stage.work.commit([FORBIDDEN[kind](lease)])).run_until("commit")
    cancel = stage.start(stage.tasks.cancel(SCOPE, lease.task_id)).run_until_it_waits()
    committed(rests.finish()[0])
    assert cancel.finish().state is State.WORKING
    assert stage.claim(worker, HOOKED).cancel_requested


# --- 10 -----------------------------------------------------------------------------------------


def test_interleaving_10_a_claims_reply_arrives_when_beats_gave_the_lease_back(
    stage: Stage,
) -> None:
    stage.create()
    worker = stage.hire()
    claim = claim_of(stage, worker)
    (lease,) = claim.finish()  # on its way: the worker does not have it yet
    for _ in range(2):
        read_back = stage.run(stage.beats.beat(worker, presence=None))
        assert read_back is not None
        assert read_back[lease.task_id].fence == lease.fence
    release = stage.beats.release(worker, lease.task_id, lease.fence)
    assert stage.run(release) is True
    assert stage.commit(write(lease, events=[said("too late")])) == Lost()
    again = stage.claim(worker)
    assert again.fence > lease.fence
    assert stage.run(stage.beats.release(worker, lease.task_id, lease.fence)) is False
    committed(stage.commit(finish(again, 0)))


def test_interleaving_10_a_read_back_from_before_the_grant(stage: Stage) -> None:
    """It says nothing against the run, and changes nothing."""
    stage.create()
    worker = stage.hire()
    beat = stage.start(stage.beats.beat(worker, presence=None)).run_until("commit")
    claim = claim_of(stage, worker)
    if stage.database.dialect == "sqlite":
        assert beat.finish() == {}
        (lease,) = claim.finish()
    else:
        (lease,) = claim.finish()
        assert beat.finish() == {}
    committed(stage.commit(finish(lease, 0)))


def test_interleaving_10_release_and_commit_at_once(stage: Stage) -> None:
    """The run is there after all: whoever has the row first wins, the other one learns of it."""
    worker = stage.hire()
    lease = stage.begin(worker)
    writes = stage.start(stage.work.commit([finish(lease, 0)])).run_until("commit")
    release = stage.start(stage.beats.release(worker, lease.task_id, lease.fence))
    release.run_until_it_waits()
    committed(writes.finish()[0])
    assert release.finish() is False
    assert stage.task(lease.task_id).state is State.COMPLETED


# --- 13 -----------------------------------------------------------------------------------------


def test_interleaving_13_one_unfinished_task_per_ledger(stage: Stage) -> None:
    first = stage.begin(stage.hire())
    second = stage.create("t2")
    join = "update tasks set ledger_id = :ledger where task_id = :task"
    with pytest.raises((sqlite3.IntegrityError, psycopg.errors.UniqueViolation)):
        stage.database.sql(join, ledger=first.ledger_id, task=second)
    committed(stage.commit(finish(first, 0, State.FAILED)))
    stage.database.sql(join, ledger=first.ledger_id, task=second)


# --- 16 -----------------------------------------------------------------------------------------


def die(stage: Stage, number: int) -> list[Lease]:
    """A worker claims all that is ready and dies of it."""
    worker = stage.hire(f"w{number}")
    leases = stage.run(stage.work.claim(worker, AGENT, FLOW, PLAIN, limit=10))
    stage.bury(worker)
    return list(leases)


def test_interleaving_16_a_fresh_task_beside_one_with_two_strikes(stage: Stage) -> None:
    """Three deaths in a step fail a task; who was there once has one strike, and runs again."""
    killer = stage.create("killer")
    die(stage, 1)
    die(stage, 2)
    stage.pass_time(2)
    fresh = stage.create("fresh")
    assert len(die(stage, 3)) == 2
    task = stage.task(killer)
    assert task.state is State.FAILED
    assert stage.words(killer)[-1] == "the process died 3 times in step plan"
    assert (stage.task(fresh).state, stage.task(fresh).crashes) == (State.SUBMITTED, 1)
    assert stage.claim(stage.hire("w4")).task_id == fresh


def test_interleaving_16_who_died_together_twice_comes_back_one_by_one(stage: Stage) -> None:
    """So the third death tells who the killer is: the others have committed, and are cleared."""
    names = [stage.create(name) for name in ("a", "killer", "z")]
    die(stage, 1)
    assert len(die(stage, 2)) == 3
    for number in (3, 4, 5):
        stage.pass_time(SETTINGS.crash_backoff_ms / HOUR)
        worker = stage.hire(f"w{number}")
        lease = stage.claim(worker)  # one, alone
        if lease.task_id == "killer":
            stage.bury(worker)
        else:
            committed(stage.commit(write(lease, move=move("{}"))))
    states = {name: stage.task(name).state for name in names}
    assert states == {"a": State.SUBMITTED, "killer": State.FAILED, "z": State.SUBMITTED}
    assert {stage.task(TaskId(name)).crashes for name in ("a", "z")} == {0}


def test_interleaving_16_a_release_or_a_sign_off_is_no_strike(stage: Stage) -> None:
    worker = stage.hire("w1")
    lease = stage.begin(worker)
    stage.run(stage.beats.release(worker, lease.task_id, lease.fence))
    stage.claim(worker)
    stage.run(stage.work.sign_off(worker))
    stage.run(stage.sweeping.free_orphans())
    assert stage.task(lease.task_id).crashes == 0


# --- 22 -----------------------------------------------------------------------------------------


def overdue_question(stage: Stage, on_deadline: OnDeadline) -> tuple[TaskId, int]:
    lease = stage.begin(stage.hire())
    told = committed(stage.commit(question(lease, 0, on_deadline=on_deadline)))
    stage.pass_time(9)
    return lease.task_id, told.last_seq


@pytest.mark.parametrize("on_deadline", OnDeadline)
def test_interleaving_22_the_answer_is_first(stage: Stage, on_deadline: OnDeadline) -> None:
    task_id, pause_id = overdue_question(stage, on_deadline)
    answer = stage.start(stage.tasks.answer(answer_to(task_id, pause_id))).run_until("commit")
    sweep = stage.start(stage.sweeping.end_overdue_pauses())
    sweep.run_until("tasks_take_free")  # it has seen that the question is overdue
    if stage.database.dialect == "postgres":
        assert sweep.finish() == []
        answer.finish()
    else:
        sweep.run_until_it_waits()
        answer.finish()
        assert sweep.finish() == []
    assert stage.task(task_id).state is State.WORKING
    assert stage.result_of(task_id, "1:ask") == to_text({"text": "yes"})
    assert stage.words(task_id) == ["begin t1", "may I?", "yes"]


@pytest.mark.parametrize("on_deadline", OnDeadline)
def test_interleaving_22_the_sweep_is_first(stage: Stage, on_deadline: OnDeadline) -> None:
    """The gateway saw the question open; it is told that it is over, and nothing is kept."""
    task_id, pause_id = overdue_question(stage, on_deadline)
    sweep = stage.start(stage.sweeping.end_overdue_pauses()).run_until("commit")
    answer = stage.start(stage.tasks.answer(answer_to(task_id, pause_id))).run_until_it_waits()
    assert sweep.finish() == [task_id]
    with pytest.raises(UnsupportedOperation):
        answer.finish()
    ends = {OnDeadline.FAIL: State.FAILED, OnDeadline.CANCEL: State.CANCELED}
    assert stage.task(task_id).state is ends.get(on_deadline, State.WORKING)
    outcome = to_text(DEADLINE_PASSED) if on_deadline is OnDeadline.RESUME else None
    assert stage.result_of(task_id, "1:ask") == outcome
    assert len(stage.events(task_id)) == 3


@pytest.mark.parametrize("on_deadline", OnDeadline)
def test_interleaving_22_the_sweep_comes_to_a_newer_question(
    stage: Stage, on_deadline: OnDeadline
) -> None:
    """It saw the first one overdue; meanwhile that was answered, and the task has asked again."""
    task_id, pause_id = overdue_question(stage, on_deadline)
    sweep = stage.start(stage.sweeping.end_overdue_pauses()).run_until("tasks_take_free")
    stage.run(stage.tasks.answer(answer_to(task_id, pause_id)))
    lease = stage.claim(WorkerId("w1"))
    again = committed(stage.commit(question(lease, 0, key="1:ask:2", word="and now?")))
    assert sweep.finish() == []
    task = stage.task(task_id)
    assert (task.state, task.pause_id) == (State.INPUT_REQUIRED, again.last_seq)
    assert stage.result_of(task_id, "1:ask:2") is None


def test_interleaving_22_a_late_yes_does_not_answer_the_next_question(stage: Stage) -> None:
    """By another gateway, whose view is old."""
    task_id, pause_id = overdue_question(stage, OnDeadline.RESUME)
    late = stage.start(stage.tasks.answer(answer_to(task_id, pause_id, "yes")))
    stage.run(stage.sweeping.end_overdue_pauses())
    lease = stage.claim(WorkerId("w1"))
    stage.commit(question(lease, 0, key="1:ask:2", word="and now?"))
    with pytest.raises(UnsupportedOperation, match="asks another one now"):
        late.finish()
    assert stage.task(task_id).state is State.INPUT_REQUIRED
    assert stage.result_of(task_id, "1:ask:2") is None


def test_interleaving_22_two_sweeps_at_once(stage: Stage) -> None:
    task_id, _ = overdue_question(stage, OnDeadline.FAIL)
    first = stage.start(stage.sweeping.end_overdue_pauses()).run_until("commit")
    second = stage.start(stage.sweeping.end_overdue_pauses()).run_until("tasks_take_free")
    second.step()  # PostgreSQL's passes by the locked row, SQLite's waits
    assert first.finish() == [task_id]
    assert second.finish() == []
    assert stage.task(task_id).state is State.FAILED


# --- 18 -----------------------------------------------------------------------------------------


def test_interleaving_18_a_key_that_is_forgotten_between_two_looks_is_claimed(stage: Stage) -> None:
    """By then it stands for nothing, so the send is a first one; and its own repeat finds it."""
    stage.run(stage.tasks.reply(SCOPE, "key", "d", {"text": "long ago"}))
    send = stage.start(stage.tasks.create(new_task("t1", key="key")))
    if stage.database.dialect == "postgres":
        send.run_until("send_keys_get")
    stage.database.sql("delete from send_keys")
    assert not send.finish().is_repeat
    repeat = stage.run(stage.tasks.create(new_task("t2", key="key")))
    assert (repeat.task_id, repeat.is_repeat) == ("t1", True)
