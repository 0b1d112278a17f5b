"""Readers that stop reading: what they hold, and what they get when they read on."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest

from outlast.model.ids import TaskId
from tests.integration.test_gateway_support import BINDINGS, Gateway, running_gateway

SMALL = 8192


class Reader:
    """A subscription on a socket of its own, which takes bytes only when it is told to."""

    def __init__(self, gateway: Gateway, task_id: TaskId, binding: str = "HTTP+JSON") -> None:
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        self.socket.connect((host, int(port)))
        self.socket.setblocking(False)
        body, request = b"", f"GET /tasks/{task_id}:subscribe"
        if binding == "JSONRPC":
            params = {"id": task_id}
            call = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": params}
            body, request = json.dumps(call).encode(), "POST /"
        head = (
            f"{request} HTTP/1.0\r\nHost: x\r\nA2A-Version: 1.0\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.socket.send(head.encode() + body)

    async def past(self, mark: bytes) -> None:
        """Read until this has come, and throw it all away."""
        loop = asyncio.get_running_loop()
        tail = b""
        async with asyncio.timeout(30):
            while mark not in tail:
                tail = tail[-len(mark) :] + await loop.sock_recv(self.socket, 65536)

    async def rest(self) -> bytes:
        """Everything up to the end of the stream, whose socket is then closed."""
        loop = asyncio.get_running_loop()
        got = bytearray()
        with self.socket:
            async with asyncio.timeout(30):
                while part := await loop.sock_recv(self.socket, 65536):
                    got += part
        return bytes(got).partition(b"\r\n\r\n")[2]


def small_buffers(gateway: Gateway) -> None:
    """What the kernel takes off the server's hands is not what is tested here."""
    gateway.server._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)


async def until_let_go(gateway: Gateway, task_id: TaskId) -> None:
    async with asyncio.timeout(30):
        while task_id in gateway.handler._streams._tails._tails:
            await asyncio.sleep(0.05)


async def until_followed(gateway: Gateway, task_id: TaskId, count: int) -> None:
    tails = gateway.handler._streams._tails._tails
    async with asyncio.timeout(30):
        while (tail := tails.get(task_id)) is None or tail.readers < count:
            await asyncio.sleep(0.01)


async def written(gateway: Gateway, task_id: TaskId) -> None:
    """Events of every size, and more of them than buffers of the kernel hold."""
    await gateway.hand.chunk(task_id, *["t"] * 300, append=False)
    await gateway.hand.chunk(task_id, *["m" * 4096] * 30)
    await gateway.hand.chunk(task_id, "l" * 500_000)
    await gateway.hand.chunk(task_id, *["t"] * 300)


@pytest.mark.parametrize("where", ["first", "later"])
async def test_a_reader_that_stops_reading_holds_at_most_64_kib(
    sqlite_url: str, where: str
) -> None:
    """In the middle of a large Task, or of the events after it."""
    async with running_gateway(sqlite_url) as gateway:
        small_buffers(gateway)
        held: dict[int, int] = {}
        tracemalloc.start()
        try:
            for count in (2, 8):
                task_id = await gateway.started()
                if where == "first":
                    await gateway.hand.chunk(task_id, "x" * 900_000, append=False)
                gc.collect()
                before, _ = tracemalloc.get_traced_memory()
                readers = [Reader(gateway, task_id) for _ in range(count)]
                await until_followed(gateway, task_id, count)
                if where == "later":
                    await written(gateway, task_id)
                await until_let_go(gateway, task_id)
                gc.collect()
                held[count] = tracemalloc.get_traced_memory()[0] - before
                for reader in readers:
                    reader.socket.close()
        finally:
            tracemalloc.stop()
        assert (held[8] - held[2]) / 6 <= 64 * 1024


async def test_a_reader_that_has_everything_holds_nothing_of_it(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        held: dict[int, int] = {}
        tracemalloc.start()
        try:
            for count in (2, 8):
                task_id = await gateway.started()
                await gateway.hand.chunk(task_id, "x" * 500_000, append=False)
                gc.collect()
                before, _ = tracemalloc.get_traced_memory()
                readers = [Reader(gateway, task_id) for _ in range(count)]
                await asyncio.gather(*(reader.past(b"x" * 9 + b'"') for reader in readers))
                await gateway.hand.chunk(task_id, "y" * 500_000)
                await asyncio.gather(*(reader.past(b"y" * 9 + b'"') for reader in readers))
                await asyncio.sleep(0)
                gc.collect()
                held[count] = tracemalloc.get_traced_memory()[0] - before
                for reader in readers:
                    reader.socket.close()
        finally:
            tracemalloc.stop()
        assert (held[8] - held[2]) / 6 <= 64 * 1024


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_reader_that_reads_on_has_missed_nothing(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        small_buffers(gateway)
        task_id = await gateway.started()
        await gateway.hand.chunk(task_id, "f" * 300_000, append=False)
        stopped, later = Reader(gateway, task_id, binding), Reader(gateway, task_id, binding)
        await until_followed(gateway, task_id, 2)
        await until_let_go(gateway, task_id)
        reading = asyncio.create_task(later.rest())
        await until_followed(gateway, task_id, 1)
        await written(gateway, task_id)
        await gateway.hand.finish(task_id)
        both = [await stopped.rest(), await reading]

        assert both[0] == both[1]
        ids, bodies = read(both[0])
        assert ids == [str(number) for number in range(2, 635)]
        assert bodies[0]["task"]["artifacts"][0]["parts"][0]["text"] == "f" * 300_000
        texts = "".join(
            body["artifactUpdate"]["artifact"]["parts"][0]["text"] for body in bodies[1:-1]
        )
        expected = "t" * 300 + "m" * 30 * 4096 + "l" * 500_000 + "t" * 300
        assert texts == expected
        assert bodies[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


def read(stream: bytes) -> tuple[Sequence[str], Sequence[Any]]:
    """The ids and results of a stream, which ends with a whole event."""
    frames = stream.decode().split("\n\n")
    assert frames.pop() == ""
    ids, bodies = [], []
    for frame in frames:
        if not frame.startswith(":"):
            number, _, data = frame.partition("\ndata: ")
            ids.append(number.removeprefix("id: "))
            body = json.loads(data)
            bodies.append(body.get("result", body))
    return ids, bodies


async def test_a_reader_that_stops_reading_does_not_hold_up_the_servers_stop(
    sqlite_url: str,
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        small_buffers(gateway)
        task_id = await gateway.started()
        reader = Reader(gateway, task_id)
        await until_followed(gateway, task_id, 1)
        await gateway.hand.chunk(task_id, "x" * 500_000, append=False)
        await until_let_go(gateway, task_id)
        grace_s = gateway.server.config.timeout_graceful_shutdown
        assert grace_s is not None
        began = time.monotonic()
        gateway.server.stop()
        await gateway.serving

        assert time.monotonic() - began < grace_s - 1
        assert not (await reader.rest()).endswith(b"\n\n"), "half an event is none"


async def test_nobody_gets_more_streams_by_not_reading_them(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, max_open_calls=2) as gateway:
        small_buffers(gateway)
        task_id = await gateway.started()
        await gateway.hand.chunk(task_id, "x" * 300_000, append=False)
        readers = [Reader(gateway, task_id) for _ in range(2)]
        await until_followed(gateway, task_id, 2)
        await until_let_go(gateway, task_id)
        assert (await gateway.get(f"/tasks/{task_id}:subscribe")).status_code == 429
        for reader in readers:
            reader.socket.close()
        async with asyncio.timeout(10):
            while gateway.handler._quotas._open:
                await asyncio.sleep(0.01)
        stream = gateway.subscribe(task_id)
        await anext(stream)
        await stream.aclose()
