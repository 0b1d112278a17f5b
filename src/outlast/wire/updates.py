"""The client's half of the fold law: a Task, and what a stream's events make of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict

from outlast.wire.events import Update
from outlast.wire.extension import EXTENSION_URI
from outlast.wire.fold import append_artifact
from outlast.wire.messages import message_to_proto


def apply_update(task: pb.Task, update: Update) -> None:
    """Change the Task as this event says.

    The Task that a stream began with, and its events applied in order, equal GetTask: in state,
    status and artifacts for any server, and in history where it speaks our extension.
    """
    said = under_uri(update)
    if isinstance(update, pb.TaskArtifactUpdateEvent):
        _apply_artifact(task, update)
    else:
        if "message" in said:
            _apply_message(task, said)
        task.status.CopyFrom(update.status)
    if "generation" in said:
        task.metadata.update({EXTENSION_URI: {"generation": said["generation"]}})


def under_uri(said: pb.Task | pb.Message | Update) -> Mapping[str, Any]:
    """What a server's metadata holds under our URI; nothing where it is not one of ours."""
    if EXTENSION_URI not in said.metadata.fields:
        return {}
    value = MessageToDict(said.metadata.fields[EXTENSION_URI])
    return value if isinstance(value, dict) else {}


def generation_of(said: pb.Task | Update) -> int | None:
    """The generation that a Task or event says, where our extension is activated."""
    value = under_uri(said).get("generation")
    return None if value is None else int(value)


def _apply_artifact(task: pb.Task, update: pb.TaskArtifactUpdateEvent) -> None:
    new = update.artifact
    held = next((have for have in task.artifacts if have.artifact_id == new.artifact_id), None)
    if held is None:
        task.artifacts.append(new)
    elif not update.append:
        held.CopyFrom(new)
    else:
        append_artifact(held, new)


def _apply_message(task: pb.Task, said: Mapping[str, Any]) -> None:
    """A caller's message joins the history, and before it the question that it answers."""
    asked = task.status.message
    answers = said.get("answers")
    if answers is not None and under_uri(asked).get("pause") == answers:
        task.history.append(asked)
    task.history.append(message_to_proto(said["message"]))
