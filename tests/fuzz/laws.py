"""What holds for every answer, whatever was asked."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from a2a.utils.errors import A2A_ERROR_REASONS
from structlog.testing import capture_logs

from tests.fuzz.calls import Call
from tests.fuzz.house import HOUSES, Answer, House

REASONS = frozenset(A2A_ERROR_REASONS.values()) | {
    "JSON_PARSE",
    "METHOD_NOT_FOUND",
    "INVALID_REQUEST",
}
_INTERNAL = -32603
_PUBLIC = ("/healthz", "/readyz", "/.well-known/agent-card.json")
# Said by h11 for what is no HTTP at all, before the gateway hears of it.
_NO_HTTP = b"Invalid HTTP request received."
_INSIDE = (
    "traceback",
    "site-packages",
    "sqlite",
    "psycopg",
    "errno",
    "nonetype",
    "<class",
    " object at 0x",
    "object has no attribute",
    "object is not",
    "unexpected keyword",
    "not iterable",
    "_pb2",
    "pydantic",
)
_SECRETS = ("t0ken", "s3cret")


class Broken(AssertionError):
    """An answer that breaks a law."""


async def check(house: House, call: Call) -> None:
    """Ask, and raise Broken unless every law holds."""
    before = await house.written()
    with _logged() as lines:
        answer = await house.ask(call)
    told = f"{house.name}: {call}\n-> {answer.status} {answer.body[:600]!r}"
    try:
        assert not lines, f"the log says {lines[0][-1500:]}"
        is_refused = is_refusal(call, answer, house=house.name)
        if is_refused:
            assert await house.written() == before, "a refused call has written something"
    except AssertionError as error:
        raise Broken(f"{error}\n{told}") from None


async def still_answers(house: House) -> None:
    """Raise Broken unless a good request is still answered."""
    answer = await house.gateway.get("/healthz")
    assert answer.json() == {"status": "ok", "problems": []}
    leftovers = len(house.gateway.server.server_state.tasks)
    assert leftovers < 20, f"{leftovers} requests have not ended"


def is_refusal(call: Call, answer: Answer, *, house: str) -> bool:
    """Whether the call was refused. Raises AssertionError where the answer is not lawful."""
    assert answer.status < 500, "an error of the server's"
    assert answer.status not in range(300, 400), "a redirection"
    if answer.status == 400 and answer.body == _NO_HTTP:
        return True
    if call.verb == "HEAD":
        assert answer.body == b""
        return answer.status >= 400
    is_rpc = call.verb == "POST" and call.target == "/"
    is_unknown = "know" in HOUSES[house] and call.key != "ann"
    if is_unknown and not (call.verb == "GET" and unquote(call.target.split("?")[0]) in _PUBLIC):
        assert answer.status == 401, "nobody known, and not refused as such"
        assert "www-authenticate" in answer.headers
    if answer.is_stream:
        assert answer.status == 200
        data = [line[6:] for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
        assert len(data) == 1, "a stream that begins with something else than an event"
        body = _json_of(data[0])
    else:
        assert answer.headers.get("content-type", "").partition(";")[0] in (
            "application/json",
            "application/a2a+json",
        ), "the answer is no JSON by its type"
        body = _json_of(answer.body)
    _check_secrets(call, answer)
    return _is_lawful_rpc(call, answer, body, house) if is_rpc else _is_lawful_rest(answer, body)


def _is_lawful_rpc(call: Call, answer: Answer, body: Any, house: str) -> bool:
    assert body["jsonrpc"] == "2.0"
    assert ("result" in body) != ("error" in body), "neither a result nor an error"
    if answer.status in (401, 413, 415):
        assert body["id"] is None
    else:
        assert body["id"] == _id_of(call.body), "another id than the request's"
    if "error" not in body:
        return False
    error = body["error"]
    assert isinstance(error["code"], int)
    assert error["code"] != _INTERNAL, "an error of the server's"
    assert isinstance(error["message"], str)
    assert error["message"]
    if not _is_of_0_3(call, house):
        _check_reason(error.get("data"))
    return True


def _is_lawful_rest(answer: Answer, body: Any) -> bool:
    assert isinstance(body, dict)
    if answer.status < 400:
        assert "error" not in body
        return False
    error = body["error"]
    assert error["code"] == answer.status, "the error's code is not the status"
    assert error["message"]
    assert isinstance(error["status"], str)
    _check_reason(error.get("details"))
    return True


def _is_of_0_3(call: Call, house: str) -> bool:
    """Whether 0.3 answers, whose errors have other details."""
    said = [value.strip() for name, value in call.headers if name == "A2A-Version"]
    return "serves_0_3" in HOUSES[house] and said in ([], [b""], [b"0.3"])


def _check_reason(details: Any) -> None:
    assert isinstance(details, list), "an error without details"
    infos = [one for one in details if str(one.get("@type")).endswith("google.rpc.ErrorInfo")]
    assert len(infos) == 1, "an error without one ErrorInfo"
    assert infos[0]["reason"] in REASONS - {"INTERNAL_ERROR"}, f"the reason {infos[0]['reason']!r}"
    assert infos[0]["domain"] == "a2a-protocol.org"
    for key, value in infos[0]["metadata"].items():
        assert isinstance(key, str)
        assert value is not None


def _check_secrets(call: Call, answer: Answer) -> None:
    said = answer.body.decode().lower()
    asked = f"{unquote(call.target)} {call.headers} {call.body!r}".lower()
    for inside in _INSIDE:
        assert inside not in said or inside in asked, f"the answer tells of {inside!r}"
    for secret in _SECRETS:
        assert secret not in said, "the answer holds a secret"


def _json_of(text: bytes) -> Any:
    def no_such(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    try:
        return json.loads(text, parse_constant=no_such)
    except ValueError as error:
        raise AssertionError(f"the answer is no JSON: {error}") from None


def _id_of(body: bytes) -> str | int | None:
    """The id that an answer to this body carries: null where it cannot be told (§5 of JSON-RPC)."""
    try:
        request = json.loads(body)
        said = request.get("id") if isinstance(request, dict) else None
        if isinstance(said, str):
            said.encode()  # what is no text cannot be said again
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, str | int) and not isinstance(said, bool) else None


# --- the log --------------------------------------------------------------------------------------


class _Kept(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._lines = lines
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))


@contextmanager
def _logged() -> Iterator[list[str]]:
    """What is logged as an error meanwhile, by us and by libraries: callers cause none of it."""
    lines: list[str] = []
    handler = _Kept(lines)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with capture_logs() as ours:
            yield lines
    finally:
        root.removeHandler(handler)
    lines += [_told(line) for line in ours if line["log_level"] in ("error", "critical")]


def _told(line: MutableMapping[str, Any]) -> str:
    raised = line.get("exc_info")
    told = traceback.format_exception(raised) if isinstance(raised, BaseException) else []
    return f"{line} {''.join(told)}"
