"""A task as everybody but its worker sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from outlast.model.ids import ContextId, Fence, LedgerId, Millis, Seq, StepName, TaskId, Visit


class State(StrEnum):
    """The states of A2A 1.0 (specification §4.1.3), without the unspecified one."""

    SUBMITTED = "submitted"
    WORKING = "working"
    INPUT_REQUIRED = "input-required"
    AUTH_REQUIRED = "auth-required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    REJECTED = "rejected"

    @property
    def is_terminal(self) -> bool:
        return self in _TERMINAL

    @property
    def is_paused(self) -> bool:
        return self in (State.INPUT_REQUIRED, State.AUTH_REQUIRED)


_TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELED, State.REJECTED})


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Whose task it is. Every read and write by a caller is bound to one scope."""

    agent: str
    tenant: str = ""
    owner: str = ""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who sent a message, as far as the author may know: never a token."""

    subject: str = ""
    tenant: str = ""
    scopes: tuple[str, ...] = ()
    claims: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "tenant": self.tenant,
            "scopes": list(self.scopes),
            "claims": dict(self.claims),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Caller:
        return cls(
            subject=body.get("subject", ""),
            tenant=body.get("tenant", ""),
            scopes=tuple(body.get("scopes", ())),
            claims=body.get("claims", {}),
        )


@dataclass(frozen=True, kw_only=True)
class Fold:
    """What the log up to `seq` makes of a task, as bytes that `wire.folds` has packed."""

    seq: Seq
    packed: bytes


@dataclass(frozen=True, kw_only=True)
class Task:
    """One row of `tasks`, without what only its worker needs. The log of a finished task may be
    trimmed: it begins after `trimmed` then."""

    task_id: TaskId
    scope: Scope
    context_id: ContextId
    ledger_id: LedgerId
    workflow: str
    version: int
    state: State
    status: Mapping[str, Any]
    status_at: Millis
    step: StepName
    visit: Visit
    attempt: int
    crashes: int
    fence: Fence
    lease_owner: str | None
    ready_at: Millis | None
    generation: Seq
    pause_id: Seq | None
    pause_deadline_at: Millis | None
    give_up_at: Millis
    cancel_requested_at: Millis | None
    held_reason: str | None
    metadata: Mapping[str, Any]
    created_at: Millis
    updated_at: Millis
    trimmed: Seq

    @property
    def is_held(self) -> bool:
        return self.held_reason is not None
