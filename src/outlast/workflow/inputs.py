"""What a caller's first message must hold, checked before a task exists."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from outlast.model.content import Data, Message
from outlast.model.errors import InvalidParams
from outlast.workflow.checkpoint import CheckpointType
from outlast.workflow.jsontype import JsonType

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
            raise invalid(error, place) from error


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
        raise invalid(error, place) from error


def _required_data(message: Message) -> tuple[str, Any]:
    for index, part in enumerate(message.parts):
        if isinstance(part, Data):
            return f"message.parts[{index}].data", part.data
    raise InvalidParams("needs a data part", path="message.parts")


def invalid(error: ValidationError, place: str) -> InvalidParams:
    """The first fault, at its place in the message, and how many more there are."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    path = ".".join((place, *map(str, faults[0]["loc"])))
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return InvalidParams(f"{faults[0]['msg']}{more}", path=path)
