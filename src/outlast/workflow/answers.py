"""Answers: what the gateway makes of a caller's message, and what a step gets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlast.model.content import Data, Message, Text
from outlast.model.errors import InvalidParams
from outlast.model.task import Caller
from outlast.workflow.jsontype import canonical

if TYPE_CHECKING:
    from jsonschema import ValidationError

Schema = Mapping[str, Any]

_WORDS = {"true": True, "yes": True, "false": False, "no": False}
_SHOWN = 2_000


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer to a question without a type: what was sent, and by whom."""

    text: str
    data: Any
    message: Message
    caller: Caller


@dataclass(frozen=True, kw_only=True)
class AnswerRecord:
    """An answer as the ledger holds it.

    Its JSON is {"text", "data", "message", "caller", "value"}; `value` is what fits the
    question's schema, and None where the question has none.
    """

    message: Message
    caller: Caller
    value: Any = None

    @classmethod
    def read(cls, schema: Schema | None, message: Message, caller: Caller) -> AnswerRecord:
        """The answer in a caller's message. Raises InvalidParams where it does not fit."""
        value = None if schema is None else read_answer(schema, message)
        return cls(message=message, caller=caller, value=value)

    @property
    def answer(self) -> Answer:
        message = self.message
        return Answer(text=message.text, data=message.data, message=message, caller=self.caller)

    def to_json(self) -> dict[str, Any]:
        return {
            "text": self.message.text,
            "data": self.message.data,
            "message": self.message.to_json(),
            "caller": self.caller.to_json(),
            "value": self.value,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> AnswerRecord:
        return cls(
            message=Message.from_json(body["message"]),
            caller=Caller.from_json(body["caller"]),
            value=body.get("value"),
        )


def read_answer(schema: Schema, message: Message) -> Any:
    """The value in the message that fits the schema.

    It is the first data part. Text alone is read as JSON, else as the value of a string, enum or
    boolean schema. Raises InvalidParams with the path of the fault, or with the schema where the
    message holds nothing that could be meant.
    """
    for index, part in enumerate(message.parts):
        if isinstance(part, Data):
            fault = _fault(schema, part.data)
            if fault is None:
                return part.data
            raise _refused(fault, f"message.parts[{index}].data")
    places = [index for index, part in enumerate(message.parts) if isinstance(part, Text)]
    if not places:
        raise InvalidParams(f"needs a data part that fits {_shown(schema)}", path="message.parts")
    return _read_text(schema, message.text, f"message.parts[{places[0]}].text")


def _read_text(schema: Schema, text: str, place: str) -> Any:
    for value in _meanings(text):
        if _fault(schema, value) is None:
            return value
    value = _json_in(text)
    fault = _fault(schema, value) if isinstance(value, (dict, list)) else None
    if fault is not None:
        raise _refused(fault, place)
    raise InvalidParams(f"cannot be read as an answer that fits {_shown(schema)}", path=place)


def _meanings(text: str) -> Iterator[Any]:
    try:
        yield json.loads(text)
    except (ValueError, RecursionError):
        pass
    yield text
    word = text.strip()
    yield word
    if word.lower() in _WORDS:
        yield _WORDS[word.lower()]


def _json_in(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _fault(schema: Schema, value: Any) -> ValidationError | None:
    # Imported here: who never asks does not pay for it at start.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    fault: ValidationError | None = best_match(validator.iter_errors(value))
    return fault


def _refused(fault: ValidationError, place: str) -> InvalidParams:
    path = ".".join((place, *map(str, fault.absolute_path)))
    return InvalidParams(fault.message[:_SHOWN], path=path)


def _shown(schema: Schema) -> str:
    return f"this JSON Schema: {canonical(schema)[:_SHOWN]}"
