"""What the other tests stand on: a scripted database does what its docstrings say."""

from __future__ import annotations

import pytest

from outlast.model.errors import StoreUnavailable
from outlast.model.ids import TaskId, WorkerId
from outlast.store.database import Query, Script, Statement, StatementRefused
from outlast.testing.scripted import Call, WouldWait
from outlast.testing.sessions import Deadlock
from tests.statemachine.stage import AGENT, FLOW, PLAIN, SCOPE, Stage


def touch(task_id: str, priority: int | None = 7) -> Statement:
    text = "update tasks set priority = :priority where task_id = :task_id"
    return Statement(
        Query(f"touch_{task_id}", "a test's", text), {"task_id": task_id, "priority": priority}
    )


def touching(stage: Stage, *task_ids: str) -> Call[str]:
    """A transaction that takes these rows, in this order."""

    def script() -> Script[str]:
        for task_id in task_ids:
            yield touch(task_id)
        return "touched"

    return stage.start(stage.database.transact(script))


def state_of(call: Call[str]) -> tuple[str | None, bool, bool]:
    return call.next, call.is_waiting, call.is_over


def priority_of(stage: Stage, task_id: str) -> int:
    rows = stage.database.sql("select priority from tasks where task_id = :t", t=task_id)
    found: int = rows[0]["priority"]
    return found


@pytest.fixture(autouse=True)
def tasks(stage: Stage) -> None:
    stage.create("a")
    stage.create("b")


def test_a_call_does_nothing_between_two_steps(stage: Stage) -> None:
    call = touching(stage, "a", "b")
    assert state_of(call) == ("touch_a", False, False)
    call.step()
    assert state_of(call) == ("touch_b", False, False)
    call.step()
    assert state_of(call) == ("commit", False, False)
    assert priority_of(stage, "a") == 0
    call.step()
    assert state_of(call) == (None, False, True)
    assert (call.result(), priority_of(stage, "a")) == ("touched", 7)


def test_who_waits_goes_on_when_the_lock_is_free(stage: Stage) -> None:
    first = touching(stage, "a").run_until("commit")
    second = touching(stage, "a")
    assert second.step() is False
    assert state_of(second) == ("touch_a", True, False)
    with pytest.raises(WouldWait):
        second.finish()
    first.finish()
    assert state_of(second) == ("commit", False, False)
    assert second.finish() == "touched"


def test_a_dropped_call_frees_its_locks_and_has_done_nothing(stage: Stage) -> None:
    first = touching(stage, "a").run_until("commit")
    second = touching(stage, "a").run_until_it_waits()
    third = touching(stage, "a").run_until_it_waits()
    second.drop()  # while it waits
    first.drop()
    for dropped in (first, second):
        with pytest.raises(StoreUnavailable) as caught:
            dropped.result()
        assert caught.value.happened is None
    assert priority_of(stage, "a") == 0
    assert third.finish() == "touched"


def test_a_lost_reply_comes_after_the_commit(stage: Stage) -> None:
    call = touching(stage, "a")
    call.lose_reply()
    with pytest.raises(StoreUnavailable):
        call.result()
    assert priority_of(stage, "a") == 7


def test_a_read_sees_one_moment_and_waits_for_nobody(stage: Stage) -> None:
    writes = touching(stage, "a").run_until("commit")
    read = stage.start(stage.tasks.snapshot(SCOPE, TaskId("a")))
    assert read.step()  # from here on it sees what is committed now
    writes.finish()
    stage.cancel(TaskId("a"))
    assert read.finish().task.generation == 1
    assert stage.task(TaskId("a")).generation == 2


def test_a_call_of_several_transactions_is_one_call(stage: Stage) -> None:
    stage.hire("w1")
    stage.run(stage.work.claim(WorkerId("w1"), AGENT, FLOW, PLAIN, limit=2))
    stage.run(stage.work.sign_off(WorkerId("w1")))
    sweep = stage.start(stage.sweeping.free_orphans())
    assert (sweep.next, sweep.is_writing) == ("tasks_orphaned", False)
    sweep.run_until("tasks_take_free")
    assert sweep.is_writing
    assert [statement.query.name for statement in sweep.transaction] == ["tasks_orphaned"]
    assert sweep.finish().freed == ["a", "b"]


def test_a_circle_of_locks_is_a_failure(stage: Stage) -> None:
    if stage.database.dialect == "sqlite":
        return  # its writers take turns
    first = touching(stage, "a", "b").run_until("touch_b")
    second = touching(stage, "b", "a").run_until("touch_a")
    second.step()
    while not (first.is_over or second.is_over):
        first.step()  # the server takes a moment to see it
    ended = [call for call in (first, second) if call.is_over]
    assert [type(call.error) for call in ended] == [Deadlock]


def test_a_refused_statement_is_the_stores_to_handle(stage: Stage) -> None:
    def script() -> Script[None]:
        yield touch("a", None)

    with pytest.raises(StatementRefused, match="touch_a"):
        stage.run(stage.database.transact(script))


def test_a_mutant_must_say_what_it_takes_away(stage: Stage) -> None:
    weakened = stage.database.weakened("tasks_commit", "no such words")
    with pytest.raises(AssertionError, match="should say"), weakened:
        pass
