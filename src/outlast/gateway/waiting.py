"""Waiting for a task without holding anything: no connection, no lock, no state."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from outlast.gateway.config import GatewayConfig
from outlast.gateway.patience import persist
from outlast.gateway.tails import Tails
from outlast.model.errors import InvalidParams, LogTrimmed
from outlast.model.ids import Seq, TaskId
from outlast.model.task import Scope, State
from outlast.store.protocols import TaskStore
from outlast.wire.events import state_after

Left = Callable[[], Awaitable[None]]
"""Returns when the caller has left."""

_NEWER_THAN = "Outlast-Newer-Than"
_WAIT = "Outlast-Wait"
_WHOLE = re.compile(r"\d{1,18}", re.ASCII)
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Newer:
    """What a call waits for: a generation after this one, for at most so many seconds; None is as
    long as the gateway lets it."""

    than: Seq
    seconds: float | None


def read_newer(headers: Mapping[str, str]) -> Newer | None:
    """What a call's headers ask to wait for. Raises InvalidParams for what is no generation, no
    time, or a time without a generation."""
    than, seconds = headers.get(_NEWER_THAN.lower()), headers.get(_WAIT.lower())
    if than is None:
        if seconds is None:
            return None
        raise InvalidParams(
            f"goes with {_NEWER_THAN}, which says what generation you have", path=_WAIT
        )
    if not _WHOLE.fullmatch(than.strip()):
        raise InvalidParams(
            "must be the generation that you have, a whole number", path=_NEWER_THAN
        )
    if seconds is not None and not _SECONDS.fullmatch(seconds.strip()):
        raise InvalidParams("must be a number of seconds, such as 30 or 0.5", path=_WAIT)
    return Newer(than=Seq(int(than.strip())), seconds=None if seconds is None else float(seconds))


class Waiting:
    """What blocking calls do until their task has come so far."""

    def __init__(self, tasks: TaskStore, tails: Tails, config: GatewayConfig) -> None:
        self._tasks = tasks
        self._tails = tails
        self._config = config

    async def until_settled(
        self, scope: Scope, task_id: TaskId, left: Left | None, *, until: float | None = None
    ) -> None:
        """Return when the task has ended or pauses; or when the cap or this time of the wall clock
        is reached, the caller has left or the gateway stops. The task knows nothing of it."""
        settled = _over(self._settled(scope, task_id))
        await first_or_timeout(settled, left, self._bounded(None, until))

    async def until_newer(
        self,
        scope: Scope,
        task_id: TaskId,
        newer: Newer,
        left: Left | None,
        *,
        until: float | None = None,
    ) -> None:
        """Return when the task has a newer generation, or can have none; or when the seconds are
        over, and otherwise as `until_settled`. Raises TaskNotFound."""
        seconds = self._bounded(newer.seconds, until)
        await first_or_timeout(_over(self._newer(scope, task_id, newer.than)), left, seconds)

    def _bounded(self, seconds: float | None, until: float | None) -> float:
        bounds = [self._config.blocking_cap_s]
        if seconds is not None:
            bounds.append(seconds)
        if until is not None:
            bounds.append(max(0.0, until - time.time()))
        return min(bounds)

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


async def _over(waiting: Coroutine[Any, Any, None]) -> None:
    """The wait; it is over too when the task ended so long ago that its log is gone."""
    with suppress(LogTrimmed):
        await waiting


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
