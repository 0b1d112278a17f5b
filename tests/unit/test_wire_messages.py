"""Messages, parts and artifacts are the protocol's own, proved by the round trip."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict, ParseDict
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.content import Artifact, Data, File, Message, Part, Text
from outlast.model.errors import InvalidParams
from outlast.model.ids import Seq
from outlast.wire.extension import EXTENSION_URI, View, said_under_uri
from outlast.wire.messages import artifact_to_proto, from_proto, message_to_proto, to_json, to_proto

# What protobuf's JSON can hold: numbers are doubles, and text is UTF-8.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
word = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)
number = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False).map(
    lambda number: number + 0.0
)
json_values = st.recursive(
    st.none() | st.booleans() | number | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
metadata = st.none() | st.dictionaries(text, json_values, min_size=1, max_size=2)
media_type = st.none() | word
parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, text, media_type=media_type, metadata=metadata),
    st.builds(Data, json_values, media_type=media_type, metadata=metadata),
    st.builds(
        File,
        raw=st.binary(max_size=20),
        name=st.none() | word,
        media_type=media_type,
        metadata=metadata,
    ),
    st.builds(File, url=text, name=st.none() | word, media_type=media_type, metadata=metadata),
)
messages = st.builds(
    Message,
    role=st.sampled_from(["user", "agent"]),
    parts=st.lists(parts, min_size=1, max_size=4).map(tuple),
    message_id=word,
    context_id=st.none() | word,
    task_id=st.none() | word,
    metadata=metadata,
    extensions=st.lists(word, max_size=2).map(tuple),
    reference_task_ids=st.lists(word, max_size=2).map(tuple),
)
artifacts = st.builds(
    Artifact,
    id=word,
    parts=st.lists(parts, min_size=1, max_size=4).map(tuple),
    name=st.none() | word,
    description=st.none() | word,
    metadata=metadata,
)


@given(messages)
def test_a_message_survives_the_protocols_types_and_bytes(message: Message) -> None:
    proto = to_proto(message)
    again = pb.Message.FromString(proto.SerializeToString())

    assert from_proto(proto) == message
    assert from_proto(again) == message


@given(messages)
def test_our_json_is_the_protocols_json(message: Message) -> None:
    proto = to_proto(message)

    assert MessageToDict(proto) == message.to_json()
    assert ParseDict(message.to_json(), pb.Message()) == proto
    assert to_proto(from_proto(proto)) == proto


@given(artifacts)
def test_an_artifact_survives_the_protocols_types(artifact: Artifact) -> None:
    proto = artifact_to_proto(artifact.to_json())

    assert MessageToDict(proto) == artifact.to_json()
    assert Artifact.from_json(MessageToDict(proto)) == artifact


def test_an_empty_text_and_a_null_are_content() -> None:
    message = Message.user(Text(""), Data(None))

    assert from_proto(to_proto(message)) == message


def test_a_part_without_content_is_refused_with_its_place() -> None:
    proto = pb.Message(role=pb.ROLE_USER, parts=[pb.Part(text="a"), pb.Part(filename="b")])

    with pytest.raises(InvalidParams, match=r"message\.parts\[1\]"):
        from_proto(proto)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_lacks_is_refused(value: float) -> None:
    proto = pb.Message(role=pb.ROLE_USER, parts=[pb.Part()])
    proto.parts[0].data.number_value = value

    with pytest.raises(InvalidParams, match="not finite"):
        to_json(proto, path="message")


@pytest.mark.parametrize(
    ("value", "kept"), [(3, 3), (3.5, 3.5), (2**53, 2**53), (1e300, 1e300), (-7.0, -7)]
)
def test_whole_numbers_stay_whole_and_all_fit_the_stores_codec(value: float, kept: float) -> None:
    proto = to_proto(Message.user(Data({"a": [value]})))

    data = to_json(proto, path="message")["parts"][0]["data"]["a"][0]

    assert (data, type(data)) == (kept, type(kept))
    assert orjson.loads(orjson.dumps(data)) == kept


def test_a_message_of_a_task_says_so_and_keeps_what_it_says_itself() -> None:
    body = Message.agent("hello").to_json()

    named = message_to_proto(body, task_id="t", context_id="c")
    own = message_to_proto({**body, "taskId": "other"}, task_id="t", context_id="c")

    assert (named.task_id, named.context_id) == ("t", "c")
    assert own.task_id == "other"


def test_a_text_parts_file_name_stays_in_the_json() -> None:
    """`Text` has no name for it, so what callers sent is kept as they sent it."""
    proto = pb.Message(
        message_id="m", role=pb.ROLE_USER, parts=[pb.Part(text="a", filename="a.txt")]
    )

    assert message_to_proto(to_json(proto, path="message")) == proto


@pytest.mark.parametrize("said", ["text", 1, [1], None])
def test_what_stands_under_our_uri_is_an_object(said: Any) -> None:
    with pytest.raises(InvalidParams, match="must be an object"):
        said_under_uri({EXTENSION_URI: said}, path="message.metadata")


def test_a_pause_is_named_by_epoch_and_seq() -> None:
    assert View(epoch="abc").pause_name(Seq(7)) == "abc-7"
    assert View().pause_name(Seq(7)) == "7"
