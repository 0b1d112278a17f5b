"""One mailbox per lease owns `write_no`.

Whatever the coroutines of a run want written goes through it, and what waits there together goes
out as one write. One write is under way at a time; once sent it is repeated with the same content
until its outcome is known, whoever has stopped waiting for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import orjson

from outlast.model.commit import (
    Busy,
    Committed,
    Ending,
    Event,
    EventKind,
    Lost,
    Marked,
    Move,
    Refused,
    Unread,
    Verdict,
    Write,
    is_forbidden_by_mark,
)
from outlast.model.content import joined, part_from_json
from outlast.model.errors import CancelRequested, LeaseLost, OutlastError, Stopped
from outlast.model.ids import WriteNo
from outlast.model.lease import Lease
from outlast.model.ledger import LedgerWrite
from outlast.workflow.session import Written

T = TypeVar("T")
Submit = Callable[[Write], Awaitable[Verdict]]

COALESCE_S = 0.1
COALESCE_BYTES = 4096


class WriteRefused(OutlastError):
    """The database refuses what the run wants written, however often it is tried."""


class UnreadMessages(OutlastError):
    """The step has said how the task ends, and a message in the inbox is unread."""


@dataclass(eq=False)
class _Letter:
    """What one coroutine wants written."""

    events: Sequence[Event]
    ledger: Sequence[LedgerWrite]
    move: Move | None
    ending: Ending | None
    urgent: bool
    in_hook: bool
    answered: asyncio.Future[Written]

    @property
    def is_final(self) -> bool:
        return self.move is not None or self.ending is not None

    @property
    def is_stopped_by_mark(self) -> bool:
        return not self.in_hook and is_forbidden_by_mark(self.ending, self.ledger)

    @property
    def closes_inbox(self) -> bool:
        return self.move is not None and self.move.closes


class Mailbox:
    """The writes of one run, in the order in which they were posted."""

    def __init__(
        self, lease: Lease, submit: Submit, *, on_logged: Callable[[], None] = lambda: None
    ) -> None:
        self._lease = lease
        self._submit = submit
        self._on_logged = on_logged
        self._write_no = WriteNo(0)
        self._letters: list[_Letter] = []
        self._urgent = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._lost = False

    async def post(
        self,
        *,
        events: Sequence[Event] = (),
        ledger: Sequence[LedgerWrite] = (),
        move: Move | None = None,
        ending: Ending | None = None,
        in_hook: bool = False,
    ) -> Written:
        """`put`, and wait for the answer. A caller that is cancelled meanwhile stops waiting; what
        it posted is written all the same."""
        return await asyncio.shield(
            self.put(events=events, ledger=ledger, move=move, ending=ending, in_hook=in_hook)
        )

    def put(
        self,
        *,
        events: Sequence[Event] = (),
        ledger: Sequence[LedgerWrite] = (),
        move: Move | None = None,
        ending: Ending | None = None,
        urgent: bool = True,
        in_hook: bool = False,
    ) -> asyncio.Future[Written]:
        """Have this written, after all that was put before; the answer comes when it is in the
        store.

        It is LeaseLost when the lease is over, CancelRequested when the task is marked and this
        may not be written any more, UnreadMessages when this closes an inbox that holds what is
        unread, WriteRefused when the database refuses the content.
        """
        letter = _Letter(
            events=events,
            ledger=ledger,
            move=move,
            ending=ending,
            urgent=urgent,
            in_hook=in_hook,
            answered=asyncio.get_running_loop().create_future(),
        )
        letter.answered.add_done_callback(_retrieved)
        if self._lost:
            _answer([letter], LeaseLost("the lease of this run is over"))
            return letter.answered
        self._letters.append(letter)
        if urgent or _size(self._letters) >= COALESCE_BYTES:
            self._urgent.set()
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all(), name="outlast-mailbox")
        return letter.answered

    async def _send_all(self) -> None:
        while self._letters:
            if not self._urgent.is_set():
                try:
                    async with asyncio.timeout(COALESCE_S):
                        await self._urgent.wait()
                except TimeoutError:
                    pass
            self._urgent.clear()
            await self._send(self._take())

    def _take(self) -> list[_Letter]:
        """What goes out now: all that waits, up to the first commit or end. What was posted after
        that is no part of it: a chunk would count as committed, an event would follow the last."""
        finals = (n for n, letter in enumerate(self._letters, 1) if letter.is_final)
        count = next(finals, len(self._letters))
        letters, self._letters = self._letters[:count], self._letters[count:]
        if any(letter.urgent for letter in self._letters):
            self._urgent.set()
        return letters

    async def _send(self, letters: list[_Letter]) -> None:
        try:
            verdict = await self._submit(self._write_of(letters))
        except Exception as error:
            _answer(letters, error)
            return
        match verdict:
            case Committed():
                self._write_no = WriteNo(self._write_no + 1)
                written = Written(committed=verdict, write_no=self._write_no)
                for letter in letters:
                    if not letter.answered.done():
                        letter.answered.set_result(written)
                if any(letter.events for letter in letters):
                    self._on_logged()
            case Lost():
                self._lost = True
                waiting, self._letters = self._letters, []
                _answer(letters + waiting, LeaseLost("another write has ended the lease"))
            case Marked():
                stopped = [letter for letter in letters if letter.is_stopped_by_mark]
                await self._part(letters, stopped, CancelRequested("the task is marked for cancel"))
            case Unread():
                closing = [letter for letter in letters if letter.closes_inbox]
                await self._part(letters, closing, UnreadMessages("the inbox holds a message"))
            case Refused(reason=reason):
                await self._single_out(letters, reason)
            case Busy():
                raise AssertionError("the committer never answers Busy")

    async def _part(
        self, letters: list[_Letter], stopped: list[_Letter], reason: Exception | Stopped
    ) -> None:
        """Nothing was changed, because of the stopped ones: these are answered, and the rest goes
        out without them."""
        _answer(stopped, reason)
        if rest := [letter for letter in letters if letter not in stopped]:
            await self._send(rest)

    async def _single_out(self, letters: list[_Letter], reason: str) -> None:
        """Only the guilty one fails: the letters go one by one, in order."""
        if len(letters) == 1:
            _answer(letters, WriteRefused(reason))
            return
        for letter in letters:
            await self._send([letter])

    def _write_of(self, letters: list[_Letter]) -> Write:
        moves: list[Move | None] = [letter.move for letter in letters]
        endings: list[Ending | None] = [letter.ending for letter in letters]
        return Write(
            task_id=self._lease.task_id,
            ledger_id=self._lease.ledger_id,
            fence=self._lease.fence,
            write_no=self._write_no,
            events=coalesced([event for letter in letters for event in letter.events]),
            ledger=tuple(entry for letter in letters for entry in letter.ledger),
            move=_last(moves),
            ending=cast("Ending | None", _last(endings)),
            # One letter of the hook must not carry another's intent past the mark.
            in_hook=any(letter.in_hook for letter in letters)
            and not any(letter.is_stopped_by_mark for letter in letters),
        )


def coalesced(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events of one write with neighbouring chunks of an artifact made one, and only the
    newest of neighbouring progress reports kept."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        if last is not None and _are_chunks(last, event):
            out[-1] = _joined(last, event)
        elif last is not None and _is_progress(last) and _is_progress(event):
            out[-1] = event
        else:
            out.append(event)
    return tuple(out)


def _are_chunks(first: Event, second: Event) -> bool:
    return (
        first.kind is EventKind.ARTIFACT
        and second.kind is EventKind.ARTIFACT
        and bool(second.body["append"])
        and first.body["artifact"]["artifactId"] == second.body["artifact"]["artifactId"]
        and not first.body["lastChunk"]
    )


def _joined(first: Event, second: Event) -> Event:
    parts = [
        part_from_json(part)
        for event in (first, second)
        for part in event.body["artifact"]["parts"]
    ]
    artifact = {
        **second.body["artifact"],
        **first.body["artifact"],
        "parts": [part.to_json() for part in joined(parts)],
    }
    body = {**first.body, "artifact": artifact, "lastChunk": second.body["lastChunk"]}
    return replace(first, body=body)


def _is_progress(event: Event) -> bool:
    return event.kind is EventKind.STATUS and "progress" in event.body


def _size(letters: Sequence[_Letter]) -> int:
    return sum(len(orjson.dumps(event.body)) for letter in letters for event in letter.events)


def _answer(letters: Sequence[_Letter], error: BaseException) -> None:
    for letter in letters:
        if not letter.answered.done():
            letter.answered.set_exception(error)


def _retrieved(answered: asyncio.Future[Written]) -> None:
    """Nobody may be waiting any more: an error is not "never retrieved" then."""
    if not answered.cancelled():
        answered.exception()


def _last(values: Sequence[T | None]) -> T | None:
    last: T | None = None
    for value in values:
        last = value if value is not None else last
    return last
