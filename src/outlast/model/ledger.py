"""What a task has already got from outside, by key.

A key belongs to the task for ever when it names an effect, else to the visit in which it
was used: see `effect_key` and `visit_key`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from outlast.model.ids import Fence, Millis, Visit, WriteNo


class LedgerKind(StrEnum):
    EFFECT = "effect"
    MEMO = "memo"
    ANSWER = "answer"
    TIMER = "timer"


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One row of `task_ledger`. `fence` and `write_no` name the intent's own call."""

    key: str
    kind: LedgerKind
    request: str | None
    digest: str | None
    fence: Fence
    write_no: WriteNo
    intent_at: Millis
    result: str | None
    done_at: Millis | None

    @property
    def is_done(self) -> bool:
        return self.done_at is not None


@dataclass(frozen=True, kw_only=True)
class Intent:
    """About to ask the outside for `key`. Takes over an open intent of an earlier call."""

    key: str
    kind: LedgerKind
    digest: str | None = None
    request: str | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the outside answered; recorded where nothing is recorded yet."""

    key: str
    result: str


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A value computed here and kept: intent and result in one."""

    key: str
    kind: LedgerKind
    result: str
    digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Clear:
    """The call of the intent written as (own fence, `write_no`) certainly did not happen."""

    key: str
    write_no: WriteNo


LedgerWrite = Intent | Result | Kept | Clear


def effect_key(key: str) -> str:
    return f"effect:{key}"


def visit_key(visit: Visit, verb: str, key: str | None = None) -> str:
    return f"{visit}:{verb}" if key is None else f"{visit}:{verb}:{key}"


def digest_of(text: str) -> str:
    """A short, stable fingerprint of a request: equal requests have equal digests."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
