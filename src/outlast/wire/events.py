"""Events of the log as the protocol's streaming events (specification §4.2).

What the log keeps for ourselves (who sent a message, where an answer goes) stays behind: each
event is built of the fields named here, never copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict

from outlast.model.commit import EventKind, LoggedEvent, said_in
from outlast.model.ids import ContextId, Millis, TaskId
from outlast.model.pause import Ask, DueBy
from outlast.model.task import State
from outlast.wire.extension import EXTENSION_URI, PLAIN, View
from outlast.wire.messages import artifact_to_proto, message_to_proto

Update = pb.TaskStatusUpdateEvent | pb.TaskArtifactUpdateEvent

_STATES: Mapping[State, pb.TaskState] = {
    State.SUBMITTED: pb.TASK_STATE_SUBMITTED,
    State.WORKING: pb.TASK_STATE_WORKING,
    State.INPUT_REQUIRED: pb.TASK_STATE_INPUT_REQUIRED,
    State.AUTH_REQUIRED: pb.TASK_STATE_AUTH_REQUIRED,
    State.COMPLETED: pb.TASK_STATE_COMPLETED,
    State.FAILED: pb.TASK_STATE_FAILED,
    State.CANCELED: pb.TASK_STATE_CANCELED,
    State.REJECTED: pb.TASK_STATE_REJECTED,
}
_NUMBERS: Mapping[int, State] = {int(number): state for state, number in _STATES.items()}
_PROGRESS = ("done", "total", "data")


def update_of(
    event: LoggedEvent, task_id: TaskId, context_id: ContextId, view: View = PLAIN
) -> Update:
    """The streaming event of this row. Event 1, which streams open with as a Task, reads as the
    caller's message in SUBMITTED."""
    update: Update
    if event.kind is EventKind.ARTIFACT:
        update = pb.TaskArtifactUpdateEvent(
            task_id=task_id,
            context_id=context_id,
            artifact=artifact_to_proto(event.body["artifact"]),
            append=event.body["append"],
            last_chunk=event.body["lastChunk"],
        )
    else:
        update = pb.TaskStatusUpdateEvent(task_id=task_id, context_id=context_id)
        status = status_after(event, task_id, context_id, view)
        assert status is not None, "only artifacts leave the status alone"
        update.status.CopyFrom(status)
    if said := _under_uri(event, task_id, context_id, view):
        update.metadata.update({EXTENSION_URI: said})
    return update


def state_of_proto(number: int) -> State | None:
    """The state of this number in the protocol, or None when there is none."""
    return _NUMBERS.get(number)


def state_after(event: LoggedEvent) -> State | None:
    """The state that this event brings, or None when it leaves the state alone."""
    match event.kind:
        case EventKind.TASK:
            return State.SUBMITTED
        case EventKind.STATUS | EventKind.MESSAGE:
            return State(event.body["state"])
        case EventKind.ARTIFACT:
            return None
        case _ as unreachable:
            assert_never(unreachable)


def status_after(
    event: LoggedEvent, task_id: TaskId, context_id: ContextId, view: View = PLAIN
) -> pb.TaskStatus | None:
    """The status that clients see after this event, or None when it leaves the status alone."""
    state = state_after(event)
    if state is None:
        return None
    status = pb.TaskStatus(state=_STATES[state])
    status.timestamp.FromMilliseconds(event.created_at)
    if said_in(event.kind, event.body) is not None:
        status.message.CopyFrom(said_by_agent(event, task_id, context_id, view))
    return status


def is_in_band(event: LoggedEvent) -> bool:
    """Whether the event asks for an authorization that a message may bring."""
    ask = asked_by(event)
    return ask is not None and Ask.from_json(ask).in_band


def asked_by(event: LoggedEvent) -> Mapping[str, Any] | None:
    """What the event asks, also where it reminds of a question; None where it asks nothing."""
    ask: Mapping[str, Any] | None = event.body.get("ask", event.body.get("again"))
    return ask


def said_by_agent(
    event: LoggedEvent, task_id: TaskId, context_id: ContextId, view: View = PLAIN
) -> pb.Message:
    """The agent's message in a status. A question carries the schema of its answers, its deadline,
    and the name of the pause, for a client that wants to answer this question and no later one; so
    does what reminds of it."""
    said = said_in(event.kind, event.body)
    assert said is not None, "the event brings a status with a message"
    message = message_to_proto(said, task_id=task_id, context_id=context_id)
    ask = asked_by(event)
    if ask is not None:
        question: dict[str, Any] = {"pause": view.pause_name(ask.get("pause", event.seq))}
        if ask.get("schema") is not None:
            question["schema"] = ask["schema"]
        if "due" in ask:
            due = DueBy.from_json(ask["due"]).counted_from(ask.get("asked_at", event.created_at))
            question["deadline"] = _time_of(due)
        message.metadata.update({EXTENSION_URI: question})
    return message


def _time_of(millis: Millis) -> str:
    """As the protocol writes times: in UTC, with milliseconds."""
    time = datetime.fromtimestamp(millis // 1000, UTC) + timedelta(milliseconds=millis % 1000)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def said_by_caller(event: LoggedEvent, task_id: TaskId, context_id: ContextId) -> pb.Message:
    """The caller's message in event 1 or in an event of kind MESSAGE."""
    return message_to_proto(event.body["message"], task_id=task_id, context_id=context_id)


def _under_uri(
    event: LoggedEvent, task_id: TaskId, context_id: ContextId, view: View
) -> dict[str, Any]:
    said: dict[str, Any] = {}
    progress = event.body.get("progress")
    if event.kind is EventKind.STATUS and progress:
        said["progress"] = {key: progress[key] for key in _PROGRESS if key in progress}
    if not view.extended:
        return said
    said["generation"] = event.seq
    if event.kind in (EventKind.TASK, EventKind.MESSAGE):
        said["message"] = MessageToDict(said_by_caller(event, task_id, context_id))
        if event.body.get("answers") is not None:
            said["answers"] = view.pause_name(event.body["answers"])
    return said
