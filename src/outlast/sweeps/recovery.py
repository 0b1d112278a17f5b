"""Recovery: proves that workers are dead, and frees what they held."""

from __future__ import annotations

import structlog

from outlast.model.errors import StoreUnavailable
from outlast.model.ids import Millis
from outlast.model.lease import Watch, awake_seconds
from outlast.store.protocols import SweepStore, TakenOver

log = structlog.get_logger("outlast.recovery")

_MOST_ROUNDS = 50
_LONG_DEAD_MS = Millis(86_400_000)


class Recovery:
    """One look at the beats after another; continuous, so that an error loses no task."""

    def __init__(self, store: SweepStore, watch: Watch | None = None) -> None:
        self._store = store
        self._watch = watch or Watch()

    async def sweep(self) -> int:
        """One look. Returns how many tasks became claimable or failed.

        Raises StoreUnavailable; the watch starts over then, because silence over a connection
        that does not work proves nothing.
        """
        began = awake_seconds()
        try:
            vitals = await self._store.vitals()
            deaths = self._watch.look(began, awake_seconds(), vitals)
            taken = [await self._store.take_over(death) for death in deaths]
            taken.extend(await self._free_all_orphans())
        except StoreUnavailable:
            self._watch.forget()
            raise
        for death, result in zip(deaths, taken, strict=False):
            if result is not None:
                log.warning(
                    "worker.dead",
                    worker_id=death.worker_id,
                    early=death.early,
                    freed=len(result.freed),
                    failed=len(result.failed),
                )
        return sum(_count(result) for result in taken if result is not None)

    async def _free_all_orphans(self) -> list[TakenOver]:
        """What the take-overs' limit left, a bounded number at a time."""
        taken = [await self._store.free_orphans()]
        while _count(taken[-1]) and len(taken) < _MOST_ROUNDS:
            taken.append(await self._store.free_orphans())
        return taken

    async def forget_the_long_dead(self) -> None:
        await self._store.forget_workers(older_than=_LONG_DEAD_MS)


def _count(taken: TakenOver) -> int:
    return len(taken.freed) + len(taken.failed)
