"""The checker finds nothing where all is well, and each broken promise where one is broken.

The database of a task that has met everything (a death, a question, an effect, a failed attempt) is
doctored by hand, on SQLite and on PostgreSQL; what the checker then finds is exactly that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from outlast.model.commit import Backoff
from outlast.model.content import Message
from outlast.model.ids import LedgerId, Millis, Seq, TaskId
from outlast.model.ledger import Result
from outlast.store.protocols import Settings
from outlast.testing.checker import (
    Finding,
    Sighting,
    check_answers,
    check_effects,
    check_finished,
    check_runs,
    check_seen,
    check_store,
    read_log,
)
from tests.chaos.databases import (  # noqa: F401
    database,
    databases,
    postgres_databases,
    sqlite_files,
)
from tests.contract.stores import Paused, Store, chunk, database_at, intent, moved, said

EFFECT = "effect:mail"


@dataclass(frozen=True)
class Patient:
    """A store with one task that has ended, and what the outside counted for it."""

    store: Store
    task_id: TaskId
    applied: Mapping[str, int]

    async def doctor(self, *statements: str, **params: Any) -> None:
        for statement in statements:
            used = {name: value for name, value in params.items() if f":{name}" in statement}
            await self.store.sql(statement, **used)

    async def laws(self, applied: Mapping[str, int] | None = None) -> Counter[str]:
        """The laws that are broken, and how often."""
        store, task_id = self.store, self.task_id
        findings: list[Finding] = [
            *await check_store(store.inspect),
            *await check_effects(store.inspect, self.applied if applied is None else applied),
            *await check_finished(store.inspect, task_id),
            *await check_runs(store.inspect, store.log, task_id),
        ]
        if (task := await store.inspect.find(task_id)) is not None:
            findings += await check_answers(store.log, store.work, task)
        return Counter(finding.law for finding in findings)


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:  # noqa: F811
    opened = Store(database, database_at(database), Settings())
    await opened.database.open()
    yield opened
    await opened.close()


@pytest.fixture
async def patient(store: Store) -> Patient:
    """Its log:

    1 task · 2 said, under fence 1, whose worker dies · 3 said, 4 question, under fence 3 · 5 answer
    · 6 said, under fence 5, whose attempt fails · 7 chunk, 8 said, 9 completed, under fence 7
    """
    run = await store.claimed("w1")
    await run.commit(said(), move=moved())
    await run.dies()
    await store.worker("w2")
    run = await store.claim_again(run.task_id, "w2")
    await run.commit(said())
    pause_id = await run.pause()
    await _answer(store, Paused(run.task_id, run.ledger_id, pause_id, "1:ask"))
    run = await store.claim_again(run.task_id, "w2")
    await run.commit(said(), ledger=[intent(EFFECT)])
    await run.commit(ending=Backoff(delay=Millis(0), error={"text": "away"}))
    run = await store.claim_again(run.task_id, "w2")
    await run.commit(ledger=[Result(key=EFFECT, result='"sent"')])
    await run.commit(chunk())
    await run.commit(said())
    await run.finish()
    return Patient(store, run.task_id, {f"{run.ledger_id}:mail": 1})


async def _answer(store: Store, paused: Paused) -> None:
    message = Message.user("yes").to_json()
    await store.answer(paused, message=message, result={"text": "yes", "message": message})


async def test_a_healthy_store(patient: Patient) -> None:
    events = await read_log(patient.store.log, patient.task_id)
    assert [event.seq for event in events] == list(range(1, 10))
    assert await patient.laws() == {}


# --- the log --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq", [1, 3, 9])
async def test_an_event_is_gone(patient: Patient, seq: int) -> None:
    await patient.doctor("delete from task_events where seq = :seq", seq=seq)
    broken = await patient.laws()
    assert broken.pop("seq_has_no_gap") == 1
    broken.pop("status_has_one_time", 0)  # unless the event before has the same millisecond
    assert broken == ({"terminal_event_is_last": 1} if seq == 9 else {})


async def test_an_event_too_many(patient: Patient) -> None:
    await patient.doctor("update tasks set next_seq = next_seq - 1")
    assert await patient.laws() == {"seq_has_no_gap": 1, "terminal_event_is_last": 1}


async def test_a_fence_falls(patient: Patient) -> None:
    await patient.doctor("update task_events set fence = 1, write_no = 50 where seq = 6")
    assert await patient.laws() == {"fence_never_falls": 1}


async def test_a_second_terminal_event(patient: Patient) -> None:
    await patient.doctor(
        "insert into task_events (task_id, seq, fence, kind, body, is_message, created_at)"
        " select task_id, seq + 1, fence, kind, body, is_message, created_at"
        "   from task_events where seq = 9",
        "update tasks set next_seq = next_seq + 1",
    )
    assert await patient.laws() == {"terminal_event_is_last": 1}


async def test_an_event_after_the_end(patient: Patient) -> None:
    await patient.doctor(
        "update task_events set seq = 100 where seq = 8",
        "update task_events set seq = 8 where seq = 9",
        "update task_events set seq = 9 where seq = 100",
    )
    broken = await patient.laws()
    broken.pop("status_has_one_time", 0)  # unless both have the same millisecond
    assert broken == {"terminal_event_is_last": 1, "a_runs_writes_are_in_order": 1}


async def test_an_end_without_its_event(patient: Patient) -> None:
    body = '{"state":"working"}'
    await patient.doctor("update task_events set body = :body where seq = 9", body=body)
    assert await patient.laws() == {"terminal_event_is_last": 1}


async def test_writes_out_of_order(patient: Patient) -> None:
    await patient.doctor("update task_events set write_no = 99 where seq = 7")
    assert await patient.laws() == {"a_runs_writes_are_in_order": 1}


async def test_a_row_of_no_task(patient: Patient) -> None:
    await patient.doctor("delete from tasks")
    broken = await patient.laws()
    assert broken.pop("no_task_is_lost") == 1
    # Nine events, four runs, an answer and an effect.
    assert broken == {"no_orphans": 9 + 4 + 2}


# --- leases and runs ------------------------------------------------------------------------------


async def test_a_run_that_nothing_ended(patient: Patient) -> None:
    await patient.doctor("update task_runs set ended_at = null where fence = 7")
    assert await patient.laws() == {"leases_have_runs": 1}


async def test_a_run_that_nobody_recorded(patient: Patient) -> None:
    await patient.doctor("delete from task_runs where fence = 1")
    assert await patient.laws() == {"every_write_is_made_under_a_lease": 1}


async def test_two_runs_at_once(patient: Patient) -> None:
    await patient.doctor("update task_runs set ended_at = ended_at + 60000 where fence = 3")
    assert await patient.laws() == {"a_task_has_one_run_at_a_time": 1}


async def test_a_lease_of_the_dead(store: Store) -> None:
    run = await store.claimed("w1")
    patient = Patient(store, run.task_id, {})
    assert await patient.laws() == {"every_task_ends": 1}
    await patient.doctor("update workers set dead_at = 1")
    assert await patient.laws() == {"every_task_ends": 1, "nothing_leased_to_the_dead": 1}


# --- answers --------------------------------------------------------------------------------------


async def test_an_answer_is_doubled(patient: Patient) -> None:
    await patient.doctor(
        "update task_events set kind = 'message', write_no = null,"
        " body = (select body from task_events where seq = 5) where seq = 6"
    )
    assert await patient.laws() == {"answers_are_kept_once": 1}


async def test_an_answer_to_no_question(patient: Patient) -> None:
    await patient.doctor("update task_events set is_message = :no where seq = 4", no=False)
    assert await patient.laws() == {"answers_are_kept_once": 1}


async def test_an_answer_is_lost(patient: Patient) -> None:
    await patient.doctor("delete from task_ledger where key = '1:ask'")
    assert await patient.laws() == {"no_answer_is_lost": 1}


async def test_another_answer_is_kept(patient: Patient) -> None:
    other = '{"text":"no","message":{"messageId":"another"}}'
    await patient.doctor("update task_ledger set result = :other where key = '1:ask'", other=other)
    assert await patient.laws() == {"no_answer_is_lost": 1}


# --- effects --------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [0, 2])
async def test_an_effect_not_applied_once(patient: Patient, times: int) -> None:
    applied = dict.fromkeys(patient.applied, times)
    assert await patient.laws(applied) == {"an_effect_is_applied_once": 1}


async def test_an_effect_without_a_trace(patient: Patient) -> None:
    assert await patient.laws({**patient.applied, f"{patient.task_id}:fax": 1}) == {
        "every_effect_is_in_the_ledger": 1
    }


async def test_an_effect_of_unknown_outcome(patient: Patient) -> None:
    await patient.doctor(
        "update task_ledger set result = null, done_at = null where kind = 'effect'"
    )
    assert await patient.laws() == {"every_effect_has_a_result": 1}


async def test_effects_of_other_ledgers(patient: Patient) -> None:
    """A store may hold effects that this outside was never asked for."""
    inspect = patient.store.inspect
    assert await check_effects(inspect, {}, ledgers=[]) == []
    mine = [LedgerId(patient.task_id)]
    assert await check_effects(inspect, patient.applied, ledgers=mine) == []
    assert len(await check_effects(inspect, {}, ledgers=mine)) == 1


# --- what a caller saw ----------------------------------------------------------------------------


def task(generation: int) -> Sighting:
    return Sighting(generation=Seq(generation), is_task=True)


def event(generation: int) -> Sighting:
    return Sighting(generation=Seq(generation), is_task=False)


@pytest.mark.parametrize(
    "sightings",
    [
        [task(5)],
        [task(1), event(2), event(3), event(4), event(5)],
        [task(1), event(2), task(4), event(5)],  # away for 3 and 4
        [task(1), event(2), task(2), event(3), task(5)],
    ],
)
def test_everything_was_seen(sightings: list[Sighting]) -> None:
    assert check_seen(sightings, last=Seq(5)) == []


@pytest.mark.parametrize(
    ("sightings", "law"),
    [
        ([], "a_stream_goes_to_the_end"),
        ([task(1), event(2)], "a_stream_goes_to_the_end"),
        ([task(1), event(3)], "a_caller_misses_nothing"),
        ([event(2), event(3)], "a_caller_misses_nothing"),
        ([task(1), event(2), event(2), event(3)], "a_caller_sees_nothing_twice"),
        ([task(1), event(3), event(2)], "a_caller_sees_nothing_twice"),
        ([task(3), task(2), event(3)], "a_stream_never_goes_back"),
    ],
)
def test_not_everything_was_seen(sightings: list[Sighting], law: str) -> None:
    assert law in {finding.law for finding in check_seen(sightings, last=Seq(3))}
