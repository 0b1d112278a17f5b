"""How a step ended: one closed union, whatever the author's code made of what stopped it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast import AuthorError, Failed, Permanent, Rejected, RetryAfter
from outlast.model.commit import Wait
from outlast.model.errors import CancelRequested, LeaseLost, ShuttingDown, Stopped
from outlast.model.ids import Fence, Millis, StepName, WriteNo
from outlast.model.pause import DueBy
from outlast.worker.outcome import (
    Broke,
    Cancels,
    Erred,
    Gone,
    Outcome,
    Returned,
    Shuts,
    StepTimedOut,
    Unknown,
    Waits,
    classify,
    report_of,
)
from outlast.workflow.next import Complete, Fail, Goto, Reject
from outlast.workflow.suspend import BrokenRule, OutcomeUnknown, Suspended, Waiting

RULE = AuthorError("The rule.", "the fix.")
WAITING = Waiting(ending=Wait(until=DueBy(after=Millis(1))))
UNKNOWN = OutcomeUnknown(key="effect:mail", fence=Fence(3), write_no=WriteNo(1))

STOPS: dict[str, tuple[Stopped, type[Outcome]]] = {
    "waits": (Suspended(WAITING), Waits),
    "broke": (BrokenRule(RULE), Broke),
    "unknown": (UNKNOWN, Unknown),
    "timed out": (StepTimedOut("step work took longer than 1 s"), Erred),
    "lost": (LeaseLost("it is over"), Gone),
    "cancel": (CancelRequested("marked"), Cancels),
    "shutdown": (ShuttingDown("bye"), Shuts),
}
stops = pytest.mark.parametrize(("stop", "kind"), STOPS.values(), ids=STOPS)


def wrapped(error: BaseException, depth: int) -> BaseException:
    """The error inside groups inside groups, beside others."""
    for _ in range(depth):
        error = BaseExceptionGroup("several", [ValueError("beside it"), error])
    return error


# --- it returned ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, Complete("done"), Fail("no"), Goto(StepName("first"))])
def test_a_step_that_returned(value: Any) -> None:
    assert classify(value, None, None) == Returned(value)


@pytest.mark.parametrize("name", ["cancel", "shutdown", "timed out"])
def test_what_comes_when_it_has_returned_waits_for_the_commit(name: str) -> None:
    stop, _ = STOPS[name]
    outcome = classify(Complete("done"), None, stop, is_heard=False)
    assert outcome == Returned(Complete("done"))


def test_but_not_the_loss_of_its_lease() -> None:
    assert classify(Complete("done"), None, LeaseLost("over"), is_heard=False) == Gone()


@stops
def test_a_step_that_ate_what_stopped_it_and_returned_has_not_returned(
    stop: Stopped, kind: type[Outcome]
) -> None:
    assert isinstance(classify(Complete("done"), None, stop), kind)


# --- it was stopped -------------------------------------------------------------------------------


@stops
def test_what_stopped_the_step(stop: Stopped, kind: type[Outcome]) -> None:
    assert isinstance(classify(None, stop, stop), kind)


@stops
@pytest.mark.parametrize("depth", [1, 3])
def test_what_stopped_it_is_found_inside_exception_groups(
    stop: Stopped, kind: type[Outcome], depth: int
) -> None:
    assert isinstance(classify(None, wrapped(stop, depth), None), kind)


@stops
@pytest.mark.parametrize(
    "raised",
    [ValueError("in the clean-up"), asyncio.CancelledError(), Failed("no"), RULE],
    ids=lambda raised: type(raised).__name__,
)
def test_what_stopped_it_counts_though_the_step_raised_something_else(
    stop: Stopped, kind: type[Outcome], raised: BaseException
) -> None:
    assert isinstance(classify(None, raised, stop), kind)


def test_a_lost_lease_counts_before_everything() -> None:
    for stop, _ in STOPS.values():
        assert classify(None, stop, LeaseLost("over")) == Gone()


@given(
    reason=st.none() | st.sampled_from([stop for stop, _ in STOPS.values()]),
    raised=st.sampled_from([stop for stop, _ in STOPS.values()]),
    depth=st.integers(0, 4),
)
def test_no_stop_is_ever_an_error_of_the_step(
    reason: Stopped | None, raised: Stopped, depth: int
) -> None:
    """Else it would be tried again, or shown to the caller."""
    outcome = classify(None, wrapped(raised, depth), reason)
    if isinstance(outcome, Erred):
        assert isinstance(outcome.error, TimeoutError)
        assert isinstance(reason or raised, StepTimedOut)
    else:
        assert not isinstance(outcome, Returned)


def test_what_it_waits_for_which_rule_and_which_call() -> None:
    assert classify(None, Suspended(WAITING), None) == Waits(WAITING)
    assert classify(None, BrokenRule(RULE), None) == Broke(RULE)
    assert classify(None, UNKNOWN, None) == Unknown(UNKNOWN)


def test_a_timeout_is_an_error_that_says_so() -> None:
    stop, _ = STOPS["timed out"]
    outcome = classify(None, stop, stop)
    assert isinstance(outcome, Erred)
    assert isinstance(outcome.error, TimeoutError)
    assert str(outcome.error) == "step work took longer than 1 s"


# --- it raised ------------------------------------------------------------------------------------


def test_what_an_author_raises_to_end_the_task() -> None:
    assert classify(None, Failed("no funds"), None) == Returned(Fail("no funds"))
    assert classify(None, Rejected("not mine"), None) == Returned(Reject("not mine"))


def test_a_rule_that_was_broken_outside_of_the_verbs() -> None:
    assert classify(None, RULE, None) == Broke(RULE)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        Permanent("x"),
        RetryAfter(1),
        TimeoutError(),
        ExceptionGroup("several", [ValueError("x")]),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_everything_else_is_for_the_retry_policy(error: BaseException) -> None:
    assert classify(None, error, None) == Erred(error)


# --- what operators read --------------------------------------------------------------------------


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_report_says_what_was_raised_and_where() -> None:
    report = report_of(raised(ValueError("42 is odd")))
    assert report.error["type"] == "ValueError"
    assert report.error["text"] == "42 is odd"
    assert report.error["reference"] == report.reference
    assert "in raised" in report.error["traceback"]
    assert "42 is odd" in report.error["traceback"]


def test_references_are_short_and_differ() -> None:
    references = {report_of(ValueError()).reference for _ in range(100)}
    assert len(references) == 100
    assert {len(reference) for reference in references} == {8}


def test_a_report_is_bounded_and_keeps_the_end_of_the_text() -> None:
    report = report_of(ValueError("x" * 1_000_000 + "the end"))
    assert len(report.error["text"]) <= 1025
    assert len(report.error["traceback"]) <= 8193
    assert report.error["text"].endswith("the end")
    assert report.error["traceback"].rstrip().endswith("the end")


def test_a_report_can_be_stored_whatever_the_text_holds() -> None:
    report = report_of(ValueError("a\0b\ud800c"))
    assert "\0" not in str(report.error)
    for text in report.error.values():
        text.encode()
