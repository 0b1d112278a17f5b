"""The interleavings that gateways meet: two of them on one database."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a

from outlast.model.errors import StoreUnavailable
from outlast.model.ids import Millis, Seq, TaskId
from outlast.model.pause import DEADLINE_PASSED, OnDeadline
from outlast.model.task import State
from outlast.store.admin import Admin
from outlast.store.codec import from_text
from outlast.store.database import Query, Script, Statement
from outlast.store.protocols import Sent
from outlast.store.sweeping import Sweeping
from outlast.store.tasks import Tasks
from tests.integration.test_gateway_support import (
    Gateway,
    agent_with_inbox,
    count_tasks,
    history,
    message,
    rest_of,
    running_gateway,
    state_of,
)

HOUR = Millis(3_600_001)


async def sql(gateway: Gateway, text: str, **params: Any) -> list[Any]:
    def script() -> Script[list[Any]]:
        return list((yield Statement(Query("test_sql", "", text), params)))

    return await gateway.database.transact(script)


# --- 18 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [False, True])
async def test_interleaving_18_the_task_of_a_send_key_has_expired(
    database_url: str, streaming: bool
) -> None:
    async with running_gateway(database_url) as one, running_gateway(database_url) as other:
        sent = message()
        task_id = (await one.send(sent, immediately=True)).id
        await one.hand.finish(TaskId(task_id))
        await sql(
            one,
            "insert into tombstones (task_id, agent, tenant, owner, expired_at)"
            " select task_id, agent, tenant, owner, 1 from tasks where task_id = :id",
            id=task_id,
        )
        for table in ("task_events", "task_runs", "tasks"):
            await sql(one, f"delete from {table} where task_id = :id", id=task_id)
        for gateway in (one, other):
            with pytest.raises(a2a.TaskNotFoundError, match="expired"):
                await (rest_of(gateway.stream(sent)) if streaming else gateway.send(sent))
        assert await count_tasks(one) == 0
        fresh = await other.send(message(message_id=str(uuid.uuid4())), immediately=True)
        assert fresh.id != task_id


# --- 20 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["messageId", "Idempotency-Key"])
async def test_interleaving_20_an_inbox_message_is_repeated_after_the_end(
    database_url: str, key: str
) -> None:
    """Its reply is lost and the task ends before the caller repeats it, at another gateway."""
    agent = agent_with_inbox()
    headers = {"Idempotency-Key": "again"} if key == "Idempotency-Key" else None
    async with (
        running_gateway(database_url, agent=agent) as one,
        running_gateway(database_url, agent=agent) as other,
    ):
        task_id = await one.started()
        await one.hand.report(task_id, "busy")
        sent = message("and this", task_id=task_id, message_id=None if headers is None else "m-1")
        await one.send(sent, immediately=True, headers=headers)  # a reply that nobody reads
        await one.hand.finish_reading(task_id, Seq(3))

        again = await other.send(sent, headers=headers)
        assert (again.id, history(again)) == (task_id, ["begin", "and this"])
        assert again.status.state == pb.TASK_STATE_COMPLETED
        if headers is None:
            assert state_of((await rest_of(other.stream(sent)))[0]) == "COMPLETED"
        with pytest.raises(a2a.UnsupportedOperationError, match="has ended"):
            await other.send(message("more", task_id=task_id))


async def test_interleaving_20_the_gateway_repeats_its_own_write_after_the_end(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also under an id that is no key: the gateway gave the send one of its own."""
    async with running_gateway(database_url, agent=agent_with_inbox()) as gateway:
        task_id = await gateway.started()
        await gateway.hand.report(task_id, "busy")
        written = Tasks.receive
        calls: list[bool] = []

        async def receive(self: Tasks, given: Any) -> Sent:
            sent = await written(self, given)
            calls.append(sent.is_repeat)
            if not sent.is_repeat:
                await gateway.hand.finish_reading(task_id, Seq(3))
                raise StoreUnavailable("the reply was lost", happened=None)
            return sent

        monkeypatch.setattr(Tasks, "receive", receive)
        task = await gateway.send(message("this", task_id=task_id, message_id="msg-1"))
        assert calls == [False, True]
        assert (history(task), task.status.state) == (["begin", "this"], pb.TASK_STATE_COMPLETED)


# --- 22 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_deadline", [OnDeadline.RESUME, OnDeadline.FAIL])
@pytest.mark.parametrize("first", ["sweep", "answer"])
async def test_interleaving_22_deadline_sweep_and_answer_meet(
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    on_deadline: OnDeadline,
    first: str,
) -> None:
    """The answer's gateway has read the task while it was paused; the sweep runs between that and
    its write, or after it."""
    async with running_gateway(database_url) as one, running_gateway(database_url) as other:
        task_id = await one.started()
        await one.hand.ask(task_id, "sure?", on_deadline=on_deadline)
        await Admin(one.database).move_clock(HOUR)
        sweeping = Sweeping(one.database)
        written = Tasks.answer

        async def answer(self: Tasks, given: Any) -> Sent:
            if first == "sweep":
                assert await sweeping.end_overdue_pauses() == [task_id]
            return await written(self, given)

        monkeypatch.setattr(Tasks, "answer", answer)
        if first == "sweep":
            with pytest.raises(a2a.UnsupportedOperationError):
                await other.send(message("yes", task_id=task_id), immediately=True)
        else:
            await other.send(message("yes", task_id=task_id), immediately=True)
            assert await sweeping.end_overdue_pauses() == []

        events = await one.log.events_since(task_id, Seq(0))
        results = [
            from_text(row["result"])
            for row in await sql(
                one, "select result from task_ledger where ledger_id = :id", id=task_id
            )
            if row["result"] is not None
        ]
        resumed = first == "answer" or on_deadline is OnDeadline.RESUME
        assert events[-1].body["state"] == ("working" if resumed else "failed")
        assert len(results) == resumed
        assert (DEADLINE_PASSED in results) is (first == "sweep" and resumed)
        said = ["begin", "sure?", "yes"] if first == "answer" else ["begin"]
        assert history(await other.task(task_id)) == said


async def test_interleaving_22_deadline_and_authorization_meet(database_url: str) -> None:
    async with running_gateway(database_url) as one, running_gateway(database_url) as other:
        task_id = await one.started()
        seq = await one.hand.ask(task_id, "log in", state=State.AUTH_REQUIRED)
        await Admin(one.database).move_clock(HOUR)
        assert await Sweeping(one.database).end_overdue_pauses() == [task_id]
        body = {"pause": seq, "value": "s3cret"}
        assert (await other.post(f"/tasks/{task_id}:authorize", body)).status_code == 400
        rows = await sql(one, "select result from task_ledger where ledger_id = :id", id=task_id)
        assert [row["result"] for row in rows] == [None]
