"""The fold law, for random logs: a stream's first Task and then its events equal GetTask."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.server.tasks.task_manager import append_artifact_to_task
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.artifacts import artifact_event
from outlast.model.commit import LoggedEvent, status_event
from outlast.model.content import Artifact, Data
from outlast.model.errors import InvalidParams
from outlast.model.ids import Seq
from outlast.model.task import State
from outlast.wire.events import Update, state_after, update_of
from outlast.wire.extension import EXTENSION_URI, PLAIN, View
from outlast.wire.fold import fold_task
from outlast.wire.messages import message_to_proto
from tests.unit.test_wire_logs import CONTEXT_ID, TASK_ID, Author, logs, task_of

EXTENDED = View(extended=True, epoch="e1")


# --- clients ------------------------------------------------------------------------------------


class PlainClient:
    """Any client of plain 1.0: artifacts are kept as the SDK's own code keeps them."""

    def __init__(self, first: pb.Task) -> None:
        self.task = pb.Task()
        self.task.CopyFrom(first)

    def apply(self, update: Update) -> None:
        if isinstance(update, pb.TaskArtifactUpdateEvent):
            append_artifact_to_task(self.task, update)
        else:
            self.task.status.CopyFrom(update.status)


class ExtendedClient(PlainClient):
    """A client that has activated our extension: it keeps the history and the generation too."""

    def apply(self, update: Update) -> None:
        said = MessageToDict(update.metadata)[EXTENSION_URI]
        if "answers" in said:
            self.task.history.append(self.task.status.message)
        if "message" in said:
            self.task.history.append(message_to_proto(said["message"]))
        self.task.metadata.update({EXTENSION_URI: {"generation": said["generation"]}})
        super().apply(update)


def seen(task: pb.Task, *, history: bool) -> dict[str, Any]:
    body: dict[str, Any] = MessageToDict(task)
    if not history:
        body.pop("history", None)
    for artifact in body.get("artifacts", ()):
        if not artifact.get("metadata"):
            artifact.pop("metadata", None)
    return body


# --- the law ------------------------------------------------------------------------------------


@given(logs(), st.data())
def test_case_088_the_first_task_and_its_events_are_the_task(
    events: list[LoggedEvent], data: st.DataObject
) -> None:
    start = data.draw(st.integers(1, len(events)))
    task = task_of(events)
    for view, client_type in ((PLAIN, PlainClient), (EXTENDED, ExtendedClient)):
        client = client_type(fold_task(task, events, view=view, until=Seq(start)))
        for event in events[start:]:
            client.apply(update_of(event, TASK_ID, CONTEXT_ID, view))
            now = fold_task(task, events, view=view, until=event.seq)

            assert seen(client.task, history=view.extended) == seen(now, history=view.extended)


@given(logs())
def test_a_fold_until_an_event_knows_nothing_later(events: list[LoggedEvent]) -> None:
    task = task_of(events)
    for event in events:
        cut = fold_task(task, events[: event.seq], view=EXTENDED)

        assert fold_task(task, events, view=EXTENDED, until=event.seq) == cut


@given(logs())
def test_what_the_log_keeps_for_ourselves_never_goes_out(events: list[LoggedEvent]) -> None:
    task = task_of(events)
    for view in (PLAIN, EXTENDED):
        shown = [str(fold_task(task, events, view=view))]
        shown += [str(update_of(event, TASK_ID, CONTEXT_ID, view)) for event in events]

        assert "s3cret" not in "".join(shown)


@given(logs())
def test_plain_clients_see_no_generation_and_no_messages(events: list[LoggedEvent]) -> None:
    for event in events:
        update = update_of(event, TASK_ID, CONTEXT_ID)
        under_uri = MessageToDict(update.metadata).get(EXTENSION_URI, {})

        assert set(under_uri) <= {"progress"}
    assert EXTENSION_URI not in MessageToDict(fold_task(task_of(events), events).metadata)


@given(logs(), st.integers(0, 6))
def test_case_125_history_is_cut_to_the_most_recent(events: list[LoggedEvent], n: int) -> None:
    task = task_of(events)
    whole = list(fold_task(task, events).history)

    assert list(fold_task(task, events, history_length=n).history) == (whole[-n:] if n else [])


# --- by example ---------------------------------------------------------------------------------


def conversation() -> Author:
    author = Author()
    author.report("looking", {"done": 1, "total": 2, "data": {"a": 1}})
    author.ask("approve?", {"type": "boolean"})
    author.hear("yes")
    author.ask("sure?", None)
    author.resume()
    author.chunk("report", "one", append=False)
    author.chunk("report", " two", append=True)
    author.end(State.COMPLETED, "done")
    return author


def test_case_125_history_holds_messages_and_answered_questions_in_order() -> None:
    events = conversation().logged()

    folded = fold_task(task_of(events), events)

    assert [message.parts[0].text for message in folded.history] == ["begin", "approve?", "yes"]
    assert {(message.task_id, message.context_id) for message in folded.history} == {
        (TASK_ID, CONTEXT_ID)
    }


@pytest.mark.parametrize(
    ("length", "expected"),
    [(None, ["begin", "approve?", "yes"]), (0, []), (1, ["yes"]), (2, ["approve?", "yes"])],
)
def test_case_125_history_length(length: int | None, expected: list[str]) -> None:
    events = conversation().logged()

    folded = fold_task(task_of(events), events, history_length=length)

    assert [message.parts[0].text for message in folded.history] == expected


def test_case_125_a_negative_history_length_is_refused() -> None:
    events = conversation().logged()

    with pytest.raises(InvalidParams, match="historyLength"):
        fold_task(task_of(events), events, history_length=-1)


def test_a_question_goes_out_with_its_schema_its_deadline_and_the_name_of_its_pause() -> None:
    events = conversation().logged()
    question = events[2]

    update = update_of(question, TASK_ID, CONTEXT_ID, View(epoch="e1"))

    assert isinstance(update, pb.TaskStatusUpdateEvent)
    assert update.status.state == pb.TASK_STATE_INPUT_REQUIRED
    assert MessageToDict(update.status.message.metadata) == {
        EXTENSION_URI: {
            "pause": "e1-3",
            "schema": {"type": "boolean"},
            "deadline": "2023-11-14T22:14:50.411Z",
        }
    }


def test_a_reminder_names_the_pause_and_the_deadline_of_its_question() -> None:
    author = Author()
    author.ask("approve?", {"type": "boolean"})
    author.remind()
    _, question, reminder = author.logged()
    view = View(epoch="e1")

    said = [update_of(event, TASK_ID, CONTEXT_ID, view) for event in (question, reminder)]

    assert MessageToDict(said[1].status.message) == MessageToDict(said[0].status.message)
    under_uri = MessageToDict(said[1].status.message.metadata)[EXTENSION_URI]
    assert (under_uri["pause"], under_uri["schema"]) == ("e1-2", {"type": "boolean"})
    assert "deadline" in under_uri


def test_progress_stands_in_the_updates_metadata() -> None:
    events = conversation().logged()

    update = update_of(events[1], TASK_ID, CONTEXT_ID)

    assert MessageToDict(update.metadata) == {
        EXTENSION_URI: {"progress": {"done": 1, "total": 2, "data": {"a": 1}}}
    }


def test_a_callers_message_is_an_event_of_the_extension() -> None:
    events = conversation().logged()

    update = update_of(events[3], TASK_ID, CONTEXT_ID, EXTENDED)

    assert isinstance(update, pb.TaskStatusUpdateEvent)
    assert update.status.state == pb.TASK_STATE_WORKING
    said = MessageToDict(update.metadata)[EXTENSION_URI]
    assert said["message"]["parts"] == [{"text": "yes"}]
    assert (said["answers"], said["generation"]) == ("e1-3", 4)


def test_a_status_has_the_time_of_its_event() -> None:
    events = conversation().logged()

    folded = fold_task(task_of(events), events, until=Seq(7))

    assert folded.status.timestamp.ToMilliseconds() == events[5].created_at
    assert folded.status.state == pb.TASK_STATE_WORKING


def test_chunks_make_one_artifact() -> None:
    events = conversation().logged()

    folded = fold_task(task_of(events), events)

    assert [artifact.artifact_id for artifact in folded.artifacts] == ["report"]
    assert [part.text for part in folded.artifacts[0].parts] == ["one", " two"]
    assert folded.artifacts[0].name == "report.md"


def test_data_parts_keep_their_values() -> None:
    author = Author()
    body = Artifact(id="d", parts=(Data({"a": [1, 2.5, None, True]}),)).to_json()
    author.events.append(artifact_event(body, append=False, last_chunk=True))
    events = author.logged()

    update = update_of(events[1], TASK_ID, CONTEXT_ID)

    assert isinstance(update, pb.TaskArtifactUpdateEvent)
    assert update.last_chunk
    assert MessageToDict(update.artifact)["parts"] == [{"data": {"a": [1, 2.5, None, True]}}]


def test_every_state_has_its_place_in_the_protocol() -> None:
    for state in State:
        author = Author()
        author.events.append(status_event(state))
        events = author.logged()
        update = update_of(events[1], TASK_ID, CONTEXT_ID)

        assert isinstance(update, pb.TaskStatusUpdateEvent)
        name = pb.TaskState.Name(update.status.state)
        assert name == f"TASK_STATE_{state.name}"
        assert state_after(events[1]) is state
