"""An A2A caller over plain HTTP+JSON: no library between a test and the socket that it cuts.

Tasks and events are the JSON that came over the wire. A refusal is an exception with the
protocol's reason.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import httpx

from outlast.wire.extension import EXTENSION_URI, LAST_EVENT_ID

Json = dict[str, Any]

TERMINAL = frozenset(
    f"TASK_STATE_{name}" for name in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
)
STREAM_S = 60.0
PAUSED = "TASK_STATE_INPUT_REQUIRED"


class Refusal(Exception):
    """The gateway said no. `reason` is the protocol's word for it, such as TASK_NOT_FOUND."""

    def __init__(self, status: int, body: Json) -> None:
        error = body["error"]
        self.status = status
        self.reason: str = next(
            (detail["reason"] for detail in error.get("details", ()) if "reason" in detail), ""
        )
        super().__init__(f"{status} {self.reason}: {error.get('message')}")


class Caller:
    """Talks to one gateway. `extended`: with our extension, so events say their generation."""

    def __init__(
        self,
        url: str,
        *,
        extended: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
        timeout: float = 30.0,
    ) -> None:
        headers = {"A2A-Version": "1.0"}
        if extended:
            headers["A2A-Extensions"] = EXTENSION_URI
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, limits=limits, transport=transport
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def send(
        self,
        text: str,
        *,
        task: Json | None = None,
        wait: bool = True,
        data: Json | None = None,
        workflow: str | None = None,
        message_id: str | None = None,
        pause: str | None = None,
    ) -> Json:
        """The Task that the gateway answers with; without `wait` it answers at once."""
        body = _send_body(text, task, data, workflow, message_id, pause)
        body["configuration"] = {"returnImmediately": not wait}
        sent: Json = (await self._call("POST", "/message:send", body))["task"]
        return sent

    async def get(self, task: Json | str) -> Json:
        return await self._call("GET", f"/tasks/{_id(task)}")

    async def page(self) -> Json:
        """The first page of ListTasks."""
        return await self._call("GET", "/tasks")

    async def cancel(self, task: Json | str) -> Json:
        return await self._call("POST", f"/tasks/{_id(task)}:cancel", {})

    async def authorize(self, task: Json | str, value: Any, *, pause: str) -> Json:
        """Give the pause what it waits for."""
        body = {"pause": pause, "value": value}
        return await self._call("POST", f"/tasks/{_id(task)}:authorize", body)

    @asynccontextmanager
    async def stream(
        self,
        text: str,
        *,
        task: Json | None = None,
        workflow: str | None = None,
        message_id: str | None = None,
    ) -> AsyncIterator[Events]:
        """The events of SendStreamingMessage. Leaving the context closes the socket."""
        body = _send_body(text, task, None, workflow, message_id, None)
        async with self._events("POST", "/message:stream", body) as events:
            yield events

    @asynccontextmanager
    async def subscribe(
        self, task: Json | str, *, after: str | None = None
    ) -> AsyncIterator[Events]:
        """The events of SubscribeToTask, `after` the one with this id. Leaving the context closes
        the socket."""
        seen = {} if after is None else {LAST_EVENT_ID: after}
        async with self._events("GET", f"/tasks/{_id(task)}:subscribe", None, seen) as events:
            yield events

    async def rpc(self, method: str, params: Json) -> Json:
        """The whole JSON-RPC reply, of a stream its first."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with self._http.stream("POST", "/", json=request) as response:
            if "event-stream" not in response.headers["content-type"]:
                reply: Json = json.loads(await response.aread())
                return reply
            return await anext(Events(response))

    async def healthz(self) -> int:
        return (await self._http.get("/healthz")).status_code

    async def _call(self, method: str, path: str, body: Json | None = None) -> Json:
        response = await self._http.request(method, path, json=body)
        _check(response)
        reply: Json = response.json()
        return reply

    @asynccontextmanager
    async def _events(
        self, method: str, path: str, body: Json | None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Events]:
        async with self._http.stream(method, path, json=body, headers=headers) as response:
            if response.is_error:
                await response.aread()
            _check(response)
            # Keep-alives come for ever: a stream that never ends must fail its test.
            async with asyncio.timeout(STREAM_S):
                yield Events(response)


class Events:
    """What a stream brings, as it comes. last_id: what to say to go on after its latest event."""

    def __init__(self, response: httpx.Response) -> None:
        self.last_id = ""
        self._lines = response.aiter_lines()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Json:
        event_id = self.last_id
        async for line in self._lines:
            name, _, value = line.partition(":")
            if name == "id":
                event_id = value.strip()
            elif name == "data":
                event: Json = json.loads(value)
                self.last_id = event_id
                return event
        raise StopAsyncIteration


def _check(response: httpx.Response) -> None:
    if response.is_error:
        raise Refusal(response.status_code, response.json())


def _id(task: Json | str) -> str:
    return task if isinstance(task, str) else task["id"]


def message(text: str, **more: Any) -> Json:
    return {
        "messageId": str(uuid.uuid4()),
        "role": "ROLE_USER",
        "parts": [{"text": text}],
        **{name: value for name, value in more.items() if value is not None},
    }


def _send_body(
    text: str,
    task: Json | None,
    data: Json | None,
    workflow: str | None,
    message_id: str | None,
    pause: str | None,
) -> Json:
    said = {"workflow": workflow, "pause": pause}
    named = {name: value for name, value in said.items() if value is not None}
    sent = message(
        text,
        messageId=message_id,
        taskId=None if task is None else task["id"],
        metadata={EXTENSION_URI: named} if named else None,
    )
    if data is not None:
        sent["parts"].append({"data": data, "mediaType": "application/json"})
    return {"message": sent}


# --- reading what came ------------------------------------------------------------------------


def state_of(item: Json) -> str | None:
    """The state that a Task or event brings: COMPLETED and so on, without the prefix."""
    found = item.get("task") or item.get("statusUpdate") or item
    state = found.get("status", {}).get("state")
    return None if state is None else str(state).removeprefix("TASK_STATE_")


def texts_of(task: Json) -> dict[str, str]:
    """The text of each artifact, by id."""
    return {
        artifact["artifactId"]: "".join(part.get("text", "") for part in artifact["parts"])
        for artifact in task.get("artifacts", ())
    }


def history_of(task: Json) -> list[str]:
    return [
        "".join(part.get("text", "") for part in entry["parts"])
        for entry in task.get("history", ())
    ]


def generation_of(item: Json) -> int:
    """The generation of a Task or event; needs a caller that is `extended`."""
    found: Json = next(iter(item.values())) if len(item) == 1 else item
    return int(found["metadata"][EXTENSION_URI]["generation"])


def pause_of(task: Json) -> str:
    """What callers call the pause that this task is in."""
    return str(task["status"]["message"]["metadata"][EXTENSION_URI]["pause"])


def fold(items: Iterable[Json]) -> Json:
    """The Task that a stream opened with, after its events: what must equal GetTask."""
    first, *events = items
    task: Json = copy.deepcopy(first["task"])
    for event in events:
        if "statusUpdate" in event:
            task["status"] = event["statusUpdate"]["status"]
        elif "artifactUpdate" in event:
            _fold_artifact(task, event["artifactUpdate"])
    return task


def _fold_artifact(task: Json, update: Json) -> None:
    artifacts = task.setdefault("artifacts", [])
    new = copy.deepcopy(update["artifact"])
    for place, artifact in enumerate(artifacts):
        if artifact["artifactId"] == new["artifactId"]:
            if update.get("append"):
                artifact["parts"] = [*artifact["parts"], *new["parts"]]
            else:
                artifacts[place] = new
            return
    artifacts.append(new)


def same(task: Json, other: Json) -> bool:
    """Whether two Tasks show the same: state, status, and the text of every artifact."""
    return seen(task) == seen(other)


def seen(task: Mapping[str, Any]) -> Json:
    """What a caller sees of a Task. Text counts as a whole: parts are how it was cut."""
    return {
        "status": task["status"],
        "artifacts": texts_of(dict(task)),
        "order": [artifact["artifactId"] for artifact in task.get("artifacts", ())],
    }
