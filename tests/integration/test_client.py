"""The client, against our gateway over connections that are cut, and against the SDK's server."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette

from outlast import Client
from outlast.client import ArtifactChanged, Event, Opened, Patience, Reset, StatusChanged
from outlast.gateway.server import GatewayServer, listen
from outlast.model.errors import (
    ConfigError,
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


class Steady(AgentExecutor):
    """Writes fifty chunks, one at each `more`."""

    def __init__(self) -> None:
        self.more = asyncio.Semaphore(0)

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        ids: dict[str, Any] = {"task_id": context.task_id, "context_id": context.context_id}
        task = pb.Task(id=context.task_id, context_id=context.context_id)
        task.status.state = pb.TASK_STATE_WORKING
        await event_queue.enqueue_event(task)
        for index in range(50):
            await self.more.acquire()
            artifact = pb.Artifact(artifact_id="out", parts=[pb.Part(text="a")])
            update = pb.TaskArtifactUpdateEvent(**ids, artifact=artifact, append=index > 0)
            await event_queue.enqueue_event(update)
        status = pb.TaskStatus(state=pb.TASK_STATE_COMPLETED)
        await event_queue.enqueue_event(pb.TaskStatusUpdateEvent(**ids, status=status))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


async def test_any_server_of_the_protocol_is_followed_over_cuts() -> None:
    executor = Steady()
    async with sdk_server(executor) as (proxy, client):
        sent = await client.send("begin", wait=False)
        assert sent.snapshot is not None
        events: list[Event] = []
        stream: AsyncGenerator[Event, None] = client.follow(sent.snapshot.task_id)
        async for event in stream:
            events.append(event)
            executor.more.release()
            if len(events) % 10 == 0:
                proxy.reset()
        task = made_of(events)
        assert "".join(part.text for part in task.artifacts[0].parts) == "a" * 50
        assert plain(task) == plain((await client.get(sent.snapshot.task_id)).task)


@asynccontextmanager
async def sdk_server(executor: AgentExecutor) -> AsyncIterator[tuple[Proxy, Client]]:
    """The SDK's own server with its store in memory, behind a proxy."""
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    async with Proxy("127.0.0.1", port) as proxy:
        card = pb.AgentCard(
            name="steady",
            description="Writes.",
            version="1",
            capabilities=pb.AgentCapabilities(streaming=True),
            supported_interfaces=[
                pb.AgentInterface(
                    url=f"http://127.0.0.1:{proxy.port}/rpc",
                    protocol_binding="JSONRPC",
                    protocol_version="1.0",
                )
            ],
        )
        handler = DefaultRequestHandler(executor, InMemoryTaskStore(), card)
        routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc")]
        server = GatewayServer(Starlette(routes=routes), _Nothing(), listener)  # type: ignore[arg-type]
        serving = asyncio.create_task(server.serve())
        try:
            async with Client(f"http://127.0.0.1:{proxy.port}", patience=QUICK) as client:
                yield proxy, client
        finally:
            server.stop()
            await serving


class _Nothing:
    """A handler that holds nothing which a stop would end."""

    def close(self) -> None:
        pass


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
