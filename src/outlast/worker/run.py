"""A run: what happens under one lease. The `Session` of each step in turn."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from outlast.model.artifacts import fold_artifacts
from outlast.model.commit import Event, EventKind, LoggedEvent, Move
from outlast.model.errors import (
    CancelRequested,
    LeaseLost,
    ShuttingDown,
    Stopped,
    StoreUnavailable,
)
from outlast.model.ids import Seq, WorkerId, WriteNo
from outlast.model.lease import Lease
from outlast.model.ledger import Clear, LedgerEntry, LedgerKind, LedgerWrite, Result
from outlast.store.protocols import LogStore, Standing, WorkStore
from outlast.worker.mailbox import Mailbox
from outlast.worker.threads import Threads
from outlast.workflow.session import Written

T = TypeVar("T")

_PAGE = 500
_SETTLE_S = 60.0
_PATIENCE_S = 5.0
_MOST_TELLS = 4


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What all runs of a worker share."""

    work: WorkStore
    log: LogStore
    threads: Threads
    resources: Any
    is_stopping: Callable[[], bool]
    on_stuck: Callable[[str], None]


@dataclass(eq=False, kw_only=True)
class Run:
    """`Session` under one lease.

    `stop` ends it: the step's task is cancelled, every verb raises the reason from then on, and
    what is shielded goes on until it has ended by itself.
    """

    lease: Lease
    owner: WorkerId
    mailbox: Mailbox
    around: Surroundings
    holds: Callable[[], bool]
    first: LoggedEvent
    latest: LoggedEvent
    began: float
    in_hook: bool = False
    on_commit: Callable[[], None] = lambda: None
    _reason: Stopped | None = None
    _is_heard: bool = False
    _step: asyncio.Task[Any] | None = None
    _told_at: float = 0.0
    _told: int = 0
    _ignored: asyncio.Event = field(default_factory=asyncio.Event)
    _shielded: set[asyncio.Future[Any]] = field(default_factory=set)
    _threads: set[asyncio.Future[Any]] = field(default_factory=set)

    @property
    def resources(self) -> Any:
        return self.around.resources

    @property
    def reason(self) -> Stopped | None:
        """What has stopped the current step, or None."""
        return self._reason

    @property
    def is_heard(self) -> bool:
        """Whether the reason has reached the step before it ended: a verb has raised it, or it came
        at an await."""
        return self._is_heard

    # --- stopping -----------------------------------------------------------------------------

    def begin(self, step: asyncio.Task[Any]) -> None:
        """A step begins: `interrupt` will cancel its task."""
        self._step = step
        self._told_at = -_PATIENCE_S
        self._told = 0
        self._ignored.clear()

    def forgive(self) -> None:
        """The next step of the run begins unstopped; a lost lease is not forgiven."""
        if not isinstance(self._reason, LeaseLost):
            self._reason = None
        self._is_heard = False
        self._step = None

    def check(self) -> None:
        if self._reason is None and not self.holds():
            self._reason = LeaseLost("the lease may have ended by the worker's own clock")
        if self._reason is not None:
            raise self._reason

    def stop(self, reason: Stopped) -> Stopped:
        self._is_heard = True
        if self._reason is None:
            self._reason = reason
        return self._reason

    def interrupt(self, reason: Stopped) -> None:
        """Stop from outside: the step leaves at its next await. A lost lease beats any other
        reason, because nothing that this run writes will count.

        May be called again and again. A step that has been told is left to clean up; it is told
        again for a lost lease, and when it has not left for a while.
        """
        is_news = self._reason is None or (
            isinstance(reason, LeaseLost) and not isinstance(self._reason, LeaseLost)
        )
        if is_news:
            self._reason = reason
        now = asyncio.get_running_loop().time()
        if self._step is None or self._step.done():
            return
        if is_news or now - self._told_at >= _PATIENCE_S:
            self._tell(self._step)

    def _tell(self, step: asyncio.Task[Any]) -> None:
        """Cancel the step, and again while it does not leave; one that goes on is given up."""
        if step is not self._step or step.done():
            return
        loop = asyncio.get_running_loop()
        self._told_at = loop.time()
        self._told += 1
        self._is_heard = True
        if self._told > _MOST_TELLS:
            self._ignored.set()
            return
        step.cancel()
        loop.call_later(_PATIENCE_S, self._tell, step)

    async def ended(self, step: asyncio.Task[Any]) -> bool:
        """Wait until the step has ended; False: it goes on although it was told to stop."""
        ignored = asyncio.ensure_future(self._ignored.wait())
        try:
            await asyncio.wait([step, ignored], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ignored.cancel()
        return step.done()

    async def drain(self, patience: float | None) -> bool:
        """Wait until nothing that is shielded is under way any more, however long that takes
        (effects have timeouts of their own), and no thread; False when a thread still runs after
        `patience` seconds."""
        while self._shielded:
            await asyncio.wait(set(self._shielded))
        if self._threads:
            await asyncio.wait(set(self._threads), timeout=patience)
        return not self._threads

    # --- writing ------------------------------------------------------------------------------

    async def write(
        self,
        *,
        events: Sequence[Event] = (),
        ledger: Sequence[LedgerWrite] = (),
        move: Move | None = None,
        urgent: bool = True,
    ) -> Written:
        self.check()
        answered = self.mailbox.put(
            events=events, ledger=ledger, move=move, urgent=urgent, in_hook=self.in_hook
        )
        if move is not None:
            self._follow(move, answered)
        written = await self._until_stopped(asyncio.shield(answered))
        if move is not None and self.around.is_stopping():
            raise self.stop(ShuttingDown("the worker stops; this commit was the last"))
        if written.committed.marked and not self.in_hook:
            raise self.stop(CancelRequested("the task is marked for cancel"))
        return written

    def _follow(self, move: Move, answered: asyncio.Future[Written]) -> None:
        """A commit counts also when its outcome comes after the step was stopped: what the run
        writes next waits for it and goes on from there."""

        def follow(answered: asyncio.Future[Written]) -> None:
            if not answered.cancelled() and answered.exception() is None:
                self.moved(move, answered.result())

        answered.add_done_callback(follow)
        _keep(self._shielded, answered)

    def moved(self, move: Move, written: Written) -> None:
        """The lease as this commit leaves it: attempts and timeouts count from here."""
        self.lease = replace(
            self.lease,
            checkpoint=move.checkpoint if move.checkpoint is not None else self.lease.checkpoint,
            step=move.step,
            visit=move.visit,
            ending_as=move.ending_as or self.lease.ending_as,
            attempt=1,
            crashes=0,
            last_seq=written.committed.last_seq,
            commit_seq=written.committed.last_seq,
            read_seq=max(self.lease.read_seq, move.read),
        )
        self.on_commit()

    async def settle(self, key: str, result: str) -> str:
        """Under the fence while it holds; else by the one write that needs none: the outside has
        done it, whatever became of the lease."""
        try:
            written = await self.mailbox.post(
                ledger=[Result(key=key, result=result)], in_hook=self.in_hook
            )
            return written.committed.settled.get(key, result)
        except LeaseLost:
            return await self._settle_unfenced(key, result)

    async def clear(self, key: str, write_no: WriteNo) -> None:
        with contextlib.suppress(LeaseLost):  # the successor has taken the intent over
            await self.mailbox.post(
                ledger=[Clear(key=key, write_no=write_no)], in_hook=self.in_hook
            )

    async def _settle_unfenced(self, key: str, result: str) -> str:
        deadline = asyncio.get_running_loop().time() + _SETTLE_S
        while True:
            try:
                if await self.around.work.settle(self.lease.ledger_id, key, result):
                    return result
                entry = await self.around.work.entry(self.lease.ledger_id, key)
                return result if entry is None or entry.result is None else entry.result
            except StoreUnavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(random.uniform(0.2, 0.6))

    # --- reading ------------------------------------------------------------------------------

    async def entry(self, key: str) -> LedgerEntry | None:
        return await self._read(lambda: self.around.work.entry(self.lease.ledger_id, key))

    async def entries(self, first: str, last: str) -> Sequence[LedgerEntry]:
        found: list[LedgerEntry] = []
        while True:
            start = found[-1].key + "\x01" if found else first
            page = await self._read(
                lambda start=start: self.around.work.entries(  # type: ignore[misc]
                    self.lease.ledger_id, start, last, limit=_PAGE
                )
            )
            found.extend(page)
            if len(page) < _PAGE:
                return found

    async def open_intents(self, kind: LedgerKind) -> Sequence[LedgerEntry]:
        return await self._read(lambda: self.around.work.open_intents(self.lease.ledger_id, kind))

    async def committed_artifacts(self) -> dict[str, dict[str, Any]]:
        events = await self._artifact_events(Seq(0), self.lease.commit_seq)
        return fold_artifacts(events)

    async def provisional_artifacts(self) -> Sequence[str]:
        events = await self._artifact_events(self.lease.commit_seq, self.lease.last_seq)
        return list(dict.fromkeys(event.body["artifact"]["artifactId"] for event in events))

    async def _artifact_events(self, after: Seq, until: Seq) -> Sequence[LoggedEvent]:
        if after >= until:
            return ()
        return await self._read(
            lambda: self.around.log.artifact_events(self.lease.task_id, after=after, until=until)
        )

    async def messages(self, *, before: Seq | None, limit: int) -> Sequence[LoggedEvent]:
        return await self._read(
            lambda: self.around.log.messages(self.lease.task_id, before=before, limit=limit)
        )

    async def inbox(self) -> Sequence[LoggedEvent]:
        found: list[LoggedEvent] = []
        after = self.lease.read_seq
        while True:
            page = await self._read(
                lambda after=after: self.around.log.received(  # type: ignore[misc]
                    self.lease.task_id, after=after, limit=_PAGE
                )
            )
            found.extend(event for event in page if event.body["answers"] is None)
            if len(page) < _PAGE:
                break
            after = page[-1].seq
        if found and found[-1].seq > self.latest.seq:
            self.latest = found[-1]
        return found

    async def standing(self) -> Standing | None:
        """The lease as the store sees it; None when it has ended."""
        leased = await self._read(lambda: self.around.work.leased_to(self.owner))
        standing = leased.get(self.lease.task_id)
        return standing if standing and standing.fence == self.lease.fence else None

    async def _read(self, read: Callable[[], Awaitable[T]]) -> T:
        """StoreUnavailable never reaches a step: it waits, within the lease."""
        while True:
            self.check()
            try:
                return await self._until_stopped(read())
            except StoreUnavailable:
                await self._until_stopped(asyncio.sleep(random.uniform(0.1, 0.3)))

    # --- the outside --------------------------------------------------------------------------

    async def shielded(self, call: Awaitable[T]) -> T:
        self.check()
        task = asyncio.ensure_future(call)
        _keep(self._shielded, task)
        return await self._until_stopped(asyncio.shield(task))

    async def thread(self, fn: Callable[..., T], *args: Any) -> T:
        self.check()
        thread = self.around.threads.start(fn, *args)
        _keep(self._threads, thread)
        return await self._until_stopped(asyncio.shield(thread))

    async def _until_stopped(self, waiting: Awaitable[T]) -> T:
        """Await; a cancel that came from `interrupt` becomes the reason it was given."""
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._reason is not None:
                raise self._reason from None
            raise
        except (LeaseLost, CancelRequested) as reason:
            raise self.stop(reason) from None


def _keep(kept: set[asyncio.Future[Any]], future: asyncio.Future[Any]) -> None:
    def drop(ended: asyncio.Future[Any]) -> None:
        kept.discard(ended)
        if not ended.cancelled():
            ended.exception()  # whoever waited has left: it is not "never retrieved"

    kept.add(future)
    future.add_done_callback(drop)


async def edges(log: LogStore, lease: Lease) -> tuple[LoggedEvent, LoggedEvent]:
    """The message that created the task, and the last one that its steps know: a message to the
    inbox is none before it was read."""
    first = await log.event(lease.task_id, Seq(1))
    if first is None:
        raise StoreUnavailable(f"task {lease.task_id} has no first event", happened=False)
    before: Seq | None = None
    while True:
        page = await log.messages(lease.task_id, before=before, limit=3)
        for event in reversed(page):
            is_callers = event.kind in (EventKind.TASK, EventKind.MESSAGE)
            is_unread = event.body.get("answers") is None and event.seq > max(1, lease.read_seq)
            if is_callers and not is_unread:
                return first, event
        if not page:
            return first, first
        before = page[0].seq
