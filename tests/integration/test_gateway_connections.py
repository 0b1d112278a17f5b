"""Streams as connections: cut, silent, slow, many, at the server's end; and with our extension."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from typing import Any

import httpx
import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict

from outlast.gateway.server import listen
from outlast.model.ids import TaskId
from outlast.wire.extension import EXTENSION_URI
from tests.integration.test_gateway_support import (
    BINDINGS,
    Gateway,
    message,
    rest_of,
    running_gateway,
    state_of,
)

both = pytest.mark.parametrize("binding", BINDINGS)


# --- the connection -------------------------------------------------------------------------------


@both
async def test_case_026_a_stream_that_is_cut_changes_nothing(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        stream: Any = gateway.stream(message(), binding=binding)
        task_id = TaskId((await anext(stream)).task.id)
        await stream.aclose()
        async with asyncio.timeout(1):
            while gateway.server.server_state.tasks:
                await asyncio.sleep(0.01)
        assert gateway.database._board.is_empty, "nobody listens any more"  # type: ignore[attr-defined]
        await gateway.hand.finish(task_id)

        assert (await gateway.task(task_id)).status.state == pb.TASK_STATE_COMPLETED


async def test_an_idle_connection_is_the_clients_to_close(sqlite_url: str) -> None:
    """A server that closes it first races with the next request, which nobody answers."""
    proxies_s = 60.0
    async with running_gateway(sqlite_url) as gateway:
        keep_alive_s = gateway.server.config.timeout_keep_alive
        assert keep_alive_s > max(proxies_s, httpx.Limits().keepalive_expiry or 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_answers_do_not_wait_for_acknowledgements(host: str) -> None:
    with (
        closing(listen(host, 0)) as listener,
        closing(socket.create_connection(listener.getsockname()[:2])),
        closing(listener.accept()[0]) as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("tenant", ["", "/acme"])
@pytest.mark.parametrize("verb", ["GET", "POST"])
async def test_case_022_both_verbs_subscribe(sqlite_url: str, verb: str, tenant: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sent = pb.SendMessageRequest(message=message(), tenant=tenant.strip("/"))
        sent.configuration.return_immediately = True
        (created,) = [item async for item in gateway.client("HTTP+JSON").send_message(sent)]
        headers = {"A2A-Version": "1.0"}
        url = f"{gateway.url}{tenant}/tasks/{created.task.id}:subscribe"
        async with gateway.http.stream(verb, url, headers=headers) as response:
            lines = response.aiter_lines()
            assert response.status_code == 200
            assert (await anext(lines)) == "id: 1"
            assert (await anext(lines)).startswith('data: {"task"')
        if tenant:
            other = await gateway.get(f"/tasks/{created.task.id}")
            assert other.status_code == 404, "another tenant's task does not exist"


@both
async def test_case_034_and_035_silent_streams_are_kept_alive_and_never_buffered(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, keepalive_s=0.05) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "sure?")
        async with _raw_stream(gateway, task_id, binding) as response:
            lines = response.aiter_lines()
            comments = 0
            async with asyncio.timeout(5):
                async for line in lines:
                    comments += line.startswith(":")
                    if comments == 3:
                        break

            assert response.headers["cache-control"] == "no-cache"
            assert response.headers["x-accel-buffering"] == "no"
            assert response.headers["content-type"].startswith("text/event-stream")
            assert "content-encoding" not in response.headers


async def test_case_033_waiting_streams_hold_no_database_connection(postgres_dsn: str) -> None:
    async with running_gateway(postgres_dsn, poll_s=0.5) as gateway:  # a pool of 10
        task_ids = [await gateway.started() for _ in range(5)]
        streams = [gateway.subscribe(task_id) for task_id in task_ids * 16]
        await asyncio.gather(*map(anext, streams))
        loop = asyncio.get_running_loop()
        began = loop.time()
        await gateway.task(task_ids[0])
        await gateway.started()
        assert loop.time() - began < 0.5
        for task_id in task_ids:
            await gateway.hand.finish(task_id)

        for items in await asyncio.gather(*map(rest_of, streams)):
            assert state_of(items[-1]) == "COMPLETED"


async def test_a_reader_that_stops_reading_holds_up_nobody(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        host, port = gateway.url.removeprefix("http://").split(":")
        slow = socket.create_connection((host, int(port)))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asked = f"GET /tasks/{task_id}:subscribe?A2A-Version=1.0 HTTP/1.1\r\nHost: x\r\n\r\n"
        slow.sendall(asked.encode())
        stream = gateway.subscribe(task_id)
        await anext(stream)
        for index in range(60):
            await gateway.hand.chunk(task_id, "x" * 200_000, append=index > 0)
        await gateway.hand.finish(task_id)
        items = await rest_of(stream)

        assert len(items) == 61
        slow.close()


async def test_case_127_open_streams_end_when_the_server_stops(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        streams = [
            gateway.subscribe(task_id, binding=binding) for binding in BINDINGS for _ in range(25)
        ]
        await asyncio.gather(*map(anext, streams))
        assert (await gateway.get("/readyz")).status_code == 200
        gateway.server.stop()
        async with asyncio.timeout(1):
            ends = await asyncio.gather(*map(rest_of, streams))

        assert ends == [[]] * 50
    async with running_gateway(sqlite_url) as gateway:
        assert state_of(await anext(gateway.subscribe(task_id))) == "SUBMITTED"


# --- the extension --------------------------------------------------------------------------------


@both
async def test_the_extension_tells_generations_and_callers_messages(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        plain = gateway.subscribe(task_id, binding=binding)
        extended = gateway.subscribe(task_id, binding=binding, extended=True)
        items = {stream: [await anext(stream)] for stream in (plain, extended)}
        await gateway.hand.ask(task_id, "sure?")
        await gateway.send(message("yes", task_id=task_id), immediately=True)
        await gateway.hand.chunk(task_id, "a", append=False)
        await gateway.hand.finish(task_id)
        for stream, seen in items.items():
            seen += await rest_of(stream)

        said = [MessageToDict(_inner(item).metadata)[EXTENSION_URI] for item in items[extended]]
        assert [part["generation"] for part in said] == [1, 2, 3, 4, 5]
        assert said[2]["message"]["parts"] == [{"text": "yes"}]
        assert not any(MessageToDict(_inner(item).metadata) for item in items[plain])


async def test_a_response_names_the_extension_that_was_activated(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        for name in ("A2A-Extensions", "X-A2A-Extensions"):
            asked = f"https://example.com/other, {EXTENSION_URI}"
            response = await gateway.get(f"/tasks/{task_id}", **{name: asked})

            assert response.headers["a2a-extensions"] == EXTENSION_URI
            assert response.json()["metadata"] == {EXTENSION_URI: {"generation": 1}}
        plain = await gateway.get(f"/tasks/{task_id}")
        assert "a2a-extensions" not in plain.headers
        assert "metadata" not in plain.json()


def _inner(item: pb.StreamResponse) -> Any:
    return getattr(item, str(item.WhichOneof("payload")))


def _raw_stream(gateway: Gateway, task_id: str, binding: str) -> Any:
    headers = {"A2A-Version": "1.0"}
    if binding == "HTTP+JSON":
        url = f"{gateway.url}/tasks/{task_id}:subscribe"
        return gateway.http.stream("GET", url, headers=headers)
    body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task_id}}
    return gateway.http.stream("POST", f"{gateway.url}/", headers=headers, json=body)
