"""What a worker wants written under its lease, and what the store says about it.

A `Write` is applied by the one predicate `task_id and fence and write_no`, or changes nothing.
It may be repeated with the same content until its outcome is known, and its original may
arrive late: the numbers have moved then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from outlast.model.ids import (
    BEFORE_ALL,
    Fence,
    LedgerId,
    Millis,
    Seq,
    StepName,
    TaskId,
    Visit,
    WriteNo,
)
from outlast.model.ledger import Intent, LedgerWrite
from outlast.model.pause import DueBy
from outlast.model.task import State


class EventKind(StrEnum):
    """What an event's body holds. JSON names are A2A's; `wire.events` makes A2A events of them.

    TASK      {"message", "caller"}: event 1, the message that created the task
    STATUS    {"state", "message"?, "ask"?, "again"?, "progress"?, "authorized"?}: a new status;
              "again" is the "ask" of a question that is said again, with its pause and time
    MESSAGE   {"state", "message", "answers", "caller", "said"?}: a caller's message to a task;
              "said" is the agent's, which the status still holds when the message answers nothing
    ARTIFACT  {"artifact", "append", "lastChunk"}: an artifact, or a chunk of one
    """

    TASK = "task"
    STATUS = "status"
    MESSAGE = "message"
    ARTIFACT = "artifact"


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event to be logged: it gets its seq and its time from the store.

    is_message marks the rows that history is made of: callers' messages and questions.
    """

    kind: EventKind
    body: Mapping[str, Any]
    is_message: bool = False


@dataclass(frozen=True, kw_only=True)
class LoggedEvent:
    """A row of `task_events`. Events written by gateways and sweeps have no write_no."""

    seq: Seq
    kind: EventKind
    body: Mapping[str, Any]
    is_message: bool
    fence: Fence
    write_no: WriteNo | None
    created_at: Millis


def status_event(state: State, message: Mapping[str, Any] | None = None, **more: Any) -> Event:
    """The event of a new status; what is put in `more` goes into its body as it is."""
    body: dict[str, Any] = {"state": state.value, **more}
    if message is not None:
        body["message"] = message
    return Event(kind=EventKind.STATUS, body=body, is_message=state.is_paused)


def status_of(event: Event) -> Mapping[str, Any] | None:
    """The status that clients see after this event, or None when it leaves the status alone."""
    if event.kind not in (EventKind.STATUS, EventKind.MESSAGE):
        return None
    state, said = event.body["state"], said_in(event.kind, event.body)
    return {"state": state} if said is None else {"state": state, "message": said}


def said_in(kind: EventKind, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The agent's message in the status that this event brings, if there is one."""
    said: Mapping[str, Any] | None = None
    if kind is EventKind.STATUS:
        said = body.get("message")
    elif kind is EventKind.MESSAGE:
        said = body.get("said")
    return said


# --- what a write does to the lease that it is made under -----------------------------------


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Wait for an answer: the last event of the write is the question, its seq the pause's id."""

    state: State
    deadline: DueBy
    remind: DueBy | None = None


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Become claimable again at `until`. When a timer of the ledger is named, its due time is
    recorded there under `timer_key` in the same write."""

    until: DueBy
    timer_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """The attempt failed and will be followed by another after `delay`."""

    delay: Millis
    error: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Hold:
    """An operator must look: never claimed until unheld."""

    reason: str
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Release:
    """Give the task back, claimable at once: a graceful stop."""


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The terminal write: its last event is the terminal status."""

    state: State
    error: Mapping[str, Any] | None = None


Ending = Pause | Wait | Backoff | Hold | Release | Finish


@dataclass(frozen=True, kw_only=True)
class Move:
    """A commit of the checkpoint (attempt and crashes are set back), and where the task stands.

    A change of step comes with a higher visit; `ending_as` is set by the commit that starts a
    hook (the cancel or failure step) and says how the task will end once it has run.

    read: up to where the run has read the inbox. closes: the step has said how the task ends;
    refused while the inbox holds a message after `read`.
    """

    checkpoint: str | None
    step: StepName
    visit: Visit
    ending_as: Mapping[str, Any] | None = None
    read: Seq = BEFORE_ALL
    closes: bool = False


def is_forbidden_by_mark(ending: Ending | None, ledger: Iterable[LedgerWrite]) -> bool:
    """Whether a task that is marked for cancel must not write this: what waits, holds or begins
    something new. The cancel step's own writes are exempt."""
    return isinstance(ending, Pause | Wait | Backoff | Hold) or any(
        isinstance(entry, Intent) for entry in ledger
    )


@dataclass(frozen=True, kw_only=True)
class Write:
    """One write of a run. Without `move` the checkpoint stays, without `ending` the lease does.

    in_hook: written by the cancel step itself, so that the mark does not stop it. From the
    moment a task is marked, a write that pauses, waits, holds or records an intent changes
    nothing unless it is `in_hook`.
    """

    task_id: TaskId
    ledger_id: LedgerId
    fence: Fence
    write_no: WriteNo
    events: tuple[Event, ...] = ()
    ledger: tuple[LedgerWrite, ...] = ()
    move: Move | None = None
    ending: Ending | None = None
    in_hook: bool = False


# --- what the store says about it -----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Committed:
    """The write is in the store, by this call or by an earlier one with the same numbers.

    last_seq: the task's log ends here, as this write left it or, for a repeat, as it is now.
    marked: the task is marked for cancel; the run should go to its cancel step.
    settled: what the ledger had already under keys whose intents or results the write carried.
    """

    last_seq: Seq
    marked: bool = False
    settled: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Lost:
    """The lease is over; nothing was changed."""


@dataclass(frozen=True, kw_only=True)
class Marked:
    """The task is marked for cancel and the write was of the kind that a mark forbids."""


@dataclass(frozen=True, kw_only=True)
class Unread:
    """The write closes the inbox, and a message in it is unread; nothing was changed."""


@dataclass(frozen=True, kw_only=True)
class Busy:
    """The row is locked by somebody else; try again."""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The database refuses this very write, however often it is repeated."""

    reason: str


Verdict = Committed | Lost | Marked | Unread | Busy | Refused
