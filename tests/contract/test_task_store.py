"""What a gateway does to tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest

from outlast.model.commit import EventKind, Finish, Lost
from outlast.model.content import Message
from outlast.model.errors import (
    GenerationMismatch,
    InvalidParams,
    KeyReused,
    TaskNotCancelable,
    TaskNotFound,
    TooMany,
    UnsupportedOperation,
)
from outlast.model.ids import ContextId, LedgerId, Millis, Seq, TaskId, new_task_id
from outlast.model.ledger import LedgerKind
from outlast.model.pause import OnDeadline
from outlast.model.task import Fold, Scope, State
from outlast.store.codec import to_text
from outlast.store.database import Query, Script, Statement, catalog
from outlast.store.protocols import MOST_WEBHOOKS, Place, Sent, Snapshot, Wanted
from tests.contract.stores import (
    DAY,
    HOUR,
    SCOPE,
    Paused,
    Store,
    chunk,
    ended,
    kinds,
    moved,
    new_task,
    new_webhook,
    said,
    scope_with,
    statements,
    to_inbox,
)

UNFINISHED = (
    "submitted",
    "leased",
    "paused",
    "waiting for authorisation",
    "waiting",
    "backing off",
    "held",
    "released",
)
ENDED_OTHERWISE = ("completed", "failed", "rejected")
OTHER_SCOPES = (
    scope_with(agent="another"),
    scope_with(tenant="another"),
    scope_with(owner="another"),
    scope_with(owner=""),
)
NEEDS_THE_TASK = ("get", "snapshot", "status_of", "cancel", "answer", "receive", "authorize")


async def call(store: Store, verb: str, scope: Scope, task_id: TaskId) -> Any:
    if verb == "answer":
        paused = Paused(task_id, LedgerId(task_id), Seq(2), "1:ask")
        return await store.answer(paused, scope=scope)
    if verb == "receive":
        return await store.tasks.receive(to_inbox(task_id, scope=scope))
    if verb == "authorize":
        return await store.tasks.authorize(scope, task_id, Seq(2), "s3cret")
    call: Awaitable[Any] = getattr(store.tasks, verb)(scope, task_id)
    return await call


async def expire(store: Store, task_id: TaskId) -> None:
    """What retention leaves of a task: its tombstone and its send keys."""
    await store.sql(
        "insert into tombstones (task_id, agent, tenant, owner, expired_at)"
        " select task_id, agent, tenant, owner, 1 from tasks where task_id = :id",
        id=task_id,
    )
    for table in ("task_events", "task_runs", "tasks"):
        await store.sql(f"delete from {table} where task_id = :id", id=task_id)


class TestScopes:
    """Every verb is bound to a scope."""

    @pytest.mark.parametrize("verb", NEEDS_THE_TASK)
    async def test_another_scopes_task_does_not_exist(self, store: Store, verb: str) -> None:
        paused = await store.paused()
        async with store.unchanged():
            for scope in OTHER_SCOPES:
                with pytest.raises(TaskNotFound) as caught:
                    await call(store, verb, scope, paused.task_id)
                assert not caught.value.expired

    @pytest.mark.parametrize("verb", NEEDS_THE_TASK)
    async def test_by_the_same_statements(self, store: Store, verb: str) -> None:
        paused = await store.paused()
        sent = []
        for task_id in (paused.task_id, new_task_id()):
            with statements() as seen, pytest.raises(TaskNotFound) as caught:
                await call(store, verb, scope_with(owner="another"), task_id)
            sent.append((seen, str(caught.value).replace(task_id, "X")))
        assert sent[0] == sent[1]

    async def test_an_expired_task_of_another_scope_did_not_exist_either(
        self, store: Store
    ) -> None:
        task_id = await store.new_task()
        await expire(store, task_id)
        with pytest.raises(TaskNotFound) as caught:
            await store.tasks.get(scope_with(owner="another"), task_id)
        assert not caught.value.expired

    async def test_a_send_key_is_its_scopes_own(self, store: Store) -> None:
        for scope in (SCOPE, *OTHER_SCOPES):
            new = new_task(scope=scope, send_key="the same", digest=str(scope))
            assert not (await store.tasks.create(new)).is_repeat


class TestCreate:
    async def test_writes_task_event_1_and_send_key(self, store: Store) -> None:
        """Create the task, its event 1 (kind TASK) and the send key in one transaction."""
        new = new_task(metadata={"n": 1}, max_age=Millis(5 * DAY), priority=3)
        with statements() as sent:
            assert await store.tasks.create(new) == Sent(
                task_id=new.task_id, reply=None, is_repeat=False
            )
        assert sent.count("commit") == 1
        task = await store.tasks.get(SCOPE, new.task_id)
        assert (task.scope, task.context_id, task.metadata) == (SCOPE, "context", {"n": 1})
        assert (task.workflow, task.version, task.step, task.visit) == ("review", 1, "first", 1)
        assert task.give_up_at - task.created_at == 5 * DAY
        assert task.ledger_id == LedgerId(task.task_id)
        (event,) = await store.events(new.task_id)
        assert (event.seq, event.kind, event.is_message) == (1, EventKind.TASK, True)
        assert event.body == {"message": new.message, "caller": {"subject": "ann"}}
        assert (event.fence, event.write_no, task.generation) == (0, None, 1)

    async def test_keeps_a_webhook(self, store: Store) -> None:
        """A webhook that comes with it is kept in the same transaction."""
        new = new_task(webhook=new_webhook())
        with statements() as sent:
            await store.tasks.create(new)
        assert sent.count("commit") == 1
        assert await store.webhooks.webhook(SCOPE, new.task_id, "one") == new_webhook()
        (row,) = await store.sql("select * from webhooks")
        assert (row["cursor"], row["pinned_seq"]) == (0, None)

    async def test_leaves_nothing_behind_when_it_fails_half_way(self, store: Store) -> None:
        """Create the task, its event 1 (kind TASK) and the send key in one transaction."""
        known = await store.new_task()
        async with store.unchanged():
            with pytest.raises(InvalidParams):
                await store.tasks.create(new_task(task_id=known, send_key="another"))
        await store.new_task(send_key="another")

    async def test_gives_a_task_that_is_submitted_and_claimable(self, store: Store) -> None:
        """The task is SUBMITTED and claimable at once."""
        await store.worker()
        task_id = await store.new_task()
        task = await store.task(task_id)
        assert (task.state, task.status) == (State.SUBMITTED, {"state": "submitted"})
        assert [lease.task_id for lease in await store.claim()] == [task_id]

    async def test_stops_at_the_limit_of_open_tasks(self, store: Store) -> None:
        """While the scope has `max_open` unfinished tasks, however many creates run at once,
        nothing is written: TooMany."""
        others = [await store.another() for _ in range(3)]
        sends = [new_task(max_open=3) for _ in range(8)]
        results = await asyncio.gather(
            *(others[n % 3].tasks.create(new) for n, new in enumerate(sends)),
            return_exceptions=True,
        )
        assert [type(result) for result in results].count(Sent) == 3
        assert [type(result) for result in results].count(TooMany) == 5
        begun = next(
            new for new, result in zip(sends, results, strict=True) if isinstance(result, Sent)
        )
        async with store.unchanged():
            assert (await store.tasks.create(begun)).is_repeat
            with pytest.raises(TooMany):
                await store.tasks.create(new_task(max_open=3))
        await store.tasks.create(new_task(max_open=3, scope=scope_with(owner="bob")))
        await store.tasks.cancel(SCOPE, begun.task_id)
        await store.tasks.create(new_task(max_open=3))

    async def test_far_from_the_limit_of_open_tasks_creates_do_not_take_turns(
        self, store: Store
    ) -> None:
        """While the scope has `max_open` unfinished tasks, however many creates run at once,
        nothing is written: TooMany."""
        for max_open, take_turns in ((10_000, False), (501, True), (3, True)):
            with statements() as asked:
                await store.tasks.create(new_task(max_open=max_open))
            assert ("tasks_lock_owner" in "".join(asked)) is take_turns, max_open

    async def test_under_a_known_key_returns_the_first(self, store: Store) -> None:
        """A send under a known key writes nothing and returns what the first one got."""
        first = await store.new_task(send_key="key")
        async with store.unchanged():
            repeat = await store.tasks.create(new_task(send_key="key"))
        assert repeat == Sent(task_id=first, reply=None, is_repeat=True)

    async def test_repeated_after_its_reply_was_lost_returns_the_first(self, store: Store) -> None:
        """A send under a known key writes nothing and returns what the first one got."""
        new = new_task()
        await store.tasks.create(new)
        async with store.unchanged():
            repeat = await store.tasks.create(new)
        assert repeat == Sent(task_id=new.task_id, reply=None, is_repeat=True)

    async def test_under_the_key_of_a_direct_reply_returns_that(self, store: Store) -> None:
        """A send under a known key writes nothing and returns what the first one got."""
        await store.tasks.reply(SCOPE, "key", "digest", {"text": "hi"})
        async with store.unchanged():
            repeat = await store.tasks.create(new_task(send_key="key"))
        assert repeat == Sent(task_id=None, reply={"text": "hi"}, is_repeat=True)

    async def test_twenty_at_once_under_one_key_make_one_task(self, store: Store) -> None:
        """A send under a known key writes nothing and returns what the first one got."""
        other = await store.another()
        sends = [(store, other)[n % 2].tasks.create(new_task(send_key="key")) for n in range(20)]
        sent = await asyncio.gather(*sends)
        assert len({one.task_id for one in sent}) == 1
        assert [one.is_repeat for one in sent].count(False) == 1
        assert (await store.sql("select count(*) as n from tasks"))[0]["n"] == 1

    async def test_refuses_other_content_under_a_known_key(self, store: Store) -> None:
        """The same key with another digest raises KeyReused."""
        await store.new_task(send_key="key")
        async with store.unchanged():
            with pytest.raises(KeyReused, match="'key'"):
                await store.tasks.create(new_task(send_key="key", digest="another"))

    @pytest.mark.parametrize("text", ["half a character: \ud800", "too deep"])
    async def test_refuses_what_no_database_takes(self, store: Store, text: str) -> None:
        """Bad input is a clear error, and nothing is half-written."""
        message: Any = Message.user(text).to_json()
        if text == "too deep":
            message = {}
            for _ in range(2_000):
                message = {"x": message}
        async with store.unchanged():
            with pytest.raises(InvalidParams):
                await store.tasks.create(new_task(message=message))

    async def test_keeps_a_nul_inside_of_a_message(self, store: Store) -> None:
        """A NUL in text is JSON's \\u0000, which both databases keep."""
        message = Message.user("before\x00after").to_json()
        task_id = await store.new_task(message=message)
        assert (await store.last_event(task_id)).body["message"] == message


class TestReply:
    async def test_keeps_the_message_under_its_key(self, store: Store) -> None:
        """Keep the direct Message that answers a send without a task, under its key."""
        reply = Message.agent("four").to_json()
        sent = await store.tasks.reply(SCOPE, "key", "digest", reply)
        assert sent == Sent(task_id=None, reply=reply, is_repeat=False)
        assert await store.sql("select * from tasks") == []

    async def test_under_a_known_key_returns_the_first(self, store: Store) -> None:
        """A send under a known key writes nothing and returns what the first one got."""
        await store.tasks.reply(SCOPE, "key", "digest", {"text": "first"})
        async with store.unchanged():
            repeat = await store.tasks.reply(SCOPE, "key", "digest", {"text": "second"})
        assert repeat == Sent(task_id=None, reply={"text": "first"}, is_repeat=True)

    async def test_under_the_key_of_a_task_returns_the_task(self, store: Store) -> None:
        """A send under a known key writes nothing and returns what the first one got."""
        task_id = await store.new_task(send_key="key")
        async with store.unchanged():
            repeat = await store.tasks.reply(SCOPE, "key", "digest", {})
        assert repeat == Sent(task_id=task_id, reply=None, is_repeat=True)

    async def test_refuses_other_content_under_a_known_key(self, store: Store) -> None:
        """The same key with another digest raises KeyReused."""
        await store.tasks.reply(SCOPE, "key", "digest", {})
        async with store.unchanged():
            with pytest.raises(KeyReused):
                await store.tasks.reply(SCOPE, "key", "another", {})


class TestRecall:
    async def test_returns_what_a_key_stands_for(self, store: Store) -> None:
        """What a key already stands for, or None."""
        task_id = await store.new_task(send_key="of a task")
        await store.tasks.reply(SCOPE, "of a reply", "digest", {"text": "hi"})
        async with store.unchanged():
            assert await store.tasks.recall(SCOPE, "of a task", "digest") == Sent(
                task_id=task_id, reply=None, is_repeat=True
            )
            assert await store.tasks.recall(SCOPE, "of a reply", "digest") == Sent(
                task_id=None, reply={"text": "hi"}, is_repeat=True
            )
            assert await store.tasks.recall(SCOPE, "of nothing", "digest") is None
            assert await store.tasks.recall(OTHER_SCOPES[0], "of a task", "digest") is None

    async def test_refuses_another_digest(self, store: Store) -> None:
        """Another digest raises KeyReused."""
        await store.new_task(send_key="key")
        with pytest.raises(KeyReused):
            await store.tasks.recall(SCOPE, "key", "another")

    async def test_says_that_the_task_has_expired(self, store: Store) -> None:
        """A key whose task has expired raises TaskNotFound with `expired`."""
        task_id = await store.new_task(send_key="key")
        await expire(store, task_id)
        with pytest.raises(TaskNotFound, match="expired") as caught:
            await store.tasks.recall(SCOPE, "key", "digest")
        assert caught.value.expired

    async def test_interleaving_18_a_repeat_after_the_expiry_makes_no_second_task(
        self, store: Store
    ) -> None:
        """A key whose task has expired raises TaskNotFound with `expired`."""
        new = new_task(send_key="key")
        await store.tasks.create(new)
        await expire(store, new.task_id)
        repeat = await store.tasks.create(new)
        assert (repeat.task_id, repeat.is_repeat) == (new.task_id, True)
        with pytest.raises(TaskNotFound, match="expired"):
            await store.tasks.recall(SCOPE, "key", "digest")
        assert await store.sql("select * from tasks") == []


class TestAnswer:
    async def test_writes_event_result_and_state_at_once(self, store: Store) -> None:
        """Answer the pause in one transaction: the answer's event (kind MESSAGE), the ledger's
        result, WORKING, claimable at once, no lease."""
        paused = await store.paused()
        with statements() as sent:
            got = await store.answer(paused, "yes")
        assert got == Sent(task_id=paused.task_id, reply=None, is_repeat=False)
        assert sent.count("commit") == 1
        event = await store.last_event(paused.task_id)
        assert (event.kind, event.is_message, event.write_no) == (EventKind.MESSAGE, True, None)
        assert event.body["answers"] == paused.pause_id
        assert event.body["message"]["parts"] == [{"text": "yes"}]
        assert event.body["caller"] == {"subject": "ann"}
        task = await store.task(paused.task_id)
        assert event.fence == task.fence
        assert (task.state, task.status) == (State.WORKING, {"state": "working"})
        assert (task.lease_owner, task.pause_id, task.pause_deadline_at) == (None, None, None)
        entry = await store.work.entry(paused.ledger_id, paused.key)
        assert entry is not None
        assert (entry.kind, entry.result) == (LedgerKind.ANSWER, '{"text":"yes"}')
        run = await store.claim_again(paused.task_id)
        assert (run.lease.state, run.lease.attempt) == (State.WORKING, 1)

    async def test_keeps_a_webhook(self, store: Store) -> None:
        """A webhook that comes with it is kept in the same transaction, as `add_webhook` does."""
        paused = await store.paused()
        with statements() as sent:
            await store.answer(paused, webhook=new_webhook())
        assert sent.count("commit") == 1
        assert await store.webhooks.webhook(SCOPE, paused.task_id, "one") == new_webhook()
        (row,) = await store.sql("select * from webhooks")
        assert row["pinned_seq"] == (await store.task(paused.task_id)).generation

    async def test_with_one_webhook_too_many_leaves_the_task_paused(self, store: Store) -> None:
        """A webhook that comes with it is kept in the same transaction, as `add_webhook` does."""
        paused = await store.paused()
        for n in range(MOST_WEBHOOKS):
            await store.webhooks.add_webhook(SCOPE, paused.task_id, new_webhook(f"{n}"))
        async with store.unchanged():
            with pytest.raises(UnsupportedOperation):
                await store.answer(paused, webhook=new_webhook("one more"))

    async def test_is_kept_even_where_the_question_left_no_intent(self, store: Store) -> None:
        """Answer the pause in one transaction: the answer's event (kind MESSAGE), the ledger's
        result, WORKING, claimable at once, no lease."""
        paused = await store.paused()
        await store.sql("delete from task_ledger")
        await store.answer(paused)
        entry = await store.work.entry(paused.ledger_id, paused.key)
        assert entry is not None
        assert entry.result == '{"text":"yes"}'

    async def test_under_a_known_key_returns_the_first(self, store: Store) -> None:
        """A send under a known key writes nothing and returns what the first one got."""
        paused = await store.paused()
        await store.answer(paused)
        async with store.unchanged():
            repeat = await store.answer(paused)
        assert repeat == Sent(task_id=paused.task_id, reply=None, is_repeat=True)

    async def test_repeated_when_the_next_question_is_open_answers_nothing(
        self, store: Store
    ) -> None:
        """A send under a known key writes nothing and returns what the first one got."""
        paused = await store.paused()
        await store.answer(paused)
        run = await store.claim_again(paused.task_id)
        await run.pause(key="1:ask:second")
        async with store.unchanged():
            assert (await store.answer(paused)).is_repeat

    async def test_repeated_after_the_end_returns_the_first(self, store: Store) -> None:
        """A send under a known key writes nothing and returns what the first one got."""
        paused = await store.paused()
        await store.answer(paused)
        await (await store.claim_again(paused.task_id)).finish()
        async with store.unchanged():
            assert (await store.answer(paused)).is_repeat

    async def test_refuses_other_content_under_a_known_key(self, store: Store) -> None:
        """As for `create`: the same key with another digest."""
        paused = await store.paused()
        await store.answer(paused)
        async with store.unchanged():
            with pytest.raises(KeyReused):
                await store.answer(paused, digest="another")

    async def test_at_another_generation_is_refused(self, store: Store) -> None:
        """When the task is at another generation than `if_generation`, nothing is written:
        GenerationMismatch, with both."""
        paused = await store.paused()
        current = (await store.task(paused.task_id)).generation
        for insisted in (current - 1, current + 1):
            async with store.unchanged():
                with pytest.raises(GenerationMismatch) as raised:
                    await store.answer(paused, if_generation=Seq(insisted))
            assert (raised.value.expected, raised.value.current) == (insisted, current)
        await store.answer(paused, if_generation=current)

    async def test_at_a_generation_that_is_over_is_refused_before_the_question_is(
        self, store: Store
    ) -> None:
        """When the task is at another generation than `if_generation`, nothing is written:
        GenerationMismatch, with both."""
        paused = await store.paused()
        current = (await store.task(paused.task_id)).generation
        await store.answer(paused)
        async with store.unchanged():
            with pytest.raises(GenerationMismatch):
                await store.answer(paused, "late", send_key="another", if_generation=current)
            assert (await store.answer(paused, if_generation=current)).is_repeat

    async def test_of_two_at_once_that_insist_on_one_generation_one_wins(
        self, store: Store
    ) -> None:
        """When the task is at another generation than `if_generation`, nothing is written:
        GenerationMismatch, with both."""
        other = await store.another()
        for n in range(5):
            paused = await store.paused(workflow=f"w{n}", name=f"worker{n}")
            current = (await store.task(paused.task_id)).generation
            outcomes = await asyncio.gather(
                store.answer(paused, "approve", send_key=f"a{n}", if_generation=current),
                other.answer(paused, "reject", send_key=f"b{n}", if_generation=current),
                return_exceptions=True,
            )
            (loser,) = [one for one in outcomes if isinstance(one, BaseException)]
            assert isinstance(loser, GenerationMismatch)
            assert (await store.task(paused.task_id)).generation == current + 1

    async def test_to_a_question_that_is_over_is_refused(self, store: Store) -> None:
        """When the task is not paused at `pause_id` any more, nothing is written:
        UnsupportedOperation."""
        paused = await store.paused()
        await store.answer(paused)
        run = await store.claim_again(paused.task_id)
        await run.pause(key="1:ask:second")
        async with store.unchanged():
            with pytest.raises(UnsupportedOperation, match="question that this answers is over"):
                await store.answer(paused, "late", send_key="another")

    @pytest.mark.parametrize(
        "condition",
        [
            *[one for one in UNFINISHED if one != "paused"],
            *ENDED_OTHERWISE,
            "canceled",
        ],
    )
    async def test_to_a_task_that_asks_nothing_is_refused(
        self, store: Store, condition: str
    ) -> None:
        """When the task is not paused at `pause_id` any more, nothing is written:
        UnsupportedOperation."""
        task_id = await store.task_that_is(condition)
        pause_id = (await store.task(task_id)).pause_id or Seq(2)
        async with store.unchanged():
            with pytest.raises(UnsupportedOperation):
                await store.answer(Paused(task_id, LedgerId(task_id), pause_id, "1:ask"))

    async def test_case_040_an_answer_to_an_ended_task_names_its_state(self, store: Store) -> None:
        """When the task is not paused at `pause_id` any more, nothing is written:
        UnsupportedOperation."""
        paused = await store.paused()
        await store.tasks.cancel(SCOPE, paused.task_id)
        async with store.unchanged():
            with pytest.raises(UnsupportedOperation, match="canceled"):
                await store.answer(paused)

    async def test_case_080_of_two_at_once_one_wins(self, store: Store) -> None:
        """When the task is not paused at `pause_id` any more, nothing is written:
        UnsupportedOperation."""
        other = await store.another()
        for n in range(10):
            paused = await store.paused(workflow=f"w{n}", name=f"worker{n}")
            outcomes = await asyncio.gather(
                store.answer(paused, "approve", send_key=f"a{n}"),
                other.answer(paused, "reject", send_key=f"b{n}"),
                return_exceptions=True,
            )
            won = [not isinstance(outcome, BaseException) for outcome in outcomes]
            assert sorted(won) == [False, True]
            loser = outcomes[won.index(False)]
            assert isinstance(loser, UnsupportedOperation)
            text = ("approve", "reject")[won.index(True)]
            entry = await store.work.entry(paused.ledger_id, paused.key)
            assert entry is not None
            assert entry.result == f'{{"text":"{text}"}}'
            answers = [e for e in await store.events(paused.task_id) if e.body.get("answers")]
            assert [e.body["message"]["parts"][0]["text"] for e in answers] == [text]

    async def test_wins_until_a_sweep_has_committed_the_deadline(self, store: Store) -> None:
        """Until a sweep has committed the deadline, an answer wins (DESIGN.md §6)."""
        paused = await store.paused(after=HOUR)
        await store.later(2 * HOUR)
        await store.answer(paused)
        async with store.unchanged():
            assert await store.sweeping.end_overdue_pauses() == []

    async def test_interleaving_22_deadline_and_answer_meet(self, store: Store) -> None:
        """One wins, the other is told so, the ledger holds one outcome."""
        other = await store.another()
        for n in range(10):
            paused = await store.paused(
                f"w{n}", workflow=f"w{n}", on_deadline=OnDeadline.RESUME, after=HOUR
            )
            await store.later(2 * HOUR)
            answered, swept = await asyncio.gather(
                other.answer(paused, send_key=f"a{n}"),
                store.sweeping.end_overdue_pauses(),
                return_exceptions=True,
            )
            entry = await store.work.entry(paused.ledger_id, paused.key)
            assert entry is not None
            if isinstance(answered, UnsupportedOperation):
                assert swept == [paused.task_id]
                assert entry.result == '{"deadline_passed":true}'
            else:
                assert isinstance(answered, Sent)
                assert swept == []
                assert entry.result == '{"text":"yes"}'
            assert len(await store.events(paused.task_id)) == 3

    async def test_in_another_scope_finds_no_task(self, store: Store) -> None:
        """A task that does not exist in the scope raises TaskNotFound."""
        paused = await store.paused()
        async with store.unchanged():
            for scope in OTHER_SCOPES:
                with pytest.raises(TaskNotFound):
                    await store.answer(paused, scope=scope)


class TestReceive:
    async def test_puts_an_event_into_the_log_and_leaves_the_status(self, store: Store) -> None:
        """Put the message into the task's inbox: an event (kind MESSAGE) that answers nothing and
        leaves the status as it is, whoever runs the task."""
        run = await store.claimed()
        await run.commit(said("fetched three"))
        before = await store.task(run.task_id)
        with statements() as sent:
            got = await store.tasks.receive(to_inbox(run.task_id))
        assert got == Sent(task_id=run.task_id, reply=None, is_repeat=False)
        assert sent.count("commit") == 1
        event = await store.last_event(run.task_id)
        assert (event.kind, event.is_message, event.write_no) == (EventKind.MESSAGE, True, None)
        assert event.body["answers"] is None
        assert event.body["message"]["parts"] == [{"text": "and this"}]
        assert event.body["caller"] == {"subject": "ann"}
        after = await store.task(run.task_id)
        assert (after.status, event.body["said"]) == (before.status, before.status["message"])
        assert after.generation == before.generation + 1
        assert (after.lease_owner, after.fence) == (before.lease_owner, event.fence)
        await run.commit(move=moved())  # the lease goes on

    async def test_keeps_a_webhook(self, store: Store) -> None:
        """A webhook that comes with it is kept in the same transaction, as `add_webhook` does."""
        run = await store.claimed()
        with statements() as sent:
            await store.tasks.receive(to_inbox(run.task_id, webhook=new_webhook()))
        assert sent.count("commit") == 1
        assert await store.webhooks.webhook(SCOPE, run.task_id, "one") == new_webhook()
        (row,) = await store.sql("select * from webhooks")
        assert row["pinned_seq"] == (await store.task(run.task_id)).generation

    async def test_at_another_generation_is_refused(self, store: Store) -> None:
        """When the task is at another generation than `if_generation`, nothing is written:
        GenerationMismatch, with both."""
        run = await store.claimed()
        current = (await store.task(run.task_id)).generation
        async with store.unchanged():
            with pytest.raises(GenerationMismatch) as raised:
                await store.tasks.receive(to_inbox(run.task_id, if_generation=Seq(current + 1)))
        assert (raised.value.expected, raised.value.current) == (current + 1, current)
        sent = to_inbox(run.task_id, if_generation=current)
        assert not (await store.tasks.receive(sent)).is_repeat
        assert (await store.tasks.receive(sent)).is_repeat, "and a repeat is answered"

    @pytest.mark.parametrize(
        "condition", ["submitted", "leased", "waiting", "backing off", "held", "released"]
    )
    async def test_works_whoever_runs_the_task(self, store: Store, condition: str) -> None:
        """Put the message into the task's inbox: an event (kind MESSAGE) that answers nothing and
        leaves the status as it is, whoever runs the task."""
        task_id = await store.task_that_is(condition)
        before = await store.task(task_id)
        await store.tasks.receive(to_inbox(task_id))
        after = await store.task(task_id)
        changed = {"generation", "status_at", "updated_at"}
        assert {name for name in vars(after) if getattr(after, name) != getattr(before, name)} <= (
            changed
        )
        event = await store.last_event(task_id)
        assert event.body["state"] == before.state.value

    async def test_under_a_known_key_returns_the_first(self, store: Store) -> None:
        """A send under a known key writes nothing and returns what the first one got."""
        run = await store.claimed()
        await store.tasks.receive(to_inbox(run.task_id))
        async with store.unchanged():
            repeat = await store.tasks.receive(to_inbox(run.task_id))
            assert repeat == Sent(task_id=run.task_id, reply=None, is_repeat=True)
            with pytest.raises(KeyReused):
                await store.tasks.receive(to_inbox(run.task_id, digest="another"))

    async def test_of_two_at_once_that_insist_on_one_generation_one_is_taken(
        self, store: Store
    ) -> None:
        """When the task is at another generation than `if_generation`, nothing is written:
        GenerationMismatch, with both."""
        other = await store.another()
        run = await store.claimed()
        for _ in range(5):
            current = (await store.task(run.task_id)).generation
            outcomes = await asyncio.gather(
                store.tasks.receive(to_inbox(run.task_id, f"a{current}", if_generation=current)),
                other.tasks.receive(to_inbox(run.task_id, f"b{current}", if_generation=current)),
                return_exceptions=True,
            )
            (loser,) = [one for one in outcomes if isinstance(one, BaseException)]
            assert isinstance(loser, GenerationMismatch)
            assert (await store.task(run.task_id)).generation == current + 1

    async def test_interleaving_20_repeated_after_the_end_returns_the_first(
        self, store: Store
    ) -> None:
        """A send under a known key writes nothing and returns what the first one got."""
        run = await store.claimed()
        seq = await store.receive(run.task_id)
        move = moved(read=seq, closes=True)
        await run.commit(ended(), move=move, ending=Finish(state=State.COMPLETED))
        async with store.unchanged():
            assert (await store.tasks.receive(to_inbox(run.task_id))).is_repeat

    @pytest.mark.parametrize(
        "condition", ["paused", "waiting for authorisation", *ENDED_OTHERWISE, "canceled"]
    )
    async def test_of_a_task_that_does_not_work_is_refused(
        self, store: Store, condition: str
    ) -> None:
        """When the task is paused or has ended, or its cancel or failure step is all that will
        still run, nothing is written: UnsupportedOperation."""
        task_id = await store.task_that_is(condition)
        async with store.unchanged():
            with pytest.raises(UnsupportedOperation):
                await store.tasks.receive(to_inbox(task_id))

    async def test_of_a_task_that_is_about_to_end_is_refused(self, store: Store) -> None:
        """When the task is paused or has ended, or its cancel or failure step is all that will
        still run, nothing is written: UnsupportedOperation."""
        marked = await store.claimed(on_cancel=True)
        await marked.commit(move=moved())
        await store.tasks.cancel(SCOPE, marked.task_id)
        failing = await store.claimed("w2", workflow="failing", on_failure=True)
        ending_as = {"state": "failed", "text": "no", "hook": "on_failure"}
        await failing.commit(move=replace(moved(step="on_failure"), ending_as=ending_as))
        async with store.unchanged():
            for run in (marked, failing):
                with pytest.raises(UnsupportedOperation, match="about to end"):
                    await store.tasks.receive(to_inbox(run.task_id))

    async def test_in_another_scope_finds_no_task(self, store: Store) -> None:
        """A task that does not exist in the scope raises TaskNotFound."""
        run = await store.claimed()
        async with store.unchanged():
            for scope in OTHER_SCOPES:
                with pytest.raises(TaskNotFound):
                    await store.tasks.receive(to_inbox(run.task_id, scope=scope))


class TestAuthorize:
    async def test_writes_result_state_and_event_at_once(self, store: Store) -> None:
        """Give a pause in AUTH_REQUIRED what it waits for, in one transaction: the ledger's result
        under the pause's key, WORKING, claimable at once, no lease, and a status event that says
        so without the value."""
        paused = await store.paused(state=State.AUTH_REQUIRED)
        with statements() as sent:
            done = await store.tasks.authorize(
                SCOPE, paused.task_id, paused.pause_id, {"token": "s3cret"}
            )
        assert done
        assert sent.count("commit") == 1
        event = await store.last_event(paused.task_id)
        assert (event.kind, event.is_message, event.write_no) == (EventKind.STATUS, False, None)
        assert event.body == {"state": "working", "authorized": paused.pause_id}
        task = await store.task(paused.task_id)
        assert event.fence == task.fence
        assert (task.state, task.status) == (State.WORKING, {"state": "working"})
        assert (task.lease_owner, task.pause_id, task.pause_deadline_at) == (None, None, None)
        entry = await store.work.entry(paused.ledger_id, paused.key)
        assert entry is not None
        assert (entry.kind, entry.result) == (
            LedgerKind.ANSWER,
            '{"authorized":{"token":"s3cret"}}',
        )
        run = await store.claim_again(paused.task_id)
        assert (run.lease.state, run.lease.attempt) == (State.WORKING, 1)

    async def test_repeated_does_nothing_twice(self, store: Store) -> None:
        """False: this pause was authorized before; nothing is written, and the first value
        stays."""
        paused = await store.paused(state=State.AUTH_REQUIRED)
        assert await store.tasks.authorize(SCOPE, paused.task_id, paused.pause_id, "one")
        async with store.unchanged():
            assert not await store.tasks.authorize(SCOPE, paused.task_id, paused.pause_id, "two")
        run = await store.claim_again(paused.task_id)
        await run.pause(key="1:require_auth:second", state=State.AUTH_REQUIRED)
        async with store.unchanged():
            assert not await store.tasks.authorize(SCOPE, paused.task_id, paused.pause_id, "two")
        await store.tasks.cancel(SCOPE, paused.task_id)
        async with store.unchanged():
            assert not await store.tasks.authorize(SCOPE, paused.task_id, paused.pause_id, "two")

    async def test_of_what_does_not_wait_for_it_is_refused(self, store: Store) -> None:
        """When the task does not wait for this authorization, nothing is written:
        UnsupportedOperation."""
        asking = await store.paused()
        canceled = await store.paused(state=State.AUTH_REQUIRED)
        await store.tasks.cancel(SCOPE, canceled.task_id)
        late = await store.paused(state=State.AUTH_REQUIRED, after=1_000)
        await store.admin.move_clock(Millis(1_001))
        assert await store.sweeping.end_overdue_pauses() == [late.task_id]
        said = (await store.task(late.task_id)).status["message"]["parts"]
        assert said == [{"text": "nobody gave the authorization before its deadline"}]
        waiting = await store.paused(state=State.AUTH_REQUIRED)
        async with store.unchanged():
            for task_id, pause_id in (
                (asking.task_id, asking.pause_id),
                (canceled.task_id, canceled.pause_id),
                (late.task_id, late.pause_id),
                (waiting.task_id, Seq(1)),
                (waiting.task_id, Seq(99)),
            ):
                with pytest.raises(UnsupportedOperation):
                    await store.tasks.authorize(SCOPE, task_id, pause_id, "s3cret")

    async def test_of_another_scopes_task_finds_nothing(self, store: Store) -> None:
        """A task that does not exist in the scope raises TaskNotFound."""
        paused = await store.paused(state=State.AUTH_REQUIRED)
        async with store.unchanged():
            for scope in OTHER_SCOPES:
                with pytest.raises(TaskNotFound):
                    await store.tasks.authorize(scope, paused.task_id, paused.pause_id, "s3cret")
            with pytest.raises(TaskNotFound):
                await store.tasks.authorize(SCOPE, TaskId("none"), Seq(1), "s3cret")


class TestCancel:
    @pytest.mark.parametrize("condition", UNFINISHED)
    async def test_ends_the_task_whoever_runs_it(self, store: Store, condition: str) -> None:
        """Cancel the task, whoever runs it, and return it as it then is."""
        task_id = await store.task_that_is(condition)
        task = await store.tasks.cancel(SCOPE, task_id)
        assert task == await store.task(task_id)
        assert (task.state, task.status) == (State.CANCELED, {"state": "canceled"})

    async def test_without_a_hook_raises_the_fence_and_clears_the_lease(self, store: Store) -> None:
        """A workflow version without a cancel step, or a task that has not committed a checkpoint
        yet: CANCELED in one transaction, the fence raised, the lease cleared."""
        run = await store.claimed()
        await run.commit(said(), move=moved())
        with statements() as sent:
            task = await store.tasks.cancel(SCOPE, run.task_id)
        assert sent.count("commit") == 1
        assert (task.fence, task.lease_owner, task.ready_at) == (run.lease.fence + 1, None, None)
        event = await store.last_event(run.task_id)
        assert (event.kind, event.body) == (EventKind.STATUS, {"state": "canceled"})
        assert (event.seq, event.fence, event.write_no) == (task.generation, task.fence, None)
        ran = await store.last_run(run.task_id)
        assert (ran["outcome"], ran["ended_write_no"]) == ("canceled", None)
        assert ran["ended_at"] is not None
        late = run.write(said("I am still here"), move=moved())
        async with store.unchanged():
            assert await store.commit(late) == Lost()

    @pytest.mark.parametrize("condition", ["paused", "waiting", "backing off", "held"])
    async def test_without_a_hook_nothing_remains_due(self, store: Store, condition: str) -> None:
        """A workflow version without a cancel step, or a task that has not committed a checkpoint
        yet: CANCELED in one transaction, the fence raised, the lease cleared."""
        task_id = await store.task_that_is(condition)
        task = await store.tasks.cancel(SCOPE, task_id)
        assert (task.ready_at, task.pause_id, task.pause_deadline_at) == (None, None, None)
        assert (task.held_reason, task.is_held) == (None, False)
        await store.later(31 * DAY)
        async with store.unchanged():
            assert await store.claim("worker of " + condition, workflow=condition) == []
            assert await store.sweeping.end_overdue_pauses() == []
            assert await store.sweeping.end_overdue_lives() == []

    async def test_before_the_first_checkpoint_ends_at_once_in_spite_of_a_hook(
        self, store: Store
    ) -> None:
        """A workflow version without a cancel step, or a task that has not committed a checkpoint
        yet: CANCELED in one transaction, the fence raised, the lease cleared."""
        run = await store.claimed(on_cancel=True)
        task = await store.tasks.cancel(SCOPE, run.task_id)
        assert (task.state, task.lease_owner) == (State.CANCELED, None)

    async def test_with_a_hook_marks_a_task_that_runs(self, store: Store) -> None:
        """With one: the task is marked, a pause or hold ends, and a task without a lease becomes
        claimable in the same transaction; it is returned WORKING."""
        run = await store.claimed(on_cancel=True)
        await run.commit(said(), move=moved())
        task = await store.tasks.cancel(SCOPE, run.task_id)
        assert task == await store.task(run.task_id)
        assert (task.state, task.lease_owner, task.fence) == (State.WORKING, "w1", run.lease.fence)
        assert task.cancel_requested_at is not None
        assert await store.claim() == []
        assert (await run.commit(said("cleaning up"))).marked

    @pytest.mark.parametrize("condition", ["paused", "waiting", "backing off", "held"])
    async def test_interleaving_09_with_a_hook_a_resting_task_becomes_claimable(
        self, store: Store, condition: str
    ) -> None:
        """With one: the task is marked, a pause or hold ends, and a task without a lease becomes
        claimable in the same transaction; it is returned WORKING."""
        task_id = await store.task_that_is(condition, on_cancel=True)
        await store.sql("update tasks set checkpoint = '1'")
        with statements() as sent:
            task = await store.tasks.cancel(SCOPE, task_id)
        assert sent.count("commit") == 1
        assert (task.state, task.pause_id, task.held_reason) == (State.WORKING, None, None)
        assert task.cancel_requested_at is not None
        run = await store.claim_again(task_id, f"worker of {condition}")
        assert run.lease.cancel_requested
        assert run.lease.ending_as == {"state": "canceled", "text": None, "hook": "on_cancel"}

    async def test_with_a_hook_tells_that_a_pause_has_ended(self, store: Store) -> None:
        """With one: the task is marked, a pause or hold ends, and a task without a lease becomes
        claimable in the same transaction; it is returned WORKING."""
        paused = await store.paused(on_cancel=True, commits=True)
        task = await store.tasks.cancel(SCOPE, paused.task_id)
        event = await store.last_event(paused.task_id)
        assert (event.seq, event.body) == (task.generation, {"state": "working"})
        with pytest.raises(UnsupportedOperation):
            await store.answer(paused)

    async def test_with_a_hook_a_working_task_logs_nothing(self, store: Store) -> None:
        """With one: the task is marked, a pause or hold ends, and a task without a lease becomes
        claimable in the same transaction; it is returned WORKING."""
        run = await store.claimed(on_cancel=True)
        await run.commit(said(), move=moved())
        before = await store.events(run.task_id)
        await store.tasks.cancel(SCOPE, run.task_id)
        assert await store.events(run.task_id) == before

    async def test_of_a_task_in_its_failure_step_does_not_change_how_it_ends(
        self, store: Store
    ) -> None:
        """With one: the task is marked, a pause or hold ends, and a task without a lease becomes
        claimable in the same transaction; it is returned WORKING."""
        run = await store.claimed(on_cancel=True, on_failure=True)
        failing = {"state": "failed", "text": "broken", "hook": "on_failure"}
        await run.commit(said(), move=replace(moved(step="on_failure"), ending_as=failing))
        task = await store.tasks.cancel(SCOPE, run.task_id)
        assert (task.state, task.lease_owner) == (State.WORKING, "w1")
        standing = (await store.work.leased_to(run.worker_id))[run.task_id]
        assert (standing.is_marked, standing.ending_as) == (True, failing)

    async def test_of_a_marked_task_returns_it_as_it_is(self, store: Store) -> None:
        """A marked or CANCELED task is returned as it is."""
        run = await store.claimed(on_cancel=True)
        await run.commit(said(), move=moved())
        marked = await store.tasks.cancel(SCOPE, run.task_id)
        async with store.unchanged():
            assert await store.tasks.cancel(SCOPE, run.task_id) == marked

    async def test_of_a_canceled_task_returns_it_as_it_is(self, store: Store) -> None:
        """A marked or CANCELED task is returned as it is."""
        task_id = await store.new_task()
        canceled = await store.tasks.cancel(SCOPE, task_id)
        async with store.unchanged():
            assert await store.tasks.cancel(SCOPE, task_id) == canceled

    @pytest.mark.parametrize("condition", ENDED_OTHERWISE)
    async def test_of_a_task_that_ended_otherwise_is_refused(
        self, store: Store, condition: str
    ) -> None:
        """Another terminal state raises TaskNotCancelable."""
        task_id = await store.task_that_is(condition)
        async with store.unchanged():
            with pytest.raises(TaskNotCancelable, match=condition):
                await store.tasks.cancel(SCOPE, task_id)

    async def test_of_a_marked_task_that_has_failed_is_refused(self, store: Store) -> None:
        """Another terminal state raises TaskNotCancelable."""
        run = await store.claimed(on_cancel=True)
        await run.commit(said(), move=moved())
        await store.tasks.cancel(SCOPE, run.task_id)
        await run.finish(State.FAILED)
        async with store.unchanged():
            with pytest.raises(TaskNotCancelable, match="failed"):
                await store.tasks.cancel(SCOPE, run.task_id)

    async def test_in_another_scope_finds_no_task(self, store: Store) -> None:
        """A task that does not exist in the scope raises TaskNotFound."""
        task_id = await store.new_task()
        async with store.unchanged():
            for scope in OTHER_SCOPES:
                with pytest.raises(TaskNotFound):
                    await store.tasks.cancel(scope, task_id)

    async def test_case_047_cancel_racing_completion(self, store: Store) -> None:
        """Exactly one terminal event, and the reply to the cancel agrees with it."""
        other = await store.another()
        for n in range(10):
            run = await store.claimed(f"w{n}", workflow=f"w{n}")
            canceled, verdicts = await asyncio.gather(
                other.tasks.cancel(SCOPE, run.task_id),
                store.work.commit(
                    [run.write(ended(), ending=Finish(state=State.COMPLETED))], patient=True
                ),
                return_exceptions=True,
            )
            assert isinstance(verdicts, list)
            task = await store.task(run.task_id)
            if isinstance(canceled, TaskNotCancelable):
                assert task.state is State.COMPLETED
            else:
                assert canceled == task
                assert task.state is State.CANCELED
                assert verdicts == [Lost()]
            assert kinds(await store.events(run.task_id)) == [EventKind.TASK, EventKind.STATUS]


class TestGet:
    async def test_returns_the_task(self, store: Store) -> None:
        """The task without its log."""
        task_id = await store.task_that_is("paused", metadata={"n": 1})
        task = await store.tasks.get(SCOPE, task_id)
        assert task == await store.task(task_id)
        assert (task.state, task.generation, task.pause_id) == (State.INPUT_REQUIRED, 2, 2)
        assert task.status["message"]["parts"] == [{"text": "Go on?"}]
        assert task.status_at >= task.created_at

    async def test_says_that_a_task_has_expired_or_never_was(self, store: Store) -> None:
        """A task that expired in this scope raises TaskNotFound with `expired`; one that does not
        exist in it raises TaskNotFound."""
        task_id = await store.new_task()
        await expire(store, task_id)
        with pytest.raises(TaskNotFound) as caught:
            await store.tasks.get(SCOPE, task_id)
        assert caught.value.expired
        with pytest.raises(TaskNotFound) as caught:
            await store.tasks.get(SCOPE, new_task_id())
        assert not caught.value.expired


class TestSnapshot:
    async def test_returns_the_task_and_its_whole_log(self, store: Store) -> None:
        """With all folds deleted the events are the whole log, or what is left of it."""
        run = await store.claimed()
        await run.commit(*[chunk(text=str(n)) for n in range(1_100)])
        snapshot = await store.tasks.snapshot(SCOPE, run.task_id)
        assert snapshot.task == await store.task(run.task_id)
        assert [event.seq for event in snapshot.events] == list(range(1, 1_102))
        assert snapshot.events == await store.events(run.task_id)
        assert (snapshot.fold, snapshot.seq) == (None, 1_101)

    @pytest.mark.parametrize(
        ("until", "fold", "first", "seq"),
        [
            (None, 6, 7, 9),
            (9, 6, 7, 9),
            (7, 6, 7, 7),
            (6, 6, 7, 6),
            (5, 3, 4, 5),
            (2, None, 1, 2),
            (0, 6, 7, 9),
            (10, 6, 7, 9),
        ],
    )
    async def test_begins_with_the_newest_fold_that_is_not_past_it(
        self, store: Store, until: int | None, fold: int | None, first: int, seq: int
    ) -> None:
        """The task and its log up to `until`, from one read: the newest fold that is not past it,
        and the events after that. Where the log has no such event, or it has been trimmed, up to
        its end."""
        run = await store.claimed()
        await run.commit(*[chunk(text=str(n)) for n in range(8)])
        for at in (3, 6):
            kept = Fold(seq=Seq(at), packed=b"up to %d" % at)
            assert await store.keep_fold(run.task_id, kept, next_at=256)
        snapshot = await store.tasks.snapshot(
            SCOPE, run.task_id, until=None if until is None else Seq(until)
        )
        assert snapshot.seq == seq
        assert snapshot.events == (await store.events(run.task_id))[first - 1 : seq]
        expected = None if fold is None else Fold(seq=Seq(fold), packed=b"up to %d" % fold)
        assert snapshot.fold == expected

    async def test_sees_one_moment(self, store: Store) -> None:
        """The task and its log up to `until`, from one read: the newest fold that is not past it,
        and the events after that."""
        run = await store.claimed()
        other = await store.another()
        stop = asyncio.Event()

        async def write() -> None:
            while not stop.is_set():
                await run.commit(said(), chunk())

        writing = asyncio.create_task(write())
        for _ in range(30):
            snapshot = await other.tasks.snapshot(SCOPE, run.task_id)
            assert len(snapshot.events) == snapshot.task.generation
        stop.set()
        await writing

    async def test_has_the_errors_of_get(self, store: Store) -> None:
        """Errors as for `get`."""
        task_id = await store.new_task()
        await expire(store, task_id)
        with pytest.raises(TaskNotFound) as caught:
            await store.tasks.snapshot(SCOPE, task_id)
        assert caught.value.expired
        with pytest.raises(TaskNotFound) as caught:
            await store.tasks.snapshot(SCOPE, new_task_id())
        assert not caught.value.expired


class TestStatusOf:
    @pytest.mark.parametrize("condition", ["submitted", "paused", "completed"])
    async def test_is_one_statement(self, store: Store, condition: str) -> None:
        """The state and generation of the task: the cheap look of those who wait for it."""
        task_id = await store.task_that_is(condition)
        task = await store.task(task_id)
        with statements() as sent:
            assert await store.tasks.status_of(SCOPE, task_id) == (task.state, task.generation)
        assert len(sent) == 1


async def listed(store: Store, wanted: Wanted | None = None, *, limit: int = 100) -> list[TaskId]:
    """The ids of all pages, in order."""
    ids: list[TaskId] = []
    place: Place | None = None
    while True:
        page = await store.tasks.page(SCOPE, wanted or Wanted(), limit=limit, after=place)
        assert len(page.snapshots) <= limit
        ids += [snapshot.task.task_id for snapshot in page.snapshots]
        if (place := page.next) is None:
            return ids


def _weight(snapshot: Snapshot) -> int:
    """The bytes that the store has read for it."""
    events = sum(len(to_text(event.body).encode()) for event in snapshot.events)
    return events + (0 if snapshot.fold is None else len(snapshot.fold.packed))


class TestPage:
    @pytest.mark.parametrize(
        "condition", ["submitted", "paused", "waiting", "held", "completed", "canceled"]
    )
    async def test_goes_by_the_time_that_the_status_shows(
        self, store: Store, condition: str
    ) -> None:
        """One that does is found by `changed_since`, with the time at which the reading began."""
        task_id = await store.task_that_is(condition)
        status = [e for e in await store.events(task_id) if e.kind is not EventKind.ARTIFACT][-1]
        assert await listed(store, Wanted(changed_since=status.created_at)) == [task_id]
        assert await listed(store, Wanted(changed_since=Millis(status.created_at + 1))) == []

    async def test_is_in_the_order_of_the_last_change(self, store: Store) -> None:
        """The next `limit` tasks of the scope that are wanted, after a place in their order: the
        last to change their status first, then by task id, the latest first."""
        task_ids = [await store.new_task() for _ in range(5)]
        await store.sql("update tasks set status_at = 1000")
        await store.sql("update tasks set status_at = 2000 where task_id = :id", id=task_ids[2])
        others = [*sorted({*task_ids} - {task_ids[2]}, reverse=True)]
        for limit in (1, 2, 4, 5, 6):
            assert await listed(store, limit=limit) == [task_ids[2], *others], limit
        store.laws_are_broken_on_purpose = True

    @pytest.mark.parametrize("artifacts", [False, True])
    async def test_of_a_trimmed_log_has_the_fold(self, store: Store, artifacts: bool) -> None:
        """One whose log is trimmed comes with its newest fold in their place; and where artifacts
        are asked for, each with its newest fold and what came after it."""
        runs = [await store.claimed(f"w{n}", workflow=f"w{n}") for n in range(2)]
        for run in runs:
            await run.commit(said(), chunk(), chunk())
            await run.finish()
        kept = Fold(seq=Seq(5), packed=b"all of it")
        assert await store.keep_fold(runs[0].task_id, kept, next_at=256)
        await store.later(store.settings.resume_window_ms + 1)
        await store.sweeping.trim_logs()
        page = await store.tasks.page(SCOPE, Wanted(), limit=10, artifacts=artifacts)
        shown = {each.task.task_id: each for each in page.snapshots}
        trimmed, whole = (shown[run.task_id] for run in runs)
        assert (trimmed.fold, trimmed.events, trimmed.seq) == (kept, [], 5)
        assert whole.fold is None
        assert len(whole.events) == (4 if artifacts else 2)

    async def test_with_artifacts_begins_with_the_fold(self, store: Store) -> None:
        """And where artifacts are asked for, each with its newest fold and what came after it."""
        run = await store.claimed()
        await run.commit(said(), chunk())
        kept = Fold(seq=Seq(2), packed=b"so far")
        assert await store.keep_fold(run.task_id, kept, next_at=256)
        log = await store.events(run.task_id)
        for artifacts, fold, shown in ((True, kept, [3]), (False, None, [1, 2])):
            page = await store.tasks.page(SCOPE, Wanted(), limit=10, artifacts=artifacts)
            (snapshot,) = page.snapshots
            assert snapshot.fold == fold
            assert snapshot.events == [log[n - 1] for n in shown]

    async def test_has_only_tasks_of_the_scope(self, store: Store) -> None:
        """The next `limit` tasks of the scope that are wanted, after a place in their order: the
        last to change their status first, then by task id, the latest first."""
        own = await store.new_task()
        for scope in OTHER_SCOPES:
            await store.new_task(scope=scope)
        page = await store.tasks.page(SCOPE, Wanted(), limit=10)
        assert [snapshot.task.task_id for snapshot in page.snapshots] == [own]
        assert (page.total, page.next) == (1, None)

    async def test_has_only_what_is_wanted(self, store: Store) -> None:
        """The next `limit` tasks of the scope that are wanted, after a place in their order: the
        last to change their status first, then by task id, the latest first."""
        paused = await store.task_that_is("paused")
        done = await store.task_that_is("completed")
        elsewhere = await store.new_task(context_id=ContextId("elsewhere"))
        for wanted, expected in [
            (Wanted(state=State.INPUT_REQUIRED), {paused}),
            (Wanted(state=State.COMPLETED), {done}),
            (Wanted(context_id=ContextId("elsewhere")), {elsewhere}),
            (Wanted(context_id=ContextId("elsewhere"), state=State.COMPLETED), set()),
            (Wanted(), {paused, done, elsewhere}),
        ]:
            assert {*await listed(store, wanted)} == expected, wanted
            page = await store.tasks.page(SCOPE, wanted, limit=1)
            assert page.total == len(expected)

    async def test_is_one_read(self, store: Store) -> None:
        """All of a page is one read."""
        run = await store.claimed()
        other = await store.another()
        stop = asyncio.Event()

        async def write() -> None:
            while not stop.is_set():
                await run.commit(said(), chunk())

        writing = asyncio.create_task(write())
        for _ in range(30):
            page = await other.tasks.page(SCOPE, Wanted(), limit=1, artifacts=True)
            (snapshot,) = page.snapshots
            assert snapshot.events[-1].seq == snapshot.task.generation
        stop.set()
        await writing

    async def test_a_task_at_rest_is_on_exactly_one_page(self, store: Store) -> None:
        """A task that does not change its status while pages are read is on exactly one of
        them. One that does is found by `changed_since`, with the time at which the reading
        began."""
        moving = [await store.claimed() for _ in range(3)]
        resting = [await store.new_task() for _ in range(20)]
        began = await store.now()
        seen: list[TaskId] = []
        place: Place | None = None
        while True:
            page = await store.tasks.page(SCOPE, Wanted(), limit=4, after=place)
            seen += [snapshot.task.task_id for snapshot in page.snapshots]
            for run in moving:
                await run.commit(said())
            if (place := page.next) is None:
                break
        assert sorted(task_id for task_id in seen if task_id in resting) == sorted(resting)
        changed = await listed(store, Wanted(changed_since=began))
        assert {run.task_id for run in moving} <= {*changed}
        later = Millis(await store.now() + HOUR)
        assert await listed(store, Wanted(changed_since=later)) == []

    async def test_counts_the_whole_list(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The total does not depend on the place, and is exact up to `TOTAL_BOUND`."""
        for _ in range(6):
            await store.new_task()
        place: Place | None = None
        for _ in range(3):
            page = await store.tasks.page(SCOPE, Wanted(), limit=2, after=place)
            assert page.total == 6
            place = page.next
        assert place is None
        monkeypatch.setattr("outlast.store.tasks.TOTAL_BOUND", 4)
        assert (await store.tasks.page(SCOPE, Wanted(), limit=2)).total == 4

    @pytest.mark.parametrize("artifacts", [False, True])
    async def test_ends_early_of_what_is_large(self, store: Store, artifacts: bool) -> None:
        """A page ends before the task whose logs and folds would bring it past `most_bytes`, but
        holds one task at least; what it leaves out is not read."""
        for text in ("a" * 900, "ü" * 900, "c", "d"):
            run = await store.claimed()
            await run.commit(said(text), chunk(text=text))
        folded = await store.new_task()
        fold = "insert into task_folds (task_id, seq, task) values (:id, 1, :task)"
        await store.sql(fold, id=folded, task=b"f" * 900)
        whole = await store.tasks.page(SCOPE, Wanted(), limit=10, artifacts=artifacts)
        weights = [_weight(snapshot) for snapshot in whole.snapshots]
        ids = [snapshot.task.task_id for snapshot in whole.snapshots]

        for most in (1, weights[0] + weights[1] - 1, weights[0] + weights[1], sum(weights)):
            place: Place | None = None
            seen: list[TaskId] = []
            while len(seen) < 5:
                page = await store.tasks.page(
                    SCOPE, Wanted(), limit=10, most_bytes=most, after=place, artifacts=artifacts
                )
                held = len(page.snapshots)
                left = weights[len(seen) :]
                assert held == 1 or sum(left[:held]) <= most
                assert held == len(left) or sum(left[: held + 1]) > most
                seen += [snapshot.task.task_id for snapshot in page.snapshots]
                place = page.next
            assert (seen, place) == (ids, None)

        await store.sql("update task_events set body = 'no JSON' where task_id <> :id", id=ids[0])
        page = await store.tasks.page(SCOPE, Wanted(), limit=10, most_bytes=1, artifacts=artifacts)
        assert [snapshot.task.task_id for snapshot in page.snapshots] == ids[:1]
        store.laws_are_broken_on_purpose = True

    async def test_shows_state_and_history_and_artifacts_if_asked(self, store: Store) -> None:
        """Each task comes with its messages, its questions and its last status event, and with
        its artifact events where `artifacts` asks for them."""
        run = await store.claimed()
        await run.commit(said("one"), chunk(text="a"), said("two"), chunk(text="b"))
        paused = await store.paused()
        await store.answer(paused)
        empty = await store.new_task()

        for artifacts in (False, True):
            page = await store.tasks.page(SCOPE, Wanted(), limit=10, artifacts=artifacts)
            shown = {snapshot.task.task_id: snapshot.events for snapshot in page.snapshots}
            assert len(shown) == 3
            for task_id, events in shown.items():
                log = await store.events(task_id)
                status = [event for event in log if event.kind is not EventKind.ARTIFACT][-1]
                assert events == [
                    event
                    for event in log
                    if event.is_message
                    or event == status
                    or (artifacts and event.kind is EventKind.ARTIFACT)
                ]
            assert [event.seq for event in shown[run.task_id]] == (
                [1, 3, 4, 5] if artifacts else [1, 4]
            )
            assert [event.seq for event in shown[empty]] == [1]

    async def test_walks_an_index(self, store: Store) -> None:
        """The next `limit` tasks of the scope that are wanted, after a place in their order: the
        last to change their status first, then by task id, the latest first."""
        for _ in range(3):
            await store.new_task()
        query = catalog(store.database.dialect)["tasks_page"].text
        params = {
            "agent": SCOPE.agent, "tenant": SCOPE.tenant, "owner": SCOPE.owner, "context_id": None,
            "state": None, "changed_since": 0, "status_at": 1 << 62, "task_id": "", "n": 10,
        }  # fmt: skip
        explain = "explain query plan" if store.is_sqlite else "explain"

        def script() -> Script[str]:
            if not store.is_sqlite:  # which finds three rows faster without an index
                yield Statement(Query("own", "", "set local enable_seqscan = off"), {})
            return str((yield Statement(Query("own", "", f"{explain} {query}"), params)))

        text = await store.database.transact(script)
        assert "tasks_listed" in text
        assert "sort" not in text.lower()
        assert "TEMP B-TREE" not in text
