"""Odd requests of every kind, the same ones in every run; `make fuzz` finds new ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fuzz.calls import Call
from tests.fuzz.house import HOUSES, Answer
from tests.fuzz.laws import is_refusal
from tests.fuzz.play import play, playing


@pytest.mark.parametrize("name", HOUSES)
def test_whatever_is_asked_every_answer_keeps_the_laws(sqlite_url: str, name: str) -> None:
    with playing(name, sqlite_url) as (runner, opened):
        play(runner, opened, examples=150, seeded=None)


RPC = Call(verb="POST", target="/", headers=(("A2A-Version", b"1.0"),), body=b'{"id": 7}')
REST = Call(verb="GET", target="/tasks", headers=(), body=b"")
INFO = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "domain": "a2a-protocol.org"}
KNOWN = {**INFO, "reason": "INVALID_PARAMS", "metadata": {}}
JSON = "application/json"


def rpc(code: int = -32602, request_id: Any = 7, **said: Any) -> Any:
    error = {"code": code, "message": "no", "data": [KNOWN], **said}
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def rest(code: int = 400, **said: Any) -> Any:
    kept = {"status": "INVALID_ARGUMENT", "message": "no", "details": [KNOWN]}
    return {"error": {"code": code, **kept, **said}}


def judged(
    call: Call, body: Any, status: int = 200, kind: str = JSON, house: str = "plain"
) -> bool:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = Answer(status=status, headers={"content-type": kind}, body=text)
    return is_refusal(call, answer, house=house)


def test_lawful_answers_are_told_as_refusals_or_not() -> None:
    assert judged(RPC, rpc())
    assert judged(REST, rest(), 400)
    assert not judged(RPC, {"jsonrpc": "2.0", "id": 7, "result": {}})
    assert not judged(REST, {"tasks": []})
    assert not judged(REST, b'id: 1\ndata: {"task": {}}\n\n', kind="text/event-stream")


@pytest.mark.parametrize(
    ("call", "body", "status", "kind", "house", "says"),
    [
        (REST, rest(500), 500, JSON, "plain", "an error of the server's"),
        (REST, b"", 307, JSON, "plain", "a redirection"),
        (REST, rest(404), 400, JSON, "plain", "the error's code is not the status"),
        (REST, b'{"a": NaN}', 200, JSON, "plain", "NaN is no JSON"),
        (REST, b"<html>", 200, JSON, "plain", "the answer is no JSON"),
        (REST, {}, 200, "text/html", "plain", "the answer is no JSON by its type"),
        (REST, {}, 200, JSON, "known", "nobody known, and not refused as such"),
        (REST, {"url": "t0ken"}, 200, JSON, "plain", "the answer holds a secret"),
        (REST, rest(message="Traceback (most"), 400, JSON, "plain", "the answer tells of"),
        (REST, rest(message="sqlite3.Error"), 400, JSON, "plain", "the answer tells of"),
        (REST, rest(details=None), 400, JSON, "plain", "an error without details"),
        (REST, rest(details=[{**KNOWN, "reason": "ODD"}]), 400, JSON, "plain", "the reason 'ODD'"),
        (RPC, rpc(data=[]), 200, JSON, "plain", "an error without one ErrorInfo"),
        (RPC, rpc(request_id=8), 200, JSON, "plain", "another id than the request's"),
        (RPC, rpc(request_id=None), 200, JSON, "plain", "another id than the request's"),
        (RPC, rpc(code=-32603), 200, JSON, "plain", "an error of the server's"),
        (RPC, {"jsonrpc": "2.0", "id": 7}, 200, JSON, "plain", "neither a result nor an error"),
        (REST, b": keep-alive\n\n", 200, "text/event-stream", "plain", "a stream that begins"),
    ],
)
def test_an_answer_that_breaks_a_law_is_found(
    call: Call, body: Any, status: int, kind: str, house: str, says: str
) -> None:
    asked = call if house == "plain" else Call(**{**vars(call), "key": None})
    with pytest.raises(AssertionError, match=says):
        judged(asked, body, status, kind, house)
