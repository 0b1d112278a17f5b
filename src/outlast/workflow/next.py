"""Where a task goes when a step returns. A closed union: the attempt matches every member."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outlast.model.ids import StepName


@dataclass(frozen=True)
class Complete:
    """End the task as COMPLETED; the caller sees `text` and `data`, a JSON value."""

    text: str | None = None
    data: Any = None


@dataclass(frozen=True)
class Fail:
    """End the task as FAILED; the caller sees the text."""

    text: str


@dataclass(frozen=True)
class Reject:
    """End the task as REJECTED; the caller sees the text."""

    text: str


@dataclass(frozen=True)
class Goto:
    """Go on with this step instead of the one that follows: a new visit, of the same step too."""

    step: StepName


Next = Complete | Fail | Reject | Goto
"""What a step may return. None, the default, goes on with the step that follows."""
