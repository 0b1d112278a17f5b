"""A worker: claims tasks under leases and runs their steps, as many at once as it may."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from outlast.model.commit import Verdict, Write
from outlast.model.errors import CancelRequested, LeaseLost, ShuttingDown, StoreUnavailable
from outlast.model.ids import TaskId, WorkerId
from outlast.model.lease import Lease, awake_seconds
from outlast.model.topics import task_topic, work_topic
from outlast.store.database import Subscription, Wakeups
from outlast.store.protocols import LogStore, NewWorker, Standing, VersionOf, WorkStore
from outlast.worker.attempt import Attempt
from outlast.worker.beat import BeatStores, BeatThread, Roll
from outlast.worker.committer import Committer
from outlast.worker.mailbox import Mailbox
from outlast.worker.run import Run, Surroundings, edges
from outlast.worker.threads import Threads
from outlast.workflow.agent import Agent
from outlast.workflow.workflow import Workflow

log = structlog.get_logger("outlast.worker")


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """beat_s: how often the worker shows that it lives; lease_s: how long a lease outlasts the
    last beat; grace_s: how long a stop lets steps reach their next commit; poll_s: how often work
    is looked for when no wake-up comes."""

    concurrency: int = 100
    beat_s: float = 1.0
    lease_s: float = 15.0
    grace_s: float = 20.0
    poll_s: float = 1.0
    threads: int = 32


@dataclass(frozen=True, kw_only=True)
class WorkerStores:
    """What a worker needs of the store, over its own connections."""

    work: WorkStore
    log: LogStore
    wakeups: Wakeups
    connect_beat: Callable[[], BeatStores]


class Worker:
    """Runs the tasks of one agent until it is stopped.

    `run` returns after a graceful stop: nothing is claimed any more, steps reach their next
    commit within the grace period, leases are given back, the worker signs off.
    """

    def __init__(
        self, agent: Agent, stores: WorkerStores, config: WorkerConfig | None = None
    ) -> None:
        self._agent = agent
        self._stores = stores
        self._config = config or WorkerConfig()
        self._roll = Roll()
        self._runs: dict[asyncio.Task[None], Run | None] = {}
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._committer = Committer(stores.work)
        self._threads = Threads(self._config.threads)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stuck: list[str] = []
        self.ready = asyncio.Event()

    @property
    def worker_id(self) -> WorkerId:
        return self._roll.worker_id

    @property
    def running(self) -> int:
        """How many tasks run here now."""
        return len(self._runs)

    def stop(self) -> None:
        """Begin a graceful stop."""
        self._stopping.set()
        self._changed.set()

    def problems(self) -> list[str]:
        """What only a restart of the process ends; empty when all is well."""
        return list(self._stuck)

    def hindrances(self) -> list[str]:
        """What keeps the worker from working right now, and may pass; empty when nothing does."""
        if self.ready.is_set() and not self._roll.holds(self._roll.worker_id):
            return ["the worker cannot reach the store to renew its leases"]
        return []

    # --- life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        beat = BeatThread(
            connect=self._stores.connect_beat,
            worker=self._as_new_worker(),
            roll=self._roll,
            on_standing=self._from_beat(self._on_standing),
            on_lost=self._from_beat(self._on_lost),
        )
        async with contextlib.AsyncExitStack() as stack:
            resources = await stack.enter_async_context(self._agent.open_resources())
            stack.callback(self._threads.close)
            stack.push_async_callback(self._committer.close)
            stack.push_async_callback(beat.stop)
            await beat.start()
            around = Surroundings(
                work=self._stores.work,
                log=self._stores.log,
                threads=self._threads,
                resources=resources,
                is_stopping=self._stopping.is_set,
                on_stuck=self._stuck.append,
            )
            watch = asyncio.create_task(self._watch_lease(beat), name="outlast-lease-watch")
            stack.push_async_callback(_cancelled, watch)
            self.ready.set()
            try:
                await self._claim_until_stopped(around, watch, beat)
                await self._grace()
            finally:
                # Also when this worker is torn down: no run may outlive its lease's worker or
                # the resources that it uses.
                await self._stop_all()

    def _as_new_worker(self) -> NewWorker:
        return NewWorker(
            worker_id=WorkerId(""),
            agent=self._agent.name,
            host=f"{socket.gethostname()}/{os.getpid()}",
            beat_ms=int(self._config.beat_s * 1000),
            lease_ms=int(self._config.lease_s * 1000),
            versions=[_version_of(workflow) for workflow in self._agent.workflows],
            presence=None,
        )

    async def _grace(self) -> None:
        """Let steps reach their next commit."""
        runs = list(self._runs)
        if runs:
            log.info("worker.draining", runs=len(runs))
            await asyncio.wait(runs, timeout=self._config.grace_s)

    async def _stop_all(self) -> None:
        """Stop what still runs, effects excepted, and wait for it."""
        while self._runs:  # again and again: a run between two steps does not hear it
            self._stop_runs(lambda run: ShuttingDown("the grace period is over"))
            await asyncio.wait(list(self._runs), timeout=0.5)

    # --- claiming -----------------------------------------------------------------------------

    async def _claim_until_stopped(
        self, around: Surroundings, watch: asyncio.Task[None], beat: BeatThread
    ) -> None:
        with self._stores.wakeups.subscribe(work_topic(self._agent.name)) as bell:
            while not self._stopping.is_set():
                if watch.done():
                    watch.result()
                    raise RuntimeError("the beat thread has ended") from beat.failure
                self._changed.clear()
                if await self._claim_round(around) == 0:
                    await self._until_something(bell)
                    await self._look_at_leases()

    async def _claim_round(self, around: Surroundings) -> int:
        """One claim per version, in random order so that none starves; returns what was got."""
        got = 0
        workflows = list(self._agent.workflows)
        random.shuffle(workflows)
        for workflow in workflows:
            free = self._config.concurrency - len(self._runs)
            if self._stopping.is_set():
                break
            if free > 0 and self._roll.holds(self._roll.worker_id):
                got += await self._claim(around, workflow, free)
        return got

    async def _claim(self, around: Surroundings, workflow: Workflow[Any], limit: int) -> int:
        """A claim whose reply is lost is given back by the beat, two beats later."""
        roll = self._roll
        with roll.lock:
            worker_id = roll.worker_id
            roll.claims += 1
        leases: list[Lease] = []
        try:
            leases = list(
                await self._stores.work.claim(
                    worker_id, self._agent.name, workflow.name, workflow.version, limit=limit
                )
            )
        except Exception as error:  # one refused claim must not end the worker
            log.warning("claim.failed", error=str(error))
        finally:
            with roll.lock:
                roll.claims -= 1
                kept = [
                    lease
                    for lease in leases
                    if roll.worker_id == worker_id
                    and (lease.task_id, lease.fence) not in roll.given_back
                ]
                roll.running.update({lease.task_id: lease.fence for lease in kept})
        for lease in kept:
            self._begin(around, workflow, worker_id, lease)
        return len(leases)

    async def _until_something(self, bell: Subscription) -> None:
        """A wake-up, a freed slot, a stop; or the polling floor, with jitter."""
        timeout = self._config.poll_s * random.uniform(0.7, 1.3)
        ringing = asyncio.ensure_future(bell.wait(timeout))
        changing = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait([ringing, changing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancelled(ringing)
            await _cancelled(changing)

    # --- running ------------------------------------------------------------------------------

    def _begin(
        self, around: Surroundings, workflow: Workflow[Any], worker_id: WorkerId, lease: Lease
    ) -> None:
        task = asyncio.create_task(
            self._execute(around, workflow, worker_id, lease), name=f"task {lease.task_id}"
        )
        self._runs[task] = None
        task.add_done_callback(lambda task: self._ended(task, lease))

    async def _execute(
        self, around: Surroundings, workflow: Workflow[Any], worker_id: WorkerId, lease: Lease
    ) -> None:
        log.info(
            "run.began", task_id=lease.task_id, step=lease.step, fence=lease.fence,
            attempt=lease.attempt,
        )  # fmt: skip
        began = awake_seconds()

        def holds() -> bool:
            return self._roll.holds(worker_id)

        async def submit(write: Write) -> Verdict:
            return await self._committer.submit(write, holds)

        def logged() -> None:
            self._stores.wakeups.send([task_topic(lease.task_id)])

        first, latest = await _patiently(lambda: edges(around.log, lease), holds)
        run = Run(
            lease=lease,
            owner=worker_id,
            mailbox=Mailbox(lease, submit, on_logged=logged),
            around=around,
            holds=holds,
            first=first,
            latest=latest,
            began=began,
        )
        task = asyncio.current_task()
        assert task is not None
        self._runs[task] = run
        await Attempt(run, workflow).execute()

    def _ended(self, task: asyncio.Task[None], lease: Lease) -> None:
        self._runs.pop(task, None)
        with self._roll.lock:
            if self._roll.running.get(lease.task_id) == lease.fence:
                del self._roll.running[lease.task_id]
        self._changed.set()
        if self._stopping.is_set():  # others should take over what was given back, at once
            self._stores.wakeups.send([work_topic(self._agent.name)])
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, LeaseLost):
            # The lease has no run any more: the beat gives it back, and another run tries.
            log.error("run.broke", task_id=lease.task_id, error=repr(error), exc_info=error)

    # --- leases -------------------------------------------------------------------------------

    async def _look_at_leases(self) -> None:
        """After a wake-up: a cancel or a take-over may have ended or marked what runs here."""
        if not self._runs:
            return
        worker_id, asked = self._roll.worker_id, awake_seconds()
        with contextlib.suppress(StoreUnavailable):
            self._on_standing(worker_id, asked, await self._stores.work.leased_to(worker_id))

    def _on_standing(
        self, worker_id: WorkerId, asked: float, leased: Mapping[TaskId, Standing]
    ) -> None:
        """Stop the runs that began before the question was sent and have lost their lease since;
        send those that are marked to their cancel step."""
        for run in list(self._runs.values()):
            if run is None or run.owner != worker_id or run.began >= asked:
                continue
            standing = leased.get(run.lease.task_id)
            if standing is None or standing.fence != run.lease.fence:
                run.interrupt(LeaseLost("the store has ended the lease"))
            elif standing.is_marked and not run.in_hook:
                run.interrupt(CancelRequested("the task is marked for cancel"))

    def _on_lost(self) -> None:
        self._stop_runs(lambda run: LeaseLost("the worker was declared dead"))

    def _stop_runs(self, reason: Callable[[Run], LeaseLost | ShuttingDown]) -> None:
        for run in list(self._runs.values()):
            if run is not None:
                run.interrupt(reason(run))

    async def _watch_lease(self, beat: BeatThread) -> None:
        """The holder stops first: when no beat has succeeded for a whole lease, by its own clock,
        it starts and writes nothing more."""
        while beat.is_alive:
            await asyncio.sleep(min(self._config.beat_s, 0.25))
            with self._roll.lock:
                self._roll.turned_at = awake_seconds()
            for run in list(self._runs.values()):
                if run is not None and not run.holds():
                    run.interrupt(LeaseLost("no beat has succeeded for a whole lease"))

    def _from_beat(self, call: Callable[..., None]) -> Callable[..., None]:
        """`call`, from the beat's thread, on the worker's loop."""

        def post(*args: Any) -> None:
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the worker's loop has closed
                    self._loop.call_soon_threadsafe(call, *args)

        return post


def _version_of(workflow: Workflow[Any]) -> VersionOf:
    return VersionOf(
        workflow=workflow.name,
        version=workflow.version,
        steps=[step.name for step in workflow.steps],
        fingerprint=workflow.fingerprint,
        on_cancel=workflow.cancel_step is not None,
        on_failure=workflow.failure_step is not None,
    )


async def _patiently(read: Callable[[], Any], holds: Callable[[], bool]) -> Any:
    while True:
        try:
            return await read()
        except StoreUnavailable:
            if not holds():
                raise LeaseLost("the store could not be reached within the lease") from None
            await asyncio.sleep(random.uniform(0.1, 0.3))


async def _cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
