"""How a step ended: one closed union, made in one place."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outlast.model.errors import (
    AuthorError,
    CancelRequested,
    Failed,
    LeaseLost,
    Rejected,
    ShuttingDown,
    Stopped,
)
from outlast.model.ids import new_message_id
from outlast.workflow.next import Fail, Next, Reject
from outlast.workflow.suspend import BrokenRule, OutcomeUnknown, Suspended, Waiting

_ERROR_BYTES = 8192


class StepTimedOut(Stopped):
    """The step took longer than its timeout since its last commit."""


@dataclass(frozen=True)
class Returned:
    """The step is done; None goes on with the step that follows."""

    next: Next | None


@dataclass(frozen=True)
class Waits:
    """The step waits for an answer or a timer."""

    waiting: Waiting


@dataclass(frozen=True)
class Erred:
    """The step raised, or took too long: the retry policy decides."""

    error: BaseException


@dataclass(frozen=True)
class Broke:
    """The author broke a rule: the task is held until a fix is deployed."""

    error: AuthorError


@dataclass(frozen=True)
class Unknown:
    """Whether an at-most-once effect happened is for an operator to say."""

    error: OutcomeUnknown


@dataclass(frozen=True)
class Cancels:
    """The task is marked: the hook runs next."""


@dataclass(frozen=True)
class Shuts:
    """The worker stops: the lease is given back."""


@dataclass(frozen=True)
class Ignores:
    """The step goes on although it was told to stop, again and again."""


@dataclass(frozen=True)
class Gone:
    """The lease is over: nothing more may be written."""


Outcome = Returned | Waits | Erred | Broke | Unknown | Cancels | Shuts | Ignores | Gone


def classify(
    value: Next | None,
    error: BaseException | None,
    reason: Stopped | None,
    *,
    is_heard: bool = True,
) -> Outcome:
    """How the step ended, from what it returned or raised and from what had stopped it.

    What stopped the run counts even when the author's code ate it: it may have left out half of
    its work. Only what the step has not heard of, because it had just returned, may wait until its
    result is committed; a lost lease may not.
    """
    if isinstance(reason, LeaseLost):
        return Gone()
    if error is None and (reason is None or not is_heard):
        return Returned(value)
    stopped = reason or next(_stops_in(error), None)
    match stopped:
        case None:
            return _erred(error) if error is not None else Returned(value)
        case Suspended(waiting=waiting):
            return Waits(waiting)
        case BrokenRule(error=broken):
            # The rule's own traceback begins in the verb; the stop has come through the step.
            return Broke(broken.with_traceback(stopped.__traceback__))
        case OutcomeUnknown():
            return Unknown(stopped)
        case StepTimedOut():
            return Erred(TimeoutError(str(stopped)))
        case LeaseLost():
            return Gone()
        case CancelRequested():
            return Cancels()
        case ShuttingDown():
            return Shuts()
        case _:
            return Erred(stopped)


def _erred(error: BaseException) -> Outcome:
    match error:
        case Failed():
            return Returned(Fail(str(error)))
        case Rejected():
            return Returned(Reject(str(error)))
        case AuthorError():
            return Broke(error)
        case _:
            return Erred(error)


def _stops_in(error: BaseException | None) -> Iterator[Stopped]:
    """The `Stopped`s in an error, found inside exception groups too."""
    if isinstance(error, Stopped):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _stops_in(inner)


@dataclass(frozen=True)
class Report:
    """An error as operators read it, and the reference by which callers can ask about it."""

    reference: str
    error: dict[str, Any]


def report_of(error: BaseException) -> Report:
    reference = new_message_id()[-8:]
    trace = "".join(traceback.format_exception(error))
    return Report(
        reference=reference,
        error={
            "reference": reference,
            "type": type(error).__name__,
            "text": _bounded(str(error), 1024),
            "traceback": _bounded(trace, _ERROR_BYTES),
        },
    )


def _bounded(text: str, limit: int) -> str:
    """The end of a text says most about an error; NUL is no database's friend."""
    clean = text.replace("\x00", "\\0").encode("utf-8", "replace").decode()
    return clean if len(clean) <= limit else "…" + clean[-limit:]
