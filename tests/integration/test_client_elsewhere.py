"""The client against the SDK's own server, which numbers no events and forgets its tasks when it
ends: what still holds there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import pytest
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as pb
from starlette.applications import Starlette
from starlette.routing import Mount

from outlast import Client
from outlast.client import ArtifactChanged, Event, Link, Opened, Reset, StatusChanged
from outlast.gateway.server import GatewayServer, listen
from outlast.model.errors import TaskNotFound, Uncertain
from outlast.model.task import State
from outlast.testing.proxy import Proxy
from tests.integration.test_client import QUICK, made_of, plain

Work = Callable[[TaskUpdater, RequestContext], Awaitable[None]]


@dataclass
class Executor(AgentExecutor):
    """Does what the test says, in a task that is there already."""

    work: Work

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        if context.current_task is None:
            task = pb.Task(id=context.task_id, context_id=context.context_id)
            task.status.state = pb.TASK_STATE_SUBMITTED
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await self.work(updater, context)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


@dataclass
class Elsewhere:
    """A server of the SDK's, and a client that reaches it through a proxy."""

    proxy: Proxy
    client: Client
    restart: Callable[[], None]

    async def started(self, text: str = "begin") -> str:
        sent = await self.client.send(text, wait=False)
        assert sent.snapshot is not None
        return sent.snapshot.task_id


@asynccontextmanager
async def elsewhere(work: Work, *, streaming: bool = True) -> AsyncIterator[Elsewhere]:
    """`restart` begins with an empty store, as a process does whose store was its memory."""
    listener = listen("127.0.0.1", 0)
    async with Proxy("127.0.0.1", listener.getsockname()[1]) as proxy:
        url = proxy.url("http://127.0.0.1")
        card = pb.AgentCard(
            name="elsewhere",
            description="Not ours.",
            version="1",
            capabilities=pb.AgentCapabilities(streaming=streaming),
            supported_interfaces=[
                pb.AgentInterface(
                    url=f"{url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0"
                )
            ],
        )

        def app() -> Starlette:
            handler = DefaultRequestHandler(Executor(work), InMemoryTaskStore(), card)
            routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc")]
            return Starlette(routes=routes)

        outside = Starlette()
        outside.mount("/", app())

        def restart() -> None:
            outside.routes[:] = [Mount("/", app())]
            proxy.reset()

        server = GatewayServer(outside, _Nothing(), listener)  # type: ignore[arg-type]
        serving = asyncio.create_task(server.serve())
        try:
            async with Client(url, patience=QUICK) as client:
                yield Elsewhere(proxy, client, restart)
        finally:
            server.stop()
            await serving


class _Nothing:
    """A handler that holds nothing which a stop would end."""

    def close(self) -> None:
        pass


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_task_is_followed_with_and_without_streams(streaming: bool) -> None:
    more = asyncio.Semaphore(0)

    async def work(task: TaskUpdater, _: RequestContext) -> None:
        for index in range(12):
            await more.acquire()
            part = pb.Part(text=f"{index};")
            await task.add_artifact([part], artifact_id="out", append=index > 0)
        await task.complete()

    async with elsewhere(work, streaming=streaming) as house:
        assert not house.client.numbers_events
        task_id = await house.started()
        events: list[Event] = []
        links: list[Link] = []
        async for event in house.client.follow(task_id, on_link=links.append):
            events.append(event)
            more.release()
            if len(events) % 4 == 0:
                house.proxy.reset()
        text = "".join(event.text for event in events if isinstance(event, ArtifactChanged))
        assert text == "".join(f"{index};" for index in range(12))
        assert plain(made_of(events)) == plain((await house.client.get(task_id)).task)
        assert "stream" in {link.by for link in links} or not streaming


async def test_a_question_is_followed_and_answered() -> None:
    async def work(task: TaskUpdater, context: RequestContext) -> None:
        if context.get_user_input() == "yes":
            await task.complete(task.new_agent_message([pb.Part(text="thanks")]))
        else:
            await task.requires_input(task.new_agent_message([pb.Part(text="Sure?")]))

    async with elsewhere(work) as house:
        sent = await house.client.send("begin")
        assert sent.snapshot is not None
        assert sent.snapshot.question is not None
        assert sent.snapshot.question.pause is None, "it names no questions"
        task_id = sent.snapshot.task_id
        states: list[State] = []
        async for event in house.client.follow(task_id):
            match event:
                case Opened(snapshot):
                    states.append(snapshot.state)
                    answered = await house.client.answer(task_id, "yes", wait=True)
                    assert answered.text == "thanks"
                case StatusChanged():
                    states.append(event.state)
        assert states[0] is State.INPUT_REQUIRED
        assert states[-1] is State.COMPLETED


async def test_line_ends_of_unicode_are_no_line_ends_of_a_stream() -> None:
    go = asyncio.Event()

    async def work(task: TaskUpdater, _: RequestContext) -> None:
        await go.wait()
        await task.add_artifact([pb.Part(text="a\u2028b\u2029c\u0085d\r\ne")], artifact_id="out")
        await task.complete()

    async with elsewhere(work) as house:
        task_id = await house.started()
        links: list[Link] = []
        texts: list[str] = []
        async for event in house.client.follow(task_id, on_link=links.append):
            go.set()  # after the first: the rest comes by stream
            if isinstance(event, ArtifactChanged):
                texts.append(event.text)
        assert texts == ["a\u2028b\u2029c\u0085d\r\ne"]
        assert links == [Link(by="stream")]


async def test_a_task_that_its_server_forgot_is_not_waited_for() -> None:
    async def work(task: TaskUpdater, _: RequestContext) -> None:
        await task.start_work()
        await asyncio.Event().wait()

    async with elsewhere(work) as house:
        task_id = await house.started()
        async with aclosing(house.client.follow(task_id)) as events:
            await anext(events)
            house.restart()
            with pytest.raises(TaskNotFound, match=task_id):
                await anext(events)


async def test_a_message_whose_reply_is_lost_is_not_sent_again() -> None:
    taken = 0

    async def work(task: TaskUpdater, _: RequestContext) -> None:
        nonlocal taken
        taken += 1
        await task.complete()

    async with elsewhere(work) as house:
        house.proxy.cut_after(1)
        with pytest.raises(Uncertain, match="look whether"):
            await house.client.send("begin")
        assert taken == 1


async def test_what_was_replaced_while_nobody_saw_is_shown_as_replaced() -> None:
    seen, back = asyncio.Event(), asyncio.Event()

    async def work(task: TaskUpdater, _: RequestContext) -> None:
        await task.add_artifact([pb.Part(text="draft")], artifact_id="out")
        await seen.wait()
        await task.add_artifact([pb.Part(text="final")], artifact_id="out")
        back.set()
        await task.complete()

    async with elsewhere(work) as house:
        task_id = await house.started()
        events: list[Event] = []
        async for event in house.client.follow(task_id):
            events.append(event)
            if not seen.is_set() and made_of(events).artifacts:
                house.proxy.refuse()
                seen.set()
                await back.wait()
                house.proxy.heal()
        assert not any(isinstance(event, Reset) for event in events)
        replaced = [event for event in events if isinstance(event, ArtifactChanged)][-1]
        assert (replaced.text, replaced.appends) == ("final", False)
        assert plain(made_of(events)) == plain((await house.client.get(task_id)).task)
