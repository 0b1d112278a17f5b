"""Following over connections that are cut at random, from two gateways: nothing twice, nothing
missed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from a2a.types import a2a_pb2 as pb

from outlast import Client
from outlast.client import ArtifactChanged, Event, Link, Opened, Reset, StatusChanged
from outlast.model.ids import TaskId
from outlast.model.task import State
from outlast.testing.proxy import Proxy
from outlast.wire.updates import generation_of
from tests.integration.test_client import QUICK, made_of, plain
from tests.integration.test_gateway_support import Gateway, running_gateway

CHUNKS = 60


@dataclass(frozen=True)
class TwoGateways:
    """Two gateways on one database, with an epoch, behind one proxy that leads to either."""

    one: Gateway
    other: Gateway
    proxy: Proxy
    client: Client

    def cut_after(self, count: int) -> None:
        """Cut after so many bytes more; who comes back meets any of the two."""
        self.proxy.cut_after(count)
        self.proxy.port_of_server = port_of(random.choice((self.one, self.other)))


def port_of(gateway: Gateway) -> int:
    return int(gateway.url.rpartition(":")[2])


@asynccontextmanager
async def two_gateways(database_url: str) -> AsyncIterator[TwoGateways]:
    async with (
        running_gateway(database_url, epoch="e1") as one,
        running_gateway(database_url, epoch="e1") as other,
        Proxy("127.0.0.1", port_of(one)) as proxy,
    ):
        card = pb.AgentCard()
        card.CopyFrom(one.card)
        for interface in card.supported_interfaces:
            interface.url = proxy.url(interface.url)
        async with Client(card, patience=QUICK) as client:
            yield TwoGateways(one, other, proxy, client)


async def write(gateway: Gateway, task_id: TaskId, more: asyncio.Semaphore | None = None) -> None:
    """Numbered chunks and reports by turns, each when there is to be `more`."""
    for index in range(CHUNKS):
        if more is not None:
            await more.acquire()
        await gateway.hand.chunk(task_id, f"{index};", append=index > 0)
        if index % 3 == 0:
            await gateway.hand.report(task_id, f"{index} done")


def texts_of(events: list[Event]) -> str:
    """What a reader who prints every chunk has read."""
    opened = [text for event in events if isinstance(event, Opened)
              for text in event.snapshot.artifacts.values()]  # fmt: skip
    return "".join(opened + [event.text for event in events if isinstance(event, ArtifactChanged)])


async def test_case_012_streams_that_are_cut_at_random_show_each_event_once(
    sqlite_url: str,
) -> None:
    """Each cut comes after something was shown, so that streams alone bring everything. The writer
    is never far ahead: what is read at once would survive a cut."""
    async with two_gateways(sqlite_url) as house:
        task_id = await house.one.started()
        events: list[Event] = []
        links: list[Link] = []
        more = asyncio.Semaphore(3)

        async def work() -> None:
            await write(house.one, task_id, more)
            await house.one.hand.finish(task_id)

        working = asyncio.create_task(work())
        async for event in house.client.follow(task_id, on_link=links.append):
            events.append(event)
            if len(events) % 4 == 0:
                house.proxy.reset()
            elif len(events) % 4 == 2:
                house.cut_after(random.randint(1, 3_000))
            more.release()
        await working

        first, *later = events
        assert isinstance(first, Opened)
        shown = [first.snapshot.generation]
        for event in later:
            assert isinstance(event, (StatusChanged, ArtifactChanged))
            shown.append(generation_of(event.update))
        last = (await house.client.get(task_id)).generation
        assert shown == list(range(shown[0] or 0, (last or 0) + 1))
        assert texts_of(events) == "".join(f"{index};" for index in range(CHUNKS))
        assert plain(made_of(events)) == plain(await house.one.task(task_id))
        assert {link.by for link in links} == {"stream", "nothing"}
        assert sum(link.by == "nothing" for link in links) > 3


async def test_case_012_where_streams_hardly_come_through_nothing_is_shown_twice(
    sqlite_url: str,
) -> None:
    """Cuts within the first bytes of streams: the task is looked at, by comparing."""
    async with two_gateways(sqlite_url) as house:
        task_id = await house.one.started()
        events: list[Event] = []
        links: list[Link] = []

        async def cut() -> None:
            while True:
                house.cut_after(random.choice((1, 50, 300, 2_000, 20_000)))
                await asyncio.sleep(random.random() / 50)
                house.proxy.reset()

        async def work() -> None:
            await write(house.one, task_id)
            while "looks" not in {link.by for link in links}:
                await asyncio.sleep(0.005)
            await house.one.hand.finish(task_id)

        working = asyncio.create_task(work())
        cutting = asyncio.create_task(cut())
        async for event in house.client.follow(task_id, on_link=links.append):
            events.append(event)
        cutting.cancel()
        await working

        assert not any(isinstance(event, Reset) for event in events)
        assert texts_of(events) == "".join(f"{index};" for index in range(CHUNKS))
        numbers = [
            number
            for event in events
            if isinstance(event, (StatusChanged, ArtifactChanged))
            and (number := generation_of(event.update)) is not None
        ]
        assert numbers == sorted(set(numbers))
        assert plain(made_of(events)) == plain(await house.one.task(task_id))


async def test_a_question_in_a_time_without_streams_is_shown_and_answered(sqlite_url: str) -> None:
    async with two_gateways(sqlite_url) as house:
        task_id = await house.one.started()
        shown: list[State] = []
        async for event in house.client.follow(task_id):
            match event:
                case Opened():
                    house.proxy.refuse()
                    await house.one.hand.ask(task_id, "Sure?")
                    house.proxy.heal()
                case StatusChanged(state=State.INPUT_REQUIRED):
                    shown.append(event.state)
                    await house.client.answer(task_id, "yes")
                    await house.one.hand.finish(task_id)
                case StatusChanged():
                    shown.append(event.state)
                case _:
                    raise AssertionError(event)
        assert shown == [State.INPUT_REQUIRED, State.WORKING, State.COMPLETED]
