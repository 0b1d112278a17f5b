"""What the protocol has no error for, said alike on every binding: 401, 403 and 429."""

from __future__ import annotations

from typing import Any

import grpc
import httpx
import pytest
from a2a.server.context import ServerCallContext
from a2a.types import a2a_pb2 as pb
from a2a.utils.grpc_status import status_from_call
from google.rpc import error_details_pb2
from starlette.requests import Request

from outlast.gateway.auth.middleware import Authentication
from outlast.gateway.auth.principal import Principal
from outlast.gateway.context import CallContexts, seen
from outlast.gateway.errors import REFUSED_CODE
from outlast.gateway.grpc_binding import peer_of
from outlast.gateway.scopes import Identity
from outlast.model.errors import CallerError, Forbidden, TooMany, Unauthenticated
from tests.integration.test_gateway_grpc import SPOKEN, called
from tests.integration.test_gateway_support import running_gateway

REFUSALS: dict[str, tuple[CallerError, int, str, dict[str, str]]] = {
    "unauthenticated": (
        Unauthenticated("send one", is_missing=True),
        401,
        "UNAUTHENTICATED",
        {"WWW-Authenticate": 'Bearer realm="a2a"'},
    ),
    "invalid": (
        Unauthenticated("not valid"),
        401,
        "UNAUTHENTICATED",
        {"WWW-Authenticate": 'Bearer realm="a2a", error="invalid_token"'},
    ),
    "forbidden": (
        Forbidden("not this", scope="tasks.cancel"),
        403,
        "PERMISSION_DENIED",
        {
            "WWW-Authenticate": (
                'Bearer realm="a2a", error="insufficient_scope", scope="tasks.cancel"'
            )
        },
    ),
    "too many": (
        TooMany("too many", retry_after=2.5),
        429,
        "RESOURCE_EXHAUSTED",
        {"Retry-After": "3"},
    ),
}
each = pytest.mark.parametrize("name", REFUSALS)


def refusing(error: CallerError) -> Any:
    def resolve(context: ServerCallContext, tenant: str) -> Identity:
        raise error

    return resolve


@each
async def test_http_bindings_say_it_by_status_header_and_reason(sqlite_url: str, name: str) -> None:
    error, status, reason, headers = REFUSALS[name]
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "begin"}]}
    async with running_gateway(sqlite_url, identify=refusing(error)) as gateway:
        answers: list[httpx.Response] = [
            await gateway.get("/tasks/t"),
            await gateway.post("/message:send", {"message": message}),
            await gateway.post("/message:stream", {"message": message}),
            await gateway.get("/tasks/t:subscribe"),
            await gateway.post("/tasks/t:cancel", {}),
        ]
        for answer in answers:
            said = answer.json()["error"]
            assert (said["code"], said["status"], said["message"]) == (status, reason, str(error))
            assert said["details"][0]["reason"] == reason
        for method, params in {
            "GetTask": {"id": "t"},
            "SendMessage": {"message": message},
            "SendStreamingMessage": {"message": message},
            "SubscribeToTask": {"id": "t"},
        }.items():
            body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
            answer = await gateway.post("/", body)
            said = answer.json()
            assert said["id"] == 7
            assert (said["error"]["code"], said["error"]["message"]) == (REFUSED_CODE, str(error))
            assert said["error"]["data"][0]["reason"] == reason
            answers.append(answer)
        for answer in answers:
            assert answer.status_code == status
            for header, value in headers.items():
                assert answer.headers[header] == value


@each
async def test_grpc_says_it_by_status_and_reason(sqlite_url: str, name: str) -> None:
    error, _, reason, _ = REFUSALS[name]
    async with called(sqlite_url, identify=refusing(error)) as grpc_:
        with pytest.raises(grpc.aio.AioRpcError) as unary:
            await grpc_.stub.GetTask(pb.GetTaskRequest(id="t"), metadata=SPOKEN)
        stream = grpc_.stub.SubscribeToTask(pb.SubscribeToTaskRequest(id="t"), metadata=SPOKEN)
        with pytest.raises(grpc.aio.AioRpcError) as streamed:
            await stream.read()
    for caught in (unary.value, streamed.value):
        assert (caught.code().name, caught.details()) == (reason, str(error))
        status: Any = status_from_call(caught)
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        assert status.details[0].Unpack(info)
        assert info.reason == reason
        if isinstance(error, TooMany):
            assert status.details[1].Unpack(retry)
            assert retry.retry_delay.seconds == 3


def test_handlers_see_no_header_that_could_hold_a_credential() -> None:
    sent = {
        "authorization": "Bearer s3cret",
        "x-api-key": "s3cret",
        "cookie": "s3cret",
        "x-client-name": "CN=ann",
        "x-amzn-oidc-data": "s3cret",
        "idempotency-key": "k",
        "last-event-id": "e-1",
        "outlast-wait": "5",
        "a2a-extensions": "x",
    }
    assert set(seen(sent)) == {
        "idempotency-key",
        "last-event-id",
        "outlast-wait",
        "a2a-extensions",
        "a2a-version",
    }
    scope: Any = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "query_string": b"",
        "headers": [
            (name.encode(), value.encode())
            for name, value in (sent | {"a2a-version": "1.0"}).items()
        ],
    }
    context = CallContexts().build(Request(scope))
    assert "s3cret" not in repr(context.state)
    assert "CN=ann" not in repr(context.state)


class Peers:
    """Notes from where each request is said to come."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []

    async def authenticate(self, headers: Any, peer: str | None) -> Principal:
        self.seen.append(peer)
        return Principal(subject="ann")


async def test_a_header_does_not_say_where_a_request_comes_from(sqlite_url: str) -> None:
    peers = Peers()
    async with running_gateway(sqlite_url) as gateway:
        app: Any = gateway.server.config.app
        gateway.server.config.loaded_app = Authentication(app, peers)
        answer = await gateway.get("/tasks", **{"X-Forwarded-For": "10.0.0.1"})
        assert answer.status_code == 200
    assert peers.seen == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("ipv4:127.0.0.1:5000", "127.0.0.1"),
        ("ipv6:%5B::1%5D:5000", "::1"),
        ("ipv6:[2001:db8::1]:5000", "2001:db8::1"),
        ("unix:/run/outlast.sock", None),
        ("", None),
    ],
)
def test_the_address_of_a_grpc_peer(said: str, address: str | None) -> None:
    class Context:
        def peer(self) -> str:
            return said

    assert peer_of(Context()) == address
