"""Folds: a Task folded up to an event, kept so that nobody needs to read the log before it.

A fold shows the Task as no client in particular sees it: without the extension, and with pauses
named by their seqs alone, since the epoch of the store may change. It also holds what a later event
may refer to: the question that waits for its answer stands last in its history. It is a cache:
with it or with the log that it stands for, a Task reads the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict

from outlast.model.commit import LoggedEvent
from outlast.model.ids import Seq
from outlast.model.task import Fold, State, Task
from outlast.wire.events import state_of_proto
from outlast.wire.extension import EXTENSION_URI, PLAIN, View
from outlast.wire.fold import Folding, begin, check_history_length, finish, go_on

_EVERY = 256
_BYTES_PER_EVENT = 512


@dataclass(frozen=True, kw_only=True)
class Folded:
    """A Task as a client sees it, and what its last status says to the gateway: the state, and
    whether it waits for an authorization that a message may bring."""

    task: pb.Task
    state: State
    in_band: bool


def fold_log(
    task: Task,
    events: Sequence[LoggedEvent],
    *,
    fold: Fold | None,
    view: View = PLAIN,
    history_length: int | None = None,
    generation: Seq | None = None,
) -> Folded:
    """The Task that a fold and the events after it make; without a fold, the events are the log
    from its beginning. Otherwise as `fold_task`."""
    check_history_length(history_length)
    folding = begin(task) if fold is None else _unpacked(fold, view)
    go_on(folding, events, view)
    state = state_of_proto(folding.task.status.state)
    assert state is not None, "the log knows no other states"
    end = generation or _end_of(fold, events)
    shown = finish(folding, task, view, end, history_length)
    return Folded(task=shown, state=state, in_band=folding.in_band)


def make_fold(task: Task, events: Sequence[LoggedEvent], *, fold: Fold | None) -> Fold:
    """The fold of a fold and the events after it."""
    folding = begin(task) if fold is None else _unpacked(fold, PLAIN)
    go_on(folding, events, PLAIN)
    return Fold(seq=_end_of(fold, events), packed=_packed(folding))


def next_fold_at(fold: Fold) -> int:
    """How long the log is when the next fold is due.

    A larger fold is followed by a later one: writing all folds of a task costs at most a constant
    times what writing its log does, and reading what came after one no more than reading it.
    """
    return fold.seq + max(_EVERY, len(fold.packed) // _BYTES_PER_EVENT)


def _end_of(fold: Fold | None, events: Sequence[LoggedEvent]) -> Seq:
    if events:
        return events[-1].seq
    if fold is None:
        raise ValueError("a log has at least event 1")
    return fold.seq


# --- the bytes ----------------------------------------------------------------------------------


def _packed(folding: Folding) -> bytes:
    kept = pb.Task()
    kept.CopyFrom(folding.task)
    if folding.questions:
        ((seq, question),) = folding.questions.items()
        kept.history.append(question)
        kept.metadata.update({"question": seq})
    kept.metadata.update({"isAsking": folding.is_asking, "inBand": folding.in_band})
    packed: bytes = kept.SerializeToString(deterministic=True)
    return packed


def _unpacked(fold: Fold, view: View) -> Folding:
    task = pb.Task.FromString(fold.packed)
    kept = MessageToDict(task.metadata)
    task.ClearField("metadata")
    folding = Folding(task=task, is_asking=kept["isAsking"], in_band=kept["inBand"])
    for message in task.history:
        if message.role == pb.ROLE_AGENT:
            _name_pause(message, view)
    if folding.is_asking:
        _name_pause(task.status.message, view)
    if "question" in kept:
        question = pb.Message()
        question.CopyFrom(task.history[-1])
        del task.history[-1]
        folding.questions[Seq(int(kept["question"]))] = question
    return folding


def _name_pause(question: pb.Message, view: View) -> None:
    """Give a question's pause the name that the view's client knows it by."""
    if EXTENSION_URI not in question.metadata.fields:
        return
    said = question.metadata.fields[EXTENSION_URI].struct_value
    if "pause" in said.fields:
        pause = said.fields["pause"]
        pause.string_value = view.pause_name(Seq(int(pause.string_value)))
