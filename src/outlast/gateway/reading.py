"""The Task as of now, or as of any event of its log: the one place where gateways rebuild it."""

from __future__ import annotations

from dataclasses import dataclass

from a2a.types import a2a_pb2 as pb

from outlast.gateway.config import GatewayConfig
from outlast.gateway.patience import persist
from outlast.model.commit import EventKind
from outlast.model.ids import Seq, TaskId
from outlast.model.task import Scope, State
from outlast.store.protocols import LogStore, Snapshot, TaskStore
from outlast.wire.extension import EXTENSION_URI, View
from outlast.wire.folds import fold_log


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The Task after its event `seq`, the state that it was in then, and whether a message might
    bring the authorization that it waited for."""

    task: pb.Task
    seq: Seq
    state: State
    in_band: bool


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Up to where a reader has seen the log. None: up to an event that this log does not have."""

    seq: Seq | None


class Readings:
    """Rebuilds Tasks for those who may see them."""

    def __init__(self, tasks: TaskStore, log: LogStore, config: GatewayConfig) -> None:
        self._tasks = tasks
        self._log = log
        self._config = config

    async def now(
        self, scope: Scope, task_id: TaskId, view: View, *, history_length: int | None = None
    ) -> Reading:
        """The Task as it is. Raises TaskNotFound."""
        return _read(await self._snapshot(scope, task_id), view, history_length)

    async def as_of(
        self,
        scope: Scope,
        task_id: TaskId,
        seen: Seen,
        view: View,
        *,
        history_length: int | None = None,
    ) -> Reading:
        """The Task as it was when a reader last saw it. When that cannot be rebuilt, the Task as
        it is, which says so to clients of our extension. Raises TaskNotFound."""
        snapshot = await self._snapshot(scope, task_id, until=seen.seq)
        reading = _read(snapshot, view, history_length)
        if reading.seq != seen.seq and view.extended:
            said = {"generation": reading.seq, "reset": True}
            reading.task.metadata.update({EXTENSION_URI: said})
        return reading

    async def place_of(self, task_id: TaskId, message_id: str) -> Seq:
        """The event that brought this caller's message; 0 when none of the newest did."""
        events = await persist(lambda: self._log.messages(task_id), self._config.store_patience_s)
        for event in reversed(events):
            is_callers = event.kind in (EventKind.TASK, EventKind.MESSAGE)
            if is_callers and event.body["message"].get("messageId") == message_id:
                return event.seq
        return Seq(0)

    async def _snapshot(
        self, scope: Scope, task_id: TaskId, *, until: Seq | None = None
    ) -> Snapshot:
        return await persist(
            lambda: self._tasks.snapshot(scope, task_id, until=until),
            self._config.store_patience_s,
        )


def _read(snapshot: Snapshot, view: View, history_length: int | None) -> Reading:
    folded = fold_log(
        snapshot.task,
        snapshot.events,
        fold=snapshot.fold,
        view=view,
        history_length=history_length,
    )
    return Reading(task=folded.task, seq=snapshot.seq, state=folded.state, in_band=folded.in_band)
