"""Group commit: writes of different tasks that arrive together share one transaction."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from outlast.model.commit import Busy, Lost, Verdict, Write
from outlast.model.errors import StoreUnavailable
from outlast.model.ids import TaskId
from outlast.store.protocols import WorkStore

_BATCH = 256
_ROUNDS = 3


@dataclass(eq=False)
class _Waiting:
    """A write on its way, until its outcome is known or its lease is over."""

    write: Write
    holds: Callable[[], bool]
    outcome: asyncio.Future[Verdict] = field(default_factory=lambda: _future())
    rounds: int = 0

    def tell(self, verdict: Verdict | Exception) -> None:
        """Whoever waited may have left; the others of its batch wait on."""
        if self.outcome.done():
            return
        if isinstance(verdict, Exception):
            self.outcome.set_exception(verdict)
        else:
            self.outcome.set_result(verdict)


def _future() -> asyncio.Future[Verdict]:
    return asyncio.get_running_loop().create_future()


class Committer:
    """Sends writes to the store, in batches, and repeats each until its outcome is known.

    While a batch is under way the next one gathers. A write whose row is locked elsewhere joins
    the next batches and, after three rounds, waits for the lock alone, so that it holds up nobody.
    """

    def __init__(self, work: WorkStore, *, lanes: int = 2) -> None:
        self._work = work
        self._lanes = asyncio.Semaphore(lanes)
        self._gathered: list[_Waiting] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, write: Write, holds: Callable[[], bool]) -> Verdict:
        """The verdict on `write`: never Busy. When `holds()` turns false while the store cannot
        be reached, the lease is over by its own clock and the verdict is Lost."""
        waiting = _Waiting(write=write, holds=holds)
        self._gather(waiting)
        return await waiting.outcome

    async def close(self) -> None:
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _gather(self, waiting: _Waiting) -> None:
        self._gathered.append(waiting)
        if len(self._gathered) == 1:
            self._spawn(self._send_gathered())

    async def _send_gathered(self) -> None:
        async with self._lanes:
            batch = self._take()
            if self._gathered:
                self._spawn(self._send_gathered())
            if batch:
                await self._send(batch)

    def _take(self) -> list[_Waiting]:
        """The next batch: of each task the first write. A second one is there when a lease has
        ended and its last write is still repeated, while the next lease of the task writes."""
        first: dict[TaskId, _Waiting] = {}
        for waiting in self._gathered:
            if len(first) < _BATCH:
                first.setdefault(waiting.write.task_id, waiting)
        batch = list(first.values())
        self._gathered = [w for w in self._gathered if first.get(w.write.task_id) is not w]
        return batch

    async def _send(self, batch: list[_Waiting], *, patient: bool = False) -> None:
        try:
            verdicts = await self._work.commit([w.write for w in batch], patient=patient)
        except StoreUnavailable:
            self._spawn(self._again_later(batch))
            return
        except Exception as error:  # a fault of ours: whoever waits must hear of it
            for waiting in batch:
                waiting.tell(error)
            return
        for waiting, verdict in zip(batch, verdicts, strict=True):
            if isinstance(verdict, Busy):
                self._try_again(waiting)
            else:
                waiting.tell(verdict)

    def _try_again(self, waiting: _Waiting) -> None:
        waiting.rounds += 1
        if waiting.rounds < _ROUNDS:
            self._gather(waiting)
        else:
            self._spawn(self._send([waiting], patient=True))

    async def _again_later(self, batch: list[_Waiting]) -> None:
        """The outcome is unknown or the store was away: the same content under the same numbers,
        for as long as the lease may be valid."""
        await asyncio.sleep(random.uniform(0.05, 0.15))
        for waiting in batch:
            if waiting.holds():
                self._gather(waiting)
            else:
                waiting.tell(Lost())

    def _spawn(self, sending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(sending)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
