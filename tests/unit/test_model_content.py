"""Messages, parts and artifacts: their JSON is A2A's, and nothing is lost on the way."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast import Artifact, Data, File, Message, Text
from outlast.model.content import Part, as_part, joined, part_from_json
from outlast.model.errors import InvalidParams
from outlast.wire.messages import artifact_to_proto, from_proto, to_json, to_proto

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=10)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
metadata = st.none() | st.dictionaries(names, values, min_size=1, max_size=3)
media_types = st.none() | st.sampled_from(["text/markdown", "application/json", "image/png"])
extras = {"media_type": media_types, "metadata": metadata}

texts = st.builds(Text, words, **extras)
data = st.builds(Data, values, **extras)
files = st.builds(File, raw=st.binary(max_size=30), name=st.none() | names, **extras) | st.builds(
    File, url=names.map("https://files.example/{}".format), name=st.none() | names, **extras
)
parts: st.SearchStrategy[Part] = texts | data | files
messages = st.builds(
    Message,
    role=st.sampled_from(["user", "agent"]),
    parts=st.lists(parts, min_size=1, max_size=4).map(tuple),
    message_id=names,
    context_id=st.none() | names,
    task_id=st.none() | names,
    metadata=metadata,
    extensions=st.lists(names, max_size=2).map(tuple),
    reference_task_ids=st.lists(names, max_size=2).map(tuple),
)
artifacts = st.builds(
    Artifact,
    id=names,
    parts=st.lists(parts, min_size=1, max_size=4).map(tuple),
    name=st.none() | names,
    description=st.none() | names,
    metadata=metadata,
)


# --- there and back -------------------------------------------------------------------------------


@given(parts)
def test_a_part_comes_back_from_its_json(part: Part) -> None:
    assert part_from_json(part.to_json()) == part


@given(messages)
def test_a_message_comes_back_from_its_json(message: Message) -> None:
    assert Message.from_json(message.to_json()) == message


@given(artifacts)
def test_an_artifact_comes_back_from_its_json(artifact: Artifact) -> None:
    assert Artifact.from_json(artifact.to_json()) == artifact


@given(messages)
def test_a_message_comes_back_from_the_protocols_own_type(message: Message) -> None:
    assert from_proto(to_proto(message)) == message


@given(artifacts)
def test_an_artifact_comes_back_from_the_protocols_own_type(artifact: Artifact) -> None:
    proto = artifact_to_proto(artifact.to_json())
    assert Artifact.from_json(to_json(proto, path="artifact")) == artifact


# --- what a part is -------------------------------------------------------------------------------


def test_the_names_are_those_of_the_specification() -> None:
    raw = File(raw=b"\x00\xff", name="a.bin", media_type="application/octet-stream")
    assert Text("hi", media_type="text/plain").to_json() == {
        "text": "hi",
        "mediaType": "text/plain",
    }
    assert Data(None).to_json() == {"data": None}
    assert raw.to_json() == {
        "raw": "AP8=",
        "filename": "a.bin",
        "mediaType": "application/octet-stream",
    }
    assert File(url="https://a.example/b", metadata={"k": 1}).to_json() == {
        "url": "https://a.example/b",
        "metadata": {"k": 1},
    }


@pytest.mark.parametrize("given", [{}, {"raw": b"x", "url": "https://a.example"}], ids=str)
def test_a_file_is_bytes_or_an_address(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="either raw bytes or a url"):
        File(**given)


def test_an_empty_file_is_a_file() -> None:
    assert part_from_json({"raw": ""}) == File(raw=b"")


def test_a_part_without_content_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidParams, match="needs one of text, data, raw or url") as refused:
        Message.from_json({"parts": [{"text": "a"}, {"filename": "b"}]})
    assert refused.value.path == "message.parts[1]"


@pytest.mark.parametrize("raw", ["no base64!", "AP8", base64.b64encode(b"x").decode() + "%"])
def test_bytes_that_are_no_base64_are_refused_with_their_place(raw: str) -> None:
    with pytest.raises(InvalidParams, match="is not base64") as refused:
        part_from_json({"raw": raw}, path="message.parts[0]")
    assert refused.value.path == "message.parts[0].raw"


# --- what they say --------------------------------------------------------------------------------


def test_text_and_data_of_a_message() -> None:
    message = Message.user("one", Data({"n": 1}), Text("two"), Data({"n": 2}))
    assert message.text == "one\ntwo"
    assert message.data == {"n": 1}
    assert Message.user(File(raw=b"")).text == ""
    assert Message.user("only text").data is None


def test_chunks_of_an_artifact_make_one_text() -> None:
    assert Artifact(id="a", parts=(Text("Hel"), Data(1), Text("lo"))).text == "Hello"


def test_a_string_is_a_text() -> None:
    assert as_part("hi") == Text("hi")
    assert as_part(Data(1)) == Data(1)


@given(st.lists(parts, max_size=8))
def test_joining_changes_no_text_and_no_other_part(given: list[Part]) -> None:
    out = joined(given)
    assert len(out) <= len(given)
    assert "".join(part.text for part in out if isinstance(part, Text)) == "".join(
        part.text for part in given if isinstance(part, Text)
    )
    assert [part for part in out if not isinstance(part, Text)] == [
        part for part in given if not isinstance(part, Text)
    ]
    assert joined(out) == out


def test_only_plain_neighbours_are_joined() -> None:
    marked = Text("c", metadata={"k": 1})
    assert joined([Text("a"), Text("b"), marked, Text("d"), Data(1), Text("e"), Text("f")]) == (
        Text("ab"),
        marked,
        Text("d"),
        Data(1),
        Text("ef"),
    )
