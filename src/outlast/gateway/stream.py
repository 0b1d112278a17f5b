"""Streams: a Task first, then every later event of its log, in order, none missed, none repeated.

A stream is a cursor on the log. It reads page after page and waits only when it has read
everything; there is no queue in this process that could run full, lose events at a restart or
miss those of another process. A reader that stops reading stops its own cursor and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from a2a.types import a2a_pb2 as pb

from outlast.gateway.config import GatewayConfig
from outlast.gateway.patience import persist
from outlast.gateway.waiting import Closing, first_of, jittered, rest
from outlast.model.commit import LoggedEvent
from outlast.model.errors import UnsupportedOperation
from outlast.model.ids import Seq, TaskId
from outlast.model.task import Scope, State
from outlast.model.topics import task_topic
from outlast.store.database import Subscription, Wakeups
from outlast.store.protocols import LogStore, TaskStore
from outlast.wire.events import Update, state_after, update_of
from outlast.wire.extension import View
from outlast.wire.fold import fold_task

Item = tuple[Seq, pb.Task | Update]
"""Something of a stream and the seq up to which a reader has then seen the log: an SSE id is made
of it."""

_PAGE = 256


def until_settled(state: State) -> bool:
    """SendStreamingMessage ends when the task has ended, or asks the caller (§11.7)."""
    return state.is_terminal or state is State.INPUT_REQUIRED


def until_terminal(state: State) -> bool:
    """SubscribeToTask goes on through pauses."""
    return state.is_terminal


class Streams:
    """Opens streams on the logs of tasks."""

    def __init__(
        self,
        tasks: TaskStore,
        log: LogStore,
        wakeups: Wakeups,
        closing: Closing,
        config: GatewayConfig,
    ) -> None:
        self._tasks = tasks
        self._log = log
        self._wakeups = wakeups
        self._closing = closing
        self._config = config

    async def follow(
        self,
        scope: Scope,
        task_id: TaskId,
        view: View,
        *,
        ends: Callable[[State], bool],
        history_length: int | None = None,
        refuse_ended: bool = False,
    ) -> AsyncGenerator[Item, None]:
        """The Task as it is now, then each later event, up to the one that brings a state which
        `ends` the stream; or until the gateway stops.

        Raises, before the first item, TaskNotFound, and UnsupportedOperation for a task that has
        ended where that is to be refused.
        """
        with self._wakeups.subscribe(task_topic(task_id)) as bell:
            snapshot = await persist(
                lambda: self._tasks.snapshot(scope, task_id), self._config.store_patience_s
            )
            task, events = snapshot.task, snapshot.events
            if refuse_ended and task.state.is_terminal:
                raise UnsupportedOperation(
                    f"the task has ended: it is {task.state.value}; get it with GetTask"
                )
            cursor = events[-1].seq
            yield cursor, fold_task(task, events, view=view, history_length=history_length)
            if ends(task.state):
                return
            async with aclosing(self._later(task_id, cursor, bell)) as later:
                async for event in later:
                    yield event.seq, update_of(event, task_id, task.context_id, view)
                    state = state_after(event)
                    if state is not None and ends(state):
                        return

    async def _later(
        self, task_id: TaskId, cursor: Seq, bell: Subscription
    ) -> AsyncGenerator[LoggedEvent, None]:
        async with first_of(self._closing.wait) as closed:
            while not closed.done():
                page = await persist(
                    partial(self._log.events_since, task_id, cursor, limit=_PAGE),
                    self._config.store_patience_s,
                )
                for event in page:
                    yield event
                    cursor = event.seq
                if len(page) < _PAGE:
                    await rest(bell, closed, jittered(self._config.poll_s))
