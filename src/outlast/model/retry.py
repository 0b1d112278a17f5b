"""How often, and after how long, a failed step is tried again."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from outlast.model.errors import AuthorError, Failed, Permanent, Rejected, RetryAfter

BUGS: tuple[type[BaseException], ...] = (
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    NameError,
    NotImplementedError,
    AssertionError,
)
"""Errors that the same code will meet again: trying again only delays the report."""


@dataclass(frozen=True)
class Retry:
    """The policy of a step.

    attempts: how many runs in all, counted since the last commit.
    on, unless: which exceptions are tried again; `unless` wins.
    first, factor, longest: the delay before the second attempt, how it grows, its bound;
        each delay is spread by ±20 % so that tasks that failed together part.
    exhausted: what happens after the last attempt: `fail` the task, or `hold` it.
    """

    attempts: int = 3
    on: tuple[type[Exception], ...] = (Exception,)
    unless: tuple[type[BaseException], ...] = BUGS
    first: timedelta = timedelta(seconds=1)
    factor: float = 2
    longest: timedelta = timedelta(minutes=5)
    exhausted: Literal["fail", "hold"] = "fail"

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise AuthorError(
                f"Retry(attempts={self.attempts}) would never run the step.",
                "use attempts=1 for a step that is not tried again.",
            )
        if self.first < timedelta(0) or self.longest < self.first or self.factor < 1:
            raise AuthorError(
                "Retry delays must not shrink: 0 <= first <= longest and factor >= 1.",
                "choose first, factor and longest accordingly.",
            )

    def allows(self, error: BaseException, attempt: int) -> bool:
        """Whether attempt number `attempt`, which ended with `error`, is followed by another."""
        if attempt >= self.attempts or isinstance(error, (Permanent, Failed, Rejected)):
            return False
        if isinstance(error, RetryAfter):
            return True
        return isinstance(error, self.on) and not isinstance(error, self.unless)

    def delay(self, error: BaseException, attempt: int) -> timedelta:
        """How long to wait after attempt number `attempt`."""
        if isinstance(error, RetryAfter):
            return error.delay
        return self._grown(attempt) * random.uniform(0.8, 1.2)

    def _grown(self, attempt: int) -> timedelta:
        if not self.first:
            return self.first
        try:
            growth = float(self.factor) ** (attempt - 1)
        except OverflowError:
            growth = math.inf
        # Compared before it is multiplied: a timedelta overflows long before attempts run out.
        return self.longest if growth >= self.longest / self.first else self.first * growth
