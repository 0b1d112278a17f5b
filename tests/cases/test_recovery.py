"""Recovery: continuous, by anyone, of everything, without an operator."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from outlast.compose import Stores
from outlast.model.ids import TaskId
from outlast.testing.fleet import Child, Fleet, until
from outlast.testing.postgres_server import PostgresServer
from tests.cases.deploys import AGENT, deploy
from tests.chaos.caller import Caller, Json, state_of
from tests.chaos.fleets import (
    ONCE,
    CounterSink,
    all_ended,
    claims_after_draining,
    cut_off,
    is_sqlite,
    lease_of,
)

SETTLED_S = 5.0
"""What recovery may take beside the lease."""

ROLLS = 3
BACKOFF_S = 1.0


async def test_case_056_work_in_flight_goes_on_elsewhere(fleet: Fleet) -> None:
    """Twenty tasks in four states; everything is killed, and comes up under another host name."""
    fleet.settings["concurrency"] = 10
    gateway, worker = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with Caller(gateway.url) as caller:
        paused = [await caller.send("ask Go on?") for _ in range(5)]
        between = "; ".join(["say x", "wait 0.2"] * 8)
        running = [
            await caller.send(script, wait=False) for script in ["wait 2"] * 5 + [between] * 5
        ]
        for task in running:
            await worker.logged("run.began", task_id=task["id"])
        submitted = [await caller.send("say x", wait=False) for _ in range(5)]
    worker.kill()
    gateway.kill()

    gateway, worker = await asyncio.gather(
        fleet.gateway(), fleet.worker(patch="tests.cases.patches:other_host")
    )
    began = time.monotonic()
    for task in [*running, *submitted]:
        await worker.logged("run.began", task_id=task["id"])
    assert time.monotonic() - began < lease_of(fleet) + SETTLED_S
    async with Caller(gateway.url) as caller:
        answered = await asyncio.gather(*(caller.send("yes", task=task) for task in paused))
        assert {state_of(task) for task in answered} == {"COMPLETED"}
        await until(lambda: are_in(caller, [*running, *submitted], "COMPLETED"))


async def test_case_057_draining_worker_takes_nothing_back(fleet: Fleet, tmp_path: Path) -> None:
    """One worker after another is replaced while tasks are in the middle of a long step."""
    end = tmp_path / "end"
    fleet.settings["grace"] = 0.2
    gateway, worker = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with Caller(gateway.url) as caller:
        tasks = [
            await caller.send(f"until {end}", workflow="scenes", wait=False) for _ in range(10)
        ]
        for _ in range(ROLLS):
            for task in tasks:
                await worker.logged("run.began", task_id=task["id"])
            worker.terminate()
            successor = await fleet.worker()
            assert await worker.ended() == 0
            assert claims_after_draining(worker) == []
            worker = successor
        end.touch()
        await until(lambda: are_in(caller, tasks, "COMPLETED"))
    lease_ms = lease_of(fleet) * 1000
    async with fleet.stores() as stores:
        for task in tasks:
            runs = await stores.inspect.runs(TaskId(task["id"]))
            gaps = [later["started_at"] - earlier["ended_at"] for earlier, later in pairwise(runs)]
            assert max(gaps, default=0) < lease_ms, "without an owner for longer than the lease"
            assert {run["outcome"] for run in runs} <= {"released", "completed"}, "nobody died"


@pytest.mark.parametrize("in_flight", [60, pytest.param(250, marks=pytest.mark.soak)])
async def test_case_058_database_restarts_during_recovery(
    postgres_fleet: Fleet, postgres_server: PostgresServer, in_flight: int
) -> None:
    gateway, victim = await asyncio.gather(
        postgres_fleet.gateway(), postgres_fleet.worker(concurrency=in_flight)
    )
    async with Caller(gateway.url, timeout=60) as caller:
        tasks = await asyncio.gather(
            *(caller.send("wait 1; say x", wait=False) for _ in range(in_flight))
        )
        await victim.logged("run.began", times=in_flight)
        successor = await postgres_fleet.worker(concurrency=50)
        victim.kill()
        await successor.logged("worker.dead")
        await asyncio.to_thread(postgres_server.restart)
        await all_ended(postgres_fleet, within=60)
        assert await are_in(caller, tasks, "COMPLETED")


async def test_case_060_changed_build_strands_no_task(
    fleet: Fleet, sink: CounterSink, tmp_path: Path
) -> None:
    """A comment, then the body of a step: tasks in flight and paused go on. A build without their
    version leaves them where they are, and the listing says so."""
    fleet.agent, fleet.cwd = AGENT, tmp_path / "build"
    steps = ("prepare", "ask", "linger", "apply")
    keys = [sink.key() for _ in range(3)]
    deploy(fleet.cwd, v1=steps)
    gateway, worker = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with Caller(gateway.url) as caller, fleet.stores() as stores:
        tasks = await asyncio.gather(*map(caller.send, keys))

        for task, comment in zip(tasks, ("# another", "await ctx.report('x')"), strict=False):
            await caller.send("yes", task=task, wait=False)
            await worker.logged("run.began", task_id=task["id"], step="ask", times=1)
            worker.kill()
            deploy(fleet.cwd, v1=steps, comment=comment)
            worker = await fleet.worker()
            await until(lambda: are_in(caller, [task], "COMPLETED"))  # noqa: B023

        worker.kill()
        deploy(fleet.cwd, v2=(*steps, "tidy"))
        worker = await fleet.worker()
        await caller.send("yes", task=tasks[-1], wait=False)
        (listed,) = [row for row in await listing(stores) if row["version"] == 1]
        assert (listed["tasks"], listed["workers"]) == (1, 0)
        assert state_of(await caller.get(tasks[-1])) == "WORKING"

        worker.kill()
        deploy(fleet.cwd, v1=steps, v2=(*steps, "tidy"))
        await fleet.worker()
        await until(lambda: are_in(caller, tasks, "COMPLETED"))
    for key in keys:
        assert await sink.counts(f"prepare-{key}") == await sink.counts(f"apply-{key}") == ONCE


async def listing(stores: Stores) -> Sequence[Mapping[str, Any]]:
    """The versions with their living workers, once the dead are proven dead."""

    async def only_the_living() -> bool:
        return len(await stores.inspect.workers()) == 1

    await until(only_the_living)
    return await stores.inspect.versions("deployed")


async def test_case_064_killed_in_the_moment_of_its_claim(fleet: Fleet) -> None:
    """A lease later, and not a step's timeout later, another worker runs the task."""
    fleet.agent = "examples.probe.agent:agent"  # one workflow: its first claim gets the task
    point = "after:commit:task_runs_open#1" if is_sqlite(fleet) else "after:tasks_claim#1"
    async with Caller((await fleet.gateway()).url) as caller:
        task = await caller.send("wait 0.2", wait=False)
        victim = fleet.start_role("worker", fault=(point,))
        assert await victim.ended() == -9
        await is_taken_over(fleet, caller, task)
        assert not victim.entries("run.began")
    async with fleet.stores() as stores:
        runs = await stores.inspect.runs(TaskId(task["id"]))
    assert [run["outcome"] for run in runs] == ["lost", "completed"], "claimed, and never run"


async def test_case_064_partitioned_in_the_moment_of_its_claim(postgres_fleet: Fleet) -> None:
    async with (
        cut_off(postgres_fleet) as (proxy, url),
        Caller((await postgres_fleet.gateway()).url) as caller,
    ):
        task = await caller.send("wait 1", wait=False)
        victim = await postgres_fleet.worker(database=url)
        await victim.logged("run.began")
        proxy.blackhole()
        await is_taken_over(postgres_fleet, caller, task)


async def is_taken_over(fleet: Fleet, caller: Caller, task: Json) -> None:
    successor = await fleet.worker()
    patience = lease_of(fleet) + SETTLED_S
    await successor.logged("run.began", task_id=task["id"], within=patience)
    await until(lambda: are_in(caller, [task], "COMPLETED"))


@pytest.mark.parametrize("burst", [40, pytest.param(500, marks=pytest.mark.soak)])
async def test_case_065_every_acknowledged_task_runs(fleet: Fleet, burst: int) -> None:
    """The server is killed three times during a burst of sends. What was acknowledged runs; what
    was not is there and runs, or was never there, and its repeat under the same id finds out."""
    dice = random.Random(65)
    acknowledged: dict[str, str] = {}
    server = await fleet.serve()

    async def send(caller: Caller, message_id: str) -> None:
        try:
            task = await caller.send("say x", message_id=message_id, wait=False)
        except httpx.TransportError:
            return
        assert acknowledged.setdefault(message_id, task["id"]) == task["id"]

    message_ids = [str(uuid.uuid4()) for _ in range(burst)]
    for kill in (True, True, True, False):
        async with Caller(server.url) as caller:
            sends = [asyncio.create_task(send(caller, name)) for name in message_ids]
            if kill:
                done = dice.randrange(burst // 4, burst)
                await until(lambda: enough_of(sends, done))  # noqa: B023
                server.kill()
            await asyncio.gather(*sends)
        server = await fleet.serve() if kill else server

    assert len(acknowledged) == burst
    assert len(set(acknowledged.values())) == burst
    async with Caller(server.url) as caller:
        tasks = [{"id": task_id} for task_id in acknowledged.values()]
        await all_ended(fleet)
        assert await are_in(caller, tasks, "COMPLETED")


async def enough_of(sends: Sequence[asyncio.Task[None]], count: int) -> bool:
    return sum(send.done() for send in sends) >= count


async def test_case_066_task_that_kills_its_worker_fails(fleet: Fleet) -> None:
    """A step that ends its process every time, among healthy tasks, with ever longer pauses."""
    fleet.settings["crash_backoff"] = BACKOFF_S
    gateway = await fleet.gateway()
    async with Caller(gateway.url) as caller, kept_alive(fleet, workers=2):
        healthy = [await caller.send("; ".join(["wait 0.1"] * 20), wait=False) for _ in range(6)]
        killer = await caller.send("die 0.5", workflow="scenes")
        assert state_of(killer) == "FAILED"
        told = killer["status"]["message"]["parts"][0]["text"]
        assert told == "the process died 3 times in step play"
        await until(lambda: are_in(caller, healthy, "COMPLETED"))
    async with fleet.stores() as stores:
        runs = await stores.inspect.runs(TaskId(killer["id"]))
    assert [run["outcome"] for run in runs] == ["lost"] * 3
    first, second = (later["started_at"] - earlier["ended_at"] for earlier, later in pairwise(runs))
    assert first < BACKOFF_S * 1000 <= second, "the delay grows"


async def test_case_066_killer_can_be_canceled_between_its_deaths(fleet: Fleet) -> None:
    gateway, worker = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with Caller(gateway.url) as caller:
        task = await caller.send("exit", wait=False)
        assert await worker.ended() == 1
        assert state_of(await caller.cancel(task)) == "CANCELED"
        survivor = await fleet.worker()
        await survivor.logged("worker.dead")
        assert state_of(await caller.send("say still here")) == "COMPLETED"
        assert survivor.is_alive
        assert state_of(await caller.get(task)) == "CANCELED"


async def test_case_066_graceful_restarts_are_no_crashes(fleet: Fleet) -> None:
    """More restarts than deaths are allowed, in the middle of one step each time."""
    fleet.settings["grace"] = 0.1
    gateway, worker = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with Caller(gateway.url) as caller, fleet.stores() as stores:
        task = await caller.send("wait 60", wait=False)
        for _ in range(4):
            await worker.logged("run.began", task_id=task["id"])
            assert await worker.stop() == 0
            worker = await fleet.worker()
        await worker.logged("run.began", task_id=task["id"])
        row = await stores.inspect.find(TaskId(task["id"]))
        assert row is not None
        assert (row.crashes, row.attempt) == (0, 1)
        assert state_of(await caller.cancel(task)) == "CANCELED"


@asynccontextmanager
async def kept_alive(fleet: Fleet, *, workers: int) -> AsyncIterator[None]:
    """Workers that are started again whenever they die, as a supervisor would."""

    async def keep() -> None:
        while True:
            worker = await fleet.worker()
            await until(lambda: has_ended(worker), within=60)  # noqa: B023

    keepers = [asyncio.create_task(keep()) for _ in range(workers)]
    try:
        yield
    finally:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)


async def has_ended(child: Child) -> bool:
    return not child.is_alive


async def are_in(caller: Caller, tasks: Sequence[Json], state: str) -> bool:
    found = await asyncio.gather(*map(caller.get, tasks))
    return {state_of(task) for task in found} == {state}
