"""The checks can fail: each guard of the store is broken in turn, and they notice.

A scene is a few calls that go well on the store as it is. With a guard's text taken out of its
query (or of its function), the same scene must end in a Violation; and the state machine, left to
itself, must come upon one too.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from outlast.model.commit import Write
from outlast.model.ids import WorkerId, WriteNo
from outlast.model.lease import Death, Lease
from outlast.model.ledger import Clear, Intent, Kept, LedgerKind, Result
from outlast.model.pause import OnDeadline
from outlast.store.database import catalog
from outlast.store.sweeping import Sweeping
from tests.statemachine import verbs
from tests.statemachine.laws import Violation
from tests.statemachine.play import Attempt, Play, Verb
from tests.statemachine.stage import (
    HOOKED,
    HOUR,
    PLAIN,
    SCOPE,
    Stage,
    answer_to,
    chunk,
    finish,
    move,
    new_task,
    opened,
    question,
    said,
    to_inbox,
    write,
)
from tests.statemachine.test_store_machine import FEW, machine_on
from tests.statemachine.world import Crew

KEY = "effect:mail"
INTENT = Intent(key=KEY, kind=LedgerKind.EFFECT)


class Scene:
    """Calls on the store, each followed by the model and watched by the laws."""

    def __init__(self, stage: Stage) -> None:
        self.play = Play(stage)

    def hire(self, name: str) -> WorkerId:
        worker = self.play.stage.hire(name)
        self.play.world.crews[name] = Crew()
        self.play.compare()
        return worker

    def create(self, name: str, *, version: int = PLAIN, key: str | None = None) -> None:
        new = new_task(name, version=version, key=key, max_age=20 * HOUR + HOUR // 2)
        self.do(verbs.Create(new))

    def claim(self, worker: WorkerId, version: int = PLAIN) -> Lease:
        (lease,) = self.do(verbs.Claim(worker, version, 10))
        assert isinstance(lease, Lease)
        return lease

    def begin(self, version: int = PLAIN) -> Lease:
        """A task t1 that w1 runs. With hooks its first commit, write 0, is made."""
        worker = self.hire("w1")
        self.create("t1", version=version)
        lease = self.claim(worker, version)
        if version == HOOKED:
            self.commit(write(lease, move=move("{}")))
        return lease

    def commit(self, *writes: Write) -> None:
        self.do(verbs.CommitOf(writes))

    def take_over(self, worker: WorkerId, *, beats_ago: int = 0) -> None:
        """From a process that is gone."""
        beat = self.play.world.crews[worker].beat - beats_ago
        self.do(verbs.TakeOver(Death(worker_id=worker, beat=beat, early=True)))

    def do(self, verb: Verb) -> Any:
        attempt = self.play.send(verb)
        self.play.check()
        return attempt.call.result() if attempt.call.error is None else None

    def until(self, verb: Verb, name: str) -> Attempt:
        """The verb under way on a connection of its own, just before that statement."""
        attempt = self.play.send(verb, steps=0)
        attempt.call.run_until(name)
        return attempt


# --- the scenes ---------------------------------------------------------------------------------


def a_frozen_worker_writes(scene: Scene) -> None:
    frozen = scene.begin()
    scene.take_over(WorkerId("w1"))
    scene.commit(write(frozen, events=[chunk("«1»")]))
    scene.claim(scene.hire("w2"))
    scene.commit(write(frozen, events=[chunk("«2»")]))


def a_commit_is_repeated(scene: Scene) -> None:
    lease = scene.begin()
    first = verbs.CommitOf([write(lease, events=[chunk("«1»")])])
    scene.do(first)
    scene.do(first)


def a_memo_is_written_late(scene: Scene) -> None:
    lease = scene.begin()
    memo = Kept(key="1:memo", kind=LedgerKind.MEMO, result="1")
    first = verbs.CommitOf([write(lease, ledger=[memo])])
    scene.do(first)
    scene.do(first)
    scene.commit(write(lease, 1, events=[said("«and on»")]))


def a_task_is_canceled_while_it_runs(scene: Scene) -> None:
    lease = scene.begin()
    scene.do(verbs.Cancel(SCOPE, lease.task_id))
    scene.commit(finish(lease, 0))


def a_watcher_has_seen_an_old_beat(scene: Scene) -> None:
    lease = scene.begin()
    scene.do(verbs.Beat(WorkerId("w1")))
    scene.take_over(WorkerId("w1"), beats_ago=1)
    scene.commit(finish(lease, 0))


def a_yes_comes_to_the_next_question(scene: Scene) -> None:
    lease = scene.begin()
    scene.commit(question(lease, 0, key="ask 1"))
    scene.do(verbs.Answer(answer_to(lease.task_id, 2, "yes", key="ask 1")))
    again = scene.claim(WorkerId("w1"))
    scene.commit(question(again, 0, key="ask 2"))
    scene.do(verbs.Answer(answer_to(lease.task_id, 2, "yes, yes", key="ask 1")))


def a_sweep_comes_to_the_next_question(scene: Scene) -> None:
    lease = scene.begin()
    scene.commit(question(lease, 0, key="ask 1", on_deadline=OnDeadline.RESUME))
    scene.play.pass_time(9)
    sweep = scene.until(verbs.EndPauses(), "tasks_take_free")
    scene.do(verbs.Answer(answer_to(lease.task_id, 2, "yes", key="ask 1")))
    again = scene.claim(WorkerId("w1"))
    scene.commit(question(again, 0, key="ask 2", on_deadline=OnDeadline.RESUME))
    scene.play.finish(sweep)


def a_message_is_sent_again_to_another_gateway(scene: Scene) -> None:
    scene.create("t1", key="send 1")
    scene.create("t2", key="send 1")


def an_answer_is_repeated(scene: Scene) -> None:
    lease = scene.begin()
    scene.commit(question(lease, 0))
    yes = verbs.Answer(answer_to(lease.task_id, 2))
    scene.do(yes)
    scene.do(yes)


def a_message_comes_before_the_end(scene: Scene) -> None:
    lease = scene.begin()
    scene.do(verbs.Receive(to_inbox(lease.task_id)))
    scene.commit(finish(lease, 0, move=move("{}", closes=True)))
    scene.commit(finish(lease, 0, move=move("{}", read=2, closes=True)))


def a_message_for_the_inbox_is_repeated(scene: Scene) -> None:
    lease = scene.begin()
    message = verbs.Receive(to_inbox(lease.task_id))
    scene.do(message)
    scene.do(message)


def a_message_comes_after_a_cancel(scene: Scene) -> None:
    lease = scene.begin(HOOKED)
    scene.do(verbs.Cancel(SCOPE, lease.task_id))
    scene.do(verbs.Receive(to_inbox(lease.task_id)))


def a_result_comes_twice(scene: Scene) -> None:
    lease = scene.begin()
    scene.commit(write(lease, 0, ledger=[INTENT]))
    scene.commit(write(lease, 1, ledger=[Result(key=KEY, result="1")]))
    scene.do(verbs.Settle(lease.ledger_id, KEY, "2"))


def an_intent_comes_after_the_result(scene: Scene) -> None:
    lease = scene.begin()
    scene.commit(write(lease, 0, ledger=[INTENT]))
    scene.do(verbs.Settle(lease.ledger_id, KEY, "1"))
    scene.commit(write(lease, 1, ledger=[INTENT]))


def a_memo_is_computed_twice(scene: Scene) -> None:
    lease = scene.begin()
    for number in (0, 1):
        memo = Kept(key="1:memo", kind=LedgerKind.MEMO, result=str(number))
        scene.commit(write(lease, number, ledger=[memo]))


def not_done_comes_after_the_result(scene: Scene) -> None:
    lease = scene.begin()
    scene.commit(write(lease, 0, ledger=[INTENT]))
    scene.do(verbs.Settle(lease.ledger_id, KEY, "1"))
    scene.commit(write(lease, 1, ledger=[Clear(key=KEY, write_no=WriteNo(1))]))


def not_done_comes_after_a_newer_intent(scene: Scene) -> None:
    first = scene.begin()
    scene.commit(write(first, 0, ledger=[INTENT]))
    scene.take_over(WorkerId("w1"))
    second = scene.claim(scene.hire("w2"))
    scene.commit(write(second, 0, ledger=[INTENT]))
    scene.do(verbs.Resolve(first.task_id, KEY, first.fence, WriteNo(1), None))


def an_operator_speaks_of_an_older_call(scene: Scene) -> None:
    first = scene.begin()
    scene.commit(write(first, 0, ledger=[INTENT]))
    scene.take_over(WorkerId("w1"))
    second = scene.claim(scene.hire("w2"))
    scene.commit(write(second, 0, ledger=[INTENT]))
    scene.do(verbs.Resolve(first.task_id, KEY, first.fence, WriteNo(1), "1"))


def a_marked_task_calls_outside(scene: Scene) -> None:
    lease = scene.begin(HOOKED)
    scene.do(verbs.Cancel(SCOPE, lease.task_id))
    scene.commit(write(lease, 1, ledger=[INTENT]))


def a_dead_worker_claims(scene: Scene) -> None:
    worker = scene.hire("w1")
    scene.take_over(worker)
    scene.create("t1")
    scene.do(verbs.Claim(worker, PLAIN, 10))


def the_dead_have_leases(scene: Scene) -> None:
    scene.begin()
    scene.do(verbs.SignOff(WorkerId("w1")))
    scene.do(verbs.FreeOrphans())
    scene.play.check_laws(after_sweep=True)


def an_old_lease_is_given_back(scene: Scene) -> None:
    lease = scene.begin()
    release = verbs.Release(WorkerId("w1"), lease.task_id, lease.fence)
    scene.do(release)
    scene.claim(WorkerId("w1"))
    scene.do(release)


def a_life_ends_twice(scene: Scene) -> None:
    """Two sweeps see the end of a task's life; its hook has the time that it is promised."""
    scene.begin(HOOKED)
    scene.play.pass_time(30)
    second = scene.until(verbs.EndLives(), "tasks_take_free")
    scene.do(verbs.EndLives())
    scene.play.finish(second)


def a_cancel_meets_the_last_commit(scene: Scene) -> None:
    lease = scene.begin()
    cancel = scene.until(verbs.Cancel(SCOPE, lease.task_id), "tasks_end")
    patient = verbs.CommitOf([finish(lease, 0)], patient=True)
    scene.play.send(patient)
    scene.play.finish(cancel)
    scene.play.collect()
    for attempt in list(scene.play.under_way):
        scene.play.finish(attempt)


# --- the guards ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guard:
    """A guard, how to break it (in a query, or in a function), and a scene that notices.

    is_chancy: the state machine does not come upon it within a few examples.
    """

    name: str
    scene: Callable[[Scene], None]
    query: str = ""
    remove: str = ""
    put: str = ""
    function: str = ""
    replace: Sequence[tuple[str, str]] = ()
    postgres_only: bool = False
    is_chancy: bool = False


GUARDS = [
    Guard("fence", a_frozen_worker_writes, "tasks_commit", " and fence = :fence"),
    Guard("write_no", a_commit_is_repeated, "tasks_commit", " and write_no = :write_no"),
    Guard(
        "write_no without event",
        a_memo_is_written_late,
        "tasks_commit",
        " and write_no = :write_no",
    ),
    Guard(
        "fence raised at take-over", a_frozen_worker_writes, "tasks_take_over", "fence = fence + 1,"
    ),
    Guard(
        "fence raised at cancel",
        a_task_is_canceled_while_it_runs,
        "tasks_end",
        "fence = fence + 1, ",
    ),
    Guard(
        "beat compared at take-over",
        a_watcher_has_seen_an_old_beat,
        "workers_bury",
        " and beat = :beat",
    ),
    Guard(
        "pause_id", a_yes_comes_to_the_next_question, "tasks_answer", " and pause_id = :pause_id"
    ),
    Guard(
        "deadline by pause, not by state",
        a_sweep_comes_to_the_next_question,
        function="_end_pause",
        replace=[
            ('rows[0]["pause_id"] != pause_id', 'rows[0]["pause_id"] is None'),
            ('row["pause_deadline_at"] > row["now"]', "False"),
        ],
        is_chancy=True,
    ),
    Guard(
        "send key for create",
        a_message_is_sent_again_to_another_gateway,
        "send_keys_claim",
        "do nothing",
        "do update set created_at = excluded.created_at",
    ),
    Guard(
        "send key for answer",
        an_answer_is_repeated,
        "send_keys_claim",
        "do nothing",
        "do update set created_at = excluded.created_at",
    ),
    Guard(
        "send key for the inbox",
        a_message_for_the_inbox_is_repeated,
        "send_keys_claim",
        "do nothing",
        "do update set created_at = excluded.created_at",
    ),
    Guard(
        "unread check at the terminal commit",
        a_message_comes_before_the_end,
        "tasks_commit",
        "and (not :closes or inbox_seq <= read_seq or inbox_seq <= :read)",
        "and (:closes or not :closes)",
    ),
    Guard(
        "nothing comes to a marked task",
        a_message_comes_after_a_cancel,
        "tasks_receive",
        " and cancel_requested_at is null and ending_as is null",
    ),
    Guard(
        "done_at is null for a result",
        a_result_comes_twice,
        "task_ledger_settle",
        " and done_at is null",
    ),
    Guard(
        "done_at is null for an intent",
        an_intent_comes_after_the_result,
        "task_ledger_intend",
        " where task_ledger.done_at is null",
    ),
    Guard(
        "done_at is null for a memo",
        a_memo_is_computed_twice,
        "task_ledger_keep",
        "\n where task_ledger.done_at is null",
    ),
    Guard(
        "done_at is null for not done",
        not_done_comes_after_the_result,
        "task_ledger_clear",
        "\n   and done_at is null",
    ),
    Guard(
        "not done names its call",
        not_done_comes_after_a_newer_intent,
        "task_ledger_clear",
        " and fence = :fence and write_no = :write_no",
        is_chancy=True,
    ),
    Guard(
        "an operator's result names its call",
        an_operator_speaks_of_an_older_call,
        "task_ledger_resolve",
        " and fence = :fence and write_no = :write_no",
        is_chancy=True,
    ),
    Guard(
        "the mark",
        a_marked_task_calls_outside,
        "tasks_commit",
        "and (cancel_requested_at is null or not :stopped_by_mark)",
        "and (:stopped_by_mark or not :stopped_by_mark)",
    ),
    Guard(
        "only the living claim",
        a_dead_worker_claims,
        "tasks_claim",
        " and dead_at is null",
    ),
    Guard(
        "every sweep frees what the dead have",
        the_dead_have_leases,
        "tasks_orphaned",
        " or workers.dead_at is not null",
    ),
    Guard("fence at release", an_old_lease_is_given_back, "tasks_release", " and fence = :fence"),
    Guard(
        "a hook has its time",
        a_life_ends_twice,
        function="_end_life",
        replace=[("marked_at is not None and", "False and")],
        is_chancy=True,
    ),
    Guard(
        "cancel takes the row first",
        a_cancel_meets_the_last_commit,
        "tasks_take",
        "\n   for no key update of tasks",
        postgres_only=True,
        is_chancy=True,
    ),
]

by_name = pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)


@by_name
def test_the_scene_goes_well(stage: Stage, guard: Guard) -> None:
    guard.scene(Scene(stage))


@by_name
def test_the_scene_notices_a_broken_guard(stage: Stage, guard: Guard) -> None:
    if guard.postgres_only and stage.database.dialect == "sqlite":
        assert guard.remove not in catalog("sqlite")[guard.query].text  # one writer at a time
        return
    with broken(guard, stage), pytest.raises(Violation):
        guard.scene(Scene(stage))


@pytest.mark.parametrize(
    "guard", [guard for guard in GUARDS if not guard.is_chancy], ids=lambda guard: guard.name
)
def test_the_state_machine_notices_a_broken_guard(sqlite_url: str, guard: Guard) -> None:
    """On SQLite, where examples are many in little time."""
    once = settings(FEW, max_examples=400, phases=[Phase.generate], report_multiple_bugs=False)
    with opened(sqlite_url) as stage, broken(guard, stage), pytest.raises(Violation):
        run_state_machine_as_test(machine_on(stage), settings=once)


@contextmanager
def broken(guard: Guard, stage: Stage) -> Iterator[None]:
    with ExitStack() as stack:
        if guard.query:
            stack.enter_context(stage.database.weakened(guard.query, guard.remove, guard.put))
        if guard.function:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            weak = rewritten(getattr(Sweeping, guard.function), guard.replace)
            patch.setattr(Sweeping, guard.function, weak)
        yield


def rewritten(function: Callable[..., Any], replace: Sequence[tuple[str, str]]) -> Any:
    """The function with pieces of its source replaced, each of which it has once."""
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in replace:
        assert source.count(old) == 1, f"{function.__name__} should say {old!r} once"
        source = source.replace(old, new)
    names: dict[str, Any] = {}
    exec(f"from __future__ import annotations\n{source}", function.__globals__, names)
    return names[function.__name__]
