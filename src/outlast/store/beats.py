"""What the beat thread writes and reads, over a connection of its own."""

from __future__ import annotations

from collections.abc import Mapping

from outlast.model.ids import Fence, TaskId, WorkerId
from outlast.store import endings
from outlast.store.database import Database, Script, catalog
from outlast.store.protocols import Standing
from outlast.store.rows import standings_of


class Beats:
    """`BeatStore` on any database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = catalog(database.dialect)

    async def beat(
        self, worker_id: WorkerId, *, presence: str | None
    ) -> Mapping[TaskId, Standing] | None:
        def script() -> Script[Mapping[TaskId, Standing] | None]:
            alive = yield self._queries("workers_beat", worker_id=worker_id, presence=presence)
            if not alive:
                return None
            leased = yield self._queries("tasks_leased_to", worker_id=worker_id)
            return standings_of(leased)

        return await self._database.transact(script)

    async def release(self, worker_id: WorkerId, task_id: TaskId, fence: Fence) -> bool:
        def script() -> Script[bool]:
            released = yield self._queries(
                "tasks_release", worker_id=worker_id, task_id=task_id, fence=fence
            )
            if not released:
                return False
            yield endings.close_run(self._queries, {"task_id": task_id, "fence": fence}, "released")
            return True

        return await self._database.transact(script)
