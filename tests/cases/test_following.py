"""The client follows a task while the gateways behind one address are killed and come back."""

from __future__ import annotations

from a2a.types import a2a_pb2 as pb

from outlast import Client
from outlast.client import ArtifactChanged, Event, Link, Opened, Patience, StatusChanged
from outlast.model.task import State
from outlast.testing.fleet import Child, Fleet
from outlast.testing.proxy import Proxy
from outlast.wire.updates import generation_of


def port_of(gateway: Child) -> int:
    return int(gateway.url.rpartition(":")[2])


async def test_case_014_the_client_goes_on_when_its_gateway_was_started_again(
    sqlite_fleet: Fleet,
) -> None:
    await sqlite_fleet.worker()
    await follow_over_kills(sqlite_fleet, await sqlite_fleet.gateway(), None)


async def test_case_014_the_client_goes_on_at_the_other_gateway(postgres_fleet: Fleet) -> None:
    await postgres_fleet.worker()
    await postgres_fleet.worker()
    one, other = await postgres_fleet.gateway(), await postgres_fleet.gateway()
    await follow_over_kills(postgres_fleet, one, other)


async def follow_over_kills(fleet: Fleet, current: Child, other: Child | None) -> None:
    """The gateway is killed twice. What comes next behind its address is the other one, or where
    there is none, a new one. Every event is shown once, by its number."""
    async with Proxy("127.0.0.1", port_of(current)) as proxy:
        async with Client(current.url) as client:
            card = pb.AgentCard()
            card.CopyFrom(client.card)
        for interface in card.supported_interfaces:
            interface.url = proxy.url(interface.url)
        async with Client(card, patience=Patience(total=30, first=0.02, longest=0.2)) as client:
            sent = await client.send("emit 40 every 40ms", wait=False)
            assert sent.snapshot is not None
            events: list[Event] = []
            links: list[Link] = []
            async for event in client.follow(sent.snapshot.task_id, on_link=links.append):
                events.append(event)
                if len(events) in (8, 20):
                    current.kill()
                    current, other = other or await fleet.gateway(), None
                    proxy.port_of_server = port_of(current)
                    proxy.reset()
            task = await client.get(sent.snapshot.task_id)

    first, *later = events
    assert isinstance(first, Opened)
    assert task.state is State.COMPLETED
    shown = [first.snapshot.generation or 0]
    for event in later:
        assert isinstance(event, (StatusChanged, ArtifactChanged))
        shown.append(generation_of(event.update) or 0)
    assert shown == list(range(shown[0], (task.generation or 0) + 1))
    text = "".join(first.snapshot.artifacts.values())
    text += "".join(event.text for event in later if isinstance(event, ArtifactChanged))
    assert text == "".join(f"{number}\n" for number in range(1, 41))
    assert {link.by for link in links} == {"stream", "nothing"}, "none was looked at instead"
