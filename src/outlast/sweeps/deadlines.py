"""Deadlines: pauses that nobody answered, tasks at the end of their longest life, and the
outages that excuse both.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from outlast.model.ids import Millis, TaskId
from outlast.store.protocols import SweepStore

log = structlog.get_logger("outlast.deadlines")

_OUTAGE_MS = Millis(60_000)
_LONGEST_EXCUSE_MS = Millis(86_400_000)


class Deadlines:
    """What came due since the last sweep, a bounded number at a time."""

    def __init__(self, store: SweepStore) -> None:
        self._store = store

    async def sweep(self) -> Sequence[TaskId]:
        """Ends what is overdue; the outage is excused first, so that nothing ends for it. Returns
        the tasks whose logs have grown."""
        moved = await self._store.excuse_outage(longest=_LONGEST_EXCUSE_MS, gap=_OUTAGE_MS)
        if moved:
            log.warning("deadlines.moved", by_seconds=moved / 1000)
        ended = [
            *await self._store.end_overdue_pauses(),
            *await self._store.end_overdue_lives(),
        ]
        if ended:
            log.info("deadlines.ended", tasks=len(ended))
        return [*ended, *await self._store.remind_of_pauses()]
