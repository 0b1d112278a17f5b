"""Sends that are made twice, by callers or by the gateway itself, count once."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a

from outlast.model.errors import StoreUnavailable
from outlast.store.protocols import NewTask, Sent
from outlast.store.tasks import Tasks
from tests.integration.test_gateway_support import (
    BINDINGS,
    EVERY_BINDING,
    Gateway,
    count_tasks,
    history,
    message,
    rest_of,
    running_gateway,
    state_of,
)

both = pytest.mark.parametrize("binding", BINDINGS)
every_binding = pytest.mark.parametrize("binding", EVERY_BINDING)
YES_OR_NO = {"type": "boolean"}


@every_binding
async def test_case_001_a_send_whose_reply_was_lost_can_be_repeated(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
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
        streaming = asyncio.create_task(rest_of(gateway.stream(sent)))
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


@every_binding
async def test_a_store_that_stays_away_is_a_clear_error_without_its_details(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, store_patience_s=0.2, on_grpc=True) as gateway:
        forgetful(gateway, losses=1000, written=False)
        with pytest.raises(a2a.InternalError, match="send the same request again") as raised:
            await gateway.send(message(), binding=binding, immediately=True)

        assert "s3cret" not in str(raised.value)
        assert await count_tasks(gateway) == 0


def forgetful(gateway: Gateway, *, losses: int, written: bool) -> None:
    tasks = Forgetful(gateway.tasks, losses=losses, written=written)
    gateway.handler._sends._tasks = tasks
