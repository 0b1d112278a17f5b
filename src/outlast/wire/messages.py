"""Messages and parts: the protocol's types, our values, and the JSON that both share.

JSON is the form in between: `model.content` reads and writes it, the log keeps it, protobuf has
its own mapping for it. A caller's message is kept as the JSON it came as, so that what our values
have no name for (a text part's file name) still goes back out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict, ParseDict, SerializeToJsonError

from outlast.model import content
from outlast.model.errors import InvalidParams

_EXACT = 2**53
"""Up to here every whole number is a double; larger ones stay what they were made to."""


class _Message(Protocol):
    """What the protocol's generated classes have in common, for our purposes."""

    DESCRIPTOR: Any


def to_json(message: _Message, *, path: str) -> dict[str, Any]:
    """The JSON of a part of a request, with its names as in the specification.

    Whole numbers are whole again, as they were sent: protobuf has only doubles for them. Raises
    InvalidParams for what has no JSON: a number that is not finite.
    """
    try:
        body: dict[str, Any] = MessageToDict(message)
    except (SerializeToJsonError, ValueError) as error:  # the second for the message itself
        raise InvalidParams("holds a number that is not finite", path=path) from error
    return {name: with_whole_numbers(value) for name, value in body.items()}


def struct_to_json(struct: Any, *, path: str) -> dict[str, Any]:
    """The JSON object of a `google.protobuf.Struct`. Errors as for `to_json`."""
    return to_json(struct, path=path)


def message_to_proto(
    body: Mapping[str, Any], *, task_id: str = "", context_id: str = ""
) -> pb.Message:
    """The message of this JSON, as part of a task where ids are given and it names none."""
    message = pb.Message()
    ParseDict(body, message, ignore_unknown_fields=True)
    message.task_id = message.task_id or task_id
    message.context_id = message.context_id or context_id
    return message


def artifact_to_proto(body: Mapping[str, Any]) -> pb.Artifact:
    """The artifact of this JSON."""
    artifact = pb.Artifact()
    ParseDict(body, artifact, ignore_unknown_fields=True)
    return artifact


def to_proto(message: content.Message) -> pb.Message:
    """Our message as the protocol's."""
    return message_to_proto(message.to_json())


def from_proto(message: pb.Message) -> content.Message:
    """The protocol's message as ours. Raises InvalidParams for a part without content."""
    return content.Message.from_json(to_json(message, path="message"))


def with_whole_numbers(value: Any) -> Any:
    """The JSON with whole numbers as they were written: in the protocol's data all are floating."""
    match value:
        case float() if value.is_integer() and abs(value) <= _EXACT:
            return int(value)
        case dict():
            return {key: with_whole_numbers(item) for key, item in value.items()}
        case list():
            return [with_whole_numbers(item) for item in value]
        case _:
            return value
