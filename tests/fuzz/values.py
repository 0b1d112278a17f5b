"""JSON that is made of the protocol's own descriptors: right for the most part, and odd in places.

A value that no JSON library writes (`NaN`, half a character, a number of five thousand digits)
stands in as a mark, and `text_of` puts it into the text. What only the running gateway knows (the
id of a task) stands in by name until the request is sent.
"""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

from outlast.wire.extension import EXTENSION_URI

Draw = st.DrawFn

KNOWN_LATER = ("TASK-SUBMITTED", "TASK-PAUSED", "TASK-ENDED", "TASK-FOREIGN")
PAUSE, PAGE = "PAUSE-NAME", "PAGE-TOKEN"
UUIDS = ("0c7e9ff3-4dfd-4c3c-9c49-9fdb6b1e8a01", "0c7e9ff3-4dfd-4c3c-9c49-9fdb6b1e8a02")

_RAW = (
    "NaN",
    "-Infinity",
    "1e999",
    "-0",
    "1e-400",
    "9" * 5000,
    "1" + "0" * 400,
    r'"\ud800"',
    r'"\udc00\ud800"',
    r'"\u0000"',
    '{"a":1,"a":2}',
    '{"messageId":1,"messageId":"b"}',
    "[" * 3000 + "]" * 3000,
    '{"a":' * 150 + "1" + "}" * 150,
    '{"a":' * 30 + "1" + "}" * 30,
)
_MARKS = {f'"@raw-{index}@"': raw for index, raw in enumerate(_RAW)}

_WORDS = (
    "",
    " ",
    "a",
    "true",
    "null",
    "--5",
    "-",
    "²",
    "٣",
    "1_000",
    "0x10",
    "5" * 4400,
    "é\u0301 \u202e\u2028 \U0001f9ff",
    "\ufeff",
    "a\nb\r\nc",
    "\x1b[31m",
    "\x7f",
    "x" * 300,
    "a/b",
    "..",
    "%00",
    "%",
    "{0}",
    "'; drop table tasks; --",
    "2026-02-30T00:00:00Z",
    "0000-00-00T00:00:00Z",
    "9999-12-31T23:59:59.999999999Z",
    "ROLE_KING",
    "TASK_STATE_WORKING",
    "TASK_STATE_UNSPECIFIED",
    "********",
    EXTENSION_URI,
    "bm90IGEgdG9rZW4",
    "W10",
    "W251bGwsbnVsbCxudWxsXQ==",
)
_NUMBERS = (0, -0.0, 1, -1, 0.5, 101, 2**31, -(2**31) - 1, 2**53 + 1, 2**63, 2**64, 10**30, 1e308)

words = st.one_of(st.sampled_from(_WORDS), st.text(max_size=8))
later = st.sampled_from((*KNOWN_LATER, PAUSE, PAGE))
raws = st.sampled_from([mark.strip('"') for mark in _MARKS])
scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(_NUMBERS),
    st.integers(),
    words,
    later,
    raws,
)
anything: st.SearchStrategy[Any] = raws | st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)


def text_of(value: Any) -> str:
    """The value as JSON text, with what JSON libraries do not write in its places."""
    text = json.dumps(value)
    for mark, raw in _MARKS.items():
        text = text.replace(mark, raw)
    return text


def rarely(draw: Draw, one_in: int = 14) -> bool:
    """True for one in so many; what is simplest is False."""
    return draw(st.sampled_from(range(one_in))) == one_in - 1


# --- requests by their descriptors ----------------------------------------------------------------

_PARTS = ({"text": "begin"}, {"text": "hello"}, {"data": {"a": [1]}}, {"raw": "AAEC"})
_SAID = {"workflow": "chats", "version": 2, "pause": PAUSE, "ifGeneration": 1}
_TASKS = st.one_of(st.sampled_from(KNOWN_LATER), st.sampled_from(UUIDS))

# What a field wants beyond its type, by the name of the field.
_WANTED: dict[str, st.SearchStrategy[Any]] = {
    "id": _TASKS,
    "name": _TASKS.map("tasks/{}".format),
    "task_id": _TASKS,
    "message_id": st.sampled_from((*UUIDS, "m", "msg-1")),
    "context_id": st.sampled_from(("c", "d")),
    "tenant": st.just("acme"),
    "role": st.just("ROLE_USER"),
    "page_token": st.just(PAGE),
    "page_size": st.integers(1, 100),
    "history_length": st.integers(0, 3),
    "url": st.sampled_from(("https://hooks.example.com/a2a", "http://127.0.0.1/", "https://[::1")),
    "scheme": st.just("Bearer"),
    "parts": st.lists(st.sampled_from(_PARTS), min_size=1, max_size=2),
    "content": st.lists(st.sampled_from(_PARTS), min_size=1, max_size=2),
    "metadata": st.sampled_from(({"a": 1}, *({EXTENSION_URI: {k: v}} for k, v in _SAID.items()))),
    "accepted_output_modes": st.just(["text/plain"]),
    "extensions": st.just([EXTENSION_URI]),
}
_NEEDED = frozenset({"message", "request", "message_id", "role", "parts", "content", "url"})
_NEEDED_OF_TASK = frozenset({"id", "task_id", "name"})


def message_of(draw: Draw, kind: Descriptor, depth: int = 0) -> Any:
    """A message of this kind as JSON."""
    if rarely(draw, 40):
        return draw(anything)
    if kind.full_name.startswith("google.protobuf."):
        return _well_known(draw, kind.name)
    needed = _NEEDED | (_NEEDED_OF_TASK if depth == 0 else frozenset())
    body: dict[str, Any] = {}
    for field in kind.fields:
        if rarely(draw, 20) if field.name in needed else not rarely(draw, 5 + 2 * depth):
            continue
        name = field.name if rarely(draw) else field.json_name
        body[name] = field_of(draw, field, depth)
    if rarely(draw):
        body[draw(words)] = draw(anything)
    return body


def field_of(draw: Draw, field: FieldDescriptor, depth: int = 0) -> Any:
    """A value of this field as JSON."""
    if rarely(draw):
        return draw(anything)
    if (wanted := _WANTED.get(field.name)) is not None and not rarely(draw, 8):
        return draw(wanted)
    if not field.is_repeated:
        return _one_of(draw, field, depth)
    return [_one_of(draw, field, depth) for _ in range(draw(st.integers(0, 2)))]


def _one_of(draw: Draw, field: FieldDescriptor, depth: int) -> Any:
    match field.cpp_type:
        case field.CPPTYPE_MESSAGE:
            return {} if depth > 3 else message_of(draw, field.message_type, depth + 1)
        case field.CPPTYPE_STRING:
            return draw(words)
        case field.CPPTYPE_BOOL:
            return draw(st.booleans())
        case field.CPPTYPE_ENUM:
            names = [value.name for value in field.enum_type.values]
            return draw(st.sampled_from((*names, 1, 99)))
        case _:
            return draw(st.one_of(st.integers(-1, 101), st.sampled_from(_NUMBERS)))


def _well_known(draw: Draw, name: str) -> Any:
    match name:
        case "Struct":
            return draw(st.dictionaries(words, anything, max_size=3))
        case "Timestamp":
            return draw(st.sampled_from(("2026-01-01T00:00:00Z", "1970-01-01T00:00:00.001Z", 5)))
        case _:
            return draw(anything)
