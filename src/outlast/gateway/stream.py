"""Streams: a Task first, then every later event of its log, in order, none missed, none repeated.

A stream is a cursor on the log: there is no queue in this process that could run full, lose events
at a restart or miss those of another process.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial

from a2a.types import a2a_pb2 as pb
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToDict

from outlast.gateway.errors import translated
from outlast.gateway.reading import Reading, Readings, Seen
from outlast.gateway.tails import Tail, Tails
from outlast.model.commit import LoggedEvent
from outlast.model.errors import LogTrimmed, UnsupportedOperation
from outlast.model.ids import ContextId, Seq, TaskId
from outlast.model.task import Scope, State
from outlast.wire.events import Update, is_in_band, state_after, update_of
from outlast.wire.extension import View

_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""Not line ends in a stream of events, but many clients split lines at them."""


def one_line(text: str) -> str:
    """JSON that no reader of lines takes for several."""
    return text.translate(_LINE_ENDS)


@dataclass(frozen=True)
class Item:
    """Something of a stream, and the seq up to which a reader has then seen the log; a direct
    Message has none. Readers share items, and so what is made of them.

    again: of the Task that a stream begins with. Whoever writes to a reader that stops reading can
    let go of everything, and read it again when the reader does.
    """

    event: pb.Message | pb.Task | Update
    seq: Seq | None = None
    again: Again | None = field(default=None, compare=False, repr=False)

    @cached_property
    def json(self) -> str:
        """The StreamResponse of HTTP bindings, on one line."""
        body = MessageToDict(to_stream_response(self.event))
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        return one_line(text)


@dataclass(frozen=True, kw_only=True)
class Again:
    """How to go on with a stream that was closed for a while.

    at: the stream from its item of a seq on. kept: what the stream has open with its owner's
    quota is still open meanwhile; a reader does not get another stream by not reading one.
    """

    at: Callable[[Seq], AsyncGenerator[Item, None]]
    kept: Callable[[], AbstractContextManager[None]] = nullcontext


Ends = Callable[[State, bool], bool]
"""Whether a state ends a stream; the bool says that it waits for an authorization that a message
may bring."""


def until_settled(state: State, in_band: bool) -> bool:
    """SendStreamingMessage ends when the task has ended, or asks the caller for what a message can
    bring (§11.7)."""
    return state.is_terminal or state is State.INPUT_REQUIRED or in_band


def until_terminal(state: State, in_band: bool) -> bool:
    """SubscribeToTask goes on through pauses."""
    return state.is_terminal


@dataclass(frozen=True, kw_only=True)
class _Followed:
    """What a stream shows, to whom, from where and until when. own: where the caller's message is;
    states before it end nothing."""

    scope: Scope
    task_id: TaskId
    context_id: ContextId
    view: View
    history_length: int | None
    ends: Ends
    own: Seq
    first: Seq
    until: float | None
    kept: Callable[[], AbstractContextManager[None]]

    def is_end(self, state: State, in_band: bool, seq: Seq) -> bool:
        return seq >= self.own and self.ends(state, in_band)


class Streams:
    """Opens streams on the logs of tasks."""

    def __init__(self, readings: Readings, tails: Tails) -> None:
        self._readings = readings
        self._tails = tails

    async def follow(
        self,
        scope: Scope,
        task_id: TaskId,
        view: View,
        *,
        ends: Ends,
        history_length: int | None = None,
        seen: Seen | None = None,
        answered_by: str = "",
        refuse_ended: bool = False,
        until: float | None = None,
        kept: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> AsyncGenerator[Item, None]:
        """The Task as it is now, then each later event, up to the one that brings a state which
        `ends` the stream; or until the gateway stops, or this time of the wall clock.

        seen: begin with the Task as of then, also when it has ended. answered_by: the id of a
        caller's message; states before it end nothing, since it may have answered them.

        A reader that is slower than the log is kept gets the Task once more, as it ended.

        Raises, before the first item, TaskNotFound, and UnsupportedOperation for a task that has
        ended where that is to be refused.
        """
        with self._tails.open(task_id) as tail:
            reading = await self._open(scope, task_id, view, history_length, seen)
            if refuse_ended and seen is None and reading.state.is_terminal:
                raise UnsupportedOperation(
                    f"the task has ended: it is {reading.state.value}; get it with GetTask, or say"
                    " what you have seen with Last-Event-ID"
                )
            own = Seq(0)
            if seen is not None and answered_by:
                own = await self._readings.place_of(task_id, answered_by)
            followed = _Followed(
                scope=scope,
                task_id=task_id,
                context_id=ContextId(reading.task.context_id),
                view=view,
                history_length=history_length,
                ends=ends,
                own=own,
                first=reading.seq,
                until=until,
                kept=kept,
            )
            async with aclosing(self._from(tail, followed, reading)) as items:
                del reading
                async for item in items:
                    yield item
                    del item

    async def _again(self, followed: _Followed, seq: Seq) -> AsyncGenerator[Item, None]:
        """The stream from its item of this seq on. A Task that cannot be rebuilt is another one:
        its reader has to look."""
        with translated("SubscribeToTask"), self._tails.open(followed.task_id) as tail:
            if seq == followed.first:
                reading = await self._readings.as_of(
                    followed.scope,
                    followed.task_id,
                    Seen(seq=seq),
                    followed.view,
                    history_length=followed.history_length,
                )
                items = self._from(tail, followed, reading)
                del reading
            else:
                items = self._later(tail, followed, Seq(seq - 1))
            async with aclosing(items):
                async for item in items:
                    yield item
                    del item

    async def _from(
        self, tail: Tail, followed: _Followed, reading: Reading
    ) -> AsyncGenerator[Item, None]:
        """The Task, and then what comes. Whatever was yielded is let go of before the next is
        waited for: a stream that is idle for days must not hold what it brought last."""
        cursor = reading.seq
        is_end = followed.is_end(reading.state, reading.in_band, cursor)
        again = Again(at=partial(self._again, followed), kept=followed.kept)
        yield Item(reading.task, cursor, again)
        del reading
        if not is_end:
            async with aclosing(self._later(tail, followed, cursor)) as later:
                async for item in later:
                    yield item
                    del item

    async def _later(
        self, tail: Tail, followed: _Followed, cursor: Seq
    ) -> AsyncGenerator[Item, None]:
        render = partial(_rendered, followed.task_id, followed.context_id, followed.view)
        try:
            async with aclosing(tail.after(cursor, until=followed.until)) as events:
                async for shared in events:
                    state, in_band = state_after(shared.event), is_in_band(shared.event)
                    is_end = state is not None and followed.is_end(state, in_band, shared.event.seq)
                    yield shared.made(followed.view, render)
                    if is_end:
                        return
                    del shared
        except LogTrimmed:
            yield await self._as_it_ended(followed)

    async def _as_it_ended(self, followed: _Followed) -> Item:
        """For a reader so slow that the rest of the log is gone."""
        reading = await self._readings.as_of(
            followed.scope,
            followed.task_id,
            Seen(seq=None),
            followed.view,
            history_length=followed.history_length,
        )
        return Item(reading.task, reading.seq)

    async def _open(
        self,
        scope: Scope,
        task_id: TaskId,
        view: View,
        history_length: int | None,
        seen: Seen | None,
    ) -> Reading:
        if seen is None:
            return await self._readings.now(scope, task_id, view, history_length=history_length)
        return await self._readings.as_of(scope, task_id, seen, view, history_length=history_length)


def _rendered(task_id: TaskId, context_id: ContextId, view: View, event: LoggedEvent) -> Item:
    return Item(update_of(event, task_id, context_id, view), event.seq)
