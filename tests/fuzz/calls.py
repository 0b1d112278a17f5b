"""Requests for the HTTP bindings, odd in every part: method, path, query, headers and body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from a2a.compat.v0_3 import a2a_v0_3_pb2 as old
from a2a.types import a2a_pb2 as pb
from google.protobuf.descriptor import Descriptor
from hypothesis import strategies as st

from outlast.wire.extension import EXTENSION_URI
from tests.fuzz.values import (
    KNOWN_LATER,
    PAUSE,
    UUIDS,
    Draw,
    anything,
    field_of,
    message_of,
    rarely,
    text_of,
    words,
)

JSON_RPC: dict[str, Any] = {
    "SendMessage": pb.SendMessageRequest,
    "SendStreamingMessage": pb.SendMessageRequest,
    "GetTask": pb.GetTaskRequest,
    "ListTasks": pb.ListTasksRequest,
    "CancelTask": pb.CancelTaskRequest,
    "SubscribeToTask": pb.SubscribeToTaskRequest,
    "CreateTaskPushNotificationConfig": pb.TaskPushNotificationConfig,
    "GetTaskPushNotificationConfig": pb.GetTaskPushNotificationConfigRequest,
    "ListTaskPushNotificationConfigs": pb.ListTaskPushNotificationConfigsRequest,
    "DeleteTaskPushNotificationConfig": pb.DeleteTaskPushNotificationConfigRequest,
    "GetExtendedAgentCard": pb.GetExtendedAgentCardRequest,
}
_CONFIGS = "/tasks/{id}/pushNotificationConfigs"
REST: list[tuple[str, str, Any]] = [
    ("POST", "/message:send", pb.SendMessageRequest),
    ("POST", "/message:stream", pb.SendMessageRequest),
    ("POST", "/tasks/{id}:cancel", pb.CancelTaskRequest),
    ("POST", "/tasks/{id}:authorize", None),
    ("GET", "/tasks/{id}:subscribe", pb.SubscribeToTaskRequest),
    ("POST", "/tasks/{id}:subscribe", pb.SubscribeToTaskRequest),
    ("GET", "/tasks/{id}", pb.GetTaskRequest),
    ("GET", "/tasks", pb.ListTasksRequest),
    ("POST", _CONFIGS, pb.TaskPushNotificationConfig),
    ("GET", _CONFIGS, pb.ListTaskPushNotificationConfigsRequest),
    ("GET", _CONFIGS + "/{id}", pb.GetTaskPushNotificationConfigRequest),
    ("DELETE", _CONFIGS + "/{id}", pb.DeleteTaskPushNotificationConfigRequest),
    ("GET", "/extendedAgentCard", pb.GetExtendedAgentCardRequest),
    ("GET", "/.well-known/agent-card.json", pb.GetExtendedAgentCardRequest),
    ("GET", "/healthz", pb.GetExtendedAgentCardRequest),
    ("GET", "/readyz", pb.GetExtendedAgentCardRequest),
]
REST_03: list[tuple[str, str, Any]] = [
    ("POST", "/v1/message:send", old.SendMessageRequest),
    ("POST", "/v1/message:stream", old.SendMessageRequest),
    ("POST", "/v1/tasks/{id}:cancel", old.CancelTaskRequest),
    ("GET", "/v1/tasks/{id}:subscribe", old.TaskSubscriptionRequest),
    ("GET", "/v1/tasks/{id}", old.GetTaskRequest),
    ("GET", "/v1/tasks", old.GetTaskRequest),
    ("POST", "/v1" + _CONFIGS, old.CreateTaskPushNotificationConfigRequest),
    ("GET", "/v1" + _CONFIGS, old.ListTaskPushNotificationConfigRequest),
    ("GET", "/v1" + _CONFIGS + "/{id}", old.GetTaskPushNotificationConfigRequest),
    ("DELETE", "/v1" + _CONFIGS + "/{id}", old.GetTaskPushNotificationConfigRequest),
    ("GET", "/v1/card", old.GetTaskRequest),
]
_MESSAGE_03 = {
    "kind": "message",
    "messageId": UUIDS[0],
    "role": "user",
    "parts": [
        {"kind": "text", "text": "begin"},
        {"kind": "data", "data": {"a": 1}},
        {"kind": "file", "file": {"bytes": "AAEC", "mimeType": "a/b"}},
    ],
    "metadata": {"a": 1},
    "taskId": "TASK-PAUSED",
}
_CONFIG_03 = {"url": "https://hooks.example.com/a2a", "id": "p", "token": "t0ken"}
JSON_RPC_03: dict[str, Any] = {
    "message/send": {"message": _MESSAGE_03, "configuration": {"blocking": False}},
    "message/stream": {"message": _MESSAGE_03, "metadata": {"a": 1}},
    "tasks/get": {"id": "TASK-PAUSED", "historyLength": 2},
    "tasks/cancel": {"id": "TASK-PAUSED"},
    "tasks/resubscribe": {"id": "TASK-SUBMITTED"},
    "tasks/pushNotificationConfig/set": {
        "taskId": "TASK-PAUSED",
        "pushNotificationConfig": _CONFIG_03,
    },
    "tasks/pushNotificationConfig/get": {"id": "TASK-PAUSED", "pushNotificationConfigId": "p"},
    "tasks/pushNotificationConfig/list": {"id": "TASK-PAUSED"},
    "tasks/pushNotificationConfig/delete": {"id": "TASK-PAUSED", "pushNotificationConfigId": "p"},
    "agent/getAuthenticatedExtendedCard": {},
}

VERBS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "QUERY", "get")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request as it goes onto the wire, but for the names of what only the gateway knows.

    key: of whom; None is nobody. A key that nobody has is "wrong".
    """

    verb: str
    target: str
    headers: tuple[tuple[str, bytes], ...]
    body: bytes
    key: str | None = "ann"


@st.composite
def calls(draw: Draw) -> Call:
    """Any call of any binding."""
    which = draw(st.sampled_from(("rpc", "rest", "rest", "rpc", "rpc-03", "rest-03")))
    version: str | None = (
        "1.0" if not which.endswith("03") else draw(st.sampled_from((None, "0.3")))
    )
    if which.startswith("rpc"):
        verb, target, body = "POST", "/", _body(draw, _rpc(draw, older=which == "rpc-03"))
    else:
        verb, target, body = _rest(draw, REST_03 if which == "rest-03" else REST)
    if rarely(draw, 30):
        verb = draw(st.sampled_from(VERBS))
    return Call(
        verb=verb,
        target=target,
        headers=_headers(draw, version, has_body=bool(body)),
        body=b"" if verb == "TRACE" else body,
        key=draw(st.sampled_from(("ann",) * 6 + (None, "wrong"))),
    )


# --- bodies ---------------------------------------------------------------------------------------


def _rpc(draw: Draw, *, older: bool) -> Any:
    if older:
        method = draw(st.sampled_from(sorted(JSON_RPC_03)))
        params = _mutated(draw, JSON_RPC_03[method])
    else:
        method = draw(st.sampled_from(sorted(JSON_RPC)))
        params = message_of(draw, JSON_RPC[method].DESCRIPTOR)
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    for name in ("jsonrpc", "id", "method", "params"):
        if rarely(draw, 30):
            body[name] = draw(anything)
        elif rarely(draw, 60):
            del body[name]
    if rarely(draw, 40):
        body[draw(words)] = draw(anything)
    return [body] if rarely(draw, 60) else body


def _mutated(draw: Draw, value: Any) -> Any:
    """The value with some of its leaves as they should not be, or not there."""
    if rarely(draw):
        return draw(anything)
    if isinstance(value, dict):
        kept = {k: _mutated(draw, v) for k, v in value.items() if not rarely(draw, 10)}
        return kept | ({draw(words): draw(anything)} if rarely(draw) else {})
    return [_mutated(draw, item) for item in value] if isinstance(value, list) else value


def _body(draw: Draw, value: Any) -> bytes:
    text = text_of(value).encode()
    if not rarely(draw, 20):
        return text
    cut = draw(st.integers(0, len(text)))
    return draw(
        st.sampled_from(
            (
                b"",
                b" ",
                text[:cut],
                text[:cut] + b"\xff" + text[cut:],
                text[:cut] + b"\0" + text[cut:],
                b"\xef\xbb\xbf" + text,
                text.decode().encode("utf-16"),
                text + text,
                text.replace(b'"id"', b'"id":1,"id"'),
                text.replace(b'"params"', b'"params":{},"params"'),
                b"[" * 100_000,
            )
        )
    )


# --- paths and queries ----------------------------------------------------------------------------


def _rest(draw: Draw, table: list[tuple[str, str, Any]]) -> tuple[str, str, bytes]:
    verb, path, kind = draw(st.sampled_from(table))
    while "{id}" in path:
        path = path.replace("{id}", _segment(draw), 1)
    if rarely(draw, 8):
        path = f"/{'acme' if draw(st.booleans()) else _segment(draw)}{path}"
    if rarely(draw, 30):
        path += draw(st.sampled_from(("/", "//", "/x", ":", ":cancel", "%2F", ";a=b")))
    query = _query(draw, kind.DESCRIPTOR) if kind and (verb == "GET" or rarely(draw, 8)) else ""
    body = b""
    if kind is None:
        body = _body(draw, _mutated(draw, {"pause": PAUSE, "value": {"token": "s3cret"}}))
    elif verb == "POST" or rarely(draw, 20):
        body = _body(draw, message_of(draw, kind.DESCRIPTOR))
    return verb, path + query, body


def _segment(draw: Draw) -> str:
    if not rarely(draw, 5):
        return draw(st.sampled_from((*KNOWN_LATER, *UUIDS, "p")))
    odd = ("%00", "%ff", "%2F", "..", ".", "%2e%2e", "%ud800", "%", ":", "v1", "tasks", "%0d%0a")
    return draw(st.one_of(st.sampled_from(odd), words.map(lambda text: quote(text, safe=""))))


def _query(draw: Draw, kind: Descriptor) -> str:
    said: list[str] = []
    for field in kind.fields:
        for _ in range(draw(st.sampled_from((0, 0, 0, 1, 1, 1, 2)))):
            value = draw(words) if rarely(draw, 6) else field_of(draw, field)
            text = value if isinstance(value, str) else text_of(value)
            # Longer lines are none that a server of HTTP reads.
            said.append(f"{field.json_name}={quote(text[:5000], safe='')}")
    if rarely(draw, 10):
        odd = ("&&", "=", "status", "%=%", "a=%ff", "tenant=acme&tenant=b", "A2A-Version=0.3")
        said.append(draw(st.sampled_from(odd)))
    return "?" + "&".join(said) if said else ""


# --- headers --------------------------------------------------------------------------------------

_ODD = (
    b"",
    b" ",
    b"0",
    b"-1",
    b"1",
    b"0.3",
    b"1.0",
    b"1.0.5",
    b"1.1",
    b"9" * 5000,
    b"\xff\xfe",
    b'a,b;c="d"',
    b"\t,\t,",
    b"NaN",
    b"1e9",
    b"\xc2\xb2",
    b"0-1",
    b"k" * 300,
    "é".encode(),
    EXTENSION_URI.encode(),
)
_USUAL: dict[str, tuple[bytes, ...]] = {
    "A2A-Extensions": (EXTENSION_URI.encode(),) * 3,
    "X-A2A-Extensions": (EXTENSION_URI.encode(),),
    "Last-Event-ID": (b"1", b"2", PAUSE.encode()),
    "Idempotency-Key": (b"key-1", b"key-2"),
    "Outlast-Newer-Than": (b"0", b"1", b"999999999999999999"),
    "Outlast-Wait": (b"0", b"0.001", b"999999999"),
    "Accept": (b"text/event-stream", b"application/json", b"image/png"),
    "traceparent": (b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",),
    "X-Forwarded-For": (b"10.0.0.1",),
    "Content-Encoding": (b"gzip",),
    "Range": (b"bytes=0-1",),
}


def _headers(draw: Draw, version: str | None, *, has_body: bool) -> tuple[tuple[str, bytes], ...]:
    said: list[tuple[str, bytes]] = []
    if version is not None and not rarely(draw, 40):
        said.append(("A2A-Version", _value(draw, (version.encode(),))))
    if has_body and not rarely(draw, 40):
        kinds = (b"application/json", b"application/a2a+json", b"application/json; charset=utf-8")
        said.append(("Content-Type", _value(draw, kinds)))
    for name in draw(st.lists(st.sampled_from(sorted(_USUAL)), max_size=2)):
        said.append((name, _value(draw, _USUAL[name], one_in=4)))
    return tuple(said)


def _value(draw: Draw, usual: tuple[bytes, ...], *, one_in: int = 40) -> bytes:
    return draw(st.sampled_from(_ODD if rarely(draw, one_in) else usual))
