"""Abstract operations as requests of a binding, and what came back.

A binding is a `Transport`; that of gRPC stands in `grpc_transport`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final, Protocol

import httpx

from tests.conformance.acts import BindingName
from tests.conformance.matching import MISSING
from tests.conformance.replies import Error, Events, Reply

VERSION: Final = "1.0"
PATIENCE_S: Final = 60.0
CARD: Final = "/.well-known/agent-card.json"
STREAMING: Final = frozenset({"send_streaming_message", "subscribe_to_task"})

METHODS: Final = {
    "send_message": "SendMessage",
    "send_streaming_message": "SendStreamingMessage",
    "get_task": "GetTask",
    "list_tasks": "ListTasks",
    "cancel_task": "CancelTask",
    "subscribe_to_task": "SubscribeToTask",
    "get_extended_agent_card": "GetExtendedAgentCard",
    "create_push_config": "CreateTaskPushNotificationConfig",
    "get_push_config": "GetTaskPushNotificationConfig",
    "list_push_configs": "ListTaskPushNotificationConfigs",
    "delete_push_config": "DeleteTaskPushNotificationConfig",
}
_CONFIGS: Final = "/tasks/{taskId}/pushNotificationConfigs"
_PATHS: Final = {
    "send_message": ("POST", "/message:send"),
    "send_streaming_message": ("POST", "/message:stream"),
    "get_task": ("GET", "/tasks/{id}"),
    "list_tasks": ("GET", "/tasks"),
    "cancel_task": ("POST", "/tasks/{id}:cancel"),
    "subscribe_to_task": ("POST", "/tasks/{id}:subscribe"),
    "get_extended_agent_card": ("GET", "/extendedAgentCard"),
    "create_push_config": ("POST", _CONFIGS),
    "get_push_config": ("GET", _CONFIGS + "/{id}"),
    "list_push_configs": ("GET", _CONFIGS),
    "delete_push_config": ("DELETE", _CONFIGS + "/{id}"),
}
# What the tests call otherwise than the format's definition does.
_ALSO: Final = {
    "set_push_notification_config": "create_push_config",
    "get_push_notification_config": "get_push_config",
    "list_push_notification_configs": "list_push_configs",
    "delete_push_notification_config": "delete_push_config",
}


class Transport(Protocol):
    """One binding of a running server."""

    name: BindingName

    async def card(self) -> Reply:
        """The public Agent Card."""
        ...

    async def call(self, operation: str, params: Mapping[str, Any]) -> Reply:
        """The answer to an operation that does not stream."""
        ...

    def stream(self, operation: str, params: Mapping[str, Any]) -> AsyncGenerator[Reply]:
        """The events of one that does, each as a Reply; an error is the only one."""
        ...

    async def raw(self, request: Mapping[str, Any]) -> Reply | Events:
        """The answer to a request as a test spells it, framing and all."""
        ...


def operation_named(name: str, params: Mapping[str, Any]) -> str:
    """The operation by the format's own name."""
    if name == "get_agent_card" and params.get("extended"):
        return "get_extended_agent_card"
    return _ALSO.get(name, name)


def request_of(operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The protocol's request message for the test's parameters.

    A message gets an id when it has none; a task or context named beside the message, where the
    protocol has no field for it, goes into the message; a push config is flat in the protocol.
    """
    request = dict(params)
    if "message" in request:
        named = {key: request.pop(key) for key in ("taskId", "contextId") if key in request}
        request["message"] = {"messageId": str(uuid.uuid4()), **named, **request["message"]}
    request |= request.pop("pushNotificationConfig", {})
    request.pop("extended", None)
    return request


class Http:
    """What both HTTP bindings share: raw requests, and the card."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._http = client

    async def raw(self, request: Mapping[str, Any]) -> Reply | Events:
        body = request.get("body_raw", json.dumps(request["body"]) if "body" in request else None)
        sent = self._http.build_request(
            request["method"], request["path"], headers=request.get("headers", {}), content=body
        )
        response = await self._http.send(sent, stream=True)
        async with aclosing(response):
            if _streams(response):
                events = [event async for event in _events(response)]
                return Events(
                    events=tuple(events), status=response.status_code, headers=response.headers
                )
            await response.aread()
        return Reply(
            status=response.status_code, body=_json(response), headers=dict(response.headers)
        )

    async def card(self) -> Reply:
        response = await self._http.get(CARD)
        return Reply(
            status=response.status_code, body=_json(response), headers=dict(response.headers)
        )


class JsonRpc(Http):
    name: BindingName = "jsonrpc"

    async def call(self, operation: str, params: Mapping[str, Any]) -> Reply:
        if operation == "get_agent_card":
            return await self.card()
        response = await self._http.send(self._request(operation, params))
        return self._unwrapped(_json(response), response)

    async def stream(self, operation: str, params: Mapping[str, Any]) -> AsyncGenerator[Reply]:
        response = await self._http.send(self._request(operation, params), stream=True)
        async with aclosing(response):
            if not _streams(response):
                await response.aread()
                yield self._unwrapped(_json(response), response)
                return
            async for event in _events(response):
                yield self._unwrapped(event, response)

    def _request(self, operation: str, params: Mapping[str, Any]) -> httpx.Request:
        body = {
            "jsonrpc": "2.0",
            "id": str(uuid.uuid4()),
            "method": METHODS[operation],
            "params": request_of(operation, params),
        }
        return self._http.build_request("POST", "/", json=body, headers={"A2A-Version": VERSION})

    @staticmethod
    def _unwrapped(body: Any, response: httpx.Response) -> Reply:
        seen: dict[str, Any] = {"status": response.status_code, "headers": dict(response.headers)}
        if not isinstance(body, Mapping):
            return Reply(body=body, **seen)
        if (error := body.get("error")) is None:
            return Reply(body=body.get("result", MISSING), **seen)
        return Reply(
            error=Error(
                code=error["code"],
                message=error["message"],
                details=error.get("data") or (),
            ),
            **seen,
        )


class Rest(Http):
    name: BindingName = "rest"

    async def call(self, operation: str, params: Mapping[str, Any]) -> Reply:
        if operation == "get_agent_card":
            return await self.card()
        response = await self._http.send(self._request(operation, params))
        return self._unwrapped(_json(response), response)

    async def stream(self, operation: str, params: Mapping[str, Any]) -> AsyncGenerator[Reply]:
        response = await self._http.send(self._request(operation, params), stream=True)
        async with aclosing(response):
            if not _streams(response):
                await response.aread()
                yield self._unwrapped(_json(response), response)
                return
            async for event in _events(response):
                yield self._unwrapped(event, response)

    def _request(self, operation: str, params: Mapping[str, Any]) -> httpx.Request:
        method, path = _PATHS[operation]
        request = request_of(operation, params)
        for name in ("id", "taskId"):
            if "{" + name + "}" in path:
                path = path.replace("{" + name + "}", str(request.pop(name)))
        headers = {"A2A-Version": VERSION}
        if method == "POST":
            return self._http.build_request(method, path, json=request, headers=headers)
        query = {name: _query(value) for name, value in request.items()}
        return self._http.build_request(method, path, params=query, headers=headers)

    @staticmethod
    def _unwrapped(body: Any, response: httpx.Response) -> Reply:
        seen: dict[str, Any] = {"status": response.status_code, "headers": dict(response.headers)}
        error = body.get("error") if isinstance(body, Mapping) else None
        if error is None and response.status_code < 400:
            return Reply(body=body, **seen)
        error = error or {}
        return Reply(
            error=Error(
                code=response.status_code,
                message=error.get("message", ""),
                details=error.get("details") or (),
            ),
            **seen,
        )


def _query(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _streams(response: httpx.Response) -> bool:
    kind: str = response.headers.get("content-type", "")
    return kind.startswith("text/event-stream")


def _json(response: httpx.Response) -> Any:
    try:
        return response.json() if response.content else {}
    except ValueError:
        return response.text


async def _events(response: httpx.Response) -> AsyncIterator[Any]:
    data: list[str] = []
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield json.loads("\n".join(data))
            data = []
