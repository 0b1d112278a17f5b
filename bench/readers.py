"""A caller that costs next to nothing: JSON-RPC over bare sockets, the same for every server."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]


def _request(method: str, params: Json) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    head = (
        f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nA2A-Version: 1.0\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 80)


class Caller:
    """One connection that is kept, one call after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def call(self, method: str, **params: Any) -> Json:
        self._writer.write(_request(method, params))
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        reply: Json = json.loads(await self._reader.readexactly(length))
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']}")
        result: Json = reply["result"]
        return result

    async def send(self, text: str) -> str:
        """The id of the task that this message begins; the call does not wait for it."""
        message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
        reply = await self.call(
            "SendMessage", message=message, configuration={"returnImmediately": True}
        )
        task_id: str = reply["task"]["id"]
        return task_id


@asynccontextmanager
async def caller(url: str) -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection(*address(url), limit=64 * 2**20)
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()


class Subscription(asyncio.Protocol):
    """An open stream. events: how many came after the Task. ticks: what the agent said, and when
    that arrived here."""

    def __init__(self, task_id: str) -> None:
        self.began: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.events = 0
        self.ticks: list[tuple[float, Json]] = []
        self._task_id = task_id
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(_request("SubscribeToTask", {"id": self._task_id}))

    def data_received(self, data: bytes) -> None:
        now = time.time()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._count(now, line[5:])
            elif line == b"0\r":  # the stream is over; the connection would be kept
                self.transport.abort()
            elif line.startswith(b"HTTP/1.1 ") and b"200" not in line:
                self._fail(line.decode())

    def _count(self, now: float, data: bytes) -> None:
        # Only a tick is read: it is small, so that no chunk's length stands in the middle of it.
        if b'"error"' in data:
            self._fail(data.decode())
        elif not self.began.done():
            self.began.set_result(None)
        else:
            self.events += 1
            if b"said" in data:
                status = json.loads(data)["result"]["statusUpdate"]["status"]
                self.ticks.append((now, json.loads(status["message"]["parts"][0]["text"])))

    def _fail(self, why: str) -> None:
        if not self.began.done():
            self.began.set_exception(RuntimeError(why))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the connection was closed")
        if not self.ended.done():
            self.ended.set_result(None)


@asynccontextmanager
async def subscribed(url: str, task_ids: list[str]) -> AsyncIterator[list[Subscription]]:
    """A stream for each of these ids, all of them open: their Tasks are there."""
    loop = asyncio.get_running_loop()
    opened: list[Subscription] = []
    try:
        for start in range(0, len(task_ids), 50):
            batch = [Subscription(task_id) for task_id in task_ids[start : start + 50]]
            for each in batch:
                await loop.create_connection(lambda each=each: each, *address(url))  # type: ignore[misc]
                opened.append(each)
            await asyncio.gather(*(each.began for each in batch))
        yield opened
    finally:
        for each in opened:
            each.transport.abort()
        await asyncio.gather(*(each.ended for each in opened))


@asynccontextmanager
async def stalled(url: str, task_id: str, count: int) -> AsyncIterator[None]:
    """Streams whose readers never read."""
    sockets = []
    try:
        for _ in range(count):
            plug = socket.socket()
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plug.connect(address(url))
            plug.sendall(_request("SubscribeToTask", {"id": task_id}))
            sockets.append(plug)
            # Its head and Task are there: the server has begun to follow the task for it.
            plug.setblocking(False)
            await asyncio.get_running_loop().sock_recv(plug, 1)
        yield
    finally:
        for plug in sockets:
            plug.close()
