"""What a worker claims, and how much of it at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from outlast import AuthorError
from outlast.model.ids import WorkerId
from outlast.model.topics import work_topic
from tests.contract.stores import SCOPE
from tests.worker.flows import Ctx, Gate, flow, single
from tests.worker.house import House

pytest_plugins = ["tests.worker.fixtures"]


async def test_only_versions_that_it_runs(house: House) -> None:
    first, second, third, other = single(), single(version=2), single(version=3), single("other")
    strange = [await house.send(workflow) for workflow in (second, other)]
    own = [await house.send(workflow) for workflow in (first, third)]
    await house.hire(first, third)
    for task_id in own:
        await house.ended(task_id)
    await house.ended(await house.send(first))  # a whole round of claims later
    for task_id in strange:
        assert (await house.store.task(task_id)).fence == 0


async def test_the_versions_that_it_runs_are_known_with_how_many_can_run_them(house: House) -> None:
    await house.hire(single(), single(version=2))
    leaving = await house.hire(single(version=2))
    versions = await house.store.inspect.versions(SCOPE.agent)
    assert [(row["version"], row["workers"]) for row in versions] == [(1, 1), (2, 2)]
    await leaving.stop()
    versions = await house.store.inspect.versions(SCOPE.agent)
    assert [(row["version"], row["workers"]) for row in versions] == [(1, 1), (2, 1)]


async def test_a_list_of_steps_that_changed_under_its_number_is_refused_at_start(
    house: House,
) -> None:
    first = await house.hire(single())
    await first.stop()
    await house.send(single())
    changed = single()

    @changed.step
    async def later(ctx: Ctx) -> None: ...

    refused = await house.hire(changed, is_expected_to_start=False)
    with pytest.raises(AuthorError, match="changed from start, work to start, work, later"):
        await refused.running


async def test_no_more_at_once_than_its_concurrency(house: House) -> None:
    gates = {n: Gate() for n in range(5)}
    reached: asyncio.Queue[int] = asyncio.Queue()
    running: set[int] = set()
    peak = 0
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        nonlocal peak
        number = int(ctx.message.text)
        running.add(number)
        peak = max(peak, len(running))
        reached.put_nowait(number)
        await gates[number]()
        running.remove(number)

    tasks = [await house.send(workflow, str(number)) for number in gates]
    hired = await house.hire(workflow, concurrency=2)
    for _ in gates:
        async with asyncio.timeout(15):
            number = await reached.get()
        if len(running) == 2:
            assert hired.worker.running == 2
            gates[number].open()
    for gate in gates.values():
        gate.open()
    for task_id in tasks:
        await house.ended(task_id)
    assert peak == 2


async def test_a_slot_that_becomes_free_is_used_at_once(house: House) -> None:
    """Not at the next poll, which here is far away."""
    workflow = single()
    tasks = [await house.send(workflow) for _ in range(4)]
    await house.hire(workflow, concurrency=1, poll_s=600)
    for task_id in tasks:
        await house.ended(task_id)


async def test_a_wake_up_brings_it(house: House) -> None:
    workflow = single()
    await house.hire(workflow, poll_s=600)
    task_id = await house.send(workflow)
    house.store.database.wakeups.send([work_topic(SCOPE.agent)])
    await house.ended(task_id)


async def test_without_wake_ups_it_polls(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(house.store.database), "subscribe", lambda *_: _Deaf())
    workflow = single()
    await house.hire(workflow, poll_s=0.1)
    await house.ended(await house.send(workflow))


class _Deaf:
    """A subscription to which nothing ever comes."""

    async def wait(self, timeout: float) -> bool:
        await asyncio.sleep(timeout)
        return False

    def close(self) -> None: ...

    def __enter__(self) -> _Deaf:
        return self

    def __exit__(self, *exc: object) -> None: ...


async def test_two_workers_share_the_work_and_no_task(house: House) -> None:
    workflow = single()
    tasks = [await house.send(workflow) for _ in range(12)]
    one, two = await asyncio.gather(
        house.hire(workflow, concurrency=2), house.hire(workflow, concurrency=2)
    )
    owners: set[WorkerId] = set()
    for task_id in tasks:
        await house.ended(task_id)
        (run,) = await house.runs(task_id)
        owners.add(run["worker_id"])
    assert owners <= {one.worker_id, two.worker_id}


async def test_resources_are_entered_before_it_claims_and_left_after_it_has_drained(
    house: House,
) -> None:
    happened: list[str] = []
    gate = Gate()
    workflow = flow()

    @asynccontextmanager
    async def open_clients() -> AsyncIterator[str]:
        happened.append("entered")
        yield "clients"
        happened.append("left")

    @workflow.step
    async def work(ctx: Ctx) -> None:
        happened.append(f"got {ctx.resources}")
        await gate()
        happened.append("done")

    await house.send(workflow)
    hired = await house.hire(workflow, resources=open_clients)
    await gate.reached()
    stopping = asyncio.create_task(hired.stop())
    await house.logs("worker.draining")
    gate.open()
    await stopping
    assert happened == ["entered", "got clients", "done", "left"]


async def test_resources_that_cannot_be_opened_stop_it_before_it_registers(house: House) -> None:
    async def connect() -> None:
        raise ConnectionError("the directory is away")

    @asynccontextmanager
    async def open_clients() -> AsyncIterator[None]:
        await connect()
        yield

    hired = await house.hire(single(), resources=open_clients, is_expected_to_start=False)
    with pytest.raises(ConnectionError, match="the directory is away"):
        await hired.running
    assert await house.store.inspect.workers() == []
