"""Folds are a cache: whatever a read gives, it gives the same from the log alone."""

from __future__ import annotations

from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.commit import LoggedEvent, status_event
from outlast.model.content import Message
from outlast.model.ids import Seq
from outlast.model.pause import Ask
from outlast.model.task import Fold, State
from outlast.wire.extension import EXTENSION_URI, PLAIN, View
from outlast.wire.fold import fold_task
from outlast.wire.folds import fold_log, make_fold, next_fold_at
from tests.unit.test_wire_logs import Author, logs, task_of

VIEWS = (PLAIN, View(epoch="e1"), View(extended=True, epoch="e1"))


def folds_along(events: list[LoggedEvent], ends: list[int]) -> Fold | None:
    """Fold after fold, each made of the one before."""
    task = task_of(events)
    fold: Fold | None = None
    for end in sorted(ends):
        begun = 0 if fold is None else fold.seq
        if end > begun or fold is not None:
            fold = make_fold(task, events[begun:end], fold=fold)
    return fold


@given(logs(), st.data(), st.none() | st.integers(0, 4))
def test_a_fold_and_the_events_after_it_are_the_task(
    events: list[LoggedEvent], data: st.DataObject, length: int | None
) -> None:
    task = task_of(events)
    ends = data.draw(st.lists(st.integers(1, len(events)), max_size=3), label="folded at")
    until = data.draw(st.integers(max(ends, default=1), len(events)), label="read up to")
    fold = folds_along(events, ends)
    after = 0 if fold is None else fold.seq
    for view in VIEWS:
        whole = fold_log(task, events[:until], fold=None, view=view, history_length=length)
        from_fold = fold_log(task, events[after:until], fold=fold, view=view, history_length=length)

        assert from_fold == whole
        assert whole.task == fold_task(task, events[:until], view=view, history_length=length)


@given(logs(), st.data())
def test_folds_do_not_depend_on_the_folds_before(
    events: list[LoggedEvent], data: st.DataObject
) -> None:
    ends = data.draw(st.lists(st.integers(1, len(events)), max_size=3), label="folded at")

    fold = folds_along(events, [*ends, len(events)])

    assert fold == make_fold(task_of(events), events, fold=None)


@given(logs())
def test_what_the_log_keeps_for_ourselves_is_in_no_fold(events: list[LoggedEvent]) -> None:
    assert b"s3cret" not in make_fold(task_of(events), events, fold=None).packed


def test_a_question_is_named_by_the_epoch_of_who_reads_it() -> None:
    author = Author()
    author.ask("approve?", {"type": "boolean"})
    events = author.logged()
    fold = make_fold(task_of(events), events, fold=None)

    for epoch, name in (("old", "old-2"), ("new", "new-2"), ("", "2")):
        shown = fold_log(task_of(events), [], fold=fold, view=View(epoch=epoch)).task

        assert MessageToDict(shown.status.message.metadata)[EXTENSION_URI]["pause"] == name
        assert [message.parts[0].text for message in shown.history] == ["begin"]


def test_a_question_that_was_said_again_is_still_the_one_that_is_answered() -> None:
    author = Author()
    author.ask("approve?", None)
    author.remind()
    author.hear("yes")
    events = author.logged()
    for end in (2, 3):
        fold = make_fold(task_of(events), events[:end], fold=None)
        shown = fold_log(task_of(events), events[end:], fold=fold, view=VIEWS[2]).task

        assert shown == fold_task(task_of(events), events, view=VIEWS[2])
        assert [message.parts[0].text for message in shown.history] == ["begin", "approve?", "yes"]


def test_a_fold_knows_whether_a_message_may_authorize() -> None:
    for in_band in (True, False):
        author = Author()
        ask = Ask(ledger_key="k", in_band=in_band).to_json()
        said = Message.agent("token?").to_json()
        author.events.append(status_event(State.AUTH_REQUIRED, said, ask=ask))
        events = author.logged()
        fold = make_fold(task_of(events), events, fold=None)

        shown = fold_log(task_of(events), [], fold=fold)

        assert (shown.state, shown.in_band) == (State.AUTH_REQUIRED, in_band)


def test_large_folds_come_further_apart() -> None:
    assert next_fold_at(Fold(seq=Seq(300), packed=b"x" * 1000)) == 556
    assert next_fold_at(Fold(seq=Seq(300), packed=b"x" * 512_000)) == 1300
