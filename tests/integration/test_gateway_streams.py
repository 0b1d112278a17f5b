"""Streams: a Task first, then every later event, each once, in order, from any gateway."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a

from outlast.model.errors import StoreUnavailable
from outlast.model.ids import TaskId
from outlast.store.log import Log
from tests.integration.test_gateway_fold_law import folded, shown
from tests.integration.test_gateway_support import (
    BINDINGS,
    EVERY_BINDING,
    Gateway,
    message,
    rest_of,
    running_gateway,
    state_of,
)

both = pytest.mark.parametrize("binding", BINDINGS)
every_binding = pytest.mark.parametrize("binding", EVERY_BINDING)


def texts(items: list[pb.StreamResponse]) -> list[str]:
    return [item.artifact_update.artifact.parts[0].text for item in items[1:]]


@every_binding
@pytest.mark.parametrize("extended", [False, True])
async def test_case_088_a_stream_folds_to_the_task(
    sqlite_url: str, binding: str, extended: bool
) -> None:
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
        stream = gateway.stream(message(), binding=binding, extended=extended)
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
        texts = [[part.text for part in made.parts] for made in folded(items).artifacts]
        assert texts == [["again"], ["x", "y"]]


@every_binding
async def test_case_011_what_was_missed_is_in_the_next_streams_task(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
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

        parts = folded(items).artifacts[0].parts
        assert [part.text for part in parts] == ["0", "1", "2", "3", "4"]


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
            if items and (artifacts := folded(items).artifacts):
                parts = artifacts[0].parts
                assert {part.text for part in parts} == {"a"}
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


async def test_an_event_is_read_once_however_many_follow(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would otherwise wait for the pool's connections, one after another."""
    reads = 0
    events_since = Log.events_since

    async def counted(log: Log, *given: Any, **named: Any) -> Any:
        nonlocal reads
        reads += 1
        return await events_since(log, *given, **named)

    monkeypatch.setattr(Log, "events_since", counted)
    async with running_gateway(sqlite_url, poll_s=30) as gateway:
        task_id = await gateway.started()
        streams = [gateway.subscribe(task_id) for _ in range(20)]
        await asyncio.gather(*map(anext, streams))
        reads = 0
        for number in range(10):
            await gateway.hand.report(task_id, f"report {number}")
            await asyncio.gather(*map(anext, streams))
        read = reads
        await gateway.hand.finish(task_id)
        await asyncio.gather(*map(rest_of, streams))

    assert read <= 30, "once for the event, and now and then once more for nothing"


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
            have = shown(folded(items))
            held = [len(artifact["parts"]) for artifact in have.get("artifacts", ())]
            stored = [len(artifact["parts"]) for artifact in now.get("artifacts", ())]
            assert stored >= held
            if state_of(item) == "COMPLETED":
                assert now == have
        await writing


async def test_case_031_large_events_arrive(postgres_dsn: str) -> None:
    async with running_gateway(postgres_dsn) as gateway:
        for size in (1_000, 7_900, 8_000, 65_536, 1_000_000):
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


async def _chunks_and_end(gateway: Gateway, task_id: TaskId, count: int) -> None:
    for index in range(count):
        await gateway.hand.chunk(task_id, str(index), append=index > 0)
    await gateway.hand.finish(task_id)
