"""Waiting: the step ends here, and starts over from its last commit when the wait is over."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from outlast.model.commit import Pause, Wait, status_event
from outlast.model.content import Data, Part
from outlast.model.errors import AuthorError, DeadlinePassed
from outlast.model.ids import Millis
from outlast.model.ledger import Intent, LedgerEntry, LedgerKind
from outlast.model.pause import Ask, DueBy, OnDeadline
from outlast.model.task import State
from outlast.workflow.answers import AnswerRecord
from outlast.workflow.jsontype import JsonType, fault_of
from outlast.workflow.limits import check_key
from outlast.workflow.loops import stands_in_loop
from outlast.workflow.requests import Request, request_of
from outlast.workflow.rules import surrounding_verb
from outlast.workflow.run import Run
from outlast.workflow.suspend import Suspended, Waiting

When = timedelta | datetime


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question as the author wrote it, checked."""

    text: str
    data: Any
    request: Request
    answer: JsonType[Any] | None
    deadline: DueBy
    on_deadline: OnDeadline
    remind: DueBy | None
    key: str | None


@dataclass(frozen=True, kw_only=True)
class Authorization:
    """What an author wants to be authorized, checked. `scheme` names how: what callers see."""

    text: str
    data: Any
    request: Request
    deadline: DueBy
    in_band: bool
    key: str | None


def checked_question(
    run: Run[Any],
    text: str,
    *,
    answer: Any,
    data: Any,
    deadline: When | None,
    on_deadline: str,
    remind: When | None,
    key: str | None,
) -> Question:
    """The question, ready to be asked. Raises AuthorError."""
    if not text.strip():
        raise AuthorError(f"ask got the text {text!r}.", "ask something: the caller sees the text.")
    if on_deadline not in list(OnDeadline):
        raise AuthorError(
            f"ask got on_deadline={on_deadline!r}.", 'write "fail", "cancel" or "resume".'
        )
    latest = run.workflow.longest_pause if deadline is None else deadline
    due = _due_by(latest, what="the deadline of ask")
    _check_pause(run, due, what="ask")
    type_ = None if answer is None else JsonType(answer, what="the answer of ask")
    return Question(
        text=text,
        data=data,
        # The schema is not part of it: a deploy that adds a field leaves open questions valid.
        request=request_of((text, data), what="ask"),
        answer=type_,
        deadline=due,
        on_deadline=OnDeadline(on_deadline),
        remind=None if remind is None else _due_by(remind, what="remind of ask"),
        key=None if key is None else check_key(key, verb="ask"),
    )


async def ask(run: Run[Any], question: Question) -> Any:
    """The answer, if it has come; else the task pauses.

    What fits the schema and not the type is asked again, with the fault named, under the next
    round's key. Raises DeadlinePassed when nobody answered and the question says "resume".
    """
    base = run.key("ask", question.key)
    with _one_wait(run, "ask", question.key):
        fault: str | None = None
        key, round_ = base, 1
        while True:
            entry = await run.session.entry(key)
            if entry is None or entry.result is None:
                raise await _paused(run, question, key, fault)
            record = _record_of(run, question, entry)
            if question.answer is None:
                return record.answer
            try:
                return question.answer.decode(json.dumps(record.value))
            except ValidationError as error:
                fault = fault_of(error)
                round_ += 1
                key = f"{base}#{round_}"


def checked_authorization(
    run: Run[Any],
    text: str,
    *,
    scheme: str | None,
    deadline: When | None,
    in_band: bool,
    key: str | None,
) -> Authorization:
    """What is wanted, ready to be waited for. Raises AuthorError."""
    if not text.strip():
        raise AuthorError(
            f"require_auth got the text {text!r}.",
            "say what has to be authorized: the caller sees the text.",
        )
    latest = run.workflow.longest_pause if deadline is None else deadline
    due = _due_by(latest, what="the deadline of require_auth")
    _check_pause(run, due, what="require_auth")
    return Authorization(
        text=text,
        data=None if scheme is None else {"scheme": scheme},
        request=request_of((text, scheme), what="require_auth"),
        deadline=due,
        in_band=in_band,
        key=None if key is None else check_key(key, verb="require_auth"),
    )


async def require_auth(run: Run[Any], wanted: Authorization) -> Any:
    """What `authorize` brought, if it has come; else the task pauses."""
    key = run.key("require_auth", wanted.key)
    with _one_wait(run, "require_auth", wanted.key):
        entry = await run.session.entry(key)
        if entry is None or entry.result is None:
            asked = Ask(ledger_key=key, in_band=wanted.in_band, due=wanted.deadline)
            message = run.message(wanted.text, wanted.data)
            pause = Pause(state=State.AUTH_REQUIRED, deadline=wanted.deadline)
            raise await _pausing(run, asked, message, pause, wanted.request)
        name = wanted.key or "without key"
        request = wanted.request
        run.check_digest(entry, request.digest, request.text, verb="require_auth", key=name)
        return json.loads(entry.result)["authorized"]


async def sleep(run: Run[Any], until: When, *, key: str | None) -> None:
    """Return when the time has come; else the task waits for it, without a worker."""
    due = _due_by(until, what="sleep", past=True)
    ledger_key = run.key("sleep", None if key is None else check_key(key, verb="sleep"))
    with _one_wait(run, "sleep", key):
        entry = await run.session.entry(ledger_key)
        if entry is None or entry.result is None:
            raise await _suspended(run, Waiting(ending=Wait(until=due, timer_key=ledger_key)))
        recorded = Millis(int(entry.result))
        if recorded > run.lease.claimed_at:
            raise await _suspended(run, Waiting(ending=Wait(until=DueBy(at=recorded))))


# --- one wait at a time -------------------------------------------------------------------------


@contextmanager
def _one_wait(run: Run[Any], verb: str, key: str | None) -> Iterator[None]:
    """The rules of waiting, apart from those about what would be lost."""
    if run.session.in_hook:
        raise AuthorError(
            f"{run.step.name} calls {verb}: what runs before the task ends may not wait.",
            "decide with what is in ctx.checkpoint; effects and reports are fine.",
        )
    if (inside := surrounding_verb()) is not None:
        raise AuthorError(
            f"{verb} is called in the function of {inside}, which may not wait.",
            f"call {verb} in the step itself, for example one question about the whole list.",
        )
    if run.waiting is not None:
        raise AuthorError(
            f"{verb} is called while {run.waiting} waits: two waits at once in one step.",
            "await one after the other.",
        )
    if key is None:
        _check_own_key(run, verb)
    run.waiting = verb
    try:
        yield
        run.passed.add(run.key(verb, key))
    finally:
        run.waiting = None


def _check_own_key(run: Run[Any], verb: str) -> None:
    fix = f'tell them apart: {verb}(…, key="…"), for example with the id of what it is about.'
    if run.key(verb) in run.passed:
        raise AuthorError(
            f"{verb} is called a second time in one visit of step {run.step.name}, without key=.",
            fix,
        )
    # A run that starts over after a commit would meet the first call's answer at the second's
    # place, and nothing could tell: so the first call already has to say.
    if stands_in_loop(run.step.fn):
        raise AuthorError(
            f"{verb} stands in a loop of step {run.step.name}, without key=.",
            fix,
        )


async def _suspended(run: Run[Any], waiting: Waiting) -> BaseException:
    """What ends the run so that the task waits. Raises AuthorError if something would be lost."""
    # Whoever waits at the same time, in a sibling task, gets here or is caught in this moment.
    await asyncio.sleep(0)
    _check_nothing_lost(run)
    run.session.check()
    return run.session.stop(Suspended(waiting))


def _check_nothing_lost(run: Run[Any]) -> None:
    verb = run.waiting
    changed = run.changed()
    if changed:
        raise AuthorError(
            f"{verb} would lose a changed checkpoint: {', '.join(changed)}. After a wait the step "
            "starts over from its last commit.",
            f"`await ctx.commit()` before {verb}, or change it after the answer.",
        )
    artifacts = [*run.outbox.said, *run.outbox.provisional]
    if artifacts:
        raise AuthorError(
            f"{verb} would lose what no commit has followed: artifact {', '.join(artifacts)}.",
            f"`await ctx.commit()` before {verb}.",
        )


# --- the question -------------------------------------------------------------------------------


async def _paused(run: Run[Any], question: Question, key: str, fault: str | None) -> BaseException:
    schema = None if question.answer is None else question.answer.schema(what="the answer of ask")
    asked = Ask(
        ledger_key=key, schema=schema, on_deadline=question.on_deadline, due=question.deadline
    )
    text = question.text
    if fault is not None:
        text = f"{text}\n\nThe last answer does not fit: {fault}"
    parts: list[Part] = [] if schema is None else [Data({"schema": schema})]
    message = run.message(text, question.data, *parts)
    pause = Pause(state=State.INPUT_REQUIRED, deadline=question.deadline, remind=question.remind)
    return await _pausing(run, asked, message, pause, question.request)


async def _pausing(
    run: Run[Any], asked: Ask, message: Mapping[str, Any] | None, pause: Pause, request: Request
) -> BaseException:
    # Readers of the open question shall not see what an earlier run left half-written.
    rewinds = await run.outbox.rewinds()
    event = status_event(pause.state, message, ask=asked.to_json())
    intent = Intent(
        key=asked.ledger_key,
        kind=LedgerKind.ANSWER,
        digest=request.digest,
        request=request.text,
    )
    waiting = Waiting(ending=pause, events=(*rewinds, event), ledger=(intent,))
    return await _suspended(run, waiting)


def _record_of(run: Run[Any], question: Question, entry: LedgerEntry) -> AnswerRecord:
    request = question.request
    name = question.key or "without key"
    run.check_digest(entry, request.digest, request.text, verb="ask", key=name)
    body = json.loads(entry.result or "{}")
    if body.get("deadline_passed"):
        raise DeadlinePassed(f"nobody answered in time: {question.text}")
    return AnswerRecord.from_json(body)


# --- times --------------------------------------------------------------------------------------


def _due_by(when: object, *, what: str, past: bool = False) -> DueBy:
    match when:
        case timedelta():
            if when <= timedelta(0) and not past:
                raise AuthorError(f"{what} is {when}.", "give a time that is still to come.")
            return DueBy(after=Millis(max(0, when // timedelta(milliseconds=1))))
        case datetime() if when.tzinfo is not None:
            return DueBy(at=Millis(int(when.timestamp() * 1000)))
        case datetime():
            raise AuthorError(
                f"{what} is {when}, a time without a time zone.",
                "say which: datetime.now(UTC) + …, or a timedelta.",
            )
    raise AuthorError(f"{what} is {when!r}.", "give a timedelta, or a datetime with a time zone.")


def _check_pause(run: Run[Any], due: DueBy, *, what: str) -> None:
    # The later of both clocks: the store's may have been moved, the claim's time is its last word.
    now = max(run.lease.claimed_at, Millis(time.time_ns() // 1_000_000))
    length = due.after if due.after is not None else (due.at or 0) - now
    longest = run.workflow.longest_pause
    if length > longest // timedelta(milliseconds=1):
        raise AuthorError(
            f"The deadline of {what} is further away than {longest}, the longest pause of "
            f"{run.workflow.name}.",
            "choose an earlier one, or raise Workflow(longest_pause=…).",
        )
