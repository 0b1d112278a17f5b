"""The Task that a log makes: what clients read, as of now or as of any event of the log.

The fold law: the Task as of n, and then the events after n applied one by one, equal the Task as
of the last of them. It holds for state, status and artifacts of every client, and for history
with the extension, whose events carry what callers said.

A log may begin with a fold of its older part (`wire.folds`); what comes out is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from a2a.types import a2a_pb2 as pb

from outlast.model.artifacts import ArtifactJson, apply
from outlast.model.commit import EventKind, LoggedEvent
from outlast.model.errors import InvalidParams
from outlast.model.ids import ContextId, Seq, TaskId
from outlast.model.task import Task
from outlast.wire.events import (
    asked_by,
    is_in_band,
    said_by_agent,
    said_by_caller,
    state_after,
    status_after,
)
from outlast.wire.extension import EXTENSION_URI, PLAIN, View
from outlast.wire.messages import artifact_to_proto


@dataclass(kw_only=True)
class Folding:
    """A Task under way, without its metadata, and what its log says beside it.

    questions: those that an answer may still come to, by their seqs. is_asking: the status is a
    question that names its pause. in_band: it waits for an authorization that a message may bring.
    """

    task: pb.Task
    questions: dict[Seq, pb.Message] = field(default_factory=dict)
    is_asking: bool = False
    in_band: bool = False


def begin(task: Task) -> Folding:
    """The Task before its first event."""
    return Folding(task=pb.Task(id=task.task_id, context_id=task.context_id))


def go_on(folding: Folding, events: Sequence[LoggedEvent], view: View) -> None:
    """Fold these events in, which follow those that made it what it is, without a gap."""
    _fold_status(folding, events, view)
    _fold_artifacts(folding.task, events)
    _fold_history(folding, events, view)


def finish(
    folding: Folding, task: Task, view: View, generation: Seq, history_length: int | None = None
) -> pb.Task:
    """The Task as the view's client sees it. `history_length` as for `fold_task`."""
    folded = folding.task
    check_history_length(history_length)
    if history_length is not None:
        del folded.history[: max(0, len(folded.history) - history_length)]
    if task.metadata:
        folded.metadata.update(dict(task.metadata))
    if view.extended:
        folded.metadata.update({EXTENSION_URI: {"generation": generation}})
    return folded


def fold_task(
    task: Task,
    events: Sequence[LoggedEvent],
    *,
    view: View = PLAIN,
    history_length: int | None = None,
    until: Seq | None = None,
    generation: Seq | None = None,
) -> pb.Task:
    """The Task after these events, or after those up to `until`.

    events: the log from event 1 on, without a gap; or what a list shows of it, and then
    `generation` says where the log ends. Everything that changes is folded from it; the row gives
    only what a task keeps for life. history_length: None is all, 0 is none, n the n most
    recent messages; a negative number raises InvalidParams.
    """
    seen = [event for event in events if until is None or event.seq <= until]
    folding = begin(task)
    go_on(folding, seen, view)
    return finish(folding, task, view, generation or seen[-1].seq, history_length)


def history_of(
    events: Iterable[LoggedEvent],
    task_id: TaskId,
    context_id: ContextId,
    view: View = PLAIN,
    earlier: Mapping[Seq, pb.Message] | None = None,
) -> Iterator[pb.Message]:
    """Callers' messages, and each question before the message that answered it, in order.
    `earlier`: the questions from before these events."""
    asked = dict(earlier or {})
    questions: dict[Seq, LoggedEvent] = {}
    for event in events:
        if not event.is_message:
            continue
        if event.kind is EventKind.STATUS:
            questions[event.seq] = event
            continue
        answers = event.body.get("answers")
        question = None if answers is None else questions.get(Seq(answers))
        if question is not None and "message" in question.body:
            yield said_by_agent(question, task_id, context_id, view)
        elif answers in asked:
            yield asked[answers]
        yield said_by_caller(event, task_id, context_id)


def check_history_length(length: int | None) -> None:
    """Raise InvalidParams for a length that no history has."""
    if length is not None and length < 0:
        raise InvalidParams("must be 0 or more; leave it out for all", path="historyLength")


def _fold_status(folding: Folding, events: Sequence[LoggedEvent], view: View) -> None:
    task = folding.task
    for event in reversed(events):
        status = status_after(event, TaskId(task.id), ContextId(task.context_id), view)
        if status is not None:
            task.status.CopyFrom(status)
            folding.is_asking = asked_by(event) is not None
            folding.in_band = is_in_band(event)
            return
    if not task.HasField("status"):
        raise ValueError(f"the log of {task.id} does not begin with event 1")


def _fold_artifacts(task: pb.Task, events: Sequence[LoggedEvent]) -> None:
    """What these events bring is put together before it joins the Task, so that each artifact is
    made a protobuf once, however many chunks it came in."""
    grown: dict[str, ArtifactJson] = {}
    continued: set[str] = set()
    for event in events:
        if event.kind is not EventKind.ARTIFACT:
            continue
        artifact_id = event.body["artifact"]["artifactId"]
        if not event.body.get("append"):
            continued.discard(artifact_id)
        elif artifact_id not in grown:
            continued.add(artifact_id)
        apply(grown, event.body)
    held = {artifact.artifact_id: artifact for artifact in task.artifacts} if grown else {}
    for artifact_id, body in grown.items():
        new = artifact_to_proto(body)
        if artifact_id not in held:
            task.artifacts.append(new)
        elif artifact_id in continued:
            append_artifact(held[artifact_id], new)
        else:
            held[artifact_id].CopyFrom(new)


def append_artifact(held: pb.Artifact, new: pb.Artifact) -> None:
    """What `append` does to an artifact (§4.2.2)."""
    held.parts.extend(new.parts)
    held.name = new.name or held.name
    held.description = new.description or held.description
    if new.HasField("metadata"):
        held.metadata.MergeFrom(new.metadata)


def _fold_history(folding: Folding, events: Sequence[LoggedEvent], view: View) -> None:
    task_id, context_id = TaskId(folding.task.id), ContextId(folding.task.context_id)
    history = history_of(events, task_id, context_id, view, folding.questions)
    folding.task.history.extend(history)
    for event in reversed(events):
        if (state := state_after(event)) is None:
            continue
        if not state.is_paused:
            folding.questions.clear()  # what went on without an answer gets none
        elif event.kind is EventKind.STATUS and event.is_message and "message" in event.body:
            said = said_by_agent(event, task_id, context_id, view)
            folding.questions = {event.seq: said}
        else:
            continue  # a reminder: the question stands further back
        return
