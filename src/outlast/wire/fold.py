"""The Task that a log makes: what clients read, as of now or as of any event of the log.

The fold law: the Task as of n, and then the events after n applied one by one, equal the Task as
of the last of them. It holds for state, status and artifacts of every client, and for history
with the extension, whose events carry what callers said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from a2a.types import a2a_pb2 as pb

from outlast.model.artifacts import fold_artifacts
from outlast.model.commit import EventKind, LoggedEvent
from outlast.model.errors import InvalidParams
from outlast.model.ids import ContextId, Seq, TaskId
from outlast.model.task import Task
from outlast.wire.events import said_by_agent, said_by_caller, status_after
from outlast.wire.extension import EXTENSION_URI, PLAIN, View
from outlast.wire.messages import artifact_to_proto


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
    folded = pb.Task(id=task.task_id, context_id=task.context_id)
    folded.status.CopyFrom(_last_status(seen, task.task_id, task.context_id, view))
    folded.artifacts.extend(map(artifact_to_proto, fold_artifacts(seen).values()))
    history = list(history_of(seen, task.task_id, task.context_id, view))
    folded.history.extend(most_recent(history, history_length))
    if task.metadata:
        folded.metadata.update(dict(task.metadata))
    if view.extended:
        folded.metadata.update({EXTENSION_URI: {"generation": generation or seen[-1].seq}})
    return folded


def history_of(
    events: Iterable[LoggedEvent], task_id: TaskId, context_id: ContextId, view: View = PLAIN
) -> Iterator[pb.Message]:
    """Callers' messages, and each question before the message that answered it, in order."""
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
        yield said_by_caller(event, task_id, context_id)


def most_recent(history: Sequence[pb.Message], length: int | None) -> Sequence[pb.Message]:
    """As many of the most recent messages as a client asked for (specification §3.2.4)."""
    check_history_length(length)
    if length is None:
        return history
    return history[max(0, len(history) - length) :]


def check_history_length(length: int | None) -> None:
    """Raise InvalidParams for a length that no history has."""
    if length is not None and length < 0:
        raise InvalidParams("must be 0 or more; leave it out for all", path="historyLength")


def _last_status(
    events: Sequence[LoggedEvent], task_id: TaskId, context_id: ContextId, view: View
) -> pb.TaskStatus:
    for event in reversed(events):
        if (status := status_after(event, task_id, context_id, view)) is not None:
            return status
    raise ValueError(f"the log of {task_id} does not begin with event 1")
