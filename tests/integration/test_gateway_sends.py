"""Sends through the SDK's client: new tasks, direct answers, follow-ups, waiting, repeats."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a
from google.protobuf.json_format import MessageToDict

from outlast.model.errors import StoreUnavailable
from outlast.model.task import State
from outlast.store.database import Query, Rows, Script, Statement
from outlast.store.protocols import NewTask, Sent
from outlast.store.tasks import Tasks
from outlast.wire.extension import EXTENSION_URI
from tests.integration.test_gateway_support import (
    BINDINGS,
    SCOPE,
    Gateway,
    message,
    running_gateway,
    state_of,
)

both = pytest.mark.parametrize("binding", BINDINGS)
YES_OR_NO = {"type": "boolean"}


def history(task: pb.Task) -> list[str]:
    return [part.text for message in task.history for part in message.parts]


# --- new tasks ----------------------------------------------------------------------------------


@both
async def test_case_007_a_send_that_returns_immediately_names_its_task(
    database_url: str, binding: str
) -> None:
    async with running_gateway(database_url) as gateway:
        task = await gateway.send(message("begin"), binding=binding, immediately=True)

        assert task.status.state == pb.TASK_STATE_SUBMITTED
        assert await gateway.task(task.id) == task
        assert history(task) == ["begin"]
        assert (task.history[0].task_id, task.history[0].context_id) == (task.id, task.context_id)
        row = await gateway.tasks.get(SCOPE, task.id)
        assert (row.workflow, row.version, row.step) == ("chats", 2, "start")


async def test_a_new_task_joins_the_callers_context_and_keeps_the_requests_metadata(
    sqlite_url: str,
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        request = pb.SendMessageRequest(message=message(context_id="mine"))
        request.metadata.update({"project": {"id": 3}})
        request.configuration.return_immediately = True
        (response,) = [item async for item in gateway.client().send_message(request)]

        assert response.task.context_id == "mine"
        assert MessageToDict(response.task.metadata) == {"project": {"id": 3}}


async def test_a_caller_may_name_the_workflow_and_its_version(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        for said, expected in [
            ({"workflow": "chats"}, ("chats", 2)),
            ({"workflow": "chats", "version": 1}, ("chats", 1)),
        ]:
            task = await gateway.send(message(said=said), immediately=True)
            row = await gateway.tasks.get(SCOPE, task.id)

            assert (row.workflow, row.version) == expected


async def test_an_input_is_checked_before_a_task_exists(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        said = {"workflow": "orders"}
        wrong = message(said=said, data={"item": "tea", "count": "many"})
        with pytest.raises(a2a.InvalidParamsError, match=r"message\.parts\[1\]\.data\.count"):
            await gateway.send(wrong, immediately=True)

        right = message(said=said, data={"item": "tea", "count": 3}, message_id=wrong.message_id)
        task = await gateway.send(right, immediately=True)

        assert task.status.state == pb.TASK_STATE_SUBMITTED


@both
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_direct_message_answers_without_a_task(
    sqlite_url: str, binding: str, streaming: bool
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        client = gateway.client(binding, streaming=streaming)
        request = pb.SendMessageRequest(message=message("hello", context_id="c"))

        first = [item async for item in client.send_message(request)]
        again = [item async for item in client.send_message(request)]

        assert len(first) == 1
        assert first[0].message.role == pb.ROLE_AGENT
        assert first[0].message.context_id == "c"
        assert not first[0].message.task_id
        assert again == first, "a repeat gets the stored answer; the router is not asked again"


# --- waiting ------------------------------------------------------------------------------------


@both
async def test_case_008_a_blocking_send_returns_the_question(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sending = asyncio.create_task(gateway.send(message(), binding=binding))
        task_id = await only_task(gateway)
        await gateway.hand.ask(task_id, "which one?", YES_OR_NO)
        async with asyncio.timeout(1):
            task = await sending

        assert task.status.state == pb.TASK_STATE_INPUT_REQUIRED
        assert task.status.message.parts[0].text == "which one?"
        assert MessageToDict(task.status.message.metadata)[EXTENSION_URI]["schema"] == YES_OR_NO


async def test_case_008_a_blocking_send_returns_at_auth_required(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sending = asyncio.create_task(gateway.send(message()))
        await gateway.hand.ask(await only_task(gateway), "log in", state=State.AUTH_REQUIRED)

        assert (await sending).status.state == pb.TASK_STATE_AUTH_REQUIRED


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.REJECTED])
async def test_case_042_a_blocking_send_returns_the_end(sqlite_url: str, state: State) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sending = asyncio.create_task(gateway.send(message()))
        task_id = await only_task(gateway)
        await gateway.hand.chunk(task_id, "a", append=False)
        await gateway.hand.finish(task_id, state, "so it is")
        task = await sending

        assert task.status.state == pb.TaskState.Value(f"TASK_STATE_{state.name}")
        assert task.status.message.parts[0].text == "so it is"
        assert task.artifacts[0].parts[0].text == "a"


async def test_case_032_a_wait_ends_by_polling_when_wake_ups_are_lost(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, poll_s=0.05) as gateway:
        sending = asyncio.create_task(gateway.send(message()))
        task_id = await only_task(gateway)
        gateway.database.wakeups.send = lambda topics: None  # type: ignore[method-assign]
        await gateway.hand.finish(task_id)
        async with asyncio.timeout(2):
            assert (await sending).status.state == pb.TASK_STATE_COMPLETED


async def test_case_009_at_the_cap_the_task_is_returned_as_it_is(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, blocking_cap_s=0.1) as gateway:
        task = await gateway.send(message())

        assert task.status.state == pb.TASK_STATE_SUBMITTED


@both
async def test_case_009_a_caller_that_leaves_ends_its_request_and_nothing_else(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sending = asyncio.create_task(gateway.send(message(), binding=binding))
        task_id = await only_task(gateway)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        async with asyncio.timeout(1):  # its request is not among the server's any more
            while gateway.server.server_state.tasks:
                await asyncio.sleep(0.01)

        assert (await gateway.tasks.get(SCOPE, task_id)).state is State.SUBMITTED


async def test_case_127_a_closing_gateway_answers_with_the_task_as_it_is(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sending = asyncio.create_task(gateway.send(message()))
        await only_task(gateway)
        gateway.server.stop()
        async with asyncio.timeout(1):
            assert (await sending).status.state == pb.TASK_STATE_SUBMITTED


# --- follow-ups ---------------------------------------------------------------------------------


@both
async def test_an_answer_resumes_the_task_in_its_context(database_url: str, binding: str) -> None:
    async with running_gateway(database_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "sure?", YES_OR_NO)
        answer = message("yes", task_id=task_id)
        task = await gateway.send(answer, binding=binding, immediately=True)

        assert task.status.state == pb.TASK_STATE_WORKING
        assert history(task) == ["begin", "sure?", "yes"]
        assert task.history[2].context_id == task.context_id
        lease, _ = await gateway.hand.lease(task_id)
        entries = await gateway.hand.work.entries(lease.ledger_id, "ask", "ask~")
        assert json.loads(entries[0].result or "")["value"] is True


@both
async def test_an_answer_that_does_not_fit_leaves_the_task_paused(
    sqlite_url: str, binding: str
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "how many?", schema)
        with pytest.raises(a2a.InvalidParamsError, match=r"message\.parts\[1\]\.data\.n"):
            await gateway.send(message("x", task_id=task_id, data={"n": "many"}), binding=binding)

        assert (await gateway.task(task_id)).status.state == pb.TASK_STATE_INPUT_REQUIRED
        fits = message("x", task_id=task_id, data={"n": 3})
        task = await gateway.send(fits, binding=binding, immediately=True)
        assert task.status.state == pb.TASK_STATE_WORKING


@pytest.mark.parametrize("text", ["NaN", "1" + "0" * 400, '"a\\u0000b"', "[" * 60 + "]" * 60])
async def test_an_answer_in_text_holds_nothing_that_cannot_be_kept(
    sqlite_url: str, text: str
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "what?", {"type": ["number", "array", "string"]})
        with pytest.raises(a2a.InvalidParamsError, match=r"message\.parts"):
            await gateway.send(message(text, task_id=task_id))

        assert (await gateway.task(task_id)).status.state == pb.TASK_STATE_INPUT_REQUIRED


async def test_a_wrong_context_is_refused(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "sure?")
        with pytest.raises(a2a.InvalidParamsError, match=r"message\.contextId"):
            await gateway.send(message("yes", task_id=task_id, context_id="another"))

        assert (await gateway.task(task_id)).status.state == pb.TASK_STATE_INPUT_REQUIRED


@both
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.REJECTED, State.CANCELED])
async def test_case_040_a_message_to_a_finished_task_is_refused(
    sqlite_url: str, binding: str, streaming: bool, state: State
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        if state is State.CANCELED:
            await gateway.cancel(task_id)
        else:
            await gateway.hand.finish(task_id, state)
        before = await gateway.task(task_id)
        client = gateway.client(binding, streaming=streaming)
        request = pb.SendMessageRequest(message=message(task_id=task_id))
        with pytest.raises(a2a.UnsupportedOperationError, match="the task has ended"):
            _ = [item async for item in client.send_message(request)]

        assert await gateway.task(task_id) == before


async def test_case_052_a_message_to_a_working_task_is_refused(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.report(task_id, "busy")
        for sent in await asyncio.gather(
            *(gateway.send(message(task_id=task_id)) for _ in range(4)), return_exceptions=True
        ):
            assert isinstance(sent, a2a.UnsupportedOperationError)

        assert history(await gateway.task(task_id)) == ["begin"]


async def test_a_message_to_a_task_that_does_not_exist_is_refused(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        with pytest.raises(a2a.TaskNotFoundError, match="there is no task"):
            await gateway.send(message(task_id=str(uuid.uuid4())))


async def test_a_message_is_no_authorization(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "log in", state=State.AUTH_REQUIRED)
        with pytest.raises(a2a.UnsupportedOperationError, match="authorization"):
            await gateway.send(message("s3cret", task_id=task_id))


@pytest.mark.parametrize("by_number", [False, True])
async def test_an_answer_to_a_question_that_is_over_is_refused(
    sqlite_url: str, by_number: bool
) -> None:
    async with running_gateway(sqlite_url, epoch="e7") as gateway:
        task_id = await gateway.started()
        old = await gateway.hand.ask(task_id, "first?")
        asked = await gateway.task(task_id)
        name = MessageToDict(asked.status.message.metadata)[EXTENSION_URI]["pause"]
        assert name == f"e7-{old}"
        said = {"pause": old if by_number else name}

        first = message("one", task_id=task_id, said=said)
        await gateway.send(first, immediately=True)
        new = await gateway.hand.ask(task_id, "second?")
        with pytest.raises(a2a.UnsupportedOperationError, match="is over"):
            await gateway.send(message("approve", task_id=task_id, said=said))
        lost = {"pause": f"another-{new}"}  # of a future that a restore has undone
        with pytest.raises(a2a.UnsupportedOperationError, match="is over"):
            await gateway.send(message("approve", task_id=task_id, said=lost))

        right = message("two", task_id=task_id, said={"pause": f"e7-{new}"})
        task = await gateway.send(right, immediately=True)
        assert history(task) == ["begin", "first?", "one", "second?", "two"]


async def test_case_080_of_two_answers_at_once_one_wins(database_url: str) -> None:
    async with (
        running_gateway(database_url) as one,
        running_gateway(database_url) as other,
    ):
        for _ in range(5):
            task_id = await one.started()
            await one.hand.ask(task_id, "approve?")
            sent = await asyncio.gather(
                one.send(message("approve", task_id=task_id), immediately=True),
                other.send(message("reject", task_id=task_id), immediately=True),
                return_exceptions=True,
            )
            refused = [result for result in sent if isinstance(result, BaseException)]

            assert [type(error) for error in refused] == [a2a.UnsupportedOperationError]
            assert history(await one.task(task_id))[:2] == ["begin", "approve?"]
            assert len(history(await one.task(task_id))) == 3


# --- repeats ------------------------------------------------------------------------------------


@both
async def test_case_001_a_send_whose_reply_was_lost_can_be_repeated(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sent = message("effect K")
        first = await gateway.send(sent, binding=binding, immediately=True)
        again = await gateway.send(sent, binding=binding, immediately=True)

        assert again == first
        assert await count_tasks(gateway) == 1


async def test_case_002_concurrent_identical_sends_create_one_task(database_url: str) -> None:
    async with (
        running_gateway(database_url) as one,
        running_gateway(database_url) as other,
    ):
        sent = message("effect K")
        tasks = await asyncio.gather(
            *(
                gateway.send(sent, binding=binding, immediately=True)
                for gateway in (one, other)
                for binding in BINDINGS
                for _ in range(5)
            )
        )

        assert len({(task.id, task.context_id) for task in tasks}) == 1
        assert await count_tasks(one) == 1


async def test_case_005_an_answer_that_is_repeated_counts_once(database_url: str) -> None:
    async with (
        running_gateway(database_url) as one,
        running_gateway(database_url) as other,
    ):
        task_id = await one.started()
        await one.hand.ask(task_id, "sure?", YES_OR_NO)
        answer = message("yes", task_id=task_id)
        replies = await asyncio.gather(
            *(gateway.send(answer, immediately=True) for gateway in (one, other) * 4)
        )
        await one.hand.ask(task_id, "which?", {"type": "integer"})
        later = await one.send(answer, immediately=True)
        await one.send(message("3", task_id=task_id), immediately=True)
        await one.hand.finish(task_id)
        after_the_end = await other.send(answer)

        assert {reply.id for reply in (*replies, later, after_the_end)} == {task_id}
        assert later.status.state == pb.TASK_STATE_INPUT_REQUIRED
        assert history(after_the_end) == ["begin", "sure?", "yes", "which?", "3"]


async def test_other_content_under_the_same_key_is_refused(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sent = message("one")
        await gateway.send(sent, immediately=True)
        with pytest.raises(a2a.InvalidParamsError, match="another message"):
            await gateway.send(message("two", message_id=sent.message_id), immediately=True)

        assert await count_tasks(gateway) == 1


async def test_ids_that_clients_reuse_are_no_keys(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        first = await gateway.send(message("a", message_id="msg-1"), immediately=True)
        second = await gateway.send(message("a", message_id="msg-1"), immediately=True)

        assert first.id != second.id
        assert first.history[0].message_id == "msg-1"


async def test_an_idempotency_key_wins_over_the_message_id(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        key = {"Idempotency-Key": "order-7"}
        first = await gateway.send(message("a"), immediately=True, headers=key)
        again = await gateway.send(message("a"), immediately=True, headers=key)

        assert again.id == first.id


async def test_a_repeat_waits_as_its_own_call_would(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sent = message()
        task = await gateway.send(sent, immediately=True)
        waiting = asyncio.create_task(gateway.send(sent))
        streaming = asyncio.create_task(_collected(gateway.stream(sent)))
        await gateway.hand.finish(task.id)  # type: ignore[arg-type]

        assert (await waiting).status.state == pb.TASK_STATE_COMPLETED
        assert state_of((await streaming)[-1]) == "COMPLETED"


class Forgetful(Tasks):
    """A store whose replies to `create` get lost, after or before the write."""

    def __init__(self, tasks: Tasks, *, losses: int, written: bool) -> None:
        self.__dict__ = tasks.__dict__
        self.losses = losses
        self.written = written

    async def create(self, new: NewTask) -> Sent:
        if self.losses > 0:
            self.losses -= 1
            if self.written:
                await super().create(new)
            raise StoreUnavailable("s3cret host is away", happened=None)
        return await super().create(new)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("sent_id", ["msg-1", str(uuid.uuid4())])
async def test_an_uncertain_write_is_repeated_and_finds_the_first(
    sqlite_url: str, written: bool, sent_id: str
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        forgetful(gateway, losses=2, written=written)
        task = await gateway.send(message(message_id=sent_id), immediately=True)

        assert task.status.state == pb.TASK_STATE_SUBMITTED
        assert await count_tasks(gateway) == 1


@both
async def test_a_store_that_stays_away_is_a_clear_error_without_its_details(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, store_patience_s=0.2) as gateway:
        forgetful(gateway, losses=1000, written=False)
        with pytest.raises(a2a.InternalError, match="send the same request again") as raised:
            await gateway.send(message(), binding=binding, immediately=True)

        assert "s3cret" not in str(raised.value)
        assert await count_tasks(gateway) == 0


# --- helpers ------------------------------------------------------------------------------------


def forgetful(gateway: Gateway, *, losses: int, written: bool) -> None:
    tasks = Forgetful(gateway.tasks, losses=losses, written=written)
    gateway.handler._sends._tasks = tasks


async def only_task(gateway: Gateway) -> Any:
    """The id of the one task there is, as soon as there is one."""
    async with asyncio.timeout(5):
        while True:
            rows = await _task_ids(gateway)
            if rows:
                return rows[0]
            await asyncio.sleep(0.005)


async def count_tasks(gateway: Gateway) -> int:
    return len(await _task_ids(gateway))


async def _task_ids(gateway: Gateway) -> list[str]:
    def script() -> Script[list[str]]:
        query = Query("test_tasks", "", "select task_id from tasks")
        rows: Rows = yield Statement(query, {})
        return [row["task_id"] for row in rows]

    return await gateway.database.read(script)


async def _collected(stream: Any) -> list[pb.StreamResponse]:
    return [item async for item in stream]
