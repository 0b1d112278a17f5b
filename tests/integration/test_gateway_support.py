"""What the gateway's tests share: a gateway on a real store and a real socket, the SDK's client,
and a worker's hand, which writes to tasks what a worker would, when the test says so.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.client import ClientCallContext
from a2a.server.tasks.task_manager import append_artifact_to_task
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict, ParseDict
from pydantic import BaseModel

from outlast import Agent, Context, Data, Message, Skill, Text, Workflow
from outlast.gateway.app import Problems, Unready, create_app
from outlast.gateway.cards import agent_card
from outlast.gateway.config import GatewayConfig
from outlast.gateway.handler import OutlastRequestHandler
from outlast.gateway.server import GatewayServer, listen
from outlast.model.artifacts import artifact_event
from outlast.model.commit import Committed, Ending, Event, Finish, Pause, Write, status_event
from outlast.model.content import Artifact
from outlast.model.ids import Millis, Seq, TaskId, WorkerId, WriteNo
from outlast.model.lease import Lease
from outlast.model.ledger import Intent, LedgerKind
from outlast.model.pause import Ask, DueBy
from outlast.model.task import Caller, Scope, State
from outlast.model.topics import task_topic
from outlast.store.admin import Admin
from outlast.store.database import Database
from outlast.store.log import Log
from outlast.store.protocols import NewWorker, VersionOf
from outlast.store.tasks import Tasks
from outlast.store.work import Work
from outlast.wire.extension import EXTENSION_URI

BINDINGS = ("JSONRPC", "HTTP+JSON")
SCOPE = Scope(agent="tester")


# --- an agent -----------------------------------------------------------------------------------


class Order(BaseModel):
    """What the workflow `orders` wants to be told."""

    item: str
    count: int


class Nothing(BaseModel):
    """A checkpoint that holds nothing."""


def make_agent(*, routed: bool = True) -> Agent:
    """An agent whose router answers "hello" itself, and "break" not at all."""
    chats = Workflow("chats", 1, checkpoint=Nothing)
    newer = Workflow("chats", 2, checkpoint=Nothing)
    orders = Workflow("orders", 1, checkpoint=Order)

    for workflow in (chats, newer, orders):

        @workflow.step
        async def work(ctx: Context[Any, Any]) -> None:
            """Never run: the worker's hand does what the test says."""

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


# --- a worker's hand ----------------------------------------------------------------------------


@dataclass
class Hand:
    """A worker that does nothing by itself."""

    work: Work
    database: Database
    agent: Agent
    worker_id: WorkerId = field(default_factory=lambda: WorkerId(str(uuid.uuid4())))
    leases: dict[TaskId, tuple[Lease, WriteNo]] = field(default_factory=dict)

    async def register(self) -> None:
        versions = [
            VersionOf(
                workflow=workflow.name,
                version=workflow.version,
                steps=[step.name for step in workflow.steps],
                fingerprint=workflow.fingerprint,
            )
            for workflow in self.agent.workflows
        ]
        await self.work.register(
            NewWorker(
                worker_id=self.worker_id,
                agent=self.agent.name,
                host="here",
                beat_ms=1000,
                lease_ms=15000,
                versions=versions,
                presence=None,
            )
        )

    async def lease(self, task_id: TaskId) -> tuple[Lease, WriteNo]:
        if task_id not in self.leases:
            for workflow in self.agent.workflows:
                for lease in await self.work.claim(
                    self.worker_id, self.agent.name, workflow.name, workflow.version, limit=100
                ):
                    self.leases[lease.task_id] = (lease, WriteNo(0))
        return self.leases[task_id]

    async def write(
        self,
        task_id: TaskId,
        *events: Event,
        ending: Ending | None = None,
        ledger: Sequence[Intent] = (),
    ) -> Seq:
        """Commit, and ring, as a worker does. Returns the seq of the last event."""
        lease, write_no = await self.lease(task_id)
        write = Write(
            task_id=task_id,
            ledger_id=lease.ledger_id,
            fence=lease.fence,
            write_no=write_no,
            events=events,
            ledger=tuple(ledger),
            ending=ending,
        )
        (verdict,) = await self.work.commit([write], patient=True)
        assert isinstance(verdict, Committed), verdict
        if ending is None:
            self.leases[task_id] = (lease, WriteNo(write_no + 1))
        else:
            del self.leases[task_id]
        self.database.wakeups.send([task_topic(task_id)])
        return verdict.last_seq

    async def report(self, task_id: TaskId, text: str) -> Seq:
        said = Message.agent(text).to_json()
        return await self.write(task_id, status_event(State.WORKING, said))

    async def chunk(
        self, task_id: TaskId, *texts: str, append: bool = True, name: str = "out"
    ) -> Seq:
        events = [
            artifact_event(
                Artifact(id=name, parts=(Text(text),)).to_json(),
                append=append or index > 0,
                last_chunk=False,
            )
            for index, text in enumerate(texts)
        ]
        return await self.write(task_id, *events)

    async def ask(
        self,
        task_id: TaskId,
        text: str,
        schema: dict[str, Any] | None = None,
        *,
        state: State = State.INPUT_REQUIRED,
    ) -> Seq:
        key = f"ask-{uuid.uuid4()}"
        ask = Ask(ledger_key=key, schema=schema).to_json()
        return await self.write(
            task_id,
            status_event(state, Message.agent(text).to_json(), ask=ask),
            ending=Pause(state=state, deadline=DueBy(after=Millis(3_600_000))),
            ledger=[Intent(key=key, kind=LedgerKind.ANSWER)],
        )

    async def finish(
        self, task_id: TaskId, state: State = State.COMPLETED, text: str = "done"
    ) -> Seq:
        event = status_event(state, Message.agent(text).to_json())
        return await self.write(task_id, event, ending=Finish(state=state))


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
    http: httpx.AsyncClient

    def client(self, binding: str = "JSONRPC", *, streaming: bool = False) -> Client:
        """The SDK's client for one binding."""
        config = ClientConfig(
            streaming=streaming, httpx_client=self.http, supported_protocol_bindings=[binding]
        )
        return ClientFactory(config).create(self.card)

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

    async def cancel(self, task_id: str, *, binding: str = "JSONRPC") -> pb.Task:
        return await self.client(binding).cancel_task(pb.CancelTaskRequest(id=task_id))

    def stream(
        self, sent: pb.Message, *, binding: str = "JSONRPC", extended: bool = False
    ) -> AsyncIterator[pb.StreamResponse]:
        client = self.client(binding, streaming=True)
        request = pb.SendMessageRequest(message=sent)
        return client.send_message(request, context=_with(_extended(extended)))

    def subscribe(
        self, task_id: str, *, binding: str = "JSONRPC", extended: bool = False
    ) -> AsyncGenerator[pb.StreamResponse, None]:
        client = self.client(binding, streaming=True)
        request = pb.SubscribeToTaskRequest(id=task_id)
        stream: Any = client.subscribe(request, context=_with(_extended(extended)))
        return stream  # type: ignore[no-any-return]


@asynccontextmanager
async def running_gateway(
    database_url: str,
    config: GatewayConfig | None = None,
    *,
    agent: Agent | None = None,
    problems: Problems = tuple,
    unready: Unready | None = None,
    **limits: Any,
) -> AsyncIterator[Gateway]:
    """A gateway on this database; two of them on one database are two processes' worth."""
    agent = agent or make_agent()
    database = database_of(database_url)
    await database.open()
    listener = listen("127.0.0.1", 0)
    try:
        await Admin(database).migrate()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = replace(config or GatewayConfig(), url=url, **limits)
        tasks, log = Tasks(database), Log(database)
        handler = OutlastRequestHandler(agent, tasks, log, database.wakeups, config)
        card = agent_card(agent, config)
        app = create_app(handler, card, problems=problems, unready=unready)
        server = GatewayServer(app, handler, listener)
        serving = asyncio.create_task(server.serve())
        hand = Hand(Work(database), database, agent)
        await hand.register()
        try:
            async with httpx.AsyncClient(timeout=20) as http:
                yield Gateway(url, card, agent, database, tasks, log, hand, handler, server, http)
        finally:
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
        number = item.task.status.state
    elif item.HasField("status_update"):
        number = item.status_update.status.state
    else:
        return None
    return pb.TaskState.Name(number).removeprefix("TASK_STATE_")


def folded(items: Sequence[pb.StreamResponse]) -> dict[str, Any]:
    """The Task of a stream with its events applied, as any client would, without history."""
    task = pb.Task()
    task.CopyFrom(items[0].task)
    for item in items[1:]:
        if item.HasField("artifact_update"):
            append_artifact_to_task(task, item.artifact_update)
        else:
            task.status.CopyFrom(item.status_update.status)
    return shown(task)


def shown(task: pb.Task) -> dict[str, Any]:
    body: dict[str, Any] = MessageToDict(task)
    body.pop("history", None)
    for artifact in body.get("artifacts", ()):
        if not artifact.get("metadata"):
            artifact.pop("metadata", None)
    return body
