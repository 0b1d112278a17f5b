"""A question to the caller, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from outlast.model.ids import Millis


class OnDeadline(StrEnum):
    """What a sweep does with a pause that nobody answered in time."""

    FAIL = "fail"
    CANCEL = "cancel"
    RESUME = "resume"


@dataclass(frozen=True, kw_only=True)
class DueBy:
    """A time by the store's clock: absolute, or counted from the write that carries it."""

    at: Millis | None = None
    after: Millis | None = None

    def __post_init__(self) -> None:
        if (self.at is None) == (self.after is None):
            raise ValueError("a DueBy is either `at` a time or `after` a delay")

    def counted_from(self, written_at: Millis) -> Millis:
        """The time, for a write of that time."""
        return Millis(written_at + (self.after or 0)) if self.at is None else self.at

    def to_json(self) -> dict[str, int]:
        said = {"at": self.at, "after": self.after}
        return {name: value for name, value in said.items() if value is not None}

    @classmethod
    def from_json(cls, body: Mapping[str, int]) -> DueBy:
        return cls(**{name: Millis(value) for name, value in body.items()})


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What the store needs to know about a question to take its answer.

    It travels in the body of the question's event (`ask`), where gateways and sweeps read it:
    ledger_key: where the answer goes; schema: the JSON Schema that it must fit, or None;
    on_deadline: what a sweep does when nobody answers; in_band: a message may bring what a pause in
    AUTH_REQUIRED waits for, which else only `authorize` does; due: the deadline that callers are
    shown, as it was when the question was asked.
    """

    ledger_key: str
    schema: Mapping[str, Any] | None = None
    on_deadline: OnDeadline = OnDeadline.FAIL
    in_band: bool = False
    due: DueBy | None = None

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "key": self.ledger_key,
            "schema": self.schema,
            "on_deadline": self.on_deadline.value,
        }
        if self.in_band:
            body["in_band"] = True
        if self.due is not None:
            body["due"] = self.due.to_json()
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Ask:
        return cls(
            ledger_key=body["key"],
            schema=body.get("schema"),
            on_deadline=OnDeadline(body.get("on_deadline", "fail")),
            in_band=body.get("in_band", False),
            due=DueBy.from_json(body["due"]) if "due" in body else None,
        )


def authorization(value: Any) -> dict[str, Any]:
    """The ledger's result of a pause in AUTH_REQUIRED that was given `value`."""
    return {"authorized": value}


DEADLINE_PASSED: Mapping[str, Any] = {"deadline_passed": True}
"""The ledger's result of a question whose deadline passed with on_deadline="resume"."""
