"""Resuming: from the event that a client saw last, on any gateway, also past the end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from outlast.model.ids import TaskId
from outlast.wire.extension import EXTENSION_URI
from tests.integration.test_gateway_support import BINDINGS, Gateway, running_gateway

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
