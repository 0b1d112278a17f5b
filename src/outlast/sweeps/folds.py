"""Folds: what a long log makes of its task is kept, so that readers need not read it all."""

from __future__ import annotations

import asyncio

import structlog

from outlast.model.ids import TaskId
from outlast.store.protocols import SweepStore
from outlast.wire.folds import make_fold, next_fold_at

log = structlog.get_logger("outlast.folds")

_MOST_ROUNDS = 50
_PUT_OFF = 4096


class Folds:
    """Folds a bounded number of tasks at a time, each in pieces of its log: a log that has never
    been folded, or whose folds were deleted, may be of any length."""

    def __init__(self, store: SweepStore, *, piece: int = 2000) -> None:
        """piece: how many events are folded at a time."""
        self._store = store
        self._piece = piece

    async def sweep(self) -> int:
        """Write the folds that are due. Returns how many. Raises StoreUnavailable."""
        written = 0
        for _ in range(_MOST_ROUNDS):
            due = await self._store.unfolded()
            round_ = [await self._fold(task_id) for task_id in due]
            written += sum(round_)
            if not any(round_):  # nothing is due, or others have it
                break
        return written

    async def _fold(self, task_id: TaskId) -> bool:
        snapshot = await self._store.to_fold(task_id, limit=self._piece)
        if snapshot is None:
            return False
        try:
            fold = await asyncio.to_thread(
                make_fold, snapshot.task, snapshot.events, fold=snapshot.fold
            )
        except Exception as error:  # one task that cannot be folded must not stop all others
            log.error("fold.failed", task_id=task_id, error=repr(error))
            await self._store.put_off_fold(task_id, events=_PUT_OFF)
            return False
        fence = snapshot.events[-1].fence
        return await self._store.keep_fold(task_id, fold, fence=fence, next_at=next_fold_at(fold))
