"""The one write of a worker: one type (`Write`), one predicate, one verdict.

The first statement of the transaction takes the task rows; the second applies a write *where*
`task_id` and `fence` and `write_no` are still the writer's, and raises `write_no`. Everything
else hangs on that row having been returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, assert_never

from outlast.model.commit import (
    Backoff,
    Busy,
    Committed,
    Ending,
    Finish,
    Hold,
    Lost,
    Marked,
    Pause,
    Refused,
    Release,
    Unread,
    Verdict,
    Wait,
    Write,
    is_forbidden_by_mark,
    status_of,
)
from outlast.model.ids import Millis, Seq, TaskId
from outlast.model.ledger import Clear, Intent, Kept, LedgerKind, LedgerWrite, Result
from outlast.store.codec import to_text, to_text_or_none
from outlast.store.database import Catalog, Row, Script
from outlast.store.protocols import Settings


def commit_script(
    queries: Catalog, settings: Settings, batch: Sequence[Write], *, patient: bool
) -> Script[dict[TaskId, Verdict]]:
    """All writes of the batch in one transaction, in task_id order; at most one per task."""
    ordered = sorted(batch, key=lambda write: write.task_id)
    ids = to_text([write.task_id for write in ordered])
    lock = "tasks_lock_patiently" if patient else "tasks_lock"
    locked = {row["task_id"] for row in (yield queries(lock, task_ids=ids))}
    verdicts: dict[TaskId, Verdict] = {}
    for write in ordered:
        if write.task_id in locked:
            verdicts[write.task_id] = yield from _apply(queries, settings, write)
        else:
            verdicts[write.task_id] = yield from _outcome(queries, write)
    return verdicts


def _apply(queries: Catalog, settings: Settings, write: Write) -> Script[Verdict]:
    rows = yield queries("tasks_commit", **_columns(write, settings))
    if not rows:
        return (yield from _outcome(queries, write))
    row = rows[0]
    first = row["next_seq"] - len(write.events)
    for n, event in enumerate(write.events):
        yield queries(
            "task_events_append",
            task_id=write.task_id,
            seq=first + n,
            fence=write.fence,
            write_no=write.write_no + 1,
            n=n,
            kind=event.kind.value,
            body=to_text(event.body),
            is_message=event.is_message,
        )
    preceded: list[LedgerWrite] = []
    for entry in write.ledger:
        if not (yield from _record(queries, write, entry)):
            preceded.append(entry)
    if write.ending is not None:
        yield from _end_run(queries, write, write.ending, row)
    settled = yield from _settled(queries, write, preceded)
    return Committed(
        last_seq=Seq(row["next_seq"] - 1),
        marked=row["cancel_requested_at"] is not None,
        settled=settled,
    )


def _outcome(queries: Catalog, write: Write) -> Script[Verdict]:
    """What became of a write that the predicate did not let through.

    write_no has moved under the same fence, or the log or the runs hold the write's own numbers:
    an earlier call did it. The same numbers still: a mark, an unread message or a lock was in the
    way. Otherwise
    somebody else has ended the lease, or the store was set back to before this write.
    """
    rows = yield queries(
        "tasks_outcome", task_id=write.task_id, fence=write.fence, write_no=write.write_no
    )
    if not rows:
        return Lost()
    row = rows[0]
    is_this_lease = row["fence"] == write.fence
    if is_this_lease and row["write_no"] == write.write_no:
        if row["cancel_requested_at"] is not None and _is_stopped_by_mark(write):
            return Marked()
        return Unread() if _leaves_unread(write, row) else Busy()
    has_moved = is_this_lease and row["write_no"] > write.write_no
    if has_moved or row["logged"] or row["ended"]:
        settled = yield from _settled(queries, write, write.ledger)
        return Committed(
            last_seq=Seq(row["next_seq"] - 1),
            marked=row["cancel_requested_at"] is not None,
            settled=settled,
        )
    return Lost()


def _is_stopped_by_mark(write: Write) -> bool:
    return not write.in_hook and is_forbidden_by_mark(write.ending, write.ledger)


def _leaves_unread(write: Write, row: Row) -> bool:
    move = write.move
    if move is None or not move.closes:
        return False
    return bool(row["inbox_seq"] > max(row["read_seq"], move.read))


def _columns(write: Write, settings: Settings) -> dict[str, Any]:
    """The parameters of `tasks_commit`."""
    status = None
    for event in write.events:
        status = status_of(event) or status
    move = write.move
    columns: dict[str, Any] = {
        "task_id": write.task_id,
        "fence": write.fence,
        "write_no": write.write_no,
        "events": len(write.events),
        "status": to_text_or_none(status),
        "state": None if status is None else status["state"],
        "commits": move is not None,
        "checkpoint": None if move is None else move.checkpoint,
        "step": None if move is None else move.step,
        "visit": None if move is None else move.visit,
        "ending_as": None if move is None else to_text_or_none(move.ending_as),
        "read": 0 if move is None else move.read,
        "closes": move is not None and move.closes,
        "ends": write.ending is not None,
        "stopped_by_mark": _is_stopped_by_mark(write),
        "failures": 0,
        "pauses": False,
        "retention": None,
        "fold_from": settings.fold_from,
        "held_reason": None,
    }
    columns |= dict.fromkeys(
        ("ready_at", "ready_after", "deadline_at", "deadline_after", "remind_at", "remind_after")
    )
    if write.ending is not None:
        columns |= _ending_columns(write.ending, settings)
    return columns


def _ending_columns(ending: Ending, settings: Settings) -> dict[str, Any]:
    match ending:
        case Pause(deadline=deadline, remind=remind):
            return {
                "pauses": True,
                "deadline_at": deadline.at,
                "deadline_after": deadline.after,
                "remind_at": None if remind is None else remind.at,
                "remind_after": None if remind is None else remind.after,
            }
        case Wait(until=until):
            return {"ready_at": until.at, "ready_after": until.after}
        case Backoff(delay=delay):
            return {"ready_after": delay, "failures": 1}
        case Hold(reason=reason):
            return {"held_reason": reason}
        case Release():
            return {"ready_after": Millis(0)}
        case Finish():
            return {"retention": settings.retention_ms}
        case _ as unreachable:
            assert_never(unreachable)


def _record(queries: Catalog, write: Write, entry: LedgerWrite) -> Script[bool]:
    """False when the ledger had a result under an intent's or a result's key already."""
    ledger = {"ledger_id": write.ledger_id, "key": entry.key}
    by = {"fence": write.fence, "write_no": write.write_no + 1}
    match entry:
        case Intent(kind=kind, request=request, digest=digest):
            told = {"kind": kind.value, "request": request, "digest": digest}
            return bool((yield queries("task_ledger_intend", **ledger, **by, **told)))
        case Result(result=result):
            return bool((yield queries("task_ledger_settle", **ledger, result=result)))
        case Kept(kind=kind, result=result, digest=digest):
            kept = {"kind": kind.value, "result": result, "digest": digest}
            yield queries("task_ledger_keep", **ledger, **by, **kept)
        case Clear(write_no=write_no):
            yield queries("task_ledger_clear", **ledger, fence=write.fence, write_no=write_no)
        case _ as unreachable:
            assert_never(unreachable)
    return True


def _settled(
    queries: Catalog, write: Write, entries: Sequence[LedgerWrite]
) -> Script[dict[str, str]]:
    """What the ledger holds for those intents and results: calls that must not be made, and
    results that stand in the place of the write's own."""
    settled: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, Intent | Result):
            rows = yield queries("task_ledger_get", ledger_id=write.ledger_id, key=entry.key)
            settled |= {row["key"]: row["result"] for row in rows if row["done_at"] is not None}
    return settled


def _end_run(queries: Catalog, write: Write, ending: Ending, row: Row) -> Script[None]:
    if isinstance(ending, Wait) and ending.timer_key is not None:
        timer = Kept(key=ending.timer_key, kind=LedgerKind.TIMER, result=to_text(row["ready_at"]))
        yield from _record(queries, write, timer)
    outcome, error = _told(ending)
    yield queries(
        "task_runs_end",
        task_id=write.task_id,
        fence=write.fence,
        write_no=write.write_no + 1,
        outcome=outcome,
        error=error,
    )


def _told(ending: Ending) -> tuple[str, str | None]:
    """The run's outcome and error as operators read them in `task_runs`."""
    match ending:
        case Pause():
            return "paused", None
        case Wait():
            return "waiting", None
        case Backoff(error=error):
            return "retried", to_text(error)
        case Hold(reason=reason, error=error):
            return "held", to_text(error or {"text": reason})
        case Release():
            return "released", None
        case Finish(state=state, error=error):
            return state.value, to_text_or_none(error)
        case _ as unreachable:
            assert_never(unreachable)


def fault_of(write: Write) -> Refused | None:
    """What no database would take, found before a batch is spoiled by it."""
    if any("\x00" in text for text in _bare_texts(write)):
        return Refused(reason="a NUL character outside of JSON")
    if isinstance(write.ending, Pause | Finish):
        last = write.events[-1] if write.events else None
        says = None if last is None else status_of(last)
        if says is None or says["state"] != write.ending.state:
            return Refused(reason="a pause or an end needs the event that says so, as its last")
    return None


def _bare_texts(write: Write) -> Iterator[str]:
    """What goes into the database as it is: PostgreSQL takes no NUL there, SQLite would."""
    for entry in write.ledger:
        yield entry.key
        match entry:
            case Intent(request=request, digest=digest):
                yield from (request or "", digest or "")
            case Kept(result=result, digest=digest):
                yield from (result, digest or "")
            case Result(result=result):
                yield result
            case Clear():
                pass
            case _ as unreachable:
                assert_never(unreachable)
    if write.move is not None:
        yield from (write.move.checkpoint or "", write.move.step)
    if isinstance(write.ending, Hold):
        yield write.ending.reason
    if isinstance(write.ending, Wait):
        yield write.ending.timer_key or ""
