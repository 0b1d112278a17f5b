"""Retention: the log of a finished task is trimmed, then the task goes, then its tombstone."""

from __future__ import annotations

import structlog

from outlast.model.ids import Millis
from outlast.store.protocols import SweepStore

log = structlog.get_logger("outlast.retention")

_MOST_ROUNDS = 200


class Retention:
    """Deletes a bounded number at a time, in small transactions; any number may sweep at once."""

    def __init__(self, store: SweepStore, *, tombstone_ms: int, window_ms: int) -> None:
        self._store = store
        self._window = Millis(window_ms)
        # A key must outlast the window, whatever became of its task.
        self._tombstone = Millis(max(tombstone_ms, window_ms))

    async def sweep(self) -> int:
        """Trim logs, and delete what has expired. Returns how many tasks went."""
        for _ in range(_MOST_ROUNDS):
            if not await self._store.trim_logs():
                break
        deleted = 0
        for _ in range(_MOST_ROUNDS):
            expired = await self._store.expire_tasks()
            deleted += len(expired)
            if not expired:
                break
        for _ in range(_MOST_ROUNDS):
            if not await self._store.forget_expired(older_than=self._tombstone):
                break
        await self._store.forget_replies(older_than=self._window)
        if deleted:
            log.info("tasks.expired", tasks=deleted)
        return deleted
