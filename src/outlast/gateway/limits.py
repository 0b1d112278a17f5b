"""What a message may hold, checked before anything is written.

A database keeps no NUL, protobuf no deep nesting, and neither should meet what nobody has bounded:
each refusal names the place in the request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from a2a.types import a2a_pb2 as pb

from outlast.gateway.config import GatewayConfig
from outlast.model.errors import InvalidParams
from outlast.wire.messages import struct_to_json, to_json

_LONGEST_ID = 255
_DEEPEST = 100
_SHOWN = 200


def read_message(message: pb.Message, config: GatewayConfig) -> dict[str, Any]:
    """A caller's message as JSON. Raises InvalidParams, with the path, for what cannot be kept."""
    if not message.message_id:
        raise InvalidParams("is required", path="message.messageId")
    if message.role != pb.ROLE_USER:
        raise InvalidParams("must be ROLE_USER in what a caller sends", path="message.role")
    if not message.parts:
        raise InvalidParams("needs at least one part", path="message.parts")
    if len(message.parts) > config.max_parts:
        raise InvalidParams(
            f"has {len(message.parts)} parts; the limit is {config.max_parts}",
            path="message.parts",
        )
    for index, part in enumerate(message.parts):
        _check_part(part, f"message.parts[{index}]", config)
    body = to_json(message, path="message")
    _check_json(body, "message", config)
    for name in ("messageId", "contextId", "taskId"):
        check_id(body.get(name, ""), path=f"message.{name}")
    return body


def read_metadata(struct: Any, config: GatewayConfig) -> dict[str, Any]:
    """The request's own metadata as JSON. Errors as for `read_message`."""
    body = struct_to_json(struct, path="metadata")
    _check_json(body, "metadata", config)
    return body


def check_answer(value: Any, config: GatewayConfig, *, path: str = "message.parts") -> None:
    """Raise InvalidParams for an answer that cannot be kept: one that came as text has passed no
    parser of the protocol's."""
    for place, depth, leaf in _leaves(value, path, 0):
        _check_leaf(leaf, depth, place, config)


def check_value(value: Any, config: GatewayConfig, *, path: str) -> None:
    """Raise InvalidParams for a value that no ledger keeps. The error does not hold the value."""
    check_answer(value, config, path=path)
    size = len(
        json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    )
    if size > config.max_part:
        raise InvalidParams(f"has {size} bytes; the limit is {config.max_part}", path=path)


def check_id(text: str, *, path: str) -> None:
    """Raise InvalidParams for an id that no column of the store would take."""
    if "\0" in text or len(text) > _LONGEST_ID:
        raise InvalidParams(f"must have at most {_LONGEST_ID} characters and no NUL", path=path)


def _check_part(part: pb.Part, path: str, config: GatewayConfig) -> None:
    kind = part.WhichOneof("content")
    if kind is None:
        raise InvalidParams("needs one of text, data, raw or url", path=path)
    size = _size_of(part)
    if size > config.max_part:
        raise InvalidParams(
            f"has {size} bytes; the limit of a part is {config.max_part}, larger files go by url",
            path=f"{path}.{kind}",
        )


def _size_of(part: pb.Part) -> int:
    """Bytes of the content, without what says what it is."""
    match part.WhichOneof("content"):
        case "text":
            return len(part.text.encode())
        case "raw":
            return len(part.raw)
        case "url":
            return len(part.url.encode())
        case _:
            return int(part.data.ByteSize())


def _check_json(body: Mapping[str, Any], path: str, config: GatewayConfig) -> None:
    for place, depth, leaf in _leaves(body, path, 0):
        _check_leaf(leaf, depth, place, config)
    size = len(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())
    if size > config.max_message:
        raise InvalidParams(f"has {size} bytes; the limit is {config.max_message}", path=path)


def _check_leaf(leaf: Any, depth: int, place: str, config: GatewayConfig) -> None:
    place = place[:_SHOWN]  # it is made of the caller's own keys
    if depth > config.max_depth:
        raise InvalidParams(f"is nested deeper than {config.max_depth} levels", path=place)
    match leaf:
        case str() if "\0" in leaf:
            raise InvalidParams("holds a NUL character", path=place)
        case float() if not math.isfinite(leaf):
            raise InvalidParams("is a number that is not finite", path=place)
        case int() if not -(2**63) <= leaf < 2**64:
            raise InvalidParams("is a whole number of more than 64 bits", path=place)


def _leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, int, Any]]:
    """Everything in a JSON value that holds nothing itself, keys too, with place and depth."""
    if depth > _DEEPEST:
        yield path, depth, None  # refused anyhow, before the stack of this function ends
    elif isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield path, depth, key
            yield from _leaves(item, f"{path}.{key}", depth + 1)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]", depth + 1)
    else:
        yield path, depth, value
