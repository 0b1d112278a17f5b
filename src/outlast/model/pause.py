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
class Ask:
    """What the store needs to know about a question to take its answer.

    It travels in the body of the question's event (`ask`), where gateways and sweeps read it:
    ledger_key: where the answer goes; schema: the JSON Schema that it must fit, or None;
    on_deadline: what a sweep does when nobody answers.
    """

    ledger_key: str
    schema: Mapping[str, Any] | None = None
    on_deadline: OnDeadline = OnDeadline.FAIL

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.ledger_key,
            "schema": self.schema,
            "on_deadline": self.on_deadline.value,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Ask:
        return cls(
            ledger_key=body["key"],
            schema=body.get("schema"),
            on_deadline=OnDeadline(body.get("on_deadline", "fail")),
        )


DEADLINE_PASSED: Mapping[str, Any] = {"deadline_passed": True}
"""The ledger's result of a question whose deadline passed with on_deadline="resume"."""


@dataclass(frozen=True, kw_only=True)
class DueBy:
    """A time by the store's clock: absolute, or counted from the write that carries it."""

    at: Millis | None = None
    after: Millis | None = None

    def __post_init__(self) -> None:
        if (self.at is None) == (self.after is None):
            raise ValueError("a DueBy is either `at` a time or `after` a delay")
