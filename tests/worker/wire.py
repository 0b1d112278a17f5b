"""What stands between a worker and its store: a network that a test cuts, or that loses the reply
to one call, holds one up, or delivers one late.

    lost = hired.wire.lose_reply("commit", when=carries(Intent))
    held = hired.wire.hold_reply("claim")
    late = hired.wire.deliver_late("commit", when=ends_with(Backoff))

Each affects one call, the next of its kind; `happened` tells when it did. The worker's loop and
its beat's loop are different ones, so everything here is safe between threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from outlast.model.commit import Ending, Write
from outlast.model.errors import StoreUnavailable
from outlast.model.ledger import LedgerWrite

S = TypeVar("S")

Call = Callable[[], Awaitable[Any]]
When = Callable[..., bool]


class Signal:
    """Something that has happened, told to any thread and any loop."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, within: float = 10.0) -> None:
        async with asyncio.timeout(within):
            while not self._event.is_set():
                await asyncio.sleep(0.002)


@dataclass(kw_only=True)
class Fault:
    """What happens to one call. `happened` is set when it has."""

    verb: str
    when: When
    happened: Signal = field(default_factory=Signal)

    async def carry(self, call: Call) -> Any:
        raise NotImplementedError


class LostReply(Fault):
    """The call is executed, and its caller never learns of it."""

    async def carry(self, call: Call) -> Any:
        await call()
        self.happened.set()
        raise StoreUnavailable("the reply was lost")


class Late(Fault):
    """The caller gives up on the call before it is executed: `arrive` executes it."""

    call: Call | None = None

    async def carry(self, call: Call) -> Any:
        self.call = call
        self.happened.set()
        raise StoreUnavailable("nothing was heard of the call")

    async def arrive(self) -> Any:
        assert self.call is not None
        return await self.call()


@dataclass(kw_only=True)
class Broken(Fault):
    """The call fails with an error of the store's own making."""

    error: Exception

    async def carry(self, call: Call) -> Any:
        self.happened.set()
        raise self.error


@dataclass(kw_only=True)
class Held(Fault):
    """The call, or with `executed` its reply, is on its way until it is released."""

    executed: bool
    released: Signal = field(default_factory=Signal)

    async def carry(self, call: Call) -> Any:
        reply = await call() if self.executed else None
        self.happened.set()
        await self.released.wait(within=30)
        return reply if self.executed else await call()

    def release(self) -> None:
        self.released.set()


class Wire:
    """Carries a worker's calls to its stores. `around` gives the store at the other end."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._is_cut = False

    def around(self, store: S) -> S:
        return cast(S, _Far(self, store))

    # --- what a test does ---------------------------------------------------------------------

    def cut(self) -> None:
        """From now on no call is answered, and none that has not left arrives."""
        self._is_cut = True

    def mend(self) -> None:
        self._is_cut = False

    def lose_reply(self, verb: str, when: When = lambda *_: True) -> LostReply:
        return self._plan(LostReply(verb=verb, when=when))

    def deliver_late(self, verb: str, when: When = lambda *_: True) -> Late:
        return self._plan(Late(verb=verb, when=when))

    def fail(self, verb: str, error: Exception) -> Broken:
        return self._plan(Broken(verb=verb, when=lambda *_: True, error=error))

    def hold_call(self, verb: str, when: When = lambda *_: True) -> Held:
        return self._plan(Held(verb=verb, when=when, executed=False))

    def hold_reply(self, verb: str, when: When = lambda *_: True) -> Held:
        return self._plan(Held(verb=verb, when=when, executed=True))

    def _plan(self, fault: F) -> F:
        with self._lock:
            self._faults.append(fault)
        return fault

    # --- what its stores do -------------------------------------------------------------------

    async def carry(self, verb: str, args: tuple[Any, ...], call: Call) -> Any:
        self._check()
        fault = self._take(verb, args)
        reply = await (call() if fault is None else fault.carry(call))
        self._check()
        return reply

    def _check(self) -> None:
        if self._is_cut:
            raise StoreUnavailable("the network is cut")

    def _take(self, verb: str, args: tuple[Any, ...]) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.verb == verb and fault.when(*args):
                    self._faults.remove(fault)
                    return fault
        return None


F = TypeVar("F", bound=Fault)


class _Far:
    """A store at the other end of a wire."""

    def __init__(self, wire: Wire, store: Any) -> None:
        self._wire = wire
        self._store = store

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._store, verb)

        async def through(*args: Any, **named: Any) -> Any:
            return await self._wire.carry(verb, args, lambda: call(*args, **named))

        return through


# --- which commit ---------------------------------------------------------------------------------


def carries(kind: type[LedgerWrite], key: str | None = None) -> When:
    """A commit with a ledger entry of this kind, under this key."""
    return _has(
        lambda write: any(
            isinstance(entry, kind) and key in (None, entry.key) for entry in write.ledger
        )
    )


def ends_with(kind: type[Ending]) -> When:
    """A commit that ends the lease so."""
    return _has(lambda write: isinstance(write.ending, kind))


def moves(write: Write) -> bool:
    return write.move is not None and write.ending is None


def is_commit(batch: list[Write]) -> bool:
    """A commit of a checkpoint under which the run goes on."""
    return any(map(moves, batch))


def says(text: str) -> When:
    """A commit with an event in which this text stands."""
    return _has(lambda write: any(text in str(event.body) for event in write.events))


def _has(matches: Callable[[Write], bool]) -> When:
    return lambda batch: any(map(matches, batch))
