"""The fold law, which every streaming test checks: the Task that a stream begins with, and then its
events, applied in order, equal GetTask. State, status and artifacts for every client; history and
generation too for one that has activated our extension.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from a2a.server.tasks.task_manager import append_artifact_to_task
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidAgentResponseError
from google.protobuf.json_format import MessageToDict, ParseDict

from outlast.wire.extension import EXTENSION_URI
from outlast.wire.updates import apply_update

Get = Callable[[str, bool], Awaitable[pb.Task]]
"""GetTask: of the task of this id, with our extension or without."""

_SETTLED = frozenset(
    {
        pb.TASK_STATE_COMPLETED,
        pb.TASK_STATE_FAILED,
        pb.TASK_STATE_CANCELED,
        pb.TASK_STATE_REJECTED,
        pb.TASK_STATE_INPUT_REQUIRED,
    }
)


class Stream:
    """A stream as its reader has it. When it has come to its end by itself, the law is checked."""

    def __init__(self, items: AsyncIterator[pb.StreamResponse], get: Get) -> None:
        self.items: list[pb.StreamResponse] = []
        self._coming = items
        self._get = get

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> pb.StreamResponse:
        try:
            item = await anext(self._coming)
        except StopAsyncIteration:
            if self.items and _last_state(self.items) in _SETTLED:
                await check_fold(self.items, self._get)
            raise
        self.items.append(item)
        return item

    async def aclose(self) -> None:
        coming: Any = self._coming
        await coming.aclose()


async def check_fold(items: Sequence[pb.StreamResponse], get: Get) -> None:
    """The law, of a stream that has brought everything there is. A task that has gone on after
    the question that ended a stream is another one by now, and proves nothing."""
    extended = _is_extended(items[0].task)
    task = await get(items[0].task.id, extended)
    if task.status.state not in _SETTLED or task.status != folded(items).status:
        assert _last_state(items) == pb.TASK_STATE_INPUT_REQUIRED, "an end is for good"
        return
    check_equal(items, task)


def check_equal(items: Sequence[pb.StreamResponse], task: pb.Task) -> None:
    """What the items make, by our own client's code too, is this Task."""
    extended = _is_extended(items[0].task)
    assert shown(folded(items), extended=extended) == shown(task, extended=extended)
    by_our_client = pb.Task()
    by_our_client.CopyFrom(items[0].task)
    for update in map(_update_of, items[1:]):
        apply_update(by_our_client, update)
    if len(items) > 1:
        assert shown(by_our_client, extended=extended) == shown(task, extended=extended)


def folded(items: Sequence[pb.StreamResponse]) -> pb.Task:
    """The Task of a stream with its events applied, as any client would; and as one that knows our
    extension would, where they carry it."""
    task = pb.Task()
    task.CopyFrom(items[0].task)
    _number(task, task)
    for update in map(_update_of, items[1:]):
        if isinstance(update, pb.TaskArtifactUpdateEvent):
            append_artifact_to_task(task, update)
        else:
            said = _said(update)
            if "message" in said:
                asked = task.status.message
                if said.get("answers") is not None and _said(asked).get("pause") == said["answers"]:
                    task.history.append(asked)
                task.history.append(ParseDict(said["message"], pb.Message()))
            task.status.CopyFrom(update.status)
        _number(task, update)
    return task


def shown(task: pb.Task, *, extended: bool = False) -> dict[str, Any]:
    """The Task as JSON; without its history, unless the extension says what callers did."""
    body: dict[str, Any] = MessageToDict(task)
    if not extended:
        body.pop("history", None)
    for artifact in body.get("artifacts", ()):
        if not artifact.get("metadata"):
            artifact.pop("metadata", None)
    return body


def _number(task: pb.Task, said: Any) -> None:
    if (number := _said(said).get("generation")) is not None:
        task.metadata.update({EXTENSION_URI: {"generation": number}})


def _said(said: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = MessageToDict(said.metadata).get(EXTENSION_URI, {})
    return found


def _is_extended(task: pb.Task) -> bool:
    return "generation" in _said(task)


def _update_of(item: pb.StreamResponse) -> Any:
    assert item.WhichOneof("payload") in ("status_update", "artifact_update"), item
    return getattr(item, str(item.WhichOneof("payload")))


def _last_state(items: Sequence[pb.StreamResponse]) -> int | None:
    """The state that a stream's last item brings."""
    item = items[-1]
    if item.HasField("task"):
        return item.task.status.state
    return item.status_update.status.state if item.HasField("status_update") else None


# --- that it finds what it is for -----------------------------------------------------------------


def _stream() -> list[pb.StreamResponse]:
    """A stream with the extension: a chunk, a question, its answer, a chunk, the end."""

    def numbered(update: Any, **said: Any) -> pb.StreamResponse:
        number = len(items) + 1
        update.metadata.update({EXTENSION_URI: {"generation": number, **said}})
        is_artifact = isinstance(update, pb.TaskArtifactUpdateEvent)
        return pb.StreamResponse(**{"artifact_update" if is_artifact else "status_update": update})

    def chunk(text: str, *, append: bool) -> pb.TaskArtifactUpdateEvent:
        artifact = pb.Artifact(artifact_id="out", parts=[pb.Part(text=text)])
        return pb.TaskArtifactUpdateEvent(task_id="t", artifact=artifact, append=append)

    def status(state: pb.TaskState, text: str = "", **said: Any) -> pb.TaskStatusUpdateEvent:
        update = pb.TaskStatusUpdateEvent(task_id="t", status=pb.TaskStatus(state=state))
        if text:
            update.status.message.CopyFrom(pb.Message(parts=[pb.Part(text=text)]))
            update.status.message.metadata.update({EXTENSION_URI: said})
        return update

    task = pb.Task(id="t", status=pb.TaskStatus(state=pb.TASK_STATE_SUBMITTED))
    task.metadata.update({EXTENSION_URI: {"generation": 1}})
    items = [pb.StreamResponse(task=task)]
    items.append(numbered(chunk("a", append=False)))
    items.append(numbered(status(pb.TASK_STATE_INPUT_REQUIRED, "sure?", pause="3")))
    answer = {"message": {"messageId": "m", "parts": [{"text": "yes"}]}, "answers": "3"}
    items.append(numbered(status(pb.TASK_STATE_WORKING), **answer))
    items.append(numbered(chunk("b", append=True)))
    items.append(numbered(status(pb.TASK_STATE_COMPLETED)))
    return items


async def test_a_lawful_stream_passes() -> None:
    task = folded(_stream())
    assert [message.parts[0].text for message in task.history] == ["sure?", "yes"]
    assert [part.text for part in task.artifacts[0].parts] == ["a", "b"]
    check_equal(_stream(), task)


@pytest.mark.parametrize(
    "came",
    [
        [0, 1, 2, 3, 5],  # a chunk is missed
        [0, 1, 2, 3, 4, 4, 5],  # one comes twice
        [0, 4, 2, 3, 1, 5],  # they come in another order
        [0, 1, 3, 4, 5],  # a question is missed
        [0, 1, 2, 4, 5],  # an answer is
        [0, 1, 2, 3, 4],  # the end is
    ],
)
async def test_an_unlawful_stream_does_not(came: list[int]) -> None:
    items = _stream()
    with pytest.raises((AssertionError, InvalidAgentResponseError)):
        check_equal([items[number] for number in came], folded(items))
