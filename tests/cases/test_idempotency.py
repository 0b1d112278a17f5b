"""Idempotency through two gateways behind a balancer: what is sent again counts once, however it
is sent and whoever dies."""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from outlast.model.ids import Millis, TaskId
from outlast.testing.fleet import LOOK_EVERY_S, PATIENCE_S, Child, until
from tests.cases.followers import Pair
from tests.chaos.caller import Caller, Json, history_of, message, pause_of, state_of
from tests.chaos.fleets import ONCE, CounterSink

T = TypeVar("T")

AT_ONCE = 20
CREATED, ANSWERED = "commit:task_events_append#1", "commit:task_ledger_keep#1"
"""The commits of a gateway's first send and of its first answer."""


# --- 1: the reply is lost -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["message:send", "message:stream"])
async def test_case_001_a_send_whose_reply_was_lost_is_made_again(
    pair: Pair, sink: CounterSink, method: str
) -> None:
    """The connection is dropped before a byte of the reply is read."""
    key, message_id = sink.key(), str(uuid.uuid4())
    text = f"effect {key}; say over"
    writer = await sent(pair.proxy.port, f"/{method}", text, message_id)
    await until(lambda: sink.is_called(key))
    writer.transport.abort()

    async with pair.caller() as caller:
        again = await caller.send(text, message_id=message_id, wait=False)
        async with caller.stream(text, message_id=message_id) as events:
            streamed = [item async for item in events]
        waited = await caller.send(text, message_id=message_id)
        (only,) = (await caller.page())["tasks"]
        for task in (again, streamed[0]["task"], waited):
            assert (task["id"], task["contextId"]) == (only["id"], only["contextId"])
        assert state_of(streamed[-1]) == state_of(waited) == "COMPLETED"
    assert await sink.counts(key) == ONCE


async def sent(port: int, path: str, text: str, message_id: str) -> asyncio.StreamWriter:
    """The request is out, on a connection whose other end nobody reads."""
    body = json.dumps({"message": message(text, messageId=message_id)}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nA2A-Version: 1.0\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    await writer.drain()
    return writer


async def test_case_001_a_gateway_is_killed_in_mid_run(
    pair: Pair, sink: CounterSink, tmp_path: Path
) -> None:
    """Callers wait for their tasks there, blocking and streaming. They come again through the
    balancer, and find the same tasks."""
    key, end, ids = sink.key(), tmp_path / "end", [str(uuid.uuid4()) for _ in range(4)]
    texts = [f"{key}-{number} {end}" for number in range(4)]
    how: dict[str, Any] = {"workflow": "talks"}
    async with pair.caller() as caller, pair.caller_of(0) as doomed:

        async def waits(number: int, through: Caller) -> str:
            if number % 2:
                task = await through.send(texts[number], message_id=ids[number], **how)
                return str(task["id"])
            async with through.stream(texts[number], message_id=ids[number], **how) as events:
                items = [item async for item in events]
            if state_of(items[-1]) != "COMPLETED":
                raise httpx.RemoteProtocolError("the stream was cut")
            return str(items[0]["task"]["id"])

        waiting = [asyncio.create_task(waits(number, doomed)) for number in range(4)]
        for number in range(4):
            await until(lambda number=number: sink.is_called(f"{key}-{number}"))  # type: ignore[misc]
        before = {task["id"] for task in (await caller.page())["tasks"]}
        pair.gateways[0].kill()
        for each in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(each, httpx.TransportError)
        end.touch()

        found = await asyncio.gather(
            *(persistently(lambda number=number: waits(number, caller)) for number in range(4))  # type: ignore[misc]
        )
        assert {*found} == before
        assert len(before) == 4
        assert {task["id"] for task in await every_task(caller)} == before
    for number in range(4):
        assert await sink.counts(f"{key}-{number}") == ONCE


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_case_001_and_005_a_gateway_dies_around_its_commit(
    pair: Pair, sink: CounterSink, moment: str
) -> None:
    """Of a send, of an answer, and of a message for an inbox; the caller repeats it through
    another gateway."""
    key = sink.key()
    async with pair.caller_of(0) as caller:
        doomed = await pair.fleet.gateway(fault=(f"{moment}:{CREATED}",))
        asking = f"ask Sure?; effect {key}"
        task = await sent_twice(doomed, caller, asking)
        await until(lambda: is_paused(caller, task))

        doomed = await pair.fleet.gateway(fault=(f"{moment}:{ANSWERED}",))
        answered = await sent_twice(doomed, caller, "yes", task=task, pause=pause_of(task))
        assert history_of(answered) == [asking, "Sure?", "yes"]
        assert state_of(answered) == "COMPLETED"
        assert await sink.counts(key) == ONCE

        working = await caller.send(f"{key}-talk /nowhere", workflow="talks", wait=False)
        doomed = await pair.fleet.gateway(fault=(f"{moment}:{CREATED}",))
        told = await sent_twice(doomed, caller, "and this", task=working, wait=False)
        assert history_of(told)[1:] == ["and this"]
        await caller.cancel(working)
        ours = {task["id"], working["id"]}
        assert {each["id"] for each in await every_task(caller)} == ours


async def sent_twice(doomed: Child, other: Caller, text: str, **how: object) -> Json:
    """What the repeat gets, after the gateway that got the first has died over it."""
    message_id = str(uuid.uuid4())
    async with Caller(doomed.url) as caller:
        with pytest.raises(httpx.TransportError):
            await caller.send(text, message_id=message_id, **how)  # type: ignore[arg-type]
    assert await doomed.ended() == -9
    return await other.send(text, message_id=message_id, **how)  # type: ignore[arg-type]


async def is_paused(caller: Caller, task: Json) -> bool:
    task |= await caller.get(task)
    return state_of(task) == "INPUT_REQUIRED"


# --- 2: many at once ------------------------------------------------------------------------------


async def test_case_002_twenty_at_once_make_one_task(pair: Pair, sink: CounterSink) -> None:
    """Blocking, streaming and those that do not wait, over both HTTP bindings."""
    key, message_id = sink.key(), str(uuid.uuid4())
    text = f"effect {key}; wait 0.3; say over"
    body = message(text, messageId=message_id)
    async with pair.caller() as caller:

        async def streams() -> Json:
            async with caller.stream(text, message_id=message_id) as events:
                items = [item async for item in events]
            assert state_of(items[-1]) == "COMPLETED"
            task: Json = items[0]["task"]
            return task

        async def asks_by_rpc() -> Json:
            reply = await caller.rpc("SendMessage", {"message": body})
            task: Json = reply["result"]["task"]
            return task

        ways: Sequence[Callable[[], Awaitable[Json]]] = (
            lambda: caller.send(text, message_id=message_id),
            lambda: caller.send(text, message_id=message_id, wait=False),
            streams,
            asks_by_rpc,
        )
        sends = [way() for way in itertools.islice(itertools.cycle(ways), AT_ONCE)]
        replies = await asyncio.gather(*sends)
        assert len({(task["id"], task["contextId"]) for task in replies}) == 1
        assert len(await every_task(caller)) == 1
    assert await sink.counts(key) == ONCE


async def test_case_002_a_direct_message_is_made_once(pair: Pair) -> None:
    """The agent greets each caller with another number; one caller gets one number."""
    async with pair.caller() as caller:

        async def greets(message_id: str) -> str:
            body = message("hello", messageId=message_id)
            reply = (await caller.rpc("SendMessage", {"message": body}))["result"]["message"]
            text: str = reply["parts"][0]["text"]
            return f"{reply['messageId']} {text}"

        async def greets_by_stream(message_id: str) -> str:
            async with caller.stream("hello", message_id=message_id) as events:
                (item,) = [item async for item in events]
            return f"{item['message']['messageId']} {item['message']['parts'][0]['text']}"

        ours, theirs = str(uuid.uuid4()), str(uuid.uuid4())
        ways = (greets, greets_by_stream)
        replies = await asyncio.gather(*(ways[n % 2](ours) for n in range(AT_ONCE)))
        assert len({*replies}) == 1
        assert await greets(theirs) not in replies

        pair.gateways[0].kill()
        assert await persistently(lambda: greets(ours)) == replies[0]
        assert await every_task(caller) == []


# --- 5: an answer ---------------------------------------------------------------------------------


async def test_case_005_an_answer_that_is_repeated_counts_once(
    pair: Pair, sink: CounterSink
) -> None:
    """At once, through both gateways and in every way; a minute later, when another question is
    open; and when all is over, through the gateway that lives on."""
    key, message_id = sink.key(), str(uuid.uuid4())
    begin = f"ask First?; effect {key}; ask Second?; effect {key}-2"
    async with pair.caller() as caller:
        task = await caller.send(begin)

        async def streams() -> Json:
            async with caller.stream("one", task=task, message_id=message_id) as events:
                items = [item async for item in events]
            assert state_of(items[-1]) == "INPUT_REQUIRED"
            opened: Json = items[0]["task"]
            return opened

        async def waits() -> Json:
            reply = await caller.send("one", task=task, message_id=message_id)
            assert state_of(reply) == "INPUT_REQUIRED"
            return reply

        replies = await asyncio.gather(*(way() for way in (streams, waits) * 5))
        assert {reply["id"] for reply in replies} == {task["id"]}
        once = [begin, "First?", "one"]
        assert history_of(await caller.get(task)) == once

        async with pair.fleet.stores() as stores:
            await stores.admin.move_clock(Millis(60_000))
        later = await caller.send("one", task=task, message_id=message_id)
        assert (state_of(later), history_of(later)) == ("INPUT_REQUIRED", once)

        await caller.send("two", task=task)
        pair.gateways[1].kill()
        after = await persistently(lambda: caller.send("one", task=task, message_id=message_id))
        assert (state_of(after), history_of(after)) == ("COMPLETED", [*once, "Second?", "two"])
    for name in (key, f"{key}-2"):
        assert await sink.counts(name) == ONCE
    async with pair.fleet.stores() as stores:
        runs = await stores.inspect.runs(TaskId(task["id"]))
    assert [run["outcome"] for run in runs] == ["paused", "paused", "completed"]


# --- callers that come again ----------------------------------------------------------------------


async def persistently(call: Callable[[], Awaitable[T]]) -> T:
    """What the call brings, made again when its connection fails: the balancer does not know who
    is dead."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await call()
            except httpx.TransportError:
                await asyncio.sleep(LOOK_EVERY_S)


async def every_task(caller: Caller) -> list[Json]:
    page = await persistently(caller.page)
    tasks: list[Json] = page.get("tasks", [])
    return tasks
