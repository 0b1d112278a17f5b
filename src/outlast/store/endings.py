"""Ending a task from outside its run: by a caller's cancel, or by a sweep.

Called inside a transaction that has taken the task's row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.model.commit import Event, EventKind, status_event, status_of
from outlast.model.content import Message
from outlast.model.ids import TaskId
from outlast.model.ledger import LedgerKind
from outlast.model.task import State
from outlast.store.codec import to_text
from outlast.store.database import Catalog, Row, Script
from outlast.store.protocols import Settings


def end(
    queries: Catalog, settings: Settings, row: Row, state: State, text: str | None, outcome: str
) -> Script[None]:
    """Write the terminal state and event, raise the fence, clear the lease, close the run."""
    event = status_event(state, said(text))
    rows = yield queries(
        "tasks_end",
        task_id=row["task_id"],
        state=state.value,
        status=to_text(status_of(event)),
        retention=settings.retention_ms,
        fold_from=settings.fold_from,
    )
    yield append(queries, rows[0], TaskId(row["task_id"]), event)
    if row["lease_owner"] is not None:
        yield close_run(queries, row, outcome)


def mark_or_end(
    queries: Catalog, settings: Settings, row: Row, state: State, text: str | None, outcome: str
) -> Script[None]:
    """End the task, by way of its cancel or failure step where its version has one.

    A task that has never committed a checkpoint has nothing to clean up after, and one that is
    marked already has had its hook: these end at once.
    """
    hook = "on_cancel" if state is State.CANCELED else "on_failure"
    known = yield queries(
        "versions_get",
        agent=row["agent"],
        workflow=row["workflow"],
        version=row["version"],
    )
    is_marked = row["cancel_requested_at"] is not None
    if is_marked or row["checkpoint"] is None or not known or not known[0][hook]:
        yield from end(queries, settings, row, state, text, outcome)
        return
    event = status_event(State.WORKING)
    changes = row["state"] != State.WORKING.value
    rows = yield queries(
        "tasks_mark",
        task_id=row["task_id"],
        ending_as=to_text(ending_as(state, text)),
        status=to_text(status_of(event)) if changes else None,
        events=1 if changes else 0,
    )
    if changes:
        yield append(queries, rows[0], TaskId(row["task_id"]), event)


def ending_as(state: State, text: str | None) -> dict[str, Any]:
    """How a task ends once its hook has run; `hook` names the step."""
    hook = "on_cancel" if state is State.CANCELED else "on_failure"
    return {"state": state.value, "text": text, "hook": hook}


def append(queries: Catalog, numbers: Row, task_id: TaskId, event: Event) -> Any:
    """The event that a gateway or a sweep has just made room for, under the task's own fence."""
    return queries(
        "task_events_append",
        task_id=task_id,
        seq=numbers["next_seq"] - 1,
        fence=numbers["fence"],
        write_no=None,
        n=0,
        kind=event.kind.value,
        body=to_text(event.body),
        is_message=event.is_message,
    )


def close_run(queries: Catalog, row: Row, outcome: str, error: str | None = None) -> Any:
    return queries(
        "task_runs_end",
        task_id=row["task_id"],
        fence=row["fence"],
        write_no=None,
        outcome=outcome,
        error=error,
    )


def outcome_of_pause(queries: Catalog, row: Row, key: str, result: Mapping[str, Any]) -> Any:
    """What became of a question, under its key; its intent is there since the pause."""
    return queries(
        "task_ledger_keep",
        ledger_id=row["ledger_id"],
        key=key,
        kind=LedgerKind.ANSWER.value,
        digest=None,
        fence=row["fence"],
        write_no=0,
        result=to_text(result),
    )


def said(text: str | None) -> dict[str, Any] | None:
    return None if text is None else Message.agent(text).to_json()


def message_event(
    kind: EventKind, message: Any, caller: Any, *, answers: int | None = None
) -> Event:
    """A caller's message in the log: event 1 of a task, or the answer to a pause."""
    body: dict[str, Any] = {"message": message, "caller": caller}
    if kind is EventKind.MESSAGE:
        body = {"state": State.WORKING.value, "answers": answers, **body}
    return Event(kind=kind, body=body, is_message=True)


def inbox_event(status: Mapping[str, Any], message: Any, caller: Any) -> Event:
    """A caller's message for the inbox: it leaves the status as it is, so it says it again."""
    body: dict[str, Any] = {"state": status["state"], "answers": None}
    body |= {"message": message, "caller": caller}
    if "message" in status:
        body["said"] = status["message"]
    return Event(kind=EventKind.MESSAGE, body=body, is_message=True)
