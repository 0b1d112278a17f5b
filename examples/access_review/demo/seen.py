"""What a caller has seen of a task: item after item, and what they add up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict

from outlast.model.ids import Seq
from outlast.testing.checker import Sighting
from outlast.wire.extension import EXTENSION_URI


@dataclass(frozen=True, kw_only=True)
class Question:
    """pause: its name, so that an answer never meets another question."""

    text: str
    data: Mapping[str, Any]
    pause: str


@dataclass(eq=False)
class Seen:
    """Takes what streams bring. task: put together from it, as the protocol says (§4.2).

    said: the agent's texts, in order. progress: how much of how much the latest report said.
    """

    sightings: list[Sighting] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    task: pb.Task = field(default_factory=pb.Task)
    progress: tuple[int, int] | None = None

    @property
    def generation(self) -> Seq:
        return self.sightings[-1].generation if self.sightings else Seq(0)

    @property
    def state(self) -> pb.TaskState:
        return self.task.status.state

    @property
    def is_paused(self) -> bool:
        return self.state == pb.TASK_STATE_INPUT_REQUIRED

    @property
    def has_ended(self) -> bool:
        return self.state in (
            pb.TASK_STATE_COMPLETED,
            pb.TASK_STATE_FAILED,
            pb.TASK_STATE_CANCELED,
            pb.TASK_STATE_REJECTED,
        )

    def take(self, item: pb.StreamResponse) -> None:
        match item.WhichOneof("payload"):
            case "task":
                self.task.CopyFrom(item.task)
                self._note(item.task.metadata, is_task=True)
                self._hear(item.task.status)
            case "status_update":
                self.task.status.CopyFrom(item.status_update.status)
                self._note(item.status_update.metadata, is_task=False)
                self._hear(item.status_update.status)
                self._measure(item.status_update.metadata)
            case "artifact_update":
                self._fold(item.artifact_update)
                self._note(item.artifact_update.metadata, is_task=False)
            case other:
                raise ValueError(f"a stream of a task brought a {other}")

    def question(self) -> Question:
        """What the task waits for. The first data part is the agent's own; the schema follows."""
        message = MessageToDict(self.task.status.message)
        data = next(part["data"] for part in message["parts"] if "data" in part)
        pause = message["metadata"][EXTENSION_URI]["pause"]
        return Question(text=self.said[-1], data=data, pause=pause)

    def _note(self, metadata: Any, *, is_task: bool) -> None:
        generation = Seq(int(metadata[EXTENSION_URI]["generation"]))
        self.sightings.append(Sighting(generation=generation, is_task=is_task))

    def _hear(self, status: pb.TaskStatus) -> None:
        self.said.extend(part.text for part in status.message.parts if part.text)

    def _measure(self, metadata: Any) -> None:
        report = MessageToDict(metadata)[EXTENSION_URI].get("progress", {})
        if "done" in report and "total" in report:
            self.progress = int(report["done"]), int(report["total"])

    def _fold(self, update: pb.TaskArtifactUpdateEvent) -> None:
        for held in self.task.artifacts:
            if held.artifact_id == update.artifact.artifact_id:
                if not update.append:
                    held.Clear()
                held.MergeFrom(update.artifact)
                return
        self.task.artifacts.append(update.artifact)
