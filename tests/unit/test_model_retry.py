"""The retry policy: what is tried again, how often, and after how long."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from outlast import AuthorError, Failed, Permanent, Rejected, Retry, RetryAfter, Workflow
from outlast.model.retry import BUGS
from outlast.workflow.context import Context

SECOND = timedelta(seconds=1)
AWAY = OSError("the service is away")


# --- whether --------------------------------------------------------------------------------------


def test_attempts_counts_all_runs() -> None:
    retry = Retry(attempts=3)
    assert [retry.allows(AWAY, attempt) for attempt in (1, 2, 3, 4)] == [True, True, False, False]


def test_one_attempt_is_no_retry() -> None:
    assert not Retry(attempts=1).allows(AWAY, 1)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_same_code_meets_its_bugs_again(bug: type[Exception]) -> None:
    assert not Retry().allows(bug(), 1)


def test_on_names_what_is_tried_again() -> None:
    retry = Retry(on=(OSError, TimeoutError))
    assert retry.allows(ConnectionError(), 1)
    assert not retry.allows(RuntimeError(), 1)


def test_unless_wins_over_on() -> None:
    retry = Retry(on=(OSError,), unless=(ConnectionError,))
    assert retry.allows(AWAY, 1)
    assert not retry.allows(ConnectionError(), 1)


def test_an_author_may_ask_for_bugs_too() -> None:
    assert Retry(unless=()).allows(KeyError("x"), 1)


@pytest.mark.parametrize("error", [Permanent("no"), Failed("no"), Rejected("no")])
def test_what_is_final_is_never_tried_again(error: Exception) -> None:
    assert not Retry(attempts=100, on=(Exception,), unless=()).allows(error, 1)


def test_retry_after_is_tried_again_within_the_attempts_whatever_on_says() -> None:
    retry = Retry(attempts=2, on=(OSError,))
    assert retry.allows(RetryAfter(SECOND), 1)
    assert not retry.allows(RetryAfter(SECOND), 2)


def test_what_is_no_exception_is_not_tried_again() -> None:
    """A KeyboardInterrupt, or a cancel that came from the author's own code."""
    assert not Retry().allows(BaseException(), 1)


def test_data_that_does_not_fit_will_not_fit_later_unless_the_author_says_so() -> None:
    class Notes(BaseModel):
        count: int = 0

    flow = Workflow("review", 1, checkpoint=Notes)
    stubborn = Retry(unless=(KeyError,))

    @flow.step
    async def first(ctx: Context[Notes, None]) -> None: ...

    @flow.step(retry=stubborn)
    async def second(ctx: Context[Notes, None]) -> None: ...

    with pytest.raises(ValidationError) as misfit:
        Notes.model_validate({"count": "many"})
    _, patient, hasty = flow.steps
    assert not patient.retry.allows(misfit.value, 1)
    assert hasty.retry.allows(misfit.value, 1)


# --- after how long -------------------------------------------------------------------------------


@given(st.integers(1, 500))
def test_delays_grow_by_the_factor_up_to_the_longest_and_are_spread(attempt: int) -> None:
    retry = Retry(attempts=1000, first=SECOND, factor=2, longest=timedelta(minutes=5))
    middle = min(2.0 ** min(attempt - 1, 64), 300.0)
    delay = retry.delay(AWAY, attempt).total_seconds()
    assert 0.8 * middle - 1e-6 <= delay <= 1.2 * middle + 1e-6


def test_no_first_delay_is_no_delay_ever() -> None:
    retry = Retry(attempts=10_000, first=timedelta(0))
    assert {retry.delay(AWAY, attempt) for attempt in (1, 2, 9_999)} == {timedelta(0)}


def test_tasks_that_failed_together_part() -> None:
    assert len({Retry().delay(AWAY, 1) for _ in range(50)}) > 10


def test_retry_after_says_the_delay_itself() -> None:
    retry = Retry(first=timedelta(hours=1), longest=timedelta(hours=1))
    assert retry.delay(RetryAfter(90), 1) == timedelta(seconds=90)
    assert retry.delay(RetryAfter(timedelta(days=2)), 1) == timedelta(days=2)


def test_retry_after_has_a_text_for_operators() -> None:
    assert str(RetryAfter(90)) == "try again after 90 s"
    assert str(RetryAfter(90, "429 from the directory")) == "429 from the directory"


@given(
    attempts=st.integers(1, 10**6),
    first=st.timedeltas(timedelta(0), timedelta(days=1)),
    factor=st.floats(1, 1e6),
    attempt=st.integers(1, 10**6),
)
def test_no_delay_is_ever_negative_or_too_large_to_be_said(
    attempts: int, first: timedelta, factor: float, attempt: int
) -> None:
    retry = Retry(attempts=attempts, first=first, factor=factor, longest=timedelta(days=1))
    assert timedelta(0) <= retry.delay(AWAY, attempt) <= 1.2 * timedelta(days=1)


# --- what an author can get wrong -----------------------------------------------------------------


@pytest.mark.parametrize("attempts", [0, -1])
def test_a_step_that_would_never_run_is_refused(attempts: int) -> None:
    with pytest.raises(AuthorError, match="never run the step") as refused:
        Retry(attempts=attempts)
    assert "attempts=1" in refused.value.fix


@pytest.mark.parametrize(
    ("first", "longest", "factor"),
    [
        (-SECOND, SECOND, 2.0),
        (2 * SECOND, SECOND, 2.0),
        (SECOND, SECOND, 0.5),
    ],
    ids=["negative", "longer than the longest", "shrinking"],
)
def test_delays_that_shrink_are_refused(
    first: timedelta, longest: timedelta, factor: float
) -> None:
    with pytest.raises(AuthorError, match="must not shrink"):
        Retry(first=first, longest=longest, factor=factor)
