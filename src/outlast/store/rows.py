"""Rows as the values of `model`."""

from __future__ import annotations

from outlast.model.commit import EventKind, LoggedEvent
from outlast.model.ids import (
    ContextId,
    Fence,
    LedgerId,
    Millis,
    Seq,
    StepName,
    TaskId,
    Visit,
    WriteNo,
)
from outlast.model.lease import Lease
from outlast.model.ledger import LedgerEntry, LedgerKind
from outlast.model.task import Fold, Scope, State, Task
from outlast.store.codec import from_text
from outlast.store.database import Row, Rows
from outlast.store.protocols import Standing


def scope_of(row: Row) -> Scope:
    return Scope(agent=row["agent"], tenant=row["tenant"], owner=row["owner"])


def task_of(row: Row) -> Task:
    return Task(
        task_id=TaskId(row["task_id"]),
        scope=scope_of(row),
        context_id=ContextId(row["context_id"]),
        ledger_id=LedgerId(row["ledger_id"]),
        workflow=row["workflow"],
        version=row["version"],
        state=State(row["state"]),
        status=from_text(row["status"]),
        status_at=Millis(row["status_at"]),
        step=StepName(row["step"]),
        visit=Visit(row["visit"]),
        attempt=row["attempt"],
        crashes=row["crashes"],
        fence=Fence(row["fence"]),
        lease_owner=row["lease_owner"],
        ready_at=row["ready_at"],
        generation=Seq(row["next_seq"] - 1),
        pause_id=row["pause_id"],
        pause_deadline_at=row["pause_deadline_at"],
        give_up_at=Millis(row["give_up_at"]),
        cancel_requested_at=row["cancel_requested_at"],
        held_reason=row["held_reason"],
        metadata=from_text(row["metadata"]),
        created_at=Millis(row["created_at"]),
        updated_at=Millis(row["updated_at"]),
        trimmed=Seq(row["trimmed_seq"]),
    )


def lease_of(row: Row) -> Lease:
    return Lease(
        task_id=TaskId(row["task_id"]),
        scope=scope_of(row),
        context_id=ContextId(row["context_id"]),
        ledger_id=LedgerId(row["ledger_id"]),
        workflow=row["workflow"],
        version=row["version"],
        state=State(row["state"]),
        step=StepName(row["step"]),
        visit=Visit(row["visit"]),
        checkpoint=row["checkpoint"],
        fence=Fence(row["fence"]),
        attempt=row["attempt"],
        crashes=row["crashes"],
        last_seq=Seq(row["next_seq"] - 1),
        commit_seq=Seq(row["commit_seq"]),
        cancel_requested=row["cancel_requested_at"] is not None,
        ending_as=None if row["ending_as"] is None else from_text(row["ending_as"]),
        metadata=from_text(row["metadata"]),
        claimed_at=Millis(row["claimed_at"]),
        give_up_at=Millis(row["give_up_at"]),
        read_seq=Seq(row["read_seq"]),
    )


def standings_of(rows: Rows) -> dict[TaskId, Standing]:
    return {
        TaskId(row["task_id"]): Standing(
            fence=Fence(row["fence"]),
            is_marked=row["cancel_requested_at"] is not None,
            ending_as=None if row["ending_as"] is None else from_text(row["ending_as"]),
        )
        for row in rows
    }


def event_of(row: Row) -> LoggedEvent:
    return LoggedEvent(
        seq=Seq(row["seq"]),
        kind=EventKind(row["kind"]),
        body=from_text(row["body"]),
        is_message=bool(row["is_message"]),
        fence=Fence(row["fence"]),
        write_no=row["write_no"],
        created_at=Millis(row["created_at"]),
    )


def fold_of(row: Row) -> Fold:
    return Fold(seq=Seq(row["seq"]), packed=bytes(row["task"]))


def entry_of(row: Row) -> LedgerEntry:
    return LedgerEntry(
        key=row["key"],
        kind=LedgerKind(row["kind"]),
        request=row["request"],
        digest=row["digest"],
        fence=Fence(row["fence"]),
        write_no=WriteNo(row["write_no"]),
        intent_at=Millis(row["intent_at"]),
        result=row["result"],
        done_at=row["done_at"],
    )
