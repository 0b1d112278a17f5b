"""Tails: what all readers of one task's log in this process share.

The log of a task is read once, however many follow it: by whoever has seen everything, when a
wake-up or the poll says that there is more. What was read is kept for those close behind. A reader
that has fallen further behind reads the log for itself, at its own speed, until it has caught up.
So nobody waits for anybody, and a reader that stops reading holds next to nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from outlast.gateway.closing import Closing
from outlast.gateway.config import GatewayConfig
from outlast.gateway.patience import jittered, persist
from outlast.model.commit import LoggedEvent
from outlast.model.errors import LogTrimmed
from outlast.model.ids import Seq, TaskId
from outlast.model.topics import task_topic
from outlast.store.database import Subscription, Wakeups
from outlast.store.protocols import LogStore

V = TypeVar("V")

_SHARED = 1024 * 1024
"""Bytes of newest events that one task's readers share, until all of them have seen everything."""

_OWN = 256 * 1024
"""Bytes of events that a reader which is behind reads ahead."""

_OF_ANY = 1500
_OF_EACH = 3
"""An event costs so many bytes of memory, and so many for each of its text: as it was read, as a
message of the protocol, and as JSON."""

_FIRST_PAGE = 32
_LONGEST_PAGE = 256
_FAR = 256
_AT_ONCE = 1000
_LISTEN_S = 3600.0


class Shared:
    """An event of the log, and what its readers have made of it: each form is made once."""

    __slots__ = ("_made", "event", "weight")

    def __init__(self, event: LoggedEvent) -> None:
        self.event = event
        self.weight = _OF_ANY + _OF_EACH * len(repr(event.body))
        self._made: dict[object, object] = {}

    def made(self, form: object, make: Callable[[LoggedEvent], V]) -> V:
        """The event in this form, made by `make` if nobody has wanted it so before."""
        if form not in self._made:
            self._made[form] = make(self.event)
        return self._made[form]  # type: ignore[return-value]


class Pages:
    """Reads a log in pages of about so many bytes: where events are large, pages are short."""

    def __init__(self, log: LogStore, task_id: TaskId, size: int, patience_s: float) -> None:
        self._log = log
        self._task_id = task_id
        self._size = size
        self._patience_s = patience_s
        self._limit = _FIRST_PAGE

    async def after(self, seq: Seq) -> tuple[Sequence[Shared], bool]:
        """The next events after `seq`, and whether there may be more."""
        limit = self._limit
        read = partial(self._log.events_since, self._task_id, seq, limit=limit)
        events = list(map(Shared, await persist(read, self._patience_s)))
        fitting = _fitting(events, self._size)
        if fitting < len(events):
            self._limit = fitting
        elif len(events) == limit:
            self._limit = min(2 * limit, _LONGEST_PAGE)
        return events[:fitting], len(events) == limit or fitting < len(events)


class Tail:
    """The newest part of one task's log. Its readers are in one event loop."""

    def __init__(
        self, task_id: TaskId, log: LogStore, bell: Subscription, config: GatewayConfig
    ) -> None:
        self.task_id = task_id
        self.readers = 0
        self.failure: Exception | None = None
        self.is_closed = False
        self._end: Seq | None = None
        self._recent: dict[Seq, Shared] = {}
        self._weight = 0
        self._has_news = True  # whatever was written before anybody listened
        self._waiting: set[asyncio.Future[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._pages = partial(Pages, log, task_id, patience_s=config.store_patience_s)
        self._shared_pages = self._pages(_SHARED)
        self._bell = bell
        self._listening = asyncio.create_task(self._listen())

    async def after(self, cursor: Seq, *, until: float | None = None) -> AsyncGenerator[Shared]:
        """Every event after `cursor`, in order, as it comes; until the gateway closes, or until
        this time of the wall clock. Raises StoreUnavailable when the store stays away, and
        LogTrimmed when what comes next is gone."""
        self._come(cursor)
        own: Pages | None = None
        while not self._is_over(until):
            if (event := self._recent.get(Seq(cursor + 1))) is not None:
                own = None
                cursor = event.event.seq
                yield event
                del event  # the last one may be large, and the next one days away
            elif self._end is not None and cursor < self._end:
                own = own or self._pages(_OWN)
                page, _ = await own.after(cursor)
                if not page:  # it has expired, with everything of its task
                    raise LogTrimmed(self.task_id)
                for event in page:
                    if self._is_over(until):
                        return
                    cursor = event.event.seq
                    yield event
                    del event
                del page
            else:
                await self._more(until)

    def seen(self, end: Seq) -> None:
        """Somebody has seen that the log goes up to here."""
        if self._end is None or end > self._end:
            self.ring()

    def ring(self) -> None:
        """There may be more."""
        self._has_news = True
        self._read_if_wanted()

    def fail(self, failure: Exception) -> None:
        """Nothing more can be read. Who follows is told so."""
        self.failure = failure
        self._wake()

    def close(self) -> None:
        """End what its readers follow."""
        self.is_closed = True
        self._wake()

    def drop(self) -> None:
        """Nobody reads it any more."""
        self._bell.close()
        for task in (self._listening, self._reading):
            if task is not None:
                task.cancel()

    # --- inside -------------------------------------------------------------------------------

    def _come(self, cursor: Seq) -> None:
        if self._end is None or cursor > self._end + _FAR:
            # Nobody should wait until what this reader has seen already is read once more.
            self._end = cursor
            self._forget()
            self._has_news = True
            self._wake()  # who is behind now, and reads for itself
        elif cursor > self._end:
            self._has_news = True

    def _is_over(self, until: float | None) -> bool:
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        return self.is_closed or (until is not None and time.time() >= until)

    async def _more(self, until: float | None) -> None:
        """Return when there is more, or nothing to wait for."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        if len(self._waiting) == self.readers:
            self._forget()
        try:
            self._read_if_wanted()
            if until is None:
                await waiter
            else:
                await asyncio.wait({waiter}, timeout=max(0.0, until - time.time()))
        finally:
            self._waiting.discard(waiter)

    def _read_if_wanted(self) -> None:
        if self._has_news and self._waiting and self._reading is None:
            self._has_news = False
            self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._end is not None, "a reader waits, so one has come"
        try:
            page, has_more = await self._shared_pages.after(self._end)
        except Exception as error:
            self._reading = None
            self.fail(error)
            return
        self._reading = None
        self._has_news |= has_more
        for event in page:
            self._keep(event)
        if page:
            self._wake()
        else:
            self._read_if_wanted()

    def _keep(self, event: Shared) -> None:
        self._end = event.event.seq
        self._recent[self._end] = event
        self._weight += event.weight
        while self._weight > _SHARED and len(self._recent) > 1:
            oldest = next(iter(self._recent))
            self._weight -= self._recent.pop(oldest).weight

    def _forget(self) -> None:
        self._recent.clear()
        self._weight = 0

    def _wake(self) -> None:
        # Who is woken waits no more, though it may run only after another has seen the news and
        # waits again: that one would take itself for the last, and the news would be forgotten.
        woken, self._waiting = self._waiting, set()
        for waiter in woken:
            if not waiter.done():
                waiter.set_result(None)

    async def _listen(self) -> None:
        while True:
            await self._bell.wait(_LISTEN_S)
            self.ring()


class Tails:
    """The tails of all tasks that somebody in this process follows, and their one poll."""

    def __init__(
        self, log: LogStore, wakeups: Wakeups, closing: Closing, config: GatewayConfig
    ) -> None:
        self._log = log
        self._wakeups = wakeups
        self._closing = closing
        self._config = config
        self._tails: dict[TaskId, Tail] = {}
        self._polling: asyncio.Task[None] | None = None
        closing.on_close(self._close)

    @contextmanager
    def open(self, task_id: TaskId) -> Iterator[Tail]:
        """The task's tail. From here on nothing that is written is missed: look at the task
        after this, and follow from what was seen."""
        tail = self._tails.get(task_id)
        if tail is None or tail.failure is not None:
            tail = self._begin(task_id)
        tail.readers += 1
        try:
            yield tail
        finally:
            tail.readers -= 1
            if tail.readers == 0:
                tail.drop()
                if self._tails.get(task_id) is tail:
                    del self._tails[task_id]

    def _begin(self, task_id: TaskId) -> Tail:
        bell = self._wakeups.subscribe(task_topic(task_id))
        tail = self._tails[task_id] = Tail(task_id, self._log, bell, self._config)
        if self._closing.is_closed:
            tail.close()
        elif self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        return tail

    async def _poll(self) -> None:
        """One look at the ends of all logs that are followed: the floor under lost wake-ups."""
        while self._tails:
            await asyncio.sleep(jittered(self._config.poll_s))
            task_ids = list(self._tails)
            for start in range(0, len(task_ids), _AT_ONCE):
                await self._look(task_ids[start : start + _AT_ONCE])

    async def _look(self, task_ids: Sequence[TaskId]) -> None:
        try:
            ends = await persist(
                partial(self._log.ends_of, task_ids), self._config.store_patience_s
            )
        except Exception as error:
            for task_id in task_ids:
                if (tail := self._tails.get(task_id)) is not None:
                    tail.fail(error)
            return
        for task_id in task_ids:
            if (tail := self._tails.get(task_id)) is None:
                continue
            if task_id in ends:
                tail.seen(ends[task_id])
            else:
                tail.fail(LogTrimmed(task_id))

    def _close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
        for tail in self._tails.values():
            tail.close()


def _fitting(events: Sequence[Shared], size: int) -> int:
    """How many of the first events are this size together, at least one."""
    total = 0
    for index, event in enumerate(events):
        total += event.weight
        if total > size and index > 0:
            return index
    return len(events)
