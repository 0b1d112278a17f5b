"""Whatever callers send, each fault is a clear error on either binding, and nothing is written."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a

from outlast.wire.extension import EXTENSION_URI
from tests.integration.test_gateway_support import (
    BINDINGS,
    Gateway,
    count_tasks,
    message,
    running_gateway,
)

both = pytest.mark.parametrize("binding", BINDINGS)
UUID4 = "0c7e9ff3-4dfd-4c3c-9c49-9fdb6b1e8a01"


def body(**fields: Any) -> dict[str, Any]:
    """A good message as JSON, with some fields as given; a field that is None is left out."""
    good = {"messageId": UUID4, "role": "ROLE_USER", "parts": [{"text": "begin"}]}
    return {name: value for name, value in (good | fields).items() if value is not None}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


async def refused(gateway: Gateway, binding: str, params: Any) -> tuple[int, str]:
    """The JSON-RPC code or HTTP status of the error, and its text with its details."""
    if binding == "JSONRPC":
        error = (await gateway.rpc("SendMessage", params))["error"]
        return error["code"], json.dumps(error)
    response = await gateway.post("/message:send", params)
    assert response.json()["error"]["code"] == response.status_code
    return response.status_code, response.text


def invalid_params(binding: str) -> int:
    return -32602 if binding == "JSONRPC" else 400


# --- messages -----------------------------------------------------------------------------------


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "message.messageId: is required"),
    ({"message": body(messageId=None)}, "message.messageId: is required"),
    ({"message": body(role=None)}, "message.role: must be ROLE_USER"),
    ({"message": body(role="ROLE_AGENT")}, "message.role: must be ROLE_USER"),
    ({"message": body(role="ROLE_KING")}, "message.role: must be ROLE_USER"),
    ({"message": body(parts=None)}, "message.parts: needs at least one part"),
    ({"message": body(parts=[])}, "message.parts: needs at least one part"),
    ({"message": body(parts=[{"text": "a"}, {}])}, "message.parts[1]: needs one of text"),
    ({"message": body(parts=[{"filename": "a"}])}, "message.parts[0]: needs one of text"),
    ({"message": body(parts=[{"text": "a\0b"}])}, "message.parts[0].text: holds a NUL"),
    ({"message": body(parts=[{"data": {"a": ["\0"]}}])}, "message.parts[0].data.a[0]: holds"),
    ({"message": body(parts=[{"data": {"\0": 1}}])}, "message.parts[0].data: holds a NUL"),
    ({"message": body(contextId="a\0")}, "message.contextId: holds a NUL"),
    ({"message": body(contextId="c" * 300)}, "message.contextId: must have at most 255"),
    ({"message": body(messageId="m" * 300)}, "message.messageId: must have at most 255"),
    ({"message": body(), "metadata": {"a": "\0"}}, "metadata.a: holds a NUL"),
    ({"message": body(parts=[{"data": nested(30)}])}, "nested deeper than 24 levels"),
    ({"message": body(parts=[{"data": nested(90)}])}, "too deep"),
    ({"message": body(parts=[{"text": "a"}] * 1001)}, "message.parts: has 1001 parts"),
    (
        {"message": body(parts=[{"text": "a" * (2**20 + 1)}])},
        "message.parts[0].text: has 1048577 bytes",
    ),
    ({"message": body(parts=[{"text": "a" * 2**20}] * 5)}, "message: has 5243"),
    ({"message": body(parts=[{"raw": 5}])}, "parse"),
    ({"message": body(parts=[{"text": "a", "url": "b"}])}, "parse"),
    ({"message": 5}, "parse"),
    ({"message": body(), "configuration": {"historyLength": -1}}, "historyLength: must be 0"),
    ({"message": body(), "configuration": {"historyLength": "x"}}, "parse"),
    ({"message": body(metadata={EXTENSION_URI: "w"})}, "must be an object"),
    ({"message": body(metadata={EXTENSION_URI: {"workflow": 1}})}, "workflow: must be a text"),
    (
        {"message": body(metadata={EXTENSION_URI: {"workflow": "nothing"}})},
        "there is no workflow nothing; there are chats version 1, chats version 2, orders",
    ),
    (
        {"message": body(metadata={EXTENSION_URI: {"workflow": "chats", "version": 9}})},
        "there is no workflow chats version 9",
    ),
    (
        {"message": body(metadata={EXTENSION_URI: {"workflow": "chats", "version": 1.5}})},
        "version: must be a whole number",
    ),
    ({"message": body(), "tenant": "tasks"}, "cannot be the name of a tenant"),
    ({"message": body(), "tenant": "a/b"}, "cannot be the name of a tenant"),
]


@both
async def test_a_message_that_cannot_be_kept_is_refused_with_its_place(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        for params, says in REFUSED:
            code, text = await refused(gateway, binding, params)

            assert code == invalid_params(binding), text
            assert says.lower() in text.lower()
        assert await count_tasks(gateway) == 0


@both
async def test_a_number_that_json_lacks_is_refused(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        for number in ("NaN", "1e999", "-Infinity"):
            sent = json.dumps(body(parts=[{"data": "?"}])).replace('"?"', number)
            response = await _post_text(gateway, binding, f'{{"message": {sent}}}')

            assert "not finite" in response.text
        assert await count_tasks(gateway) == 0


@both
async def test_half_a_character_is_refused(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sent = json.dumps({"message": body(parts=[{"text": "\ud800"}])})
        response = await _post_text(gateway, binding, sent)

        assert "surrogate" in response.text.lower()
        assert await count_tasks(gateway) == 0


@both
async def test_at_the_limits_a_message_is_kept(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sent = message(data=nested(21))
        sent.parts.extend([pb.Part(raw=b"x" * (2**20 - 100))] * 2)
        sent.parts.extend([pb.Part(text="a")] * 900)
        task = await gateway.send(sent, binding=binding, immediately=True)

        assert list(task.history[0].parts) == list(sent.parts)
        # Also for clients whose protobuf parser stops at 100 levels, in the deepest place.
        extended = {"A2A-Extensions": EXTENSION_URI}
        await gateway.hand.ask(task.id, "more?")  # type: ignore[arg-type]
        stream = gateway.subscribe(task.id, extended=True)
        await anext(stream)
        answer = message(data=nested(21), task_id=task.id)
        await gateway.send(answer, binding=binding, immediately=True, headers=extended)
        item = await anext(stream)
        assert pb.StreamResponse.FromString(item.SerializeToString()) == item
        await stream.aclose()


@both
async def test_an_inline_push_config_is_refused(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        request = pb.SendMessageRequest(message=message())
        request.configuration.task_push_notification_config.url = "https://example.com/hook"
        for streaming in (False, True):
            client = gateway.client(binding, streaming=streaming)
            with pytest.raises(a2a.PushNotificationNotSupportedError):
                _ = [item async for item in client.send_message(request)]

        assert await count_tasks(gateway) == 0


async def test_a_header_that_cannot_be_a_key_is_refused(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        key = {"Idempotency-Key": "k" * 300}
        response = await gateway.post("/message:send", {"message": body()}, **key)

        assert response.status_code == 400
        assert "Idempotency-Key" in response.text


# --- bodies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"{not json", b"", b"\xff\xfe{", b"[" * 100_000])
async def test_a_body_that_is_no_json_is_refused(sqlite_url: str, text: bytes) -> None:
    async with running_gateway(sqlite_url) as gateway:
        headers = {"A2A-Version": "1.0", "Content-Type": "application/json"}
        rpc = await gateway.http.post(gateway.url + "/", content=text, headers=headers)
        assert (rpc.status_code, rpc.json()["error"]["code"]) == (200, -32700)
        for path in ("/message:send", "/message:stream"):
            rest = await gateway.http.post(gateway.url + path, content=text, headers=headers)
            error = rest.json()["error"]

            assert (rest.status_code, error["status"]) == (400, "INVALID_ARGUMENT")
            assert error["details"][0]["reason"] == "INVALID_REQUEST"


async def test_wrong_parameters_are_told_from_wrong_requests(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        rest = await gateway.post("/message:send", {"message": 5})
        assert rest.json()["error"]["details"][0]["reason"] == "INVALID_PARAMS"
        length = await gateway.get("/tasks/x?historyLength=many")
        assert length.json()["error"]["details"][0]["reason"] == "INVALID_PARAMS"
        for request, code in [
            ([], -32600),
            (5, -32600),
            ({"jsonrpc": "2.0", "id": 1, "params": {}}, -32600),
            ({"jsonrpc": "1.0", "id": 1, "method": "GetTask", "params": {}}, -32600),
            ({"jsonrpc": "2.0", "id": 1, "method": "Unknown", "params": {}}, -32601),
            ({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": [1]}, -32602),
            ({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {}}, -32602),
        ]:
            response = await gateway.post("/", request)
            assert response.json()["error"]["code"] == code, request


@both
@pytest.mark.parametrize("chunked", [False, True])
async def test_case_116_an_oversized_body_is_refused_early(
    sqlite_url: str, binding: str, chunked: bool
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        path = "/" if binding == "JSONRPC" else "/message:send"
        size, piece = 50 * 2**20, b"x" * 2**16

        async def pieces() -> Any:
            for _ in range(size // len(piece)):
                yield piece

        response = await gateway.http.post(
            gateway.url + path,
            content=pieces() if chunked else b"x" * size,
            headers={"A2A-Version": "1.0", "Content-Type": "application/json"},
        )

        assert "larger than 8388608 bytes" in response.json()["error"]["message"]
        assert response.status_code == 413
        if binding == "JSONRPC":
            assert response.json()["error"]["code"] == -32600
        assert (await gateway.get("/healthz")).status_code == 200


async def test_a_caller_that_leaves_within_its_body_is_no_error(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        for path in ("/", "/message:send"):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{{".encode()
            )
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(1):
            while gateway.server.server_state.tasks:
                await asyncio.sleep(0.01)


# --- ids and routers ----------------------------------------------------------------------------


@both
@pytest.mark.parametrize("task_id", ["a\0b", "x" * 300, "00000000-0000-0000-0000-000000000000"])
async def test_an_id_that_no_task_has_is_not_found(
    database_url: str, binding: str, task_id: str
) -> None:
    async with running_gateway(database_url) as gateway:
        client = gateway.client(binding)
        sent = task_id if binding == "JSONRPC" else task_id.replace("\0", "%00")
        with pytest.raises(a2a.TaskNotFoundError, match="there is no task"):
            await client.get_task(pb.GetTaskRequest(id=sent))


@both
@pytest.mark.parametrize("text", ["break", "sleep"])
async def test_an_authors_router_that_fails_is_an_error_with_a_reference(
    sqlite_url: str, binding: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_gateway(sqlite_url, router_timeout_s=0.1) as gateway:
        with pytest.raises(a2a.InternalError, match=r"reference [0-9a-f]{12}") as raised:
            await gateway.send(message(text), binding=binding)

        assert "s3cret" not in str(raised.value)
        assert await count_tasks(gateway) == 0


async def test_a_tenant_in_the_body_must_be_the_paths(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        response = await gateway.post("/acme/message:send", {"message": body(), "tenant": "other"})

        assert response.status_code == 400
        assert "the path says 'acme'" in response.text


async def _post_text(gateway: Gateway, binding: str, params: str) -> httpx.Response:
    headers = {"A2A-Version": "1.0", "Content-Type": "application/json"}
    path = "/message:send"
    if binding == "JSONRPC":
        path = "/"
        params = f'{{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {params}}}'
    return await gateway.http.post(gateway.url + path, content=params, headers=headers)
