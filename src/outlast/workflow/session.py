"""The seam between what an author calls and what runs it.

`Context` turns verbs into ledger entries, events and waits; a `Session` carries them to the store
under one lease. The worker's attempt implements it; nothing here knows the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from outlast.model.commit import Committed, Event, LoggedEvent, Move
from outlast.model.errors import Stopped
from outlast.model.ids import Seq, WriteNo
from outlast.model.lease import Lease
from outlast.model.ledger import LedgerEntry, LedgerKind, LedgerWrite

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Written:
    """A write that is in the store, and its number under the fence."""

    committed: Committed
    write_no: WriteNo


class Session(Protocol):
    """One run of one step under one lease.

    Every method that waits raises the `Stopped` that ends the run, once there is one.
    """

    @property
    def lease(self) -> Lease: ...

    @property
    def resources(self) -> Any: ...

    @property
    def first(self) -> LoggedEvent:
        """Event 1: the message that created the task."""
        ...

    @property
    def latest(self) -> LoggedEvent:
        """The newest event that carries a caller's message."""
        ...

    @property
    def in_hook(self) -> bool:
        """Whether this is the cancel or failure step, which may not wait."""
        ...

    def check(self) -> None:
        """Raise what has stopped this run, or nothing. Called at the start of every verb, and
        before anything is asked of the outside: a lease may have ended by its own clock."""

    def stop(self, reason: Stopped) -> Stopped:
        """Note why the run stops. The first reason stays; it is returned, to be raised."""
        ...

    async def write(
        self,
        *,
        events: Sequence[Event] = (),
        ledger: Sequence[LedgerWrite] = (),
        move: Move | None = None,
        urgent: bool = True,
    ) -> Written:
        """Have this written under the lease, together with what else waits to be written.

        Returns when it is in the store. What is not `urgent` may wait for company (100 ms, 4 KiB)
        but never goes out after something that was written later.
        """
        ...

    async def entry(self, key: str) -> LedgerEntry | None:
        """The ledger's entry under the key."""
        ...

    async def entries(self, first: str, last: str) -> Sequence[LedgerEntry]:
        """All entries with first <= key < last, in key order (read in pages)."""
        ...

    async def open_intents(self, kind: LedgerKind) -> Sequence[LedgerEntry]:
        """Entries of this kind whose outcome is unknown."""
        ...

    async def settle(self, key: str, result: str) -> str:
        """Record what an effect brought, even when the lease is lost meanwhile; returns the result
        that the ledger holds, which is an earlier one where there was one."""
        ...

    async def clear(self, key: str, write_no: WriteNo) -> None:
        """Forget the intent of the call `write_no`, which certainly did nothing; also when the run
        has been stopped meanwhile. Nothing is changed when the lease is lost."""
        ...

    async def shielded(self, call: Awaitable[T]) -> T:
        """Await a call to the outside that nothing may interrupt. When the run stops meanwhile,
        the reason is raised here, but the call goes on, and the lease ends only after it."""
        ...

    async def committed_artifacts(self) -> dict[str, dict[str, Any]]:
        """The artifacts as of the last commit, by id, as A2A's JSON."""
        ...

    async def provisional_artifacts(self) -> Sequence[str]:
        """Ids of artifacts that an earlier run left with chunks after the last commit."""
        ...

    async def messages(self, *, before: Seq | None, limit: int) -> Sequence[LoggedEvent]:
        """The newest events that history is made of, in order."""
        ...

    async def inbox(self) -> Sequence[LoggedEvent]:
        """Callers' messages that no commit has read and that answer no question, in order. The
        last of them is the latest from now on."""
        ...

    async def thread(self, fn: Callable[..., T], *args: Any) -> T:
        """Run blocking code in the worker's own bounded pool."""
        ...
