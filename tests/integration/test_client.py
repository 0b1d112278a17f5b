"""The client against our gateway, over connections that are cut."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict

from outlast import Client
from outlast.client import ArtifactChanged, Event, Opened, Patience, Reset, StatusChanged
from outlast.model.errors import (
    ConfigError,
    GenerationMismatch,
    TaskCanceled,
    TaskFailed,
    TaskNotFound,
    Unreachable,
    UnsupportedOperation,
)
from outlast.model.task import State
from outlast.testing.proxy import Proxy
from outlast.wire.updates import apply_update
from tests.integration.test_gateway_support import (
    BINDINGS,
    Gateway,
    count_tasks,
    only_task,
    running_gateway,
)

QUICK = Patience(total=10, first=0.01, longest=0.05)


def made_of(events: list[Event]) -> pb.Task:
    """What a reader of the events holds in the end."""
    assert isinstance(events[0], Opened)
    task = pb.Task()
    for event in events:
        match event:
            case Opened(snapshot) | Reset(snapshot):
                task.CopyFrom(snapshot.task)
            case StatusChanged(update) | ArtifactChanged(update):
                apply_update(task, update)
    return task


def plain(task: pb.Task) -> tuple[object, object]:
    return MessageToDict(task.status), [MessageToDict(item) for item in task.artifacts]


@asynccontextmanager
async def through_a_proxy(gateway: Gateway) -> AsyncIterator[tuple[Proxy, Client]]:
    """A client whose every connection goes through the proxy."""
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    async with Proxy(host, int(port)) as proxy:
        card = pb.AgentCard()
        card.CopyFrom(gateway.card)
        for interface in card.supported_interfaces:
            interface.url = proxy.url(interface.url)
        async with Client(card, patience=QUICK) as client:
            yield proxy, client


async def test_case_038_fifty_cuts_fold_to_the_task(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway, through_a_proxy(gateway) as (proxy, client):
        task_id = await gateway.started()
        cuts = 0

        async def write() -> None:
            for index in range(50):
                await gateway.hand.chunk(task_id, *"a" * 20, append=index > 0)
                await asyncio.sleep(0)
            await gateway.hand.finish(task_id)

        writing = asyncio.create_task(write())
        events: list[Event] = []
        async for event in client.follow(task_id):
            events.append(event)
            if cuts < 50 and random.random() < 0.2:
                cuts += 1
                proxy.cut_after(random.randint(1, 2_000))
        await writing

        assert cuts > 10
        assert not any(isinstance(event, Reset) for event in events)
        task = await gateway.task(task_id)
        assert plain(made_of(events)) == plain(task)
        assert "".join(part.text for part in made_of(events).artifacts[0].parts) == "a" * 1000


async def test_a_send_whose_reply_is_lost_starts_one_task(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway, through_a_proxy(gateway) as (proxy, client):
        proxy.cut_after(1)
        sent = await client.send("begin", wait=False)
        assert sent.snapshot is not None
        assert sent.snapshot.state is State.SUBMITTED
        assert await count_tasks(gateway) == 1


async def test_a_late_answer_is_not_given_to_the_next_question(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway, Client(gateway.url) as client:
        task_id = await gateway.started()
        with pytest.raises(UnsupportedOperation, match="asks nothing"):
            await client.answer(task_id, "yes")
        await gateway.hand.ask(task_id, "First?")
        question = (await client.get(task_id)).question
        assert question is not None
        assert question.text == "First?"
        assert (await client.answer(task_id, "yes")).state is State.WORKING
        await gateway.hand.ask(task_id, "Second?")
        with pytest.raises(UnsupportedOperation, match="is over"):
            await client.answer(task_id, "yes", pause=question.pause)
        assert (await client.get(task_id)).state is State.INPUT_REQUIRED


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_send_can_insist_that_nothing_has_happened_since(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url) as gateway, Client(only(gateway, binding)) as client:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "Sure?")
        with pytest.raises(GenerationMismatch) as raised:
            await client.send("yes", task_id=task_id, if_generation=1)
        assert (raised.value.task_id, raised.value.expected, raised.value.current) == (
            task_id,
            1,
            2,
        )
        seen = await client.get(task_id)
        sent = await client.send("yes", task_id=task_id, wait=False, if_generation=seen.generation)
        assert sent.snapshot is not None
        assert sent.snapshot.state is State.WORKING


def only(gateway: Gateway, binding: str) -> pb.AgentCard:
    """The card with this binding alone."""
    card = pb.AgentCard()
    card.CopyFrom(gateway.card)
    spoken = [item for item in card.supported_interfaces if item.protocol_binding == binding]
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(spoken)
    return card


async def test_a_send_waits_for_a_question_and_a_result_for_the_end(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway, Client(gateway.url) as client:
        sending = asyncio.create_task(client.send("begin"))
        task = await only_task(gateway)
        await gateway.hand.ask(task, "Sure?")
        sent = await sending
        assert sent.text == "Sure?"
        finishing = asyncio.create_task(client.result(task))
        await client.answer(task, "yes")
        await gateway.hand.finish(task, text="thanks")
        assert (await finishing).text == "thanks"


async def test_ends_that_are_no_results_are_raised(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway, Client(gateway.url) as client:
        failed, canceled = await gateway.started(), await gateway.started()
        await gateway.hand.finish(failed, State.FAILED, "no lamps")
        with pytest.raises(TaskFailed, match="no lamps"):
            await client.result(failed)
        assert (await client.cancel(canceled)).state is State.CANCELED
        with pytest.raises(TaskCanceled):
            await client.result(canceled)


async def test_what_is_not_there_is_said(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway, Client(gateway.url) as client:
        missing = str(uuid.uuid4())
        with pytest.raises(TaskNotFound, match=missing):
            await client.get(missing)
        with pytest.raises(TaskNotFound, match=missing):
            await anext(client.follow(missing))
        reply = await client.send("hello")
        assert reply.text.startswith("hello to you")
    with pytest.raises(Unreachable):
        await Client(gateway.url, patience=Patience(total=0.1)).__aenter__()
    with pytest.raises(ConfigError, match="http"):
        await Client("example").__aenter__()


async def test_with_the_extension_history_and_generation_fold_too(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway, Client(gateway.url) as client:
        task_id = await gateway.started()
        stream = client.follow(task_id)
        events: list[Event] = [await anext(stream)]
        await gateway.hand.ask(task_id, "Sure?")
        await client.answer(task_id, "yes")
        await gateway.hand.finish(task_id)
        events += [event async for event in stream]
        now = (await client.get(task_id)).task
        assert MessageToDict(made_of(events)) == MessageToDict(now)
        assert [part.text for said in now.history for part in said.parts] == [
            "begin",
            "Sure?",
            "yes",
        ]
