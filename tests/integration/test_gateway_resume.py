"""Resuming: from the event that a client saw last, on any gateway, also past the end."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict

from outlast.gateway.stream import until_terminal
from outlast.model.ids import TaskId
from outlast.store.protocols import Settings
from outlast.store.sweeping import Sweeping
from outlast.sweeps.folds import Folds
from outlast.wire.extension import EXTENSION_URI, View
from tests.integration.test_gateway_support import BINDINGS, SCOPE, Gateway, running_gateway

both = pytest.mark.parametrize("binding", BINDINGS)
EPOCH = "e1"


async def resumed(
    gateway: Gateway, task_id: TaskId, binding: str, **headers: str
) -> list[tuple[str, Any]]:
    """The ids and results of a subscription, up to its end."""
    headers = {"A2A-Version": "1.0", **headers}
    if binding == "HTTP+JSON":
        call: Any = gateway.http.stream(
            "GET", f"{gateway.url}/tasks/{task_id}:subscribe", headers=headers
        )
    else:
        body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task_id}}
        call = gateway.http.stream("POST", f"{gateway.url}/", headers=headers, json=body)
    got: list[tuple[str, Any]] = []
    event_id = ""
    async with asyncio.timeout(10), call as response:
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                event_id = line.removeprefix("id: ")
            elif line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
                got.append((event_id, data.get("result", data)))
    return got


@both
async def test_case_012_a_stream_goes_on_after_the_event_that_was_seen(
    database_url: str, binding: str
) -> None:
    async with (
        running_gateway(database_url, epoch=EPOCH) as one,
        running_gateway(database_url, epoch=EPOCH) as other,
    ):
        task_id = await one.started()
        await one.hand.chunk(task_id, "a", "b", "c", append=False)
        await one.hand.finish(task_id)
        for gateway in (one, other):
            got = await resumed(gateway, task_id, binding, **{"Last-Event-ID": f"{EPOCH}-2"})

            assert [event_id for event_id, _ in got] == [f"{EPOCH}-{n}" for n in (2, 3, 4, 5)]
            parts = got[0][1]["task"]["artifacts"][0]["parts"]
            assert parts == [{"text": "a"}], "the Task as of then"
            assert got[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


@both
@pytest.mark.parametrize("seen", ["other-2", f"{EPOCH}-99"])
async def test_case_012_what_cannot_be_rebuilt_is_a_reset(
    sqlite_url: str, binding: str, seen: str
) -> None:
    async with running_gateway(sqlite_url, epoch=EPOCH) as gateway:
        task_id = await gateway.started()
        await gateway.hand.finish(task_id)
        headers = {"Last-Event-ID": seen}
        ((_, plain),) = await resumed(gateway, task_id, binding, **headers)
        headers["A2A-Extensions"] = EXTENSION_URI
        ((event_id, extended),) = await resumed(gateway, task_id, binding, **headers)

        assert "metadata" not in plain["task"]
        assert extended["task"]["metadata"][EXTENSION_URI] == {"generation": 2, "reset": True}
        assert event_id == f"{EPOCH}-2"


async def test_case_012_an_id_that_is_none_is_refused(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, epoch=EPOCH) as gateway:
        task_id = await gateway.started()
        headers = {"Last-Event-ID": "what was that?"}
        refused = await gateway.get(f"/tasks/{task_id}:subscribe", **headers)

        assert refused.status_code == 400
        assert "Last-Event-ID" in refused.json()["error"]["message"]


async def trimmed(gateway: Gateway, chunks: int = 80) -> TaskId:
    """A task that has ended, and whose log is trimmed."""
    task_id = await gateway.started()
    await gateway.hand.chunk(task_id, *["x"] * chunks, append=False)
    await gateway.hand.finish(task_id)
    await trim(gateway)
    return task_id


async def trim(gateway: Gateway) -> None:
    sweeping = Sweeping(gateway.database, Settings(resume_window_ms=0))
    assert await Folds(sweeping).sweep() == 1
    assert len(await sweeping.trim_logs()) == 1


@both
async def test_case_117_a_resume_into_what_was_trimmed_is_a_reset(
    database_url: str, binding: str
) -> None:
    async with running_gateway(database_url, epoch=EPOCH) as gateway:
        task_id = await trimmed(gateway)
        headers = {"A2A-Extensions": EXTENSION_URI}
        for seen in (1, 40, 81):
            headers["Last-Event-ID"] = f"{EPOCH}-{seen}"
            ((event_id, got),) = await resumed(gateway, task_id, binding, **headers)

            assert event_id == f"{EPOCH}-82"
            assert got["task"]["metadata"][EXTENSION_URI] == {"generation": 82, "reset": True}
            assert len(got["task"]["artifacts"][0]["parts"]) == 80
            assert got["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        headers["Last-Event-ID"] = f"{EPOCH}-82"
        ((event_id, got),) = await resumed(gateway, task_id, binding, **headers)
        assert got["task"]["metadata"][EXTENSION_URI] == {"generation": 82}


async def test_case_117_what_is_trimmed_reads_and_lists_as_before(database_url: str) -> None:
    async with running_gateway(database_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.chunk(task_id, *["x"] * 80, append=False)
        await gateway.hand.finish(task_id)
        lists: list[dict[str, Any]] = [{}, {"include_artifacts": True}, {"history_length": 0}]

        async def shown() -> list[Any]:
            pages = [await gateway.page(**params) for params in lists]
            return [await gateway.task(task_id), *pages]

        before = await shown()
        await trim(gateway)

        assert await shown() == before


async def test_case_117_a_reader_slower_than_the_log_is_kept_gets_the_end(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        items = gateway.handler._streams.follow(
            SCOPE, task_id, View(extended=True), ends=until_terminal
        )
        async with aclosing(items):
            first = await anext(items)
            await gateway.hand.chunk(task_id, *["x"] * 80, append=False)
            await gateway.hand.finish(task_id)
            await trim(gateway)
            rest = [item async for item in items]

        assert first.seq == 1
        assert isinstance(rest[-1].event, pb.Task)
        assert rest[-1].seq == 82
        assert len(rest[-1].event.artifacts[0].parts) == 80
        assert MessageToDict(rest[-1].event.metadata)[EXTENSION_URI]["reset"] is True
