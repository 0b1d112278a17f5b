"""Following where no stream comes through: by calls that wait for what is newer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb

from outlast import Client
from outlast.client import Event, Link, following
from outlast.client.failures import delay_before
from outlast.model.ids import TaskId
from outlast.testing.proxy import Proxy
from tests.integration.test_client import QUICK, made_of, plain
from tests.integration.test_gateway_support import Gateway, running_gateway

STREAM = b"text/event-stream"


class NoStreams(Proxy):
    """Resets every connection whose server begins to answer with a stream."""

    refused = 0

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter, towards: Any) -> None:
        if towards == "client" and STREAM in data:
            self.refused += 1
            self.reset()
        else:
            await super()._pass_on(data, writer, towards)


@asynccontextmanager
async def without_streams(gateway: Gateway) -> AsyncIterator[tuple[NoStreams, Client]]:
    async with NoStreams("127.0.0.1", int(gateway.url.rpartition(":")[2])) as proxy:
        card = pb.AgentCard()
        card.CopyFrom(gateway.card)
        for interface in card.supported_interfaces:
            interface.url = proxy.url(interface.url)
        async with Client(card, patience=QUICK) as client:
            yield proxy, client


async def until_waiting(gateway: Gateway, task_id: TaskId) -> None:
    """Return when a call waits for the task; streams are cut, and so nobody else does."""
    tails = gateway.handler._waiting._tails._tails
    async with asyncio.timeout(10):
        while (tail := tails.get(task_id)) is None or not tail._waiting:
            await asyncio.sleep(0.005)


def counted(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The GetTask calls from now on."""
    calls: list[str] = []
    get = gateway.handler.on_get_task

    async def counting(params: pb.GetTaskRequest, context: Any) -> pb.Task:
        calls.append(params.id)
        return await get(params, context)

    monkeypatch.setattr(gateway.handler, "on_get_task", counting)
    return calls


@pytest.mark.parametrize("epoch", ["", "e1"])
async def test_where_streams_are_cut_each_change_is_shown_by_one_call_that_waited(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, epoch: str
) -> None:
    async with (
        running_gateway(sqlite_url, epoch=epoch, poll_s=30) as gateway,
        without_streams(gateway) as (proxy, client),
    ):
        calls = counted(gateway, monkeypatch)
        task_id = await gateway.started()
        events: list[Event] = []
        links: list[Link] = []

        async def follow() -> None:
            async for event in client.follow(task_id, on_link=links.append):
                events.append(event)

        async def shown(count: int) -> None:
            async with asyncio.timeout(10):
                while len(events) < count:
                    await asyncio.sleep(0.005)

        watching = asyncio.create_task(follow())
        for number in range(5):
            await shown(1 + number)
            while proxy.refused < 2:
                await asyncio.sleep(0.005)
            await until_waiting(gateway, task_id)
            before = len(calls)
            await gateway.hand.chunk(task_id, str(number), append=number > 0)
            await shown(2 + number)
            assert len(calls) - before <= 1, "it waited, and did not ask again and again"
        await until_waiting(gateway, task_id)
        await gateway.hand.finish(task_id)
        await watching
        assert links[-1] == Link(by="looks")
        monkeypatch.undo()
        assert plain(made_of(events)) == plain(await gateway.task(task_id))


async def test_a_wait_that_brought_nothing_is_followed_by_the_next_at_once(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was over at once is another matter: it may have been no wait at all."""
    attempts: list[int] = []

    def noted(attempt: int, *args: Any, **kwargs: Any) -> float:
        attempts.append(attempt)
        return delay_before(attempt, *args, **kwargs)

    monkeypatch.setattr(following, "delay_before", noted)
    for was_held in (True, False):
        monkeypatch.setattr(following, "_HELD_S", 0.0 if was_held else 1000.0)
        async with (
            running_gateway(sqlite_url, blocking_cap_s=0.01) as gateway,
            without_streams(gateway) as (_, client),
        ):
            task_id = await gateway.started()
            stream = client.follow(task_id)
            await anext(stream)
            attempts.clear()
            watching = asyncio.create_task(anext(stream))
            async with asyncio.timeout(10):
                while len(attempts) < 5:
                    await asyncio.sleep(0.01)
            await gateway.hand.finish(task_id)
            await watching
            await stream.aclose()
            assert attempts[:5] == ([0] * 5 if was_held else [0, 1, 2, 3, 4])
