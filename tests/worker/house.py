"""Real workers in one process, on a real store.

Each has connections, a beat and a wire of its own, as a process of its own would; the store's
clock moves when a test says so. Whoever waits here waits for something that can be seen in the
store or was signalled, within a bound.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from outlast import Agent, Data, Message, Text, Workflow
from outlast.model.commit import EventKind, LoggedEvent
from outlast.model.ids import Millis, Seq, StepName, TaskId, WorkerId
from outlast.model.lease import Death
from outlast.model.pause import Ask
from outlast.model.task import Caller, State, Task
from outlast.store.beats import Beats
from outlast.store.database import Database
from outlast.store.log import Log
from outlast.store.protocols import AnswerTo
from outlast.store.sweeping import Sweeping
from outlast.store.work import Work
from outlast.sweeps.sweeper import Sweeper
from outlast.worker.beat import BeatStores
from outlast.worker.worker import Worker, WorkerConfig, WorkerStores
from outlast.workflow.answers import AnswerRecord
from tests.contract.stores import SCOPE, Store, database_at, new_task, until
from tests.worker.wire import Wire

WITHIN = 15.0
"""Seconds after which something that did not happen will not happen any more."""


@dataclass(eq=False)
class Hired:
    """A worker that runs, and what a test does to it."""

    worker: Worker
    wire: Wire
    database: Database
    running: asyncio.Task[None] = field(init=False)

    @property
    def worker_id(self) -> WorkerId:
        return self.worker.worker_id

    async def stop(self) -> None:
        """A graceful stop, to its end."""
        self.worker.stop()
        async with asyncio.timeout(WITHIN):
            await self.running

    async def leave(self) -> None:
        """The end of the test, whatever has become of the worker."""
        self.worker.stop()
        self.wire.mend()
        async with asyncio.timeout(WITHIN):
            await asyncio.wait([self.running])
        await self.database.close()


@dataclass(eq=False)
class House:
    """One store, and who works on it."""

    store: Store
    logged: Sequence[Mapping[str, Any]] = ()
    hired: list[Hired] = field(default_factory=list)
    _sweeper: asyncio.Task[None] | None = None
    _stop_sweeping: Callable[[], None] | None = None

    # --- workers ------------------------------------------------------------------------------

    async def hire(
        self,
        *workflows: Workflow[Any],
        resources: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        is_expected_to_start: bool = True,
        wire: Wire | None = None,
        **config: Any,
    ) -> Hired:
        """A worker that has registered. It beats ten times a second, and its lease is long unless
        the test is about leases: a busy machine must not end one."""
        agent = Agent(
            SCOPE.agent,
            description="An agent for tests.",
            skills=[],
            workflows=workflows,
            resources=resources,
        )
        settings: dict[str, Any] = {"beat_s": 0.1, "lease_s": 30.0, "grace_s": 5.0, "poll_s": 0.05}
        wire = wire or Wire()
        database = database_at(self.store.url, listens=True)
        await database.open()
        stores = WorkerStores(
            work=wire.around(Work(database, self.store.settings)),
            log=wire.around(Log(database)),
            wakeups=database.wakeups,
            connect_beat=lambda: self._beat_stores(wire),
        )
        hired = Hired(Worker(agent, stores, WorkerConfig(**(settings | config))), wire, database)
        hired.running = asyncio.create_task(hired.worker.run(), name="worker under test")
        self.hired.append(hired)
        ready = asyncio.create_task(hired.worker.ready.wait())
        await asyncio.wait(
            [ready, hired.running], timeout=WITHIN, return_when=asyncio.FIRST_COMPLETED
        )
        ready.cancel()
        if is_expected_to_start:
            if hired.running.done():
                hired.running.result()
            assert hired.worker.ready.is_set(), "the worker does not start"
        return hired

    def _beat_stores(self, wire: Wire) -> BeatStores:
        database = database_at(self.store.url, size=1)
        return BeatStores(
            database=database,
            beats=wire.around(Beats(database)),
            work=wire.around(Work(database, self.store.settings)),
        )

    async def bury(self, hired: Hired) -> None:
        """The worker is declared dead, as a watcher that sees its beat stand still does."""
        worker_id = hired.worker_id
        hired.wire.cut()

        async def is_buried() -> bool:
            beat = await self.store.beat_of(worker_id)
            death = Death(worker_id=worker_id, beat=beat, early=False)
            return await self.store.sweeping.take_over(death) is not None

        await until(is_buried)  # its last beat may still be on its way

    @asynccontextmanager
    async def watched_from_elsewhere(self) -> AsyncIterator[None]:
        """Another process sweeps meanwhile: in a thread and on a loop of its own, so that a step
        that blocks this loop does not blind it."""
        may_end = threading.Event()

        async def sweep() -> None:
            database = database_at(self.store.url)
            await database.open()
            try:
                sweeping = Sweeping(database, self.store.settings)
                sweeper = Sweeper(
                    sweeping, database.wakeups, agent=SCOPE.agent, recovery_s=0.05, deadlines_s=5
                )
                running = asyncio.create_task(sweeper.run())
                while not may_end.is_set():
                    await asyncio.sleep(0.02)
                sweeper.stop()
                await running
            finally:
                await database.close()

        elsewhere = asyncio.create_task(asyncio.to_thread(asyncio.run, sweep()))
        try:
            yield
        finally:
            may_end.set()
            await elsewhere

    async def sweep(self) -> None:
        """Run the duties of every worker, ten times as often as in production."""
        sweeper = Sweeper(
            self.store.sweeping,
            self.store.database.wakeups,
            agent=SCOPE.agent,
            recovery_s=0.05,
            deadlines_s=0.05,
        )
        self._stop_sweeping = sweeper.stop
        self._sweeper = asyncio.create_task(sweeper.run(), name="sweeper under test")

    async def close(self) -> None:
        for hired in self.hired:
            await hired.leave()
        if self._sweeper is not None and self._stop_sweeping is not None:
            self._stop_sweeping()
            await self._sweeper

    # --- tasks --------------------------------------------------------------------------------

    async def send(self, workflow: Workflow[Any], text: str = "hello", **changes: Any) -> TaskId:
        """A new task of the workflow."""
        new = new_task(
            workflow=workflow.name,
            version=workflow.version,
            first_step=StepName(workflow.steps[0].name),
            max_age=Millis(workflow.max_age // timedelta(milliseconds=1)),
            message=Message.user(text).to_json(),
            **changes,
        )
        await self.store.tasks.create(new)
        return new.task_id

    async def cancel(self, task_id: TaskId) -> Task:
        return await self.store.tasks.cancel(SCOPE, task_id)

    async def answer(
        self, task_id: TaskId, answer: Any = "yes", pause_id: Seq | None = None
    ) -> None:
        """Answer the question that the task asks, as a gateway does."""
        task = await self.store.task(task_id)
        asked = pause_id or task.pause_id
        assert asked is not None
        question = await self.store.log.event(task_id, asked)
        assert question is not None
        ask = Ask.from_json(question.body["ask"])
        message = Message.user(Text(answer) if isinstance(answer, str) else Data(answer))
        await self.store.tasks.answer(
            AnswerTo(
                task_id=task_id,
                scope=SCOPE,
                pause_id=asked,
                ledger_key=ask.ledger_key,
                result=AnswerRecord.read(ask.schema, message, Caller()).to_json(),
                message=message.to_json(),
                caller={},
                send_key=message.message_id,
                digest="",
            )
        )

    # --- waiting for them ---------------------------------------------------------------------

    async def until(
        self, task_id: TaskId, holds: Callable[[Task], object], within: float = WITHIN
    ) -> Task:
        """The task, as soon as this holds of it."""

        async def look() -> Task | None:
            task = await self.store.task(task_id)
            return task if holds(task) else None

        try:
            found: Task = await until(look, within=within)
        except AssertionError:
            raise AssertionError(
                f"it never came to hold of {await self.store.task(task_id)}, whose runs are "
                f"{await self.runs(task_id)}"
            ) from None
        return found

    async def ended(self, task_id: TaskId, state: State = State.COMPLETED) -> Task:
        task = await self.until(task_id, lambda task: task.state.is_terminal)
        assert task.state is state, (task, await self.runs(task_id))
        return task

    async def paused(self, task_id: TaskId, after: Seq | None = None) -> Task:
        """It asks something; with `after`, something else than at that pause."""
        return await self.until(
            task_id, lambda task: task.state is State.INPUT_REQUIRED and task.pause_id != after
        )

    async def held(self, task_id: TaskId) -> str:
        """The reason for which it is held."""
        task = await self.until(task_id, lambda task: task.is_held)
        assert task.held_reason is not None
        return task.held_reason

    async def waiting(self, task_id: TaskId) -> Task:
        """Somebody has run it, nobody does, and it will go on by itself: it sleeps or backs off."""
        return await self.until(
            task_id,
            lambda task: task.fence > 0 and task.lease_owner is None and task.ready_at is not None,
        )

    async def backs_off(self, task_id: TaskId, failures: int) -> Task:
        """It has failed so often since its last commit, and waits for its next attempt."""
        return await self.until(
            task_id, lambda task: task.attempt == failures + 1 and task.lease_owner is None
        )

    async def leased(self, task_id: TaskId, to: Hired | None = None) -> Task:
        return await self.until(
            task_id,
            lambda task: task.lease_owner == to.worker_id if to else task.lease_owner is not None,
        )

    async def logs(self, event: str, **said: Any) -> Mapping[str, Any]:
        """The line of the log that says this."""

        async def look() -> Mapping[str, Any] | None:
            fits = [line for line in self.logged if line["event"] == event]
            return next((line for line in fits if said.items() <= line.items()), None)

        found: Mapping[str, Any] = await until(look, within=WITHIN)
        return found

    async def keeps(self, task_id: TaskId, hired: Hired) -> None:
        """While the worker beats twice, the task stays leased to it under the same fence: what it
        would write too soon, it would have written by now."""
        before = await self.leased(task_id, hired)
        await self.beats(hired, 2)
        assert await self.store.task(task_id) == before

    async def beats(self, hired: Hired, times: int) -> None:
        """Returns when the worker has beaten so often."""
        beat = await self.store.beat_of(hired.worker_id)

        async def has_beaten() -> bool:
            return await self.store.beat_of(hired.worker_id) >= beat + times

        await until(has_beaten, within=WITHIN)

    # --- looking ------------------------------------------------------------------------------

    async def runs(self, task_id: TaskId) -> Sequence[Mapping[str, Any]]:
        return await self.store.inspect.runs(task_id)

    async def outcomes(self, task_id: TaskId) -> list[str]:
        return [run["outcome"] for run in await self.runs(task_id)]

    async def events(self, task_id: TaskId) -> Sequence[LoggedEvent]:
        return await self.store.events(task_id)

    async def said(self, task_id: TaskId) -> list[str]:
        """The states that readers see with what they are told, and messages, in order."""
        return [_shown(event) for event in await self.events(task_id)]

    async def hears(self, task_id: TaskId, line: str) -> None:
        """Returns when readers can see this."""

        async def look() -> bool:
            return line in await self.said(task_id)

        await until(look, within=WITHIN)

    async def is_never_claimed(self, task_id: TaskId, act: Callable[[], Awaitable[object]]) -> None:
        """Meanwhile other tasks come and go, as `act` has it, and this one stays where it is."""
        before = await self.store.task(task_id)
        await act()
        assert await self.store.task(task_id) == before


def text_of(task: Task) -> str | None:
    """What the task's status says."""
    message = task.status.get("message")
    return None if message is None else Message.from_json(message).text


def _shown(event: LoggedEvent) -> str:
    if event.kind is EventKind.ARTIFACT:
        return f"artifact {event.body['artifact']['artifactId']}"
    state = event.body.get("state", "task")
    message = event.body.get("message")
    return state if message is None else f"{state}: {Message.from_json(message).text}"
