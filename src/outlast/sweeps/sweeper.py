"""The loop around the duties, in every process that works."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import structlog

from outlast.model.topics import task_topic, work_topic
from outlast.store.database import Wakeups
from outlast.store.protocols import SweepStore
from outlast.sweeps.deadlines import Deadlines
from outlast.sweeps.folds import Folds
from outlast.sweeps.recovery import Recovery
from outlast.sweeps.retention import Retention

log = structlog.get_logger("outlast.sweeper")

Duty = Callable[[], Awaitable[None]]


class Sweeper:
    """Runs each duty at its own pace; any number of sweepers may run at once."""

    def __init__(
        self,
        store: SweepStore,
        wakeups: Wakeups,
        *,
        agent: str,
        recovery_s: float = 1.0,
        deadlines_s: float = 1.0,
        folds_s: float = 1.0,
        retention_s: float = 10.0,
        tombstone_ms: int = 90 * 86_400_000,
        window_ms: int = 86_400_000,
    ) -> None:
        self._recovery = Recovery(store)
        self._deadlines = Deadlines(store)
        self._folds = Folds(store)
        self._retention = Retention(store, tombstone_ms=tombstone_ms, window_ms=window_ms)
        self._wakeups = wakeups
        self._agent = agent
        self._recovery_s = recovery_s
        self._deadlines_s = deadlines_s
        self._folds_s = folds_s
        self._retention_s = retention_s
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Until stopped. A store that is away delays a duty, it never ends one."""
        async with asyncio.TaskGroup() as duties:
            duties.create_task(self._every(self._recovery_s, self._recover))
            duties.create_task(self._every(self._deadlines_s, self._end_overdue))
            duties.create_task(self._every(self._folds_s, self._fold))
            duties.create_task(self._every(self._retention_s, self._expire))
            duties.create_task(self._every(600, self._recovery.forget_the_long_dead))

    async def _recover(self) -> None:
        if await self._recovery.sweep():
            self._wakeups.send([work_topic(self._agent)])

    async def _end_overdue(self) -> None:
        if ended := await self._deadlines.sweep():
            self._wakeups.send([work_topic(self._agent), *map(task_topic, ended)])

    async def _fold(self) -> None:
        await self._folds.sweep()

    async def _expire(self) -> None:
        await self._retention.sweep()

    async def _every(self, seconds: float, duty: Duty) -> None:
        while not self._stopping.is_set():
            try:
                await duty()
            except Exception as error:  # one refused statement must not end the duty
                log.warning("sweep.failed", error=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds * random.uniform(0.9, 1.1)):
                    await self._stopping.wait()
