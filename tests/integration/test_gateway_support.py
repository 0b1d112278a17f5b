"""What the gateway's tests share: a gateway on a real store and a real socket, and the SDK's
client.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import grpc
import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.client import ClientCallContext
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict
from pydantic import BaseModel

from outlast import Agent, Context, Data, Message, Skill, Workflow
from outlast.compose import Stores
from outlast.gateway.app import Problems, Unready, create_app
from outlast.gateway.auth.ways import Way, any_of
from outlast.gateway.cards import agent_card
from outlast.gateway.config import GatewayConfig
from outlast.gateway.grpc_server import GrpcServer
from outlast.gateway.handler import OutlastRequestHandler
from outlast.gateway.scopes import ResolveIdentity, with_principal
from outlast.gateway.server import GatewayServer, listen
from outlast.model.ids import TaskId
from outlast.model.task import Caller, Scope
from outlast.store.admin import Admin
from outlast.store.database import Database, Query, Script, Statement
from outlast.store.log import Log
from outlast.store.tasks import Tasks
from outlast.store.webhooks import Webhooks
from outlast.store.work import Work
from outlast.wire.extension import EXTENSION_URI
from tests.integration.test_gateway_fold_law import Stream
from tests.integration.test_gateway_hand import Hand

C = TypeVar("C")

BINDINGS = ("JSONRPC", "HTTP+JSON")
EVERY_BINDING = (*BINDINGS, "GRPC")
SCOPE = Scope(agent="tester")


# --- an agent -----------------------------------------------------------------------------------


class Order(BaseModel):
    """What the workflow `orders` wants to be told."""

    item: str
    count: int


class Nothing(BaseModel):
    """A checkpoint that holds nothing."""


def make_agent() -> Agent:
    """An agent whose router answers "hello" itself, and "break" not at all."""
    chats = of_one_step(Workflow("chats", 1, checkpoint=Nothing))
    newer = of_one_step(Workflow("chats", 2, checkpoint=Nothing))
    orders = of_one_step(Workflow("orders", 1, checkpoint=Order))
    agent = Agent(
        "tester",
        description="An agent for tests.",
        skills=[Skill("chat", "Chat", "Talks.")],
        workflows=[chats, newer, orders],
    )

    @agent.route
    async def pick(message: Message, caller: Caller) -> Workflow[Any] | Message:
        if message.text == "hello":
            return Message.agent(f"hello to you, {uuid.uuid4()}")
        if message.text == "break":
            raise RuntimeError("s3cret detail")
        if message.text == "sleep":
            await asyncio.sleep(60)
        return newer

    return agent


def agent_with_inbox() -> Agent:
    """An agent whose tasks take messages while they work."""
    talks = of_one_step(Workflow("talks", 1, checkpoint=Nothing, inbox=True))
    return Agent("tester", description="An agent for tests.", skills=[], workflows=[talks])


def of_one_step(workflow: Workflow[C]) -> Workflow[C]:
    """The workflow, complete."""

    @workflow.step
    async def work(ctx: Context[Any, Any]) -> None:
        """Never run: the worker's hand does what the test says."""

    return workflow


# --- a gateway ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gateway:
    """A running gateway, and all that a test wants of it."""

    url: str
    card: pb.AgentCard
    agent: Agent
    database: Database
    tasks: Tasks
    log: Log
    hand: Hand
    handler: OutlastRequestHandler
    server: GatewayServer
    serving: asyncio.Task[None]
    http: httpx.AsyncClient
    ways: Sequence[Way]
    over_grpc: list[Client]

    def client(self, binding: str = "JSONRPC", *, streaming: bool = False) -> Client:
        """The SDK's client for one binding."""
        config = ClientConfig(
            streaming=streaming,
            httpx_client=self.http,
            grpc_channel_factory=grpc.aio.insecure_channel,
            supported_protocol_bindings=[binding],
        )
        client = ClientFactory(config).create(self.card)
        if binding == "GRPC":  # which has a channel of its own, to be closed in the end
            self.over_grpc.append(client)
        return client

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return await self.http.post(
            self.url + path, json=body, headers={"A2A-Version": "1.0", **headers}
        )

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.http.get(self.url + path, headers={"A2A-Version": "1.0", **headers})

    async def rpc(self, method: str, params: Any, **headers: str) -> Any:
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        return (await self.post("/", body, **headers)).json()

    async def started(self, text: str = "begin") -> TaskId:
        """A new task, not waited for."""
        task = await self.send(message(text), immediately=True)
        return TaskId(task.id)

    async def send(
        self,
        sent: pb.Message,
        *,
        binding: str = "JSONRPC",
        immediately: bool = False,
        headers: dict[str, str] | None = None,
    ) -> pb.Task:
        request = pb.SendMessageRequest(message=sent)
        request.configuration.return_immediately = immediately
        (response,) = [
            item
            async for item in self.client(binding).send_message(request, context=_with(headers))
        ]
        assert response.HasField("task"), response
        return response.task

    async def task(self, task_id: str, **params: Any) -> pb.Task:
        return await self.client().get_task(pb.GetTaskRequest(id=task_id, **params))

    async def seen(self, task_id: str, extended: bool) -> pb.Task:
        """The task as a client sees it, with our extension or without."""
        request = pb.GetTaskRequest(id=task_id)
        return await self.client().get_task(request, context=_with(_extended(extended)))

    async def page(self, *, binding: str = "JSONRPC", **params: Any) -> pb.ListTasksResponse:
        return await self.client(binding).list_tasks(pb.ListTasksRequest(**params))

    async def pages(self, **params: Any) -> list[pb.Task]:
        """The tasks of all pages, in order."""
        tasks: list[pb.Task] = []
        token = ""
        while True:
            page = await self.page(page_token=token, **params)
            tasks += page.tasks
            if not (token := page.next_page_token):
                return tasks

    async def cancel(self, task_id: str, *, binding: str = "JSONRPC") -> pb.Task:
        return await self.client(binding).cancel_task(pb.CancelTaskRequest(id=task_id))

    def stream(
        self, sent: pb.Message, *, binding: str = "JSONRPC", extended: bool = False
    ) -> Stream:
        """SendStreamingMessage; at its end the fold law is checked."""
        client = self.client(binding, streaming=True)
        request = pb.SendMessageRequest(message=sent)
        items = client.send_message(request, context=_with(_extended(extended)))
        return Stream(items, self.seen)

    def subscribe(
        self, task_id: str, *, binding: str = "JSONRPC", extended: bool = False
    ) -> Stream:
        """SubscribeToTask; at its end the fold law is checked."""
        client = self.client(binding, streaming=True)
        request = pb.SubscribeToTaskRequest(id=task_id)
        items = client.subscribe(request, context=_with(_extended(extended)))
        return Stream(items, self.seen)


@asynccontextmanager
async def running_gateway(
    database_url: str,
    config: GatewayConfig | None = None,
    *,
    agent: Agent | None = None,
    identify: ResolveIdentity | None = None,
    know: Callable[[Database], list[Way]] | None = None,
    problems: Problems = tuple,
    unready: Unready | None = None,
    on_grpc: bool = False,
    **limits: Any,
) -> AsyncIterator[Gateway]:
    """A gateway on this database; two of them on one database are two processes' worth. With
    `know`, callers are known in these ways."""
    agent = agent or make_agent()
    database = database_of(database_url)
    ways = know(database) if know else []
    if ways:
        identify = identify or with_principal(agent.name)
    await database.open()
    listener = listen("127.0.0.1", 0)
    try:
        await Admin(database).migrate()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = replace(config or GatewayConfig(), url=url, **limits)
        tasks, log = Tasks(database), Log(database)
        handler = OutlastRequestHandler(
            agent,
            tasks,
            log,
            database.wakeups,
            config,
            identify=identify,
            webhooks=Webhooks(database),
        )
        other = GrpcServer(handler, host="127.0.0.1", port=0) if on_grpc else None
        if other is not None:
            config = replace(config, grpc_url=f"127.0.0.1:{other.port}")
        card = agent_card(agent, config, ways)
        app = create_app(
            handler, card, problems=problems, unready=unready, authenticator=any_of(ways)
        )
        server = GatewayServer(app, handler, listener)
        serving = asyncio.create_task(server.serve())
        serving_grpc = None if other is None else asyncio.create_task(other.serve())
        over_grpc: list[Client] = []
        hand = Hand(Work(database), database, agent)
        await hand.register()
        try:
            async with httpx.AsyncClient(timeout=20) as http:
                yield Gateway(
                    url,
                    card,
                    agent,
                    database,
                    tasks,
                    log,
                    hand,
                    handler,
                    server,
                    serving,
                    http,
                    ways,
                    over_grpc,
                )
        finally:
            for client in over_grpc:
                await client.close()
            if other is not None and serving_grpc is not None:
                other.stop()
                await serving_grpc
            server.stop()
            await serving
    finally:
        listener.close()
        await database.close()


def database_of(url: str) -> Database:
    if url.startswith("sqlite:///"):
        from outlast.store.sqlite import SqliteDatabase

        return SqliteDatabase(url.removeprefix("sqlite:///"))
    from outlast.store.postgres import PostgresDatabase

    return PostgresDatabase(url)


# --- messages -----------------------------------------------------------------------------------


def message(
    text: str = "begin",
    *,
    message_id: str | None = None,
    task_id: str = "",
    context_id: str = "",
    data: Any = None,
    said: dict[str, Any] | None = None,
) -> pb.Message:
    """A caller's message; `said` is what its metadata holds under our URI."""
    sent = pb.Message(
        message_id=message_id or str(uuid.uuid4()),
        role=pb.ROLE_USER,
        task_id=task_id,
        context_id=context_id,
        parts=[pb.Part(text=text)],
    )
    if data is not None:
        sent.parts.append(_data_part(data))
    if said is not None:
        sent.metadata.update({EXTENSION_URI: said})
    return sent


def _data_part(data: Any) -> pb.Part:
    part: pb.Part = ParseDict(Data(data).to_json(), pb.Part())
    return part


def _with(headers: dict[str, str] | None) -> ClientCallContext | None:
    return None if headers is None else ClientCallContext(service_parameters=headers)


def _extended(extended: bool) -> dict[str, str] | None:
    return {"A2A-Extensions": EXTENSION_URI} if extended else None


# --- reading streams ----------------------------------------------------------------------------


def state_of(item: pb.StreamResponse) -> str | None:
    """The state that an item of a stream brings, without its prefix."""
    if item.HasField("task"):
        state = item.task.status.state
    elif item.HasField("status_update"):
        state = item.status_update.status.state
    else:
        return None
    return str(pb.TaskState.Name(state)).removeprefix("TASK_STATE_")


def history(task: pb.Task) -> list[str]:
    """The texts of a task's history."""
    return [part.text for message in task.history for part in message.parts]


async def rest_of(stream: AsyncIterator[pb.StreamResponse]) -> list[pb.StreamResponse]:
    """What still comes of a stream."""
    async with asyncio.timeout(10):
        return [item async for item in stream]


# --- looking at the store -----------------------------------------------------------------------


async def only_task(gateway: Gateway) -> TaskId:
    """The id of the one task there is, as soon as there is one."""
    async with asyncio.timeout(5):
        while not (task_ids := await _task_ids(gateway)):
            await asyncio.sleep(0.005)
    return task_ids[0]


async def count_tasks(gateway: Gateway) -> int:
    """How many tasks there are."""
    return len(await _task_ids(gateway))


async def _task_ids(gateway: Gateway) -> list[TaskId]:
    def script() -> Script[list[TaskId]]:
        rows = yield Statement(Query("test_tasks", "", "select task_id from tasks"), {})
        return [TaskId(row["task_id"]) for row in rows]

    return await gateway.database.read(script)


async def epoch_of(stores: Stores) -> str:
    """What a gateway on these stores begins in."""
    return (await stores.admin.check()).epoch
