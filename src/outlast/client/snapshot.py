"""What a client shows: a task at one moment, its question, and what happens to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict

from outlast.model.task import State
from outlast.wire.messages import with_whole_numbers
from outlast.wire.updates import generation_of, under_uri


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a task asks: a text, and `data` that it is about. `pause` names it, `schema` is what its
    answer must fit, and `deadline` is until when it waits, where the server says so."""

    text: str
    pause: str | None
    schema: Mapping[str, Any] | None
    deadline: datetime | None = None
    data: Sequence[Any] = ()


@dataclass(frozen=True)
class Snapshot:
    """A task as a server showed it at one moment. `task` has everything; the rest is for short."""

    task: pb.Task

    @property
    def task_id(self) -> str:
        return str(self.task.id)

    @property
    def context_id(self) -> str:
        return str(self.task.context_id)

    @property
    def state(self) -> State:
        return state_of(self.task.status)

    @property
    def changed_at(self) -> datetime | None:
        """When its status changed last, by the server's clock."""
        stamp = self.task.status.timestamp
        return stamp.ToDatetime(UTC) if self.task.status.HasField("timestamp") else None

    @property
    def text(self) -> str:
        """What the agent said last, with the status."""
        return text_of(self.task.status.message.parts, between="\n")

    @property
    def artifacts(self) -> Mapping[str, str]:
        """The text of each artifact, by its name or else its id."""
        return {item.name or item.artifact_id: text_of(item.parts) for item in self.task.artifacts}

    @property
    def written(self) -> Sequence[tuple[str, str, str]]:
        """The id and name of each artifact, in order, and what `shown_of` makes of it."""
        return [
            (item.artifact_id, item.name or item.artifact_id, shown_of(item.parts))
            for item in self.task.artifacts
        ]

    @property
    def question(self) -> Question | None:
        """What the task asks right now, or None."""
        return question_in(self.task.status)

    @property
    def generation(self) -> int | None:
        """The number of the latest event in it, where the server speaks our extension."""
        return generation_of(self.task)

    def to_json(self) -> dict[str, Any]:
        """A2A's JSON."""
        body: dict[str, Any] = MessageToDict(self.task)
        return body


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What a message brought: a task, or the agent's direct reply."""

    snapshot: Snapshot | None = None
    reply: pb.Message | None = None

    def to_json(self) -> dict[str, Any]:
        """A2A's JSON, of a SendMessageResponse."""
        if self.snapshot is not None:
            return {"task": self.snapshot.to_json()}
        return {"message": MessageToDict(self.reply)}

    @property
    def text(self) -> str:
        """What the agent said."""
        if self.snapshot is not None:
            return self.snapshot.text
        return "" if self.reply is None else text_of(self.reply.parts, between="\n")


@dataclass(frozen=True)
class Opened:
    """The first event: the task as it is."""

    snapshot: Snapshot

    def to_json(self) -> dict[str, Any]:
        """A2A's JSON, of a StreamResponse."""
        return {"task": self.snapshot.to_json()}

    @property
    def state(self) -> State:
        return self.snapshot.state


@dataclass(frozen=True)
class StatusChanged:
    """The task's state, or what the agent says of it, has changed."""

    update: pb.TaskStatusUpdateEvent

    def to_json(self) -> dict[str, Any]:
        """A2A's JSON, of a StreamResponse."""
        return {"statusUpdate": MessageToDict(self.update)}

    @property
    def state(self) -> State:
        return state_of(self.update.status)

    @property
    def text(self) -> str:
        return text_of(self.update.status.message.parts, between="\n")

    @property
    def question(self) -> Question | None:
        """What the task asks from now on, or None."""
        return question_in(self.update.status)

    @property
    def progress(self) -> Mapping[str, Any]:
        """A report's `done`, `total` and `data`, as far as it has them."""
        said = under_uri(self.update).get("progress")
        return said if isinstance(said, dict) else {}


@dataclass(frozen=True)
class ArtifactChanged:
    """An artifact has grown, or was replaced."""

    update: pb.TaskArtifactUpdateEvent

    def to_json(self) -> dict[str, Any]:
        """A2A's JSON, of a StreamResponse."""
        return {"artifactUpdate": MessageToDict(self.update)}

    @property
    def state(self) -> None:
        """An artifact leaves the state alone."""

    @property
    def name(self) -> str:
        """The artifact's name, which only its first chunk has, or else its id."""
        return str(self.update.artifact.name or self.update.artifact.artifact_id)

    @property
    def artifact_id(self) -> str:
        return str(self.update.artifact.artifact_id)

    @property
    def appends(self) -> bool:
        """Whether the text goes on after what the artifact had, instead of replacing it."""
        return bool(self.update.append)

    @property
    def text(self) -> str:
        return text_of(self.update.artifact.parts)

    @property
    def shown(self) -> str:
        """What `shown_of` makes of its parts."""
        return shown_of(self.update.artifact.parts)


@dataclass(frozen=True)
class Reset:
    """Forget what was shown: this is the task now, and what happened meanwhile cannot be told."""

    snapshot: Snapshot

    def to_json(self) -> dict[str, Any]:
        """A2A's JSON, of a StreamResponse: a Task that is not the first begins anew."""
        return {"task": self.snapshot.to_json()}

    @property
    def state(self) -> State:
        return self.snapshot.state


Event = Opened | StatusChanged | ArtifactChanged | Reset


@dataclass(frozen=True, kw_only=True)
class Link:
    """What connects a follower with its task: a stream that brings events, looks at the task where
    streams bring nothing, or for the moment nothing, and why."""

    by: Literal["stream", "looks", "nothing"]
    why: str = ""


def state_of(status: pb.TaskStatus) -> State:
    """The state; a task whose server says none is taken for SUBMITTED."""
    name = pb.TaskState.Name(status.state).removeprefix("TASK_STATE_")
    if name == "UNSPECIFIED":
        return State.SUBMITTED
    return State(name.lower().replace("_", "-"))


def question_in(status: pb.TaskStatus) -> Question | None:
    """What a task in this status asks, or None."""
    if not state_of(status).is_paused:
        return None
    said = under_uri(status.message)
    return Question(
        text=text_of(status.message.parts, between="\n"),
        pause=said.get("pause"),
        schema=said.get("schema"),
        deadline=_time_in(said.get("deadline")),
        data=[data for data in map(_data_in, status.message.parts) if _is_asked_about(data)],
    )


def _data_in(part: pb.Part) -> Any:
    is_data = part.WhichOneof("content") == "data"
    return with_whole_numbers(MessageToDict(part.data)) if is_data else None


def _is_asked_about(data: Any) -> bool:
    """Not the schema of the answer, which our agents put beside it."""
    return data is not None and not (isinstance(data, dict) and data.keys() == {"schema"})


def _time_in(text: object) -> datetime | None:
    """A server's time; None for what is none: a client shows what it can."""
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def text_of(parts: Any, *, between: str = "") -> str:
    """The text parts, joined: chunks of an artifact without anything between them."""
    return between.join(part.text for part in parts if part.WhichOneof("content") == "text")


def shown_of(parts: Any) -> str:
    """The parts for a reader: text as it is, and everything else on a line of its own."""
    shown = ""
    for part in parts:
        if part.WhichOneof("content") == "text":
            shown += part.text
        elif line := _line_of(part):
            shown += f"{line}\n" if not shown or shown.endswith("\n") else f"\n{line}\n"
    return shown


def _line_of(part: pb.Part) -> str:
    name = part.filename or part.media_type
    match part.WhichOneof("content"):
        case "data":
            return json.dumps(_data_in(part), ensure_ascii=False)
        case "url":
            return f"{part.url} ({name})" if name else str(part.url)
        case "raw":
            return f"({len(part.raw)} bytes: {name or 'a file'})"
        case _:
            return ""
