"""Reading the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outlast.model.commit import LoggedEvent
from outlast.model.errors import LogTrimmed
from outlast.model.ids import Seq, TaskId
from outlast.store.codec import to_text
from outlast.store.database import Database, Script, catalog
from outlast.store.rows import event_of

_AFTER_ALL = Seq(1 << 62)


class Log:
    """`LogStore` on any database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = catalog(database.dialect)

    async def events_since(
        self, task_id: TaskId, seq: Seq, *, limit: int = 256
    ) -> Sequence[LoggedEvent]:
        events = await self._events("task_events_since", task_id=task_id, seq=seq, n=limit)
        if events and events[0].seq != seq + 1:
            raise LogTrimmed(task_id)
        return events

    async def event(self, task_id: TaskId, seq: Seq) -> LoggedEvent | None:
        found = await self._events("task_events_get", task_id=task_id, seq=seq)
        return found[0] if found else None

    async def ends_of(self, task_ids: Sequence[TaskId]) -> Mapping[TaskId, Seq]:
        def script() -> Script[dict[TaskId, Seq]]:
            rows = yield self._queries("tasks_ends", task_ids=to_text(list(task_ids)))
            return {TaskId(row["task_id"]): Seq(row["next_seq"] - 1) for row in rows}

        return await self._database.read(script)

    async def messages(
        self, task_id: TaskId, *, before: Seq | None = None, limit: int = 100
    ) -> Sequence[LoggedEvent]:
        newest_first = await self._events(
            "task_events_messages",
            task_id=task_id,
            before=_AFTER_ALL if before is None else before,
            n=limit,
        )
        return newest_first[::-1]

    async def received(
        self, task_id: TaskId, *, after: Seq, limit: int = 100
    ) -> Sequence[LoggedEvent]:
        return await self._events("task_events_received", task_id=task_id, seq=after, n=limit)

    async def artifact_events(
        self, task_id: TaskId, *, after: Seq, until: Seq
    ) -> Sequence[LoggedEvent]:
        return await self._events(
            "task_events_artifacts", task_id=task_id, after=after, until=until
        )

    async def _events(self, name: str, **params: Any) -> list[LoggedEvent]:
        def script() -> Script[list[LoggedEvent]]:
            return [event_of(row) for row in (yield self._queries(name, **params))]

        return await self._database.read(script)
