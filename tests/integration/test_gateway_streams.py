"""Streams through the SDK's client and over bare sockets: a Task first, then every later event."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a
from google.protobuf.json_format import MessageToDict

from outlast.model.errors import StoreUnavailable
from outlast.model.ids import TaskId
from outlast.model.task import State
from outlast.wire.extension import EXTENSION_URI
from tests.integration.test_gateway_support import (
    BINDINGS,
    Gateway,
    folded,
    message,
    running_gateway,
    shown,
    state_of,
)

both = pytest.mark.parametrize("binding", BINDINGS)


async def rest_of(stream: AsyncIterator[pb.StreamResponse]) -> list[pb.StreamResponse]:
    async with asyncio.timeout(10):
        return [item async for item in stream]


def texts(items: list[pb.StreamResponse]) -> list[str]:
    return [item.artifact_update.artifact.parts[0].text for item in items[1:]]


# --- the law ------------------------------------------------------------------------------------


@both
async def test_case_088_a_stream_folds_to_the_task(database_url: str, binding: str) -> None:
    async with running_gateway(database_url) as gateway:
        stream = gateway.stream(message(), binding=binding)
        first = await anext(stream)
        task_id = TaskId(first.task.id)
        await gateway.hand.chunk(task_id, "a", "b", "c", append=False)
        await gateway.hand.report(task_id, "half-way")
        await gateway.hand.chunk(task_id, "x", append=False, name="other")
        await gateway.hand.chunk(task_id, "again", append=False)
        await gateway.hand.chunk(task_id, "y", name="other")
        await gateway.hand.finish(task_id)
        items = [first, *await rest_of(stream)]

        assert [state_of(item) for item in items[:1]] == ["SUBMITTED"]
        assert state_of(items[-1]) == "COMPLETED"
        assert folded(items) == shown(await gateway.task(task_id))


@both
async def test_case_011_what_was_missed_is_in_the_next_streams_task(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        stream = gateway.subscribe(task_id, binding=binding)
        await anext(stream)
        await gateway.hand.chunk(task_id, "0", "1", append=False)
        await anext(stream)
        await stream.aclose()
        await gateway.hand.chunk(task_id, "2", "3")

        again = gateway.subscribe(task_id, binding=binding)
        items = [await anext(again)]
        await gateway.hand.chunk(task_id, "4")
        await gateway.hand.finish(task_id)
        items += await rest_of(again)

        parts = folded(items)["artifacts"][0]["parts"]
        assert [part["text"] for part in parts] == ["0", "1", "2", "3", "4"]
        assert folded(items) == shown(await gateway.task(task_id))


async def test_case_038_fifty_reconnects_lose_and_double_nothing(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()

        async def write() -> None:
            for index in range(50):
                await gateway.hand.chunk(task_id, *"a" * 20, append=index > 0)
            await gateway.hand.finish(task_id)

        writing = asyncio.create_task(write())
        for _ in range(50):
            items: list[pb.StreamResponse] = []
            with contextlib.suppress(a2a.UnsupportedOperationError):
                stream = gateway.subscribe(task_id)
                for _ in range(random.randint(1, 40)):
                    items.append(await anext(stream))
                    if state_of(items[-1]) == "COMPLETED":
                        break
                await stream.aclose()
            if items and (artifacts := folded(items).get("artifacts")):
                parts = artifacts[0]["parts"]
                assert {part["text"] for part in parts} == {"a"}
                seen = sum(item.HasField("artifact_update") for item in items)
                held = sum(len(artifact.parts) for artifact in items[0].task.artifacts)
                assert len(parts) == held + seen
        await writing

        task = await gateway.task(task_id)
        assert "".join(part.text for part in task.artifacts[0].parts) == "a" * 1000


async def test_a_long_log_comes_in_pages_without_a_gap(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        stream = gateway.subscribe(task_id)
        first = await anext(stream)
        await gateway.hand.chunk(task_id, *map(str, range(700)), append=False)
        await gateway.hand.finish(task_id)
        items = [first, *await rest_of(stream)]

        assert texts(items[:-1]) == [str(number) for number in range(700)]


async def test_case_016_a_subscription_never_hangs_on_an_end_in_between(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, poll_s=30) as gateway:
        for _ in range(40):
            task_id = await gateway.started()
            await gateway.hand.lease(task_id)

            async def finish(task_id: TaskId = task_id) -> None:
                await asyncio.sleep(random.uniform(0, 0.02))
                await gateway.hand.finish(task_id)

            finishing = asyncio.create_task(finish())
            await asyncio.sleep(random.uniform(0, 0.02))
            async with asyncio.timeout(2):
                try:
                    items = await rest_of(gateway.subscribe(task_id))
                    assert state_of(items[-1]) == "COMPLETED"
                except a2a.UnsupportedOperationError:
                    pass
            await finishing


async def test_case_018_a_subscriber_of_another_gateway_sees_the_same(database_url: str) -> None:
    async with (
        running_gateway(database_url) as one,
        running_gateway(database_url) as other,
    ):
        task_id = await one.started()
        streams = [one.subscribe(task_id), other.subscribe(task_id)]
        firsts = [await anext(stream) for stream in streams]
        await one.hand.report(task_id, "here")
        await one.hand.chunk(task_id, "a", "b", append=False)
        await one.hand.finish(task_id)
        rests = await asyncio.gather(*map(rest_of, streams))

        assert firsts[0] == firsts[1]
        assert rests[0] == rests[1]
        assert len(rests[0]) == 4


async def test_case_028_an_event_that_was_shown_is_stored(sqlite_url: str) -> None:
    async with (
        running_gateway(sqlite_url) as one,
        running_gateway(sqlite_url) as other,
    ):
        task_id = await one.started()
        stream = one.subscribe(task_id)
        items = [await anext(stream)]
        writing = asyncio.create_task(_chunks_and_end(one, task_id, 20))
        async for item in stream:
            items.append(item)
            now = shown(await other.task(task_id))
            have = folded(items)
            held = [len(artifact["parts"]) for artifact in have.get("artifacts", ())]
            stored = [len(artifact["parts"]) for artifact in now.get("artifacts", ())]
            assert stored >= held
            if state_of(item) == "COMPLETED":
                assert now == have
        await writing


@pytest.mark.parametrize("size", [1_000, 7_900, 8_000, 65_536, 1_000_000])
async def test_case_031_large_events_arrive(postgres_dsn: str, size: int) -> None:
    async with running_gateway(postgres_dsn) as gateway:
        task_id = await gateway.started()
        stream = gateway.subscribe(task_id)
        await anext(stream)
        text = "é" * (size // 2)
        await gateway.hand.chunk(task_id, text, append=False)
        await gateway.hand.finish(task_id)
        items = await rest_of(stream)

        assert items[0].artifact_update.artifact.parts[0].text == text
        assert (await gateway.task(task_id)).artifacts[0].parts[0].text == text


async def test_a_stream_outlasts_a_store_that_is_away_for_a_moment(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, poll_s=0.02) as gateway:
        task_id = await gateway.started()
        stream = gateway.subscribe(task_id)
        await anext(stream)
        events_since = gateway.log.events_since
        failures = iter(range(3))

        async def shaky(*args: Any, **kwargs: Any) -> Any:
            if next(failures, None) is not None:
                raise StoreUnavailable("away", happened=False)
            return await events_since(*args, **kwargs)

        gateway.log.events_since = shaky  # type: ignore[method-assign]
        await gateway.hand.finish(task_id)

        assert [state_of(item) for item in await rest_of(stream)] == ["COMPLETED"]


# --- where streams end --------------------------------------------------------------------------


@both
async def test_case_023_a_send_stream_ends_at_a_question_and_a_subscription_goes_on(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sending = gateway.stream(message(), binding=binding)
        first = await anext(sending)
        task_id = TaskId(first.task.id)
        subscription = gateway.subscribe(task_id, binding=binding)
        await anext(subscription)
        await gateway.hand.ask(task_id, "sure?")
        assert [state_of(item) for item in await rest_of(sending)] == ["INPUT_REQUIRED"]

        answering = gateway.stream(message("yes", task_id=task_id), binding=binding)
        assert state_of(await anext(answering)) == "WORKING", "a follow-up's stream has a Task too"
        await gateway.hand.finish(task_id)

        assert [state_of(item) for item in await rest_of(answering)] == ["COMPLETED"]
        assert [state_of(item) for item in await rest_of(subscription)] == [
            "INPUT_REQUIRED",
            "WORKING",
            "COMPLETED",
        ]


async def test_a_send_stream_waits_out_an_authorization(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sending = gateway.stream(message())
        task_id = TaskId((await anext(sending)).task.id)
        await gateway.hand.ask(task_id, "log in", state=State.AUTH_REQUIRED)
        assert state_of(await anext(sending)) == "AUTH_REQUIRED"
        await gateway.cancel(task_id)

        assert [state_of(item) for item in await rest_of(sending)] == ["CANCELED"]


@both
async def test_case_019_cancel_through_another_gateway_reaches_every_stream(
    database_url: str, binding: str
) -> None:
    async with (
        running_gateway(database_url) as one,
        running_gateway(database_url) as other,
    ):
        task_id = await one.started()
        await one.hand.report(task_id, "busy")
        streams = [one.subscribe(task_id), other.subscribe(task_id)]
        for stream in streams:
            await anext(stream)
        canceled = await other.cancel(task_id, binding=binding)

        assert canceled.status.state == pb.TASK_STATE_CANCELED
        for stream in streams:
            assert [state_of(item) for item in await rest_of(stream)] == ["CANCELED"]


async def test_case_050_a_paused_task_is_canceled_at_once(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "sure?")
    async with running_gateway(sqlite_url) as gateway:
        stream = gateway.subscribe(task_id)
        assert state_of(await anext(stream)) == "INPUT_REQUIRED"
        canceled = await gateway.cancel(task_id)

        assert canceled.status.state == pb.TASK_STATE_CANCELED
        assert [state_of(item) for item in await rest_of(stream)] == ["CANCELED"]
        with pytest.raises(a2a.UnsupportedOperationError, match="has ended"):
            await gateway.send(message("yes", task_id=task_id))
        assert await gateway.cancel(task_id) == canceled


async def test_case_047_of_cancel_and_completion_one_wins_and_all_agree(database_url: str) -> None:
    async with running_gateway(database_url) as gateway:
        for _ in range(10):
            task_id = await gateway.started()
            await gateway.hand.lease(task_id)
            stream = gateway.subscribe(task_id)
            await anext(stream)
            canceled, finished = await asyncio.gather(
                gateway.cancel(task_id), gateway.hand.finish(task_id), return_exceptions=True
            )
            gateway.hand.leases.clear()
            ends = [state_of(item) for item in await rest_of(stream)]

            assert len(ends) == 1
            if isinstance(canceled, BaseException):
                assert isinstance(canceled, a2a.TaskNotCancelableError)
                assert ends == ["COMPLETED"]
            else:
                assert isinstance(finished, BaseException)
                assert ends == ["CANCELED"]
                assert canceled == await gateway.task(task_id)


@both
async def test_a_task_that_has_ended_cannot_be_canceled(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.finish(task_id)
        with pytest.raises(a2a.TaskNotCancelableError, match="completed"):
            await gateway.cancel(task_id, binding=binding)
        with pytest.raises(a2a.TaskNotFoundError):
            await gateway.cancel("no-such-task", binding=binding)


@both
async def test_errors_before_the_first_event_are_plain_errors(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.finish(task_id)
        with pytest.raises(a2a.UnsupportedOperationError, match="has ended"):
            await rest_of(gateway.subscribe(task_id, binding=binding))
        with pytest.raises(a2a.TaskNotFoundError):
            await rest_of(gateway.subscribe("no-such-task", binding=binding))

        refused = await gateway.post(f"/tasks/{task_id}:subscribe", None)
        assert (refused.status_code, refused.headers["content-type"]) == (400, "application/json")
        rpc = await gateway.rpc("SubscribeToTask", {"id": task_id})
        assert rpc["error"]["code"] == -32004


# --- the connection -----------------------------------------------------------------------------


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


# --- the extension ------------------------------------------------------------------------------


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


# --- helpers ------------------------------------------------------------------------------------


def _inner(item: pb.StreamResponse) -> Any:
    return getattr(item, str(item.WhichOneof("payload")))


async def _chunks_and_end(gateway: Gateway, task_id: TaskId, count: int) -> None:
    for index in range(count):
        await gateway.hand.chunk(task_id, str(index), append=index > 0)
    await gateway.hand.finish(task_id)


def _raw_stream(gateway: Gateway, task_id: str, binding: str) -> Any:
    headers = {"A2A-Version": "1.0"}
    if binding == "HTTP+JSON":
        url = f"{gateway.url}/tasks/{task_id}:subscribe"
        return gateway.http.stream("GET", url, headers=headers)
    body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task_id}}
    return gateway.http.stream("POST", f"{gateway.url}/", headers=headers, json=body)
