"""What people and checkers read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from outlast.model.ids import TaskId
from outlast.model.task import Task
from outlast.store.codec import from_text
from outlast.store.database import Database, Rows, Script, catalog
from outlast.store.rows import task_of

LAWS = (
    "laws_seq_has_no_gap",
    "laws_what_is_trimmed_is_folded",
    "laws_fence_never_falls",
    "laws_terminal_event_is_last",
    "laws_status_has_one_time",
    "laws_no_orphans",
    "laws_leases_have_runs",
    "laws_nothing_leased_to_the_dead",
    "laws_answers_are_kept_once",
    "laws_no_message_is_left_unread",
    "laws_the_inbox_is_in_the_log",
)


class Inspect:
    """`InspectStore` on any database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = catalog(database.dialect)

    async def find(self, task_id: TaskId) -> Task | None:
        rows = await self._read("tasks_peek", task_id=task_id)
        return task_of(rows[0]) if rows else None

    async def checkpoint(self, task_id: TaskId) -> str | None:
        rows = await self._read("tasks_peek", task_id=task_id)
        return rows[0]["checkpoint"] if rows else None

    async def runs(self, task_id: TaskId) -> Sequence[Mapping[str, Any]]:
        return await self._read("task_runs_list", task_id=task_id)

    async def held(self, agent: str, *, limit: int = 100) -> Sequence[Task]:
        return [task_of(row) for row in await self._read("tasks_held", agent=agent, n=limit)]

    async def in_flight(self, agent: str) -> Sequence[Mapping[str, Any]]:
        return await self._read("tasks_in_flight", agent=agent)

    async def versions(self, agent: str) -> Sequence[Mapping[str, Any]]:
        counts = {(row["workflow"], row["version"]): row for row in await self.in_flight(agent)}
        runners = Counter(
            tuple(version)
            for worker in await self.workers()
            if worker["agent"] == agent
            for version in from_text(worker["versions"])
        )
        return [
            {
                "workflow": row["workflow"],
                "version": row["version"],
                "tasks": counts.get(key, {"tasks": 0})["tasks"],
                "held": counts.get(key, {"held": 0})["held"],
                "workers": runners[key],
            }
            for row in await self._read("versions_list", agent=agent)
            for key in [(row["workflow"], row["version"])]
        ]

    async def workers(self) -> Sequence[Mapping[str, Any]]:
        return await self._read("workers_alive", n=10_000)

    async def effects(self) -> Sequence[Mapping[str, Any]]:
        return await self._read("laws_effects")

    async def broken_laws(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        def script() -> Script[dict[str, Rows]]:
            found: dict[str, Rows] = {}
            for law in LAWS:
                if rows := (yield self._queries(law)):
                    found[law] = rows
            return found

        return await self._database.read(script)

    async def _read(self, name: str, **params: Any) -> Rows:
        def script() -> Script[Rows]:
            return (yield self._queries(name, **params))

        return await self._database.read(script)
