"""Resuming: from the event that a client saw last, on any gateway, also past the end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a
from google.protobuf.json_format import MessageToDict, ParseDict

from outlast.model.ids import TaskId
from outlast.wire.extension import EXTENSION_URI
from outlast.wire.updates import generation_of, under_uri
from tests.integration.test_gateway_fold_law import check_fold
from tests.integration.test_gateway_grpc import EXTENDED, SPOKEN, called
from tests.integration.test_gateway_support import (
    BINDINGS,
    Gateway,
    message,
    rest_of,
    running_gateway,
    state_of,
)

both = pytest.mark.parametrize("binding", BINDINGS)
EPOCH = "e1"


async def resumed(
    gateway: Gateway,
    task_id: TaskId,
    binding: str,
    *,
    headers: dict[str, str],
    sent: pb.Message | None = None,
) -> list[tuple[str, Any]]:
    """The ids and results of a subscription, or of a send that is made again, up to its end. When
    the task has ended, they are what GetTask says."""
    headers = {"A2A-Version": "1.0", **headers}
    method: str = "SubscribeToTask"
    params: Any = {"id": task_id}
    verb, url, body = "GET", f"{gateway.url}/tasks/{task_id}:subscribe", None
    if sent is not None:
        method, params = "SendStreamingMessage", {"message": MessageToDict(sent)}
        verb, url, body = "POST", f"{gateway.url}/message:stream", params
    if binding == "JSONRPC":
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        verb, url = "POST", f"{gateway.url}/"
    got: list[tuple[str, Any]] = []
    event_id = ""
    async with (
        asyncio.timeout(10),
        gateway.http.stream(verb, url, headers=headers, json=body) as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                event_id = line.removeprefix("id: ")
            elif line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
                got.append((event_id, data.get("result", data)))
    await check_fold([ParseDict(item, pb.StreamResponse()) for _, item in got], gateway.seen)
    return got


def after(seq: int, *, extended: bool = False) -> dict[str, str]:
    headers = {"Last-Event-ID": f"{EPOCH}-{seq}"}
    return {**headers, "A2A-Extensions": EXTENSION_URI} if extended else headers


def ids(got: list[tuple[str, Any]]) -> list[int]:
    assert {event_id.rpartition("-")[0] for event_id, _ in got} == {EPOCH}
    return [int(event_id.rpartition("-")[2]) for event_id, _ in got]


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
            got = await resumed(gateway, task_id, binding, headers=after(2))

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
        ((_, plain),) = await resumed(gateway, task_id, binding, headers=headers)
        headers["A2A-Extensions"] = EXTENSION_URI
        ((event_id, extended),) = await resumed(gateway, task_id, binding, headers=headers)

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


@both
async def test_case_012_who_has_seen_the_end_gets_the_task_and_nothing_more(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, epoch=EPOCH) as gateway:
        task_id = await gateway.started()
        await gateway.hand.finish(task_id)
        got = await resumed(gateway, task_id, binding, headers=after(2, extended=True))

        assert ids(got) == [2]
        assert got[0][1]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert "reset" not in got[0][1]["task"]["metadata"][EXTENSION_URI]


async def test_case_012_an_id_of_another_tasks_log_that_is_longer_is_a_reset(
    sqlite_url: str,
) -> None:
    async with running_gateway(sqlite_url, epoch=EPOCH) as gateway:
        longer, task_id = await gateway.started(), await gateway.started()
        seen = await gateway.hand.chunk(longer, *"abc", append=False)
        await gateway.hand.finish(task_id)
        got = await resumed(gateway, task_id, "HTTP+JSON", headers=after(seen, extended=True))

        assert got[0][1]["task"]["metadata"][EXTENSION_URI] == {"generation": 2, "reset": True}


@both
@pytest.mark.parametrize("extended", [False, True])
async def test_a_send_that_is_made_again_goes_on_where_its_stream_was_cut(
    sqlite_url: str, binding: str, extended: bool
) -> None:
    """Through another gateway, while the task runs and after its end."""
    async with (
        running_gateway(sqlite_url, epoch=EPOCH) as one,
        running_gateway(sqlite_url, epoch=EPOCH) as other,
    ):
        sent = message()
        stream = one.stream(sent, binding=binding)
        task_id = TaskId((await anext(stream)).task.id)
        await one.hand.chunk(task_id, "a", "b", append=False)
        await anext(stream)
        await stream.aclose()
        seen = after(2, extended=extended)
        going_on = asyncio.create_task(resumed(other, task_id, binding, headers=seen, sent=sent))
        await one.hand.chunk(task_id, "c")
        await one.hand.finish(task_id)

        assert ids(await going_on) == [2, 3, 4, 5]
        assert ids(await resumed(other, task_id, binding, headers=seen, sent=sent)) == [2, 3, 4, 5]
        again = message(message_id=sent.message_id)
        assert ids(await resumed(one, task_id, binding, headers={}, sent=again)) == [5], (
            "nothing seen"
        )


@both
async def test_an_answer_that_is_made_again_does_not_end_at_its_own_question(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, epoch=EPOCH) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "sure?")
        answer = message("yes", task_id=task_id)
        await gateway.send(answer, immediately=True)
        await gateway.hand.ask(task_id, "really?")
        seen = after(2, extended=True)
        got = await resumed(gateway, task_id, binding, headers=seen, sent=answer)

        states = [(item.get("task") or item["statusUpdate"])["status"]["state"] for _, item in got]
        assert ids(got) == [2, 3, 4]
        assert states == [
            f"TASK_STATE_{name}" for name in ("INPUT_REQUIRED", "WORKING", "INPUT_REQUIRED")
        ]


async def test_over_grpc_the_last_id_is_metadata(sqlite_url: str) -> None:
    """Events have no ids there; what the ids of HTTP say is the epoch and the generation."""
    async with called(sqlite_url, epoch=EPOCH) as there:
        sent = message()
        stream = there.stream(sent, **EXTENDED)
        task_id = TaskId((await anext(stream)).task.id)
        await there.gateway.hand.chunk(task_id, "a", "b", append=False)
        await anext(stream)
        await stream.aclose()
        await there.gateway.hand.finish(task_id)
        seen = {"last-event-id": f"{EPOCH}-2", **EXTENDED}
        for again in (there.subscribe(task_id, **seen), there.stream(sent, **seen)):
            items = await rest_of(again)
            numbers = [generation_of(getattr(i, str(i.WhichOneof("payload")))) for i in items]
            assert numbers == [2, 3, 4]
            assert [part.text for part in items[0].task.artifacts[0].parts] == ["a"]
            assert state_of(items[-1]) == "COMPLETED"

        request = pb.SubscribeToTaskRequest(id=task_id)
        said = tuple((name.lower(), value) for name, value in seen.items())
        call = there.stub.SubscribeToTask(request, metadata=(*SPOKEN, *said))
        assert dict(await call.initial_metadata())["outlast-epoch"] == EPOCH
        call.cancel()

        seen["last-event-id"] = "other-2"
        (reset,) = await rest_of(there.subscribe(task_id, **seen))
        assert under_uri(reset.task) == {"generation": 4, "reset": True}
        seen["last-event-id"] = "what was that?"
        with pytest.raises(a2a.InvalidParamsError, match="Last-Event-ID"):
            await rest_of(there.subscribe(task_id, **seen))
