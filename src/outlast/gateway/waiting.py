"""Waiting for a task without holding anything: no connection, no lock, no state."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from outlast.gateway.config import GatewayConfig
from outlast.gateway.patience import persist
from outlast.model.ids import TaskId
from outlast.model.task import Scope
from outlast.model.topics import task_topic
from outlast.store.database import Subscription, Wakeups
from outlast.store.protocols import TaskStore

Left = Callable[[], Awaitable[None]]
"""Returns when the caller has left."""


class Closing:
    """Whether this gateway stops. Whoever waits for a task then answers with what there is."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def close(self) -> None:
        self._event.set()

    @property
    def is_closed(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()


class Waiting:
    """What blocking sends do until their task has settled."""

    def __init__(
        self, tasks: TaskStore, wakeups: Wakeups, closing: Closing, config: GatewayConfig
    ) -> None:
        self._tasks = tasks
        self._wakeups = wakeups
        self._closing = closing
        self._config = config

    async def until_settled(self, scope: Scope, task_id: TaskId, left: Left | None) -> None:
        """Return when the task has ended or pauses; or when the cap is reached, the caller has
        left or the gateway stops. The task knows nothing of it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.blocking_cap_s
        ends = [self._closing.wait, *([] if left is None else [left])]
        with self._wakeups.subscribe(task_topic(task_id)) as bell:
            async with first_of(*ends) as ended:
                while True:
                    state, _ = await persist(
                        lambda: self._tasks.status_of(scope, task_id), self._config.store_patience_s
                    )
                    remaining = deadline - loop.time()
                    if state.is_terminal or state.is_paused or remaining <= 0:
                        return
                    if await rest(bell, ended, min(remaining, jittered(self._config.poll_s))):
                        return


@asynccontextmanager
async def first_of(*waits: Callable[[], Awaitable[None]]) -> AsyncIterator[asyncio.Future[None]]:
    """A future that is done as soon as one of `waits` returns; they end with the context."""
    waiting = asyncio.create_task(_until_first(waits))
    try:
        yield waiting
    finally:
        await _dropped(waiting)


async def rest(bell: Subscription, ended: asyncio.Future[None], timeout: float) -> bool:
    """Wait for a wake-up, at most `timeout` seconds; True when `ended` is done."""
    ringing = asyncio.create_task(_ring(bell, timeout))
    try:
        await asyncio.wait({ringing, ended}, return_when=asyncio.FIRST_COMPLETED)
        return ended.done()
    finally:
        await _dropped(ringing)


def jittered(seconds: float) -> float:
    """About so long: those who began to wait together must not look together."""
    return seconds * random.uniform(0.75, 1.25)


async def _until_first(waits: tuple[Callable[[], Awaitable[None]], ...]) -> None:
    tasks = [asyncio.ensure_future(_done(wait)) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            await _dropped(task)


async def _done(wait: Callable[[], Awaitable[None]]) -> None:
    await wait()


async def _ring(bell: Subscription, timeout: float) -> None:
    await bell.wait(timeout)


async def _dropped(task: asyncio.Task[None]) -> None:
    """The task has ended, whatever came of it."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
