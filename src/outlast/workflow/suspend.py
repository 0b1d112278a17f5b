"""How a verb stops the run that called it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlast.model.commit import Event, Pause, Wait
from outlast.model.errors import AuthorError, Stopped
from outlast.model.ids import Fence, WriteNo
from outlast.model.ledger import LedgerWrite


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What to write so that the task waits: the question and its open ledger entry, or a timer."""

    ending: Pause | Wait
    events: Sequence[Event] = ()
    ledger: Sequence[LedgerWrite] = ()


class Suspended(Stopped):
    """The step waits. It starts over from its last commit when the wait is over."""

    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting
        super().__init__("the step waits")


class BrokenRule(Stopped):
    """The run met an AuthorError: whatever the step makes of it, the task is held."""

    def __init__(self, error: AuthorError) -> None:
        self.error = error
        super().__init__(str(error))


class OutcomeUnknown(Stopped):
    """An effect that must not be called twice was called, and nobody knows what became of it.

    The task is held for an operator. `key` is the ledger's; `fence` and `write_no` name the call
    that left it open, which is what `outlast resolve` answers.
    """

    def __init__(self, *, key: str, fence: Fence, write_no: WriteNo) -> None:
        self.key = key
        self.fence = fence
        self.write_no = write_no
        name = key.removeprefix("effect:")
        super().__init__(
            f"the outcome of effect {name!r} is unknown and it may be called at most once: find out"
            f" whether it happened, then run `outlast resolve TASK {name} --fence {fence}"
            f" --write-no {write_no}` with --result JSON or --not-done"
        )
