"""Messages to a task that works, in a workflow with an inbox."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a
from google.protobuf.json_format import MessageToDict

from outlast.model.commit import EventKind
from outlast.model.ids import Seq, TaskId
from outlast.model.task import State
from outlast.store.protocols import Sent
from outlast.store.tasks import Tasks
from outlast.wire.extension import EXTENSION_URI
from tests.integration.test_gateway_fold_law import folded
from tests.integration.test_gateway_support import (
    BINDINGS,
    agent_with_inbox,
    history,
    message,
    rest_of,
    running_gateway,
    state_of,
)

both = pytest.mark.parametrize("binding", BINDINGS)


@both
async def test_a_message_to_a_task_that_works_is_taken(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url, agent=agent_with_inbox()) as gateway:
        task_id = await gateway.started()
        early = message("while nobody runs it", task_id=task_id)
        task = await gateway.send(early, binding=binding, immediately=True)
        assert task.status.state == pb.TASK_STATE_SUBMITTED

        await gateway.hand.report(task_id, "busy")
        late = message("while it runs", task_id=task_id)
        task = await gateway.send(late, binding=binding, immediately=True)
        assert task.status.state == pb.TASK_STATE_WORKING
        assert task.status.message.parts[0].text == "busy"
        assert history(task) == ["begin", "while nobody runs it", "while it runs"]
        assert task.history[2].context_id == task.context_id
        assert [event.seq for event in await gateway.log.received(task_id, after=Seq(0))] == [2, 4]
        assert task == await gateway.task(task_id)
        assert task == (await gateway.page()).tasks[0]


@both
async def test_a_blocking_message_waits_for_the_end(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url, agent=agent_with_inbox()) as gateway:
        task_id = await gateway.started()
        await gateway.hand.report(task_id, "busy")
        waiting = asyncio.create_task(
            gateway.send(message("and this", task_id=task_id), binding=binding)
        )
        await until_received(gateway.log, task_id)
        await gateway.hand.finish_reading(task_id, Seq(3))
        assert (await waiting).status.state == pb.TASK_STATE_COMPLETED


async def test_a_stream_shows_it_in_its_place(sqlite_url: str) -> None:
    """To every client as the status that is, with our extension as the message that it is."""
    async with running_gateway(sqlite_url, agent=agent_with_inbox()) as gateway:
        task_id = await gateway.started()
        await gateway.hand.report(task_id, "busy")
        streams = [gateway.subscribe(task_id, extended=extended) for extended in (False, True)]
        first = [await anext(stream) for stream in streams]
        sending = asyncio.create_task(rest_of(gateway.stream(message("and this", task_id=task_id))))
        await until_received(gateway.log, task_id)
        await gateway.hand.finish_reading(task_id, Seq(3))
        plain, extended = [
            [item, *await rest_of(stream)] for item, stream in zip(first, streams, strict=True)
        ]

        assert [state_of(item) for item in plain] == ["WORKING", "WORKING", "COMPLETED"]
        update = plain[1].status_update
        assert update.status.message.parts[0].text == "busy"
        assert not update.HasField("metadata")
        task = await gateway.task(task_id)
        said = MessageToDict(extended[1].status_update.metadata)[EXTENSION_URI]
        assert (said["generation"], said["message"]["parts"]) == (3, [{"text": "and this"}])
        assert history(folded(extended)) == history(task) == ["begin", "and this"]
        sent = await sending
        assert history(sent[0].task) == ["begin", "and this"]
        assert state_of(sent[-1]) == "COMPLETED"


async def test_a_late_answer_is_none_for_the_inbox(sqlite_url: str) -> None:
    """A message that names a pause is meant for that question."""
    async with running_gateway(sqlite_url, agent=agent_with_inbox()) as gateway:
        task_id = await gateway.started()
        pause = await gateway.hand.ask(task_id, "sure?")
        await gateway.send(message("yes", task_id=task_id), immediately=True)
        late = message("no", task_id=task_id, said={"pause": pause})
        with pytest.raises(a2a.UnsupportedOperationError, match="does not wait for an answer"):
            await gateway.send(late)
        assert history(await gateway.task(task_id)) == ["begin", "sure?", "yes"]
        task = await gateway.send(message("more", task_id=task_id), immediately=True)
        assert history(task) == ["begin", "sure?", "yes", "more"]
        kinds = [event.kind for event in await gateway.log.events_since(task_id, Seq(0))]
        assert kinds == [EventKind.TASK, EventKind.STATUS, EventKind.MESSAGE, EventKind.MESSAGE]


@pytest.mark.parametrize("state", [State.INPUT_REQUIRED, State.AUTH_REQUIRED])
async def test_a_message_that_was_on_its_way_answers_no_question(
    database_url: str, monkeypatch: pytest.MonkeyPatch, state: State
) -> None:
    """The gateway saw the task at work, and then it asked: its caller has not seen what."""
    async with running_gateway(database_url, agent=agent_with_inbox()) as gateway:
        task_id = await gateway.started()
        written = Tasks.receive

        async def receive(self: Tasks, given: Any) -> Sent:
            await gateway.hand.ask(task_id, "sure?", state=state)
            return await written(self, given)

        monkeypatch.setattr(Tasks, "receive", receive)
        with pytest.raises(a2a.UnsupportedOperationError, match="just stopped to ask"):
            await gateway.send(message("go on", task_id=task_id))
        assert (await gateway.task(task_id)).status.message.parts[0].text == "sure?"


async def test_a_message_is_no_authorization_there_either(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, agent=agent_with_inbox()) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "log in", state=State.AUTH_REQUIRED)
        with pytest.raises(a2a.UnsupportedOperationError, match="authorization"):
            await gateway.send(message("s3cret", task_id=task_id))


async def until_received(log: Any, task_id: TaskId) -> None:
    async with asyncio.timeout(10):
        while not await log.received(task_id, after=Seq(0)):
            await asyncio.sleep(0.005)
