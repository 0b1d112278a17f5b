"""Waiting for a task without holding anything: no connection, no lock, no state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from outlast.gateway.config import GatewayConfig
from outlast.gateway.patience import persist
from outlast.gateway.tails import Tails
from outlast.model.ids import Seq, TaskId
from outlast.model.task import Scope, State
from outlast.store.protocols import TaskStore
from outlast.wire.events import state_after

Left = Callable[[], Awaitable[None]]
"""Returns when the caller has left."""


class Waiting:
    """What blocking calls do until their task has come so far."""

    def __init__(self, tasks: TaskStore, tails: Tails, config: GatewayConfig) -> None:
        self._tasks = tasks
        self._tails = tails
        self._config = config

    async def until_settled(self, scope: Scope, task_id: TaskId, left: Left | None) -> None:
        """Return when the task has ended or pauses; or when the cap is reached, the caller has
        left or the gateway stops. The task knows nothing of it."""
        settled = self._settled(scope, task_id)
        await first_or_timeout(settled, left, self._config.blocking_cap_s)

    async def until_newer(
        self, scope: Scope, task_id: TaskId, generation: Seq, seconds: float, left: Left | None
    ) -> None:
        """Return when the task has more than this generation, or can have no more; or when so
        many seconds or the cap are over, the caller has left or the gateway stops."""
        newer = self._newer(scope, task_id, generation)
        await first_or_timeout(newer, left, min(seconds, self._config.blocking_cap_s))

    async def _settled(self, scope: Scope, task_id: TaskId) -> None:
        with self._tails.open(task_id) as tail:
            state, seen = await self._status_of(scope, task_id)
            if state.is_terminal or state.is_paused:
                return
            async with aclosing(tail.after(seen)) as later:
                async for shared in later:
                    changed = state_after(shared.event)
                    if changed is not None and (changed.is_terminal or changed.is_paused):
                        return

    async def _newer(self, scope: Scope, task_id: TaskId, generation: Seq) -> None:
        with self._tails.open(task_id) as tail:
            state, seen = await self._status_of(scope, task_id)
            if state.is_terminal or seen > generation:
                return
            async with aclosing(tail.after(seen)) as later:
                async for shared in later:
                    if shared.event.seq > generation:
                        return

    async def _status_of(self, scope: Scope, task_id: TaskId) -> tuple[State, Seq]:
        return await persist(
            lambda: self._tasks.status_of(scope, task_id), self._config.store_patience_s
        )


async def first_or_timeout(
    waiting: Coroutine[Any, Any, None], left: Left | None, seconds: float
) -> None:
    """Return when `waiting` has come to its end, the caller has left or the time is over. Raises
    what `waiting` does."""
    task = asyncio.create_task(waiting)
    leaving = None if left is None else asyncio.ensure_future(left())
    both = {task} if leaving is None else {task, leaving}
    try:
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        for future in both:
            await dropped(future)


async def dropped(task: asyncio.Future[None]) -> None:
    """The task has ended, whatever came of it."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
