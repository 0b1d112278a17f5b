"""What a caller's first message must hold, checked before a task exists."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from outlast.model.content import Data, Message
from outlast.model.errors import InvalidParams
from outlast.workflow.checkpoint import CheckpointType
from outlast.workflow.jsontype import JsonType, first_fault

C = TypeVar("C")


class InputType:
    """The type of the first data part, where a workflow names one with `input=`."""

    def __init__(self, type_: type[Any] | TypeAdapter[Any], *, workflow: str) -> None:
        self._json = JsonType(type_, what=f"the input of {workflow}")

    def read(self, message: Message) -> Any:
        """The input. Raises InvalidParams with the path of the fault."""
        place, data = _required_data(message)
        try:
            return self._json.decode(json.dumps(data))
        except ValidationError as error:
            raise _invalid(error, place) from error


def first_checkpoint(checkpoint: CheckpointType[C], message: Message) -> C:
    """The checkpoint that a message stands for where the workflow has no start.

    A message without a data part will do when no field is required. Raises InvalidParams with the
    path of the fault.
    """
    if not any(isinstance(part, Data) for part in message.parts):
        empty = checkpoint.empty()
        if empty is not None:
            return empty
    place, data = _required_data(message)
    try:
        return checkpoint.from_data(data)
    except ValidationError as error:
        raise _invalid(error, place) from error


def _required_data(message: Message) -> tuple[str, Any]:
    for index, part in enumerate(message.parts):
        if isinstance(part, Data):
            return f"message.parts[{index}].data", part.data
    raise InvalidParams("needs a data part", path="message.parts")


def _invalid(error: ValidationError, place: str) -> InvalidParams:
    path, text = first_fault(error)
    return InvalidParams(text, path=f"{place}.{path}" if path else place)
