"""How long a task is without a worker: after `kill -9` and after SIGTERM of the one that had it.

Two real worker processes, default beat and lease; the time is from the signal to the start of the
next run, by the same host's clock.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time

from pydantic import BaseModel

from bench.commits import SCOPE, create
from bench.places import DATABASES, place, stores_at
from outlast import Agent, Context, Message, Workflow
from outlast.compose import Stores
from outlast.configuration import Configuration
from outlast.model.ids import TaskId

ROUNDS = 5


class Nothing(BaseModel):
    pass


linger = Workflow("linger", version=1, checkpoint=Nothing)


@linger.start
async def begin(message: Message) -> Nothing:
    return Nothing()


@linger.step
async def wait(ctx: Context[Nothing, None]) -> None:
    for _ in range(600):
        await asyncio.sleep(0.1)
        await ctx.commit()


agent = Agent("bench", description="Lingers.", skills=[], workflows=[linger])


def start_worker(settings: Configuration) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OUTLAST_DATABASE": settings.database}
    return subprocess.Popen(
        [sys.executable, "-m", "outlast", "worker", "bench.takeover:agent"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


async def last_run(stores: Stores, task_id: TaskId, fence_after: int) -> dict[str, object]:
    while True:
        runs = await stores.inspect.runs(task_id)
        if runs and runs[-1]["fence"] > fence_after and runs[-1]["ended_at"] is None:
            return dict(runs[-1])
        await asyncio.sleep(0.01)


async def gap(settings: Configuration, number: signal.Signals) -> float:
    """Seconds between the signal and the next run of the task that the worker had."""
    async with stores_at(settings) as stores:
        workers = [start_worker(settings), start_worker(settings)]
        try:
            while len(await stores.inspect.workers()) < 2:
                await asyncio.sleep(0.05)
            task_id = await create(stores, "x", linger)  # type: ignore[arg-type]
            run = await last_run(stores, task_id, 0)
            await asyncio.sleep(0.5)
            victim = await owner_of(stores, str(run["worker_id"]), workers)
            hit = time.time()
            os.kill(victim.pid, number)
            after = await last_run(stores, task_id, int(str(run["fence"])))
            await stores.tasks.cancel(SCOPE, task_id)
            return int(str(after["started_at"])) / 1000 - hit
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
                worker.wait()


async def owner_of(
    stores: Stores, worker_id: str, workers: list[subprocess.Popen[bytes]]
) -> subprocess.Popen[bytes]:
    """The process of a worker id: workers log it; here the one whose death frees it is asked for
    by the pid in its id's row."""
    for row in await stores.inspect.workers():
        if row["worker_id"] == worker_id:
            pid = int(row["host"].rpartition("/")[2])
            return next(worker for worker in workers if worker.pid == pid)
    raise LookupError(worker_id)


def main() -> None:
    print("seconds without a worker (median of 5, longest)")
    for kind in DATABASES:
        for number in (signal.SIGKILL, signal.SIGTERM):
            took = []
            for _ in range(ROUNDS):
                with place(kind) as (settings, _server):
                    took.append(asyncio.run(gap(settings, number)))
            print(
                f"{kind:9} {number.name:8} {statistics.median(took):6.2f} {max(took):6.2f}",
                flush=True,
            )
