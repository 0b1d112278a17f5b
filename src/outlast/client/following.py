"""Following a task over whatever happens to the connection.

A stream is what shows everything. When it ends early the next one goes on after the last event
that was shown: our gateways are told its id; of other servers the new stream's Task is compared
with the own fold. While streams bring nothing, as behind a proxy that holds them back, the task is
asked for: by calls that wait for something newer where the server can, else at intervals.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a

from outlast.client.calls import Calls, Patience
from outlast.client.differences import differences
from outlast.client.failures import (
    Failure,
    delay_before,
    failure_of,
    is_held_back,
    translated,
)
from outlast.client.snapshot import (
    ArtifactChanged,
    Event,
    Link,
    Opened,
    Reset,
    Snapshot,
    StatusChanged,
    state_of,
)
from outlast.client.transports import ANSWERED, LAST_ID
from outlast.wire.updates import apply_update, generation_of, under_uri

_BARREN_STREAMS = 2
"""After so many streams in a row that brought nothing, the task is asked for."""
_POLLS_PER_STREAM = 20
"""After so many looks a stream is tried again."""
_WAIT_S = 20.0
_HELD_S = 1.0
"""A look that took so long was held until there was news, or the wait was over: the next one may
follow at once, and so misses nothing for long. One that came back sooner may come from a server
that does not wait."""
_SEEN_THROUGH = (a2a.UnsupportedOperationError, a2a.MethodNotFoundError, NotImplementedError)


class Following:
    """One task, as it was shown so far."""

    def __init__(
        self,
        calls: Calls,
        task_id: str,
        tenant: str,
        on_link: Callable[[Link], None] | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._calls = calls
        self._task_id = task_id
        self._tenant = tenant
        self._on_link = on_link
        self._patience = patience or calls.patience
        self._link: Link | None = None
        self._task: pb.Task | None = None
        self._last_id: str | None = None
        self._streams = bool(calls.card.capabilities.streaming)
        self._barren = 0
        self._is_starting_again = True  # all barren streams of late ended without an answer
        self._has_doubts = False
        self._looks = 0
        self._waits = True

    @property
    def is_over(self) -> bool:
        return self._task is not None and state_of(self._task.status).is_terminal

    @property
    def is_settled(self) -> bool:
        """Whether the task, as it was shown, has ended or asks something."""
        return self._task is not None and (self.is_over or state_of(self._task.status).is_paused)

    async def events(self) -> AsyncGenerator[Event, None]:
        """The Task first, then what changes it, through its end.

        Raises TaskNotFound and other refusals; Unreachable when nothing has come of the agent for
        as long as the client is patient.
        """
        loop = asyncio.get_running_loop()
        patience = self._patience
        failing_since: float | None = None
        attempt = 0
        while not self.is_over:
            failure = Failure(is_passing=True)
            try:
                async with aclosing(self._once()) as batch:
                    async for is_fruitful, event in batch:
                        failing_since = None
                        attempt = 0 if is_fruitful else attempt
                        if event is not None:
                            yield event
            except Exception as error:
                failure = failure_of(error)
                failing_since = failing_since or loop.time()
                told = translated(error, self._task_id)
                if _is_final(error) or loop.time() - failing_since > patience.total:
                    raise told from error
                self._linked(Link(by="nothing", why=str(told)))
            if not self.is_over:
                pause = delay_before(
                    attempt, failure, first=patience.first, longest=patience.longest
                )
                attempt += 1
                await asyncio.sleep(pause)

    async def _once(self) -> AsyncGenerator[tuple[bool, Event | None], None]:
        """One stream, or one look at the task: (whether the next may follow soon, what is to be
        shown)."""
        if self._streams and (self._barren < _BARREN_STREAMS or self._looks >= _POLLS_PER_STREAM):
            self._looks = 0
            self._waits = True
            self._barren += 1  # until something comes
            try:
                async with aclosing(self._stream()) as items:
                    async for item in items:
                        self._barren = 0
                        self._is_starting_again, self._has_doubts = True, False
                        self._linked(Link(by="stream"))
                        yield item
                return
            except _SEEN_THROUGH:
                # The task has ended, or nothing is streamed here: a look tells which.
                self._streams = False
        if self._streams and self._is_starting_again and not self._has_doubts:
            # A process that starts again says nothing about streams. As soon as it answers at all
            # they are tried once more: they show what a look at the task can only compare.
            await self._calls.get(pb.GetTaskRequest(id=self._task_id, tenant=self._tenant))
            self._barren, self._has_doubts = 0, True
            yield False, None
            return
        self._looks += 1
        began = asyncio.get_running_loop().time()
        events = await self._look()
        was_held = asyncio.get_running_loop().time() - began >= _HELD_S
        if not self.is_over:  # a task that has ended has no streams
            self._linked(Link(by="looks"))
        for event in events:
            yield True, event
        yield was_held, None
        self._streams = self._streams or self._streams_again()

    def _linked(self, link: Link) -> None:
        if self._on_link is not None and link != self._link:
            self._on_link(link)
        self._link = link

    def _streams_again(self) -> bool:
        """A refused stream is tried again only where the card promises streams."""
        return bool(self._calls.card.capabilities.streaming) and self._looks >= _POLLS_PER_STREAM

    async def _stream(self) -> AsyncGenerator[tuple[bool, Event | None], None]:
        headers = {} if self._last_id is None else {"Last-Event-ID": self._last_id}
        context = self._calls.context(headers, timeout=self._calls.silence_s)
        stream: Any = self._calls.subscribe(self._task_id, self._tenant, context)
        try:
            async for item in stream:
                shown = list(self._taken(item))
                # Only now: an id must never be ahead of what was shown.
                self._last_id = context.state.get(LAST_ID, self._last_id)
                yield bool(shown), None
                for event in shown:
                    yield True, event
                if self.is_over:
                    return
        except Exception as error:
            if ANSWERED in context.state or is_held_back(error):
                self._is_starting_again = False
            raise
        finally:
            await stream.aclose()

    async def _look(self) -> list[Event]:
        request = pb.GetTaskRequest(id=self._task_id, tenant=self._tenant)
        generation = None if self._task is None else generation_of(self._task)
        headers = {}
        waits = self._waits and self._calls.is_ours and generation is not None
        if waits:
            headers = {"Outlast-Newer-Than": str(generation), "Outlast-Wait": f"{_WAIT_S:g}"}
            self._waits = False  # unless it comes through: what cuts streams may cut this too
        context = self._calls.context(headers, timeout=_WAIT_S + 10)
        task = await self._calls.get(request, context)
        self._waits = self._waits or waits
        events = list(self._caught_up(task))
        if events and self._last_id is not None:
            self._last_id = self._id_of(task)
        return events

    def _taken(self, item: pb.StreamResponse) -> Iterator[Event]:
        """What an item of a stream is to who has seen what was shown."""
        if item.HasField("task"):
            yield from self._caught_up(item.task)
            return
        if item.HasField("message") or self._task is None:
            return
        is_artifact = item.HasField("artifact_update")
        update = item.artifact_update if is_artifact else item.status_update
        number, seen = generation_of(update), generation_of(self._task)
        if number is not None and seen is not None and number <= seen:
            return
        apply_update(self._task, update)
        yield ArtifactChanged(update) if is_artifact else StatusChanged(update)

    def _caught_up(self, task: pb.Task) -> Iterator[Event]:
        shown, self._task = self._task, pb.Task()
        self._task.CopyFrom(task)
        if shown is None:
            yield Opened(Snapshot(task))
            return
        if under_uri(task).get("reset"):
            yield Reset(Snapshot(task))
            return
        number, seen = generation_of(task), generation_of(shown)
        if number is not None and seen is not None and number <= seen:
            # A server that has fallen behind takes nothing back; what it resumed from is known.
            self._task = shown
            return
        changes = differences(shown, task)
        if changes is None:
            yield Reset(Snapshot(task))
        else:
            yield from changes

    def _id_of(self, task: pb.Task) -> str | None:
        """The id of the event up to which this Task was read: the epoch that ids had so far."""
        epoch, dash, _ = (self._last_id or "").rpartition("-")
        number = generation_of(task)
        return None if number is None else f"{epoch}{dash}{number}"


def _is_final(error: Exception) -> bool:
    """Whether trying again is useless: the agent has said no."""
    return (
        isinstance(error, a2a.A2AError)
        and not failure_of(error).is_passing
        and (type(error).__module__ != "a2a.client.errors" or error.__cause__ is not None)
    )
