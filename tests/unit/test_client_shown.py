"""What a client makes of parts and questions for a reader."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict

from outlast.client.snapshot import question_in, shown_of
from outlast.wire.extension import EXTENSION_URI


def parts_of(*parts: dict[str, Any]) -> list[pb.Part]:
    return [ParseDict(part, pb.Part()) for part in parts]


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        ([{"text": "one "}, {"text": "two"}], "one two"),
        ([{"text": "See:"}, {"data": {"n": 3}}, {"text": "end"}], 'See:\n{"n": 3}\nend'),
        ([{"url": "https://a.example/f", "mediaType": "a/b"}], "https://a.example/f (a/b)\n"),
        ([{"raw": "AAAA", "filename": "f.bin"}], "(3 bytes: f.bin)\n"),
        ([{"raw": "AAA="}], "(2 bytes: a file)\n"),
        ([{}], ""),
    ],
)  # fmt: skip
def test_parts_are_shown_whatever_they_hold(parts: list[dict[str, Any]], shown: str) -> None:
    assert shown_of(parts_of(*parts)) == shown


@pytest.mark.parametrize("deadline", ["2026-12-14T12:06:04.454Z", "soon", None])
def test_a_question_is_its_text_what_it_is_about_and_what_it_wants(deadline: str | None) -> None:
    status = pb.TaskStatus(state=pb.TASK_STATE_INPUT_REQUIRED)
    schema = {"type": "array"}
    status.message.parts.extend(
        parts_of({"text": "Run these?"}, {"data": {"calls": [1]}}, {"data": {"schema": schema}})
    )
    said = {"pause": "e1-3", "schema": schema, "deadline": deadline}
    status.message.metadata.update({EXTENSION_URI: said})

    question = question_in(status)

    assert question is not None
    assert (question.text, question.pause, question.schema) == ("Run these?", "e1-3", schema)
    assert question.data == [{"calls": [1]}]
    is_time = deadline is not None and deadline.endswith("Z")
    when = datetime(2026, 12, 14, 12, 6, 4, 454_000, UTC)
    assert question.deadline == (when if is_time else None)


def test_who_does_not_wait_asks_nothing() -> None:
    assert question_in(pb.TaskStatus(state=pb.TASK_STATE_WORKING)) is None
