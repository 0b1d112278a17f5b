"""Gateways to be asked odd things: real ones, with tasks in every state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from outlast import Agent, Message, Skill, Workflow
from outlast.gateway.auth.api_keys import digest_of, key_id_of, new_key
from outlast.gateway.auth.ways import Way, by_api_keys
from outlast.model.ids import TaskId
from outlast.model.task import Caller
from outlast.store.access import Access
from outlast.store.database import Database, Query, Script, Statement
from outlast.store.protocols import NewKey
from outlast.wire.extension import EXTENSION_URI
from tests.fuzz.calls import Call
from tests.fuzz.values import PAGE, PAUSE
from tests.integration.test_gateway_support import (
    Gateway,
    Nothing,
    of_one_step,
    running_gateway,
)

HOUSES: dict[str, dict[str, Any]] = {
    "plain": {},
    "older": {"serves_0_3": True},
    "known": {"serves_0_3": True, "know": True},
}
_WRITTEN = ("tasks", "task_events", "task_ledger", "webhooks", "send_keys", "tombstones")
_PATIENCE_S = 20


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back. A stream's body is what came of it at first."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")


@dataclass
class House:
    """A running gateway, and what stands for the names in calls."""

    name: str
    gateway: Gateway
    key: str | None
    known: dict[str, str] = field(default_factory=dict)

    async def ask(self, call: Call) -> Answer:
        """Send the call as it is, over a connection of its own."""
        host, port = self.gateway.url.removeprefix("http://").split(":")
        async with asyncio.timeout(_PATIENCE_S):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(self._bytes_of(call))
                await writer.drain()
                return await _read(reader, call.verb)
            finally:
                writer.close()

    async def written(self) -> tuple[int, ...]:
        """How many rows there are of all that a caller can bring about."""

        def script() -> Script[tuple[int, ...]]:
            counts = ", ".join(f"(select count(*) from {table}) as {table}" for table in _WRITTEN)
            rows = yield Statement(Query("test_written", "", f"select {counts}"), {})
            return tuple(rows[0][table] for table in _WRITTEN)

        return await self.gateway.database.read(script)

    def _bytes_of(self, call: Call) -> bytes:
        target, body = call.target.encode("ascii"), call.body
        lines = [f"{name}: ".encode() + value for name, value in call.headers]
        for name, value in self.known.items():
            target = target.replace(name.encode(), value.encode())
            body = body.replace(name.encode(), value.encode())
            lines = [line.replace(name.encode(), value.encode()) for line in lines]
        if call.key is not None and self.key is not None:
            key = self.key if call.key == "ann" else self.key[:-1] + "!"
            lines.append(f"X-API-Key: {key}".encode())
        if body or call.verb == "POST":
            lines.append(f"Content-Length: {len(body)}".encode())
        lines = [
            call.verb.encode() + b" " + target + b" HTTP/1.1",
            b"Host: gateway",
            b"Connection: close",
            *lines,
        ]
        return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def _read(reader: asyncio.StreamReader, verb: str) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].split()[1])
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
    }
    if headers.get("content-type", "").startswith("text/event-stream"):
        body = await reader.readuntil(b"\n\n")  # the rest may come in days
    else:
        body = await reader.read()
    return Answer(status=status, headers=headers, body=body)


@asynccontextmanager
async def house(name: str, database_url: str) -> AsyncIterator[House]:
    """The gateway of this name, with tasks in it."""
    settings = dict(HOUSES[name])
    wants_keys = settings.pop("know", False)

    def know(database: Database) -> list[Way]:
        return [by_api_keys(Access(database), "tester")]

    async with running_gateway(
        database_url,
        agent=_agent(),
        know=know if wants_keys else None,
        push_notifications=True,
        blocking_cap_s=0.02,
        keepalive_s=0.5,
        **settings,
    ) as gateway:
        keys = {owner: await _key_of(gateway, owner) for owner in ("ann", "eve")}
        opened = House(name, gateway, keys["ann"] if wants_keys else None)
        await _furnish(opened, keys)
        yield opened


def _agent() -> Agent:
    chats = of_one_step(Workflow("chats", 2, checkpoint=Nothing))
    agent = Agent("tester", description="Odd.", skills=[Skill("a", "A", "B.")], workflows=[chats])

    @agent.route
    async def pick(message: Message, caller: Caller) -> Workflow[Any] | Message:
        return Message.agent("hello to you") if message.text == "hello" else chats

    return agent


async def _key_of(gateway: Gateway, owner: str) -> str:
    key = new_key()
    digest = digest_of(key)
    new = NewKey(
        key_id=key_id_of(digest),
        agent="tester",
        digest=digest,
        name=owner,
        owner=owner,
        tenant="acme",
        scopes=(),
        lasts=None,
    )
    await Access(gateway.database).create_key(new, source="test")
    return key


async def _furnish(opened: House, keys: dict[str, str]) -> None:
    gateway = opened.gateway
    headers = {"X-API-Key": keys["ann"]}
    for state in ("SUBMITTED", "PAUSED", "ENDED"):
        opened.known[f"TASK-{state}"] = await _begun(gateway, **headers)
    opened.known["TASK-FOREIGN"] = await _begun(gateway, **{"X-API-Key": keys["eve"]})
    await gateway.hand.ask(TaskId(opened.known["TASK-PAUSED"]), "more?")
    await gateway.hand.finish(TaskId(opened.known["TASK-ENDED"]))
    asked = (await gateway.get(f"/tasks/{opened.known['TASK-PAUSED']}", **headers)).json()
    opened.known[PAUSE] = asked["status"]["message"]["metadata"][EXTENSION_URI]["pause"]
    page = (await gateway.get("/tasks?pageSize=1", **headers)).json()
    opened.known[PAGE] = page["nextPageToken"]


async def _begun(gateway: Gateway, **headers: str) -> str:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "begin"}]}
    body = {"message": message, "configuration": {"returnImmediately": True}}
    answer = await gateway.post("/message:send", body, **headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["task"]["id"])
