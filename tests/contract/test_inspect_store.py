"""What people and checkers read."""

from __future__ import annotations

import pytest

from outlast.model.commit import Event, EventKind, Pause, Release
from outlast.model.content import Data, Message
from outlast.model.ids import Millis, new_task_id
from outlast.model.ledger import Kept, LedgerKind
from outlast.model.pause import DueBy
from outlast.model.task import State
from outlast.store.inspect import LAWS
from tests.contract.stores import (
    HOUR,
    SCOPE,
    Paused,
    Store,
    asked,
    chunk,
    intent,
    moved,
    said,
    scope_with,
)


class TestFind:
    async def test_finds_a_task_of_any_scope(self, store: Store) -> None:
        """The task, whatever its scope."""
        for scope in (SCOPE, scope_with(agent="another", tenant="", owner="")):
            task_id = await store.new_task(scope=scope)
            task = await store.inspect.find(task_id)
            assert task == await store.tasks.get(scope, task_id)
        assert await store.inspect.find(new_task_id()) is None


class TestCheckpoint:
    async def test_is_the_committed_one(self, store: Store) -> None:
        """The task's committed checkpoint, as JSON."""
        run = await store.claimed()
        assert await store.inspect.checkpoint(run.task_id) is None
        await run.commit(move=moved('{"n":1}'))
        await run.commit(chunk())
        assert await store.inspect.checkpoint(run.task_id) == '{"n":1}'
        assert await store.inspect.checkpoint(new_task_id()) is None


class TestRuns:
    async def test_are_all_there_in_order(self, store: Store) -> None:
        """Every run of the task, in order."""
        run = await store.claimed()
        await run.commit(ending=Release())
        run = await store.claim_again(run.task_id)
        await run.dies()
        await store.worker("w2")
        run = await store.claim_again(run.task_id, "w2")
        await store.claimed("w3", workflow="other")
        runs = await store.inspect.runs(run.task_id)
        assert [(one["worker_id"], one["outcome"]) for one in runs] == [
            ("w1", "released"),
            ("w1", "lost"),
            ("w2", None),
        ]
        fences = [one["fence"] for one in runs]
        assert fences == sorted(fences)
        assert await store.inspect.runs(new_task_id()) == []


class TestHeld:
    async def test_the_longest_held_comes_first(self, store: Store) -> None:
        """What waits for an operator, the longest first."""
        tasks = []
        for n in range(3):
            tasks.append(await store.task_that_is("held", name=f"w{n}", workflow=f"w{n}"))
            await store.later(HOUR)
        await store.task_that_is("waiting")
        held = await store.inspect.held("agent")
        assert [task.task_id for task in held] == tasks
        assert {task.held_reason for task in held} == {"look at this"}
        assert [task.task_id for task in await store.inspect.held("agent", limit=2)] == tasks[:2]
        assert await store.inspect.held("another") == []


class TestInFlight:
    async def test_counts_unfinished_tasks_per_version(self, store: Store) -> None:
        """Unfinished tasks per workflow and version, and how many of them are held."""
        for _ in range(3):
            await store.new_task(workflow="review", version=1)
        await store.new_task(workflow="review", version=2)
        await store.new_task(workflow="review", scope=scope_with(agent="another"))
        await store.task_that_is("held", workflow="other")
        await store.task_that_is("paused", workflow="asking")
        for state in ("completed", "failed", "canceled", "rejected"):
            await store.task_that_is(state)
        assert [tuple(row.values()) for row in await store.inspect.in_flight("agent")] == [
            ("asking", 1, 1, 0),
            ("other", 1, 1, 1),
            ("review", 1, 3, 0),
            ("review", 2, 1, 0),
        ]


class TestVersions:
    async def test_tell_what_is_in_flight_and_who_can_run_it(self, store: Store) -> None:
        """Every known version with its unfinished tasks, how many of them are held, and how many
        living workers can run it."""
        await store.worker("w1", version=1)
        await store.worker("w2", version=2)
        await store.worker("w3", version=2)
        await store.worker("dead", version=3)
        await store.worker("w4", workflow="other", version=1)
        await store.task_that_is("held", name="w1", workflow="review")
        await store.new_task(version=3)
        await store.new_task(version=2)
        await store.new_task(version=2)
        await store.bury("dead")
        rows = await store.inspect.versions("agent")
        found = [tuple(row[name] for name in _TOLD) for row in rows]
        assert found == [
            ("other", 1, 0, 0, 1),
            ("review", 1, 1, 1, 1),
            ("review", 2, 2, 0, 2),
            ("review", 3, 1, 0, 0),
        ]
        assert await store.inspect.versions("another") == []


_TOLD = ("workflow", "version", "tasks", "held", "workers")


class TestWorkers:
    async def test_are_the_living(self, store: Store) -> None:
        """The living workers."""
        for name in ("w1", "dead", "w2"):
            await store.worker(name)
        await store.bury("dead")
        rows = await store.inspect.workers()
        assert [row["worker_id"] for row in rows] == ["w1", "w2"]
        assert {row["host"] for row in rows} == {"host"}


class TestEffects:
    async def test_are_all_there_in_order(self, store: Store) -> None:
        """Every effect of every task, with its result, in the order of ledger and key."""
        run = await store.claimed()
        await run.commit(
            ledger=[
                intent("effect:b"),
                intent("effect:a"),
                Kept(key="1:memo", kind=LedgerKind.MEMO, result="1"),
            ]
        )
        await store.work.settle(run.ledger_id, "effect:b", '"sent"')
        rows = await store.inspect.effects()
        assert [(row["ledger_id"], row["key"], row["result"]) for row in rows] == [
            (run.ledger_id, "effect:a", None),
            (run.ledger_id, "effect:b", '"sent"'),
        ]


BREACHES: dict[str, list[str]] = {
    "laws_seq_has_no_gap": [
        "delete from task_events where seq = 2",
        "delete from task_events where seq = 1",
        "update tasks set next_seq = next_seq + 1",
        "update task_events set seq = seq + 10 where seq = 3",
    ],
    "laws_what_is_trimmed_is_folded": [
        "update tasks set trimmed_seq = 1",
    ],
    "laws_fence_never_falls": [
        "update task_events set fence = 7 where seq = 2",
    ],
    "laws_terminal_event_is_last": [
        "update tasks set state = 'failed', lease_owner = null",
        "update task_events set kind = 'status', body = '{\"state\":\"completed\"}' where seq = 2",
    ],
    "laws_status_has_one_time": [
        "update tasks set status_at = status_at + 1",
        "update task_events set created_at = 1 where seq = 6",
    ],
    "laws_no_orphans": [
        "delete from tasks",
        "insert into task_ledger (ledger_id, key, kind, fence, write_no, intent_at)"
        " values ('nobody', 'k', 'memo', 1, 1, 1)",
        "insert into webhooks (task_id, config_id, url, created_at)"
        " values ('nobody', 'one', 'https://hooks.example.com', 1)",
    ],
    "laws_leases_have_runs": [
        "delete from task_runs",
        "update task_runs set ended_at = 1",
        "update tasks set lease_owner = null, ready_at = 1",
        "update tasks set fence = fence + 1",
    ],
    "laws_nothing_leased_to_the_dead": [
        "update workers set dead_at = 1",
        "delete from workers",
    ],
    "laws_answers_are_kept_once": [
        "update task_events set kind = 'message',"
        ' body = \'{"state":"working","answers":3,"message":{},"caller":{}}\''
        " where seq > 3",
        "update task_events set kind = 'message',"
        ' body = \'{"state":"working","answers":2,"message":{},"caller":{}}\''
        " where seq = 4",
        "update task_events set is_message = (1 = 0) where seq = 3",
    ],
    "laws_no_message_is_left_unread": [
        "update tasks set state = 'completed', lease_owner = null, read_seq = 0",
    ],
    "laws_the_inbox_is_in_the_log": [
        "update tasks set inbox_seq = 3",
        "update tasks set inbox_seq = 99",
    ],
}


async def lawful(store: Store) -> None:
    """A leased task with a log of: its message, a report, a question, its answer, a report, and a
    message for its inbox, which is read."""
    paused_task = await store.claimed()
    await paused_task.commit(said(), move=moved())
    pause_id = await paused_task.pause()
    await store.answer(Paused(paused_task.task_id, paused_task.ledger_id, pause_id, "1:ask"))
    run = await store.claim_again(paused_task.task_id)
    await run.commit(chunk())
    seq = await store.receive(run.task_id)
    await run.commit(move=moved(read=seq))


class TestBrokenLaws:
    async def test_of_a_sound_store_are_none(self, store: Store) -> None:
        """Every law of the log that some rows break, with those rows; empty when all hold."""
        assert await store.inspect.broken_laws() == {}
        await lawful(store)
        for condition in ("submitted", "paused", "held", "completed", "canceled"):
            await store.task_that_is(condition)
        assert await store.inspect.broken_laws() == {}

    @pytest.mark.parametrize(
        ("law", "breach"),
        [(law, breach) for law, breaches in BREACHES.items() for breach in breaches],
    )
    async def test_are_found_with_their_rows(self, store: Store, law: str, breach: str) -> None:
        """Every law of the log that some rows break, with those rows; empty when all hold."""
        await lawful(store)
        assert await store.inspect.broken_laws() == {}
        await store.sql(breach)
        broken = await store.inspect.broken_laws()
        assert law in broken
        assert broken[law]
        store.laws_are_broken_on_purpose = True

    async def test_every_law_has_a_breach_here(self, store: Store) -> None:
        """Every law of the log that some rows break, with those rows; empty when all hold."""
        assert set(BREACHES) == set(LAWS)
        assert await store.inspect.broken_laws() == {}

    async def test_are_not_broken_by_what_people_say(self, store: Store) -> None:
        """Every law of the log that some rows break, with those rows; empty when all hold."""
        run = await store.claimed()
        sly = Data({"state": "completed", "answers": 1, "x": 2})
        message = Message.agent(sly, '{"state":"failed","answers":2,').to_json()
        body = {"state": "working", "message": message}
        await run.commit(Event(kind=EventKind.STATUS, body=body), said())
        question = asked()
        body = {**question.body, "message": message}
        committed = await run.commit(
            Event(kind=EventKind.STATUS, body=body, is_message=True),
            ending=Pause(state=State.INPUT_REQUIRED, deadline=DueBy(after=Millis(HOUR))),
        )
        paused = Paused(run.task_id, run.ledger_id, committed.last_seq, "1:ask")
        reply = Message.user(Data({"answers": 1, "state": "canceled"})).to_json()
        await store.answer(paused, message=reply)
        assert await store.inspect.broken_laws() == {}
