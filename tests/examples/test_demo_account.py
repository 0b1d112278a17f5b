"""The demo's account: read from a real store, and not to be fooled by a doctored one.

A small review is written into the store by hand: three systems, the worker killed within the
second, two grants, a network that fails after the first.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from examples.access_review.account import Account, Counters, Witness, read_account
from examples.access_review.demo.telling import tell
from outlast.model.artifacts import artifact_event
from outlast.model.commit import Backoff, Finish, LoggedEvent, status_event
from outlast.model.content import Message
from outlast.model.ids import LedgerId, Millis, TaskId, WorkerId
from outlast.model.ledger import Result
from outlast.model.task import State
from outlast.store.protocols import Settings
from outlast.testing.checker import Sighting, read_log
from outlast.wire.fold import fold_task
from tests.chaos.databases import (  # noqa: F401
    database,
    databases,
    postgres_databases,
    sqlite_files,
)
from tests.contract.stores import (
    DAY,
    Paused,
    Run,
    Store,
    database_at,
    intent,
    moved,
    said,
)

SYSTEMS = ("absence", "crm", "tax")
GRANTS = ("crm-0001", "tax-0002")
TAKE_OVER = 2_500
REPORT = "grant,system\r\ncrm-0001,crm\r\ntax-0002,tax\r\n"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A store with a review, and what was seen and counted outside of it."""

    store: Store
    witness: Witness
    counters: Counters

    async def read(self) -> Account:
        store = self.store
        return await read_account(store.inspect, store.log, store.work, self.counters, self.witness)

    async def broken(self) -> Counter[str]:
        return Counter(finding.law for finding in (await self.read()).broken)

    def counted(self, **counters: Any) -> Evidence:
        return replace(self, counters=self.counters.model_copy(update=counters))

    def witnessed(self, **changes: Any) -> Evidence:
        return replace(self, witness=replace(self.witness, **changes))

    def key(self, grant: str) -> str:
        return f"{self.witness.held.id}:revoke:{grant}"


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:  # noqa: F811
    opened = Store(database, database_at(database), Settings())
    await opened.database.open()
    yield opened
    await opened.close()


@pytest.fixture
async def evidence(store: Store) -> Evidence:
    run = await store.claimed("w1")
    await run.commit(said("fetched absence"), move=moved())
    killed_at = await store.now()
    await store.later(TAKE_OVER)
    await run.dies()
    await store.worker("w2")
    run = await store.claim_again(run.task_id, "w2")
    await run.commit(said("fetched crm"), move=moved())
    await run.commit(said("fetched tax"), move=moved())
    await _answer_a_day_later(store, run)
    await _revoke_over_a_bad_network(store, run.task_id)
    events = await read_log(store.log, run.task_id)
    task = fold_task(await store.task(run.task_id), events)
    witness = Witness(
        systems=SYSTEMS,
        struck="crm",
        killed=WorkerId("w1"),
        killed_at=killed_at,
        pids={WorkerId("w1"): 4711, WorkerId("w2"): 4712},
        approved=GRANTS,
        seen=_seen(events),
        held=task,
        got=task,
    )
    return Evidence(store=store, witness=witness, counters=_counted(run.ledger_id))


async def _answer_a_day_later(store: Store, run: Run) -> None:
    pause_id = await run.pause()
    await store.later(DAY)
    message = Message.user("yes").to_json()
    await store.answer(
        Paused(run.task_id, run.ledger_id, pause_id, "1:ask"),
        message=message,
        result={"message": message},
    )


async def _revoke_over_a_bad_network(store: Store, task_id: TaskId) -> None:
    first, second = (f"effect:revoke:{grant}" for grant in GRANTS)
    run = await store.claim_again(task_id, "w2")
    await run.commit(ledger=[intent(first)])
    await run.commit(ledger=[intent(second), Result(key=first, result="1")])
    await run.commit(ending=Backoff(delay=Millis(0), error={"text": "cut"}))
    run = await store.claim_again(task_id, "w2")
    await run.commit(ledger=[intent(second)])
    await run.commit(ledger=[Result(key=second, result="1")])
    report = {
        "artifactId": "revocations.csv",
        "name": "revocations.csv",
        "parts": [{"text": REPORT}],
    }
    end = status_event(State.COMPLETED, Message.agent("2 grants revoked").to_json())
    await run.commit(
        artifact_event(report, append=False, last_chunk=True),
        end,
        ending=Finish(state=State.COMPLETED),
    )


def _seen(events: list[LoggedEvent]) -> list[Sighting]:
    """All of it, with one stream that was cut after event 3 and came back at event 5."""
    return [
        Sighting(generation=event.seq, is_task=event.seq in (1, 5))
        for event in events
        if event.seq != 4
    ]


def _counted(ledger_id: LedgerId) -> Counters:
    first, second = (f"{ledger_id}:revoke:{grant}" for grant in GRANTS)
    return Counters(
        fetches={"absence": 1, "crm": 2, "tax": 1},
        revoke_calls={first: 1, second: 2},
        revoke_calls_without_key=0,
        applied_by_key={first: 1, second: 1},
    )


# --- the account ----------------------------------------------------------------------------------


async def test_all_is_well(evidence: Evidence) -> None:
    account = await evidence.read()
    assert account.broken == []
    assert account.take_over is not None
    assert account.take_over // timedelta(milliseconds=1) >= TAKE_OVER
    assert account.fetched_under(account.killed_run) == ["absence"]
    assert account.fetched_under(account.next_run) == ["crm", "tax"]
    assert (account.fetch_calls, account.fetched_again) == (4, {"crm": 1})
    assert (account.revoke_calls, account.revoked_before_failure) == (3, 1)
    assert len(account.retried_after) == 1
    assert account.streams == 2
    assert account.seen_one_by_one + account.seen_inside_tasks == account.task.generation == 8
    assert account.seen_inside_tasks == 3  # 1, and 4 and 5


async def test_it_is_told(evidence: Evidence) -> None:
    text = _told(await evidence.read())
    assert "kill -9 4711, within the fetch of system 2, crm." in text
    assert "The worker with pid 4712 claimed the review" in text
    assert "4 calls for 3 systems; again: crm." in text
    assert "events 1 … 8 of 8, none missing and none twice, over 2 streams" in text
    assert "1 day, 0:00:0" in text
    assert "Failed when 1 of 2 revocations were known to be done." in text
    assert "3 calls under 2 keys; applied under 2 keys, once each." in text
    assert "tax-0002 2, applied 1" in text
    assert "The checker found nothing lost and nothing doubled." in text


async def test_broken_promises_are_told(evidence: Evidence) -> None:
    key = evidence.key("tax-0002")
    twice = evidence.counted(applied_by_key={**evidence.counters.applied_by_key, key: 2})
    text = _told(await twice.read())
    assert "an_effect_is_applied_once" in text
    assert "applied under 2 keys, 3 times." in text
    assert "nothing lost" not in text


async def test_a_review_that_never_got_far_is_told(evidence: Evidence) -> None:
    account = replace(await evidence.read(), runs=[], events=[], effects=[])
    text = _told(account)
    assert "Nobody took over." in text
    assert "It was not asked, or not answered." in text


async def test_a_task_that_is_gone(evidence: Evidence) -> None:
    await evidence.store.sql("delete from tasks")
    with pytest.raises(LookupError, match="has lost task"):
        await evidence.read()


def _told(account: Account) -> str:
    """The text without the line breaks."""
    console = Console(file=io.StringIO(), width=1000)
    console.print(tell(account, database="SQLite", report=[Path("report.md")]))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# --- a doctored database --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "laws"),
    [
        (
            "delete from task_events where seq = 3",
            {"seq_has_no_gap", "each_system_is_committed_once"},
        ),
        ("update task_events set fence = 1, write_no = 50 where seq = 7", {"fence_never_falls"}),
        ("delete from task_ledger where key = '1:ask'", {"no_answer_is_lost"}),
        (
            "delete from task_ledger where key = 'effect:revoke:tax-0002'",
            {"every_effect_is_in_the_ledger", "what_was_approved_is_in_the_ledger"},
        ),
        (
            "update task_ledger set done_at = null, result = null where key like '%tax-0002'",
            {"every_effect_has_a_result"},
        ),
        ("update task_runs set outcome = 'paused' where fence = 1", {"the_killed_run_is_lost"}),
        (
            "update task_runs set worker_id = 'w1' where fence = 3",
            {"another_worker_takes_over"},
        ),
        ("update task_runs set outcome = 'paused' where fence = 5", {"the_network_failed"}),
        (
            "update task_events set created_at = created_at - 1000 where kind = 'message'",
            {"the_answer_came_a_day_late"},
        ),
        (
            "update task_events set fence = 3, write_no = 0 where seq = 2",
            {"what_was_committed_is_kept"},
        ),
    ],
)
async def test_a_doctored_database(evidence: Evidence, statement: str, laws: set[str]) -> None:
    await evidence.store.sql(statement)
    assert set(await evidence.broken()) == laws


async def test_a_second_terminal_event(evidence: Evidence) -> None:
    await evidence.store.sql(
        "insert into task_events (task_id, seq, fence, kind, body, is_message, created_at)"
        " select task_id, seq + 1, fence, kind, body, is_message, created_at"
        "   from task_events where seq = 8"
    )
    await evidence.store.sql("update tasks set next_seq = next_seq + 1")
    assert await evidence.broken() == {
        "terminal_event_is_last": 1,
        "a_stream_goes_to_the_end": 1,
    }


# --- a directory, and a caller, with another story ------------------------------------------------


async def test_two_systems_are_fetched_twice(evidence: Evidence) -> None:
    twice = evidence.counted(fetches={"absence": 2, "crm": 2, "tax": 1})
    assert await twice.broken() == {"a_crash_costs_one_fetch": 1}


async def test_a_system_is_not_fetched(evidence: Evidence) -> None:
    missing = evidence.counted(fetches={"absence": 1, "crm": 2})
    assert await missing.broken() == {"each_system_is_fetched": 1}


async def test_a_revocation_is_applied_twice(evidence: Evidence) -> None:
    applied = {**evidence.counters.applied_by_key, evidence.key("tax-0002"): 2}
    assert await evidence.counted(applied_by_key=applied).broken() == {
        "an_effect_is_applied_once": 1
    }


async def test_a_revocation_is_lost(evidence: Evidence) -> None:
    applied = {evidence.key("crm-0001"): 1}
    assert await evidence.counted(applied_by_key=applied).broken() == {
        "an_effect_is_applied_once": 1,
        "what_was_approved_is_applied": 1,
    }


async def test_a_revocation_without_a_key(evidence: Evidence) -> None:
    assert await evidence.counted(revoke_calls_without_key=1).broken() == {"each_call_has_a_key": 1}


async def test_another_grant_is_revoked(evidence: Evidence) -> None:
    """The owners approved one; both were revoked."""
    assert await evidence.witnessed(approved=GRANTS[:1]).broken() == {
        "what_was_approved_is_called": 1,
        "what_was_approved_is_applied": 1,
        "what_was_approved_is_in_the_ledger": 1,
        "the_report_says_what_was_done": 1,
    }


async def test_the_caller_missed_an_event(evidence: Evidence) -> None:
    seen = evidence.witness.seen
    assert await evidence.witnessed(seen=[*seen[:5], *seen[6:]]).broken() == {
        "a_caller_misses_nothing": 1
    }


async def test_the_caller_saw_an_event_twice(evidence: Evidence) -> None:
    seen = evidence.witness.seen
    assert await evidence.witnessed(seen=[*seen, seen[-1]]).broken() == {
        "a_caller_sees_nothing_twice": 1
    }


async def test_the_callers_task_is_another(evidence: Evidence) -> None:
    got = type(evidence.witness.got)()
    got.CopyFrom(evidence.witness.got)
    del got.artifacts[:]
    assert await evidence.witnessed(got=got).broken() == {"events_add_up_to_the_task": 1}
