"""What some tests leave to the runner: their steps say less than their descriptions do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict, ParseError

from tests.conformance.matching import Mismatch
from tests.conformance.transports import Transport

REFUSED: Final = "error"
Duty = Callable[[Transport, Mapping[str, Any]], Awaitable[Mismatch | None]]


def _message(text: str) -> dict[str, Any]:
    return {"message": {"role": "ROLE_USER", "parts": [{"text": text}]}}


async def cacheable(transport: Transport, card: Mapping[str, Any]) -> Mismatch | None:
    """The card says how long it may be kept."""
    headers = (await transport.call("get_agent_card", {})).headers
    if {"cache-control", "etag"} & headers.keys():
        return None
    return Mismatch(path="headers", expected="cache-control or etag", seen=sorted(headers))


async def well_formed(transport: Transport, card: Mapping[str, Any]) -> Mismatch | None:
    """The card has the protocol's fields with their types, and no others."""
    try:
        ParseDict(dict(card), pb.AgentCard(), ignore_unknown_fields=False)
    except ParseError as error:
        return Mismatch(path="card", expected="an AgentCard", seen=str(error))
    return None


async def own_media_type(transport: Transport, card: Mapping[str, Any]) -> Mismatch | None:
    """HTTP+JSON answers with the protocol's media type."""
    reply = await transport.call("send_message", _message("tck-complete-task type"))
    kind = reply.headers.get("content-type", "")
    if kind.startswith("application/a2a+json"):
        return None
    return Mismatch(path="content-type", expected="application/a2a+json", seen=kind)


async def _started(transport: Transport, text: str) -> str:
    params = {**_message(text), "configuration": {"returnImmediately": True}}
    body = (await transport.call("send_message", params)).body
    return str(body["task"]["id"])


async def _followed(transport: Transport, task: str, limit: int | None = None) -> list[Any]:
    """The bodies of a subscription's events: all, or the first `limit`, then it is cut."""
    bodies: list[Any] = []
    replies = transport.stream("subscribe_to_task", {"id": task})
    async with aclosing(replies):
        async for reply in replies:
            bodies.append(reply.body)
            if len(bodies) == limit:
                break
    return bodies


def _final(bodies: list[Any]) -> str:
    last = bodies[-1] if bodies else {}
    return str((last.get("statusUpdate") or last.get("task") or {}).get("status", {}).get("state"))


async def same_events(transport: Transport, card: Mapping[str, Any]) -> Mismatch | None:
    """Two streams of one task bring the same events, but for the Task that each begins with."""
    task = await _started(transport, "tck-long-running two streams")
    one, two = await asyncio.gather(_followed(transport, task), _followed(transport, task))
    shared = min(len(one), len(two)) - 1
    if shared > 0 and one[-shared:] == two[-shared:]:
        return None
    return Mismatch(path="the second stream", expected=one, seen=two)


async def apart(transport: Transport, card: Mapping[str, Any]) -> Mismatch | None:
    """A stream that its reader leaves takes no other with it."""
    task = await _started(transport, "tck-long-running one leaves")
    both = await asyncio.gather(_followed(transport, task, limit=1), _followed(transport, task))
    return _unless_completed(both[1])


async def resubscribed(transport: Transport, card: Mapping[str, Any]) -> Mismatch | None:
    """After a cut a second subscription goes on to the end."""
    task = await _started(transport, "tck-long-running cut")
    await _followed(transport, task, limit=1)
    return _unless_completed(await _followed(transport, task))


def _unless_completed(bodies: list[Any]) -> Mismatch | None:
    if _final(bodies) == "TASK_STATE_COMPLETED":
        return None
    return Mismatch(path="the stream's end", expected="TASK_STATE_COMPLETED", seen=bodies)


DUTIES: Final[Mapping[str, Duty]] = {
    "CARD-CACHE-001": cacheable,
    "CARD-SCHEMA-001": well_formed,
    "REST-CT-001": own_media_type,
    "STREAM-MULTI-001": same_events,
    "STREAM-MULTI-002": apart,
    "STREAM-RESUB-001": resubscribed,
}
