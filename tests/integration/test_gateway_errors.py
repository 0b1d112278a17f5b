"""Every error of the protocol, on both bindings: its code, its status, and its ErrorInfo (§5.4)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from a2a.utils import errors as a2a

from outlast.gateway.body import BodyLimit
from outlast.gateway.config import Extension
from outlast.wire.extension import EXTENSION_URI
from outlast.wire.mismatch import TaskGenerationMismatchError
from tests.integration.test_gateway_support import BINDINGS, Gateway, running_gateway

both = pytest.mark.parametrize("binding", BINDINGS)

# The table of §5.4, and the errors of JSON-RPC itself (§9.5).
TABLE = [
    (a2a.TaskNotFoundError, -32001, 404, "TASK_NOT_FOUND"),
    (a2a.TaskNotCancelableError, -32002, 400, "TASK_NOT_CANCELABLE"),
    (a2a.PushNotificationNotSupportedError, -32003, 400, "PUSH_NOTIFICATION_NOT_SUPPORTED"),
    (a2a.UnsupportedOperationError, -32004, 400, "UNSUPPORTED_OPERATION"),
    (a2a.ContentTypeNotSupportedError, -32005, 400, "CONTENT_TYPE_NOT_SUPPORTED"),
    (a2a.InvalidAgentResponseError, -32006, 500, "INVALID_AGENT_RESPONSE"),
    (a2a.ExtendedAgentCardNotConfiguredError, -32007, 400, "EXTENDED_AGENT_CARD_NOT_CONFIGURED"),
    (a2a.ExtensionSupportRequiredError, -32008, 400, "EXTENSION_SUPPORT_REQUIRED"),
    (a2a.VersionNotSupportedError, -32009, 400, "VERSION_NOT_SUPPORTED"),
    (TaskGenerationMismatchError, -32010, 409, "TASK_GENERATION_MISMATCH"),
    (a2a.InvalidParamsError, -32602, 400, "INVALID_PARAMS"),
    (a2a.InvalidRequestError, -32600, 400, "INVALID_REQUEST"),
    (a2a.MethodNotFoundError, -32601, 404, "METHOD_NOT_FOUND"),
    (a2a.InternalError, -32603, 500, "INTERNAL_ERROR"),
]
GEO = "https://example.com/geo/v1"


def error_of(response: httpx.Response) -> tuple[int, str]:
    """The code and the reason of an error, from where its binding has them."""
    error: Any = response.json()["error"]
    info = error["data" if "data" in error else "details"][0]
    assert info["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
    assert info["domain"] == "a2a-protocol.org"
    assert error["message"]
    return error["code"], info["reason"]


async def sent_as(gateway: Gateway, path: str, text: str | bytes, **headers: str) -> httpx.Response:
    given = {"A2A-Version": "1.0", "Content-Type": "application/json", **headers}
    return await gateway.http.post(
        gateway.url + path,
        content=text,
        headers={name: value for name, value in given.items() if value},
    )


def rpc(method: str, params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


@both
@pytest.mark.parametrize(("error", "code", "status", "reason"), TABLE)
async def test_every_error_has_its_code_its_status_and_its_reason(
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    binding: str,
    error: type[a2a.A2AError],
    code: int,
    status: int,
    reason: str,
) -> None:
    async with running_gateway(sqlite_url) as gateway:

        async def refuse(*_: Any) -> None:
            raise error("as the test wants it")

        monkeypatch.setattr(gateway.handler, "on_get_task", refuse)
        if binding == "JSONRPC":
            response = await sent_as(gateway, "/", rpc("GetTask", {"id": "t"}))
            assert (response.status_code, error_of(response)) == (200, (code, reason))
        else:
            response = await gateway.get("/tasks/t")
            assert (response.status_code, error_of(response)) == (status, (status, reason))
        assert "as the test wants it" in response.text


async def test_what_json_rpc_cannot_read_has_a_reason_too(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        calls: list[tuple[str | bytes, int, str]] = [
            ("{this is not json", -32700, "JSON_PARSE"),
            (b'{"a": "\xff"}', -32700, "JSON_PARSE"),
            ("[]", -32600, "INVALID_REQUEST"),
            ("5", -32600, "INVALID_REQUEST"),
            ('{"jsonrpc": "2.0", "id": 1, "params": {}}', -32600, "INVALID_REQUEST"),
            ('{"jsonrpc": "1.0", "id": 1, "method": "GetTask"}', -32600, "INVALID_REQUEST"),
            (rpc("DoNothing", {}), -32601, "METHOD_NOT_FOUND"),
            (rpc("GetTask", {"id": 5}), -32602, "INVALID_PARAMS"),
            (rpc("GetTask", []), -32602, "INVALID_PARAMS"),
        ]
        for text, code, reason in calls:
            response = await sent_as(gateway, "/", text)
            assert response.status_code == 200
            assert error_of(response) == (code, reason), text


async def test_an_id_that_is_none_is_not_sent_back(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        ids: list[Any] = [{}, [1], True, 1.5]
        for id_ in ids:
            call = {"jsonrpc": "2.0", "id": id_, "method": "ListTasks", "params": {"status": "no"}}
            response = await sent_as(gateway, "/", json.dumps(call))
            assert (response.status_code, response.json()["id"]) == (200, None)


async def test_what_http_cannot_read_has_a_reason_too(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, max_body=1000) as gateway:
        calls: list[tuple[str, str | bytes, int, str]] = [
            ("/message:send", "{this is not json", 400, "INVALID_REQUEST"),
            ("/message:send", b'{"a": "\xff"}', 400, "INVALID_REQUEST"),
            ("/message:send", '{"message": 5}', 400, "INVALID_PARAMS"),
            ("/message:send", "[]", 400, "INVALID_PARAMS"),
            ("/message:stream", '{"message": 5}', 400, "INVALID_PARAMS"),
            ("/message:send", "x" * 2000, 413, "INVALID_REQUEST"),
            ("/tasks/t/nothing/at/all", "{}", 404, "METHOD_NOT_FOUND"),
            ("/tasks", "{}", 405, "METHOD_NOT_FOUND"),
        ]
        for path, text, status, reason in calls:
            response = await sent_as(gateway, path, text)
            assert (response.status_code, error_of(response)) == (status, (status, reason)), path


@pytest.mark.parametrize("path", ["/", "/message:send", "/tasks/some:authorize"])
async def test_a_body_that_does_not_come_to_its_end_is_not_waited_for(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("outlast.gateway.body.READ_S", 0.1)
    async with running_gateway(sqlite_url) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        async with asyncio.timeout(20):
            answer = (await reader.read()).decode()  # to the end: the gateway closes
        writer.close()

        status, _, body = answer.partition("\r\n\r\n")
        assert status.startswith("HTTP/1.1 408 ")
        assert '"reason":"INVALID_REQUEST"' in body
        assert "did not arrive within" in body


async def test_who_has_sent_a_whole_body_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.gateway.body.READ_S", 0.0)
    sent: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"{}", "more_body": False},
        {"type": "http.disconnect"},
    ]
    received: list[Any] = []

    async def receive() -> Any:
        message = sent.pop(0)
        if message["type"] == "http.disconnect":
            for _ in range(100):
                await asyncio.sleep(0)
        return message

    async def app(scope: Any, receive: Any, send: Any) -> None:
        received.extend([await receive(), await receive()])

    async def send(message: Any) -> None: ...

    await BodyLimit(app, limit=10)({"type": "http"}, receive, send)
    assert [message["type"] for message in received] == ["http.request", "http.disconnect"]


async def test_what_breaks_inside_is_told_to_operators_only(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(sqlite_url) as gateway:

        async def broken(*_: Any) -> None:
            raise RuntimeError("s3cret detail")

        monkeypatch.setattr(gateway.handler, "on_get_task", broken)
        over_rpc = await sent_as(gateway, "/", rpc("GetTask", {"id": "t"}))
        over_http = await gateway.get("/tasks/t")
        assert error_of(over_rpc) == (-32603, "INTERNAL_ERROR")
        assert error_of(over_http) == (500, "INTERNAL_ERROR")
        assert "s3cret" not in over_rpc.text + over_http.text


@pytest.mark.parametrize("path", ["/", "/message:send", "/message:stream", "/acme/message:send"])
async def test_a_body_must_say_that_it_is_json(sqlite_url: str, path: str) -> None:
    """Anything else could come from a web page that nobody asked."""
    async with running_gateway(sqlite_url) as gateway:
        text = rpc("GetTask", {"id": "t"}) if path == "/" else "{}"
        code = -32005 if path == "/" else 415
        for kind in ("", "text/plain", "application/x-www-form-urlencoded", "application/xml", "x"):
            response = await sent_as(gateway, path, text, **{"Content-Type": kind})
            assert response.status_code == 415
            assert error_of(response) == (code, "CONTENT_TYPE_NOT_SUPPORTED")
        for kind in (
            "application/json",
            "application/a2a+json",
            "Application/JSON; charset=utf-8",
            "application/a2a+json;charset=UTF-8",
        ):
            response = await sent_as(gateway, path, text, **{"Content-Type": kind})
            assert response.status_code != 415, kind


async def test_a_request_without_a_body_needs_no_type(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        response = await sent_as(gateway, f"/tasks/{task_id}:cancel", b"", **{"Content-Type": ""})
        assert response.json()["status"]["state"] == "TASK_STATE_CANCELED"


@both
@pytest.mark.parametrize("accept", ["*/*", "text/html", "application/json", "nonsense"])
async def test_whatever_a_caller_accepts_is_answered(
    sqlite_url: str, binding: str, accept: str
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        if binding == "JSONRPC":
            response = await sent_as(gateway, "/", rpc("ListTasks", {}), Accept=accept)
            assert response.json()["result"]["totalSize"] == 0
        else:
            response = await gateway.get("/tasks", Accept=accept)
            assert response.json()["totalSize"] == 0


# --- extensions ---------------------------------------------------------------------------------


async def test_a_required_extension_must_be_activated_for_every_call(sqlite_url: str) -> None:
    extension = Extension(uri=GEO, description="Where.", required=True, params={"unit": "m"})
    async with running_gateway(sqlite_url, extensions=(extension,)) as gateway:
        declared = gateway.card.capabilities.extensions[1]
        assert (declared.uri, declared.required) == (GEO, True)
        assert declared.params["unit"] == "m"
        card = await gateway.http.get(f"{gateway.url}/.well-known/agent-card.json")
        assert card.status_code == 200, "what is required is read there"

        send = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}}
        for method, params in [
            ("SendMessage", send),
            ("SendStreamingMessage", send),
            ("GetTask", {"id": "t"}),
            ("ListTasks", {}),
            ("CancelTask", {"id": "t"}),
            ("SubscribeToTask", {"id": "t"}),
            ("GetExtendedAgentCard", {}),
        ]:
            for headers in ({}, {"A2A-Extensions": EXTENSION_URI}):
                response = await sent_as(gateway, "/", rpc(method, params), **headers)
                assert error_of(response) == (-32008, "EXTENSION_SUPPORT_REQUIRED"), method
        for path in ("/tasks/t", "/tasks", "/acme/tasks", "/tasks/t:subscribe"):
            response = await gateway.get(path)
            assert error_of(response) == (400, "EXTENSION_SUPPORT_REQUIRED"), path
            assert GEO in response.json()["error"]["message"]

        both_of_them = {"A2A-Extensions": f"{EXTENSION_URI}, {GEO}"}
        response = await gateway.get("/tasks", **both_of_them)
        assert response.json()["totalSize"] == 0, "and nothing was written"
        assert response.headers["A2A-Extensions"] == f"{EXTENSION_URI}, {GEO}"


async def test_an_optional_extension_is_named_when_it_is_activated(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, extensions=(Extension(uri=GEO),)) as gateway:
        assert "A2A-Extensions" not in (await gateway.get("/tasks")).headers
        response = await gateway.get("/tasks", **{"A2A-Extensions": GEO})
        assert response.headers["A2A-Extensions"] == GEO
