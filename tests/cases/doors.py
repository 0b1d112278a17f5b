"""What the cases of security share: callers with keys, and every operation on every binding."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from a2a.types import a2a_pb2 as pb
from a2a.utils.grpc_status import status_from_call
from google.protobuf.json_format import MessageToDict, ParseDict
from google.rpc import error_details_pb2

from outlast.gateway.auth.api_keys import digest_of, key_id_of, new_key
from outlast.gateway.auth.ways import Way, by_api_keys
from outlast.model.ids import Millis
from outlast.store.access import Access
from outlast.store.database import Database
from outlast.store.protocols import NewKey
from tests.integration.test_gateway_grpc import Called, called
from tests.integration.test_gateway_support import Gateway

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")

_CONFIG = "/tasks/{task}/pushNotificationConfigs"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One of the protocol's methods about a task, and how HTTP+JSON calls it."""

    method: str
    request: type
    path: str
    verb: str = "POST"
    task_field: str = "id"
    says: Mapping[str, Any] = field(default_factory=dict)
    streams: bool = False

    def params(self, task_id: str, tenant: str = "") -> dict[str, Any]:
        said: dict[str, Any] = json.loads(json.dumps(self.says))
        if "message" in said:
            said["message"] |= {"taskId": task_id} if task_id else {}
        elif self.task_field:
            said[self.task_field] = task_id
        return said | ({"tenant": tenant} if tenant else {})


_MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "go on"}]}
_SEND = {"message": _MESSAGE, "configuration": {"returnImmediately": True}}

OPERATIONS = (
    Operation(
        method="SendMessage", request=pb.SendMessageRequest, path="/message:send", says=_SEND
    ),
    Operation(
        method="SendStreamingMessage",
        request=pb.SendMessageRequest,
        path="/message:stream",
        says=_SEND,
        streams=True,
    ),
    Operation(method="GetTask", request=pb.GetTaskRequest, path="/tasks/{task}", verb="GET"),
    Operation(
        method="ListTasks", request=pb.ListTasksRequest, path="/tasks", verb="GET", task_field=""
    ),
    Operation(method="CancelTask", request=pb.CancelTaskRequest, path="/tasks/{task}:cancel"),
    Operation(
        method="SubscribeToTask",
        request=pb.SubscribeToTaskRequest,
        path="/tasks/{task}:subscribe",
        streams=True,
    ),
    Operation(
        method="CreateTaskPushNotificationConfig",
        request=pb.TaskPushNotificationConfig,
        path=_CONFIG,
        task_field="taskId",
        says={"url": "https://example.com/hook"},
    ),
    Operation(
        method="GetTaskPushNotificationConfig",
        request=pb.GetTaskPushNotificationConfigRequest,
        path=_CONFIG + "/one",
        verb="GET",
        task_field="taskId",
        says={"id": "one"},
    ),
    Operation(
        method="ListTaskPushNotificationConfigs",
        request=pb.ListTaskPushNotificationConfigsRequest,
        path=_CONFIG,
        verb="GET",
        task_field="taskId",
    ),
    Operation(
        method="DeleteTaskPushNotificationConfig",
        request=pb.DeleteTaskPushNotificationConfigRequest,
        path=_CONFIG + "/one",
        verb="DELETE",
        task_field="taskId",
        says={"id": "one"},
    ),
    Operation(
        method="GetExtendedAgentCard",
        request=pb.GetExtendedAgentCardRequest,
        path="/extendedAgentCard",
        verb="GET",
        task_field="",
    ),
)
"""All eleven."""

OF_A_TASK = tuple(each for each in OPERATIONS if each.task_field)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a caller gets, as the binding says it. reason: of an error, else empty."""

    reason: str
    text: str
    body: Any = None


@dataclass
class Guarded:
    """A gateway that wants API keys, and callers who have some."""

    called: Called
    access: Access
    keys: dict[str, str] = field(default_factory=dict)
    more: list[tuple[str, str]] = field(default_factory=list)
    """Headers that are sent beside the owner's key."""

    @property
    def gateway(self) -> Gateway:
        return self.called.gateway

    async def give_key(
        self, owner: str, tenant: str | None = None, *, lasts: int | None = None
    ) -> str:
        """A key of this owner's, also kept under its name."""
        key = new_key()
        digest = digest_of(key)
        await self.access.create_key(
            NewKey(
                key_id=key_id_of(digest),
                agent="tester",
                digest=digest,
                name=owner,
                owner=owner,
                tenant=tenant,
                scopes=(),
                lasts=None if lasts is None else Millis(lasts),
            ),
            source="test",
        )
        self.keys[owner] = key
        return key

    def headers(self, owner: str) -> list[tuple[str, str]]:
        """What this owner sends, also as metadata; one without a key sends none."""
        key = self.keys.get(owner)
        return [("a2a-version", "1.0"), *([] if key is None else [("x-api-key", key)]), *self.more]

    async def begun(self, owner: str) -> str:
        """A new task of this owner's, not waited for."""
        message = {**_MESSAGE, "parts": [{"text": "begin"}]}
        send = {"message": message, "configuration": {"returnImmediately": True}}
        answer = await self.gateway.http.post(
            self.gateway.url + "/message:send", json=send, headers=self.headers(owner)
        )
        assert answer.status_code == 200, answer.text
        return str(answer.json()["task"]["id"])

    async def ask(
        self,
        owner: str,
        binding: str,
        operation: Operation,
        task_id: str,
        *,
        in_path: str = "",
        in_body: str = "",
        **said: Any,
    ) -> Answer:
        """Call the operation; of a stream its first event."""
        params = operation.params(task_id, in_body) | said
        if binding == "GRPC":
            return await self._grpc(owner, operation, params)
        if binding == "JSONRPC":
            body = {"jsonrpc": "2.0", "id": 1, "method": operation.method, "params": params}
            return await self._http(owner, "POST", "/", json=body)
        path = (f"/{in_path}" if in_path else "") + operation.path.replace("{task}", task_id)
        for named in (operation.task_field, "id"):
            if operation.task_field and "{task}" in operation.path:
                params.pop(named, None)
        if operation.verb == "POST":
            return await self._http(owner, "POST", path, json=params)
        return await self._http(owner, operation.verb, path, params=params)

    async def _http(self, owner: str, verb: str, path: str, **said: Any) -> Answer:
        async with self.gateway.http.stream(
            verb, self.gateway.url + path, headers=self.headers(owner), **said
        ) as response:
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                lines = response.aiter_lines()
                line = await anext(line async for line in lines if line.startswith("data:"))
                return Answer(reason="", text="", body=json.loads(line.removeprefix("data:")))
            text = (await response.aread()).decode()
        body = json.loads(text) if text else {}
        error = body.get("error")
        if error is None:
            return Answer(reason="", text="", body=body)
        details = error.get("details") or error.get("data")
        return Answer(reason=details[0]["reason"], text=error["message"], body=error)

    async def _grpc(self, owner: str, operation: Operation, params: Any) -> Answer:
        request = ParseDict(params, operation.request())
        method = getattr(self.called.stub, operation.method)
        call = method(request, metadata=self.headers(owner))
        try:
            response = await (call.read() if operation.streams else call)
        except grpc.aio.AioRpcError as error:
            return _refused(error)
        finally:
            call.cancel()
        return Answer(reason="", text="", body=MessageToDict(response))


@asynccontextmanager
async def guarded(
    database_url: str, tenants: Mapping[str, str | None], **limits: Any
) -> AsyncIterator[Guarded]:
    """A gateway on this database for callers with keys: each owner's tenant is given."""

    def know(database: Database) -> list[Way]:
        return [by_api_keys(Access(database), "tester")]

    async with called(database_url, know=know, **limits) as both:
        door = Guarded(both, Access(both.gateway.database))
        for owner, tenant in tenants.items():
            await door.give_key(owner, tenant)
        yield door


async def all_of(door: Guarded, owner: str, task_id: str) -> Sequence[tuple[str, str, Answer]]:
    """The answers to every operation about the task, on every binding."""
    wanted = [(binding, operation) for binding in BINDINGS for operation in OF_A_TASK]
    answers = await asyncio.gather(
        *(door.ask(owner, binding, operation, task_id) for binding, operation in wanted)
    )
    return [
        (binding, operation.method, answer)
        for (binding, operation), answer in zip(wanted, answers, strict=True)
    ]


def _refused(error: grpc.aio.AioRpcError) -> Answer:
    status: Any = status_from_call(error)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return Answer(
        reason=info.reason,
        text=status.message,
        body={"code": error.code().name, "metadata": dict(info.metadata)},
    )
