"""Author's types as JSON: every value that outlives a run passes through here.

JSON is the one form that survives a crash, so a value that changes on its way there and back is
refused where the author can see it, and not met by the next run.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from outlast.model.errors import AuthorError

T = TypeVar("T")

_SHOWN = 200
_AMBIGUOUS = "give the type by name, defined at the top of its module, and nothing that JSON lacks."


class JsonType(Generic[T]):
    """A type whose values are kept as JSON text."""

    def __init__(self, type_: type[T] | TypeAdapter[T], *, what: str) -> None:
        """Raises AuthorError, naming `what`, for a type that pydantic cannot handle."""
        try:
            given = isinstance(type_, TypeAdapter)
            self.adapter = cast("TypeAdapter[T]", type_ if given else _adapter_of(type_))
            self.adapter.rebuild(raise_errors=True)
        except (PydanticUserError, NameError, TypeError) as error:
            raise AuthorError(
                f"{what} has the type {type_!r}, which cannot be read from JSON: {shown(error)}",
                _AMBIGUOUS,
            ) from error

    def encode(self, value: T, *, what: str) -> str:
        """The value as JSON text. Raises AuthorError, naming `what`, if it has no such form."""
        try:
            # What does not fit its type is found by reading it back, with a better message.
            text = self.adapter.dump_json(
                value, warnings=False, round_trip=True, by_alias=True
            ).decode()
        except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
            raise AuthorError(
                f"{what} cannot be written as JSON: {shown(error)}",
                "keep only what JSON can hold, or give the type a serializer.",
            ) from error
        if "\\u0000" in text:
            refuse_nul(json.loads(text), what=what)
        return text

    def decode(self, text: str) -> T:
        """The value that the text stands for. Raises pydantic's ValidationError."""
        return self.adapter.validate_json(text, by_alias=True)

    def decode_kept(self, text: str, *, what: str) -> T:
        """As `decode`, for a value that came from the author's own code. Raises AuthorError."""
        try:
            return self.decode(text)
        except ValidationError as error:
            raise AuthorError(
                f"{what} does not fit its type: {fault_of(error)}",
                "correct the annotation or `result=`, or return what it says.",
            ) from error

    def schema(self, *, what: str) -> dict[str, Any]:
        """The JSON Schema of values that can be read. Raises AuthorError if there is none."""
        try:
            return self.adapter.json_schema()
        except PydanticUserError as error:
            raise AuthorError(f"{what} has no JSON Schema: {shown(error)}", _AMBIGUOUS) from error


def _adapter_of(type_: Any) -> TypeAdapter[Any]:
    try:
        return _cached_adapter(type_)
    except TypeError:  # not hashable: Annotated[...] with a dict in it, for one
        return TypeAdapter(type_)


@functools.lru_cache(maxsize=512)
def _cached_adapter(type_: Any) -> TypeAdapter[Any]:
    # Building one takes longer than most calls whose results it reads.
    return TypeAdapter(type_)


def plain(value: Any, *, what: str) -> Any:
    """The value made of JSON's own: dict, list, str, int, float, bool and None.

    Models and dataclasses become objects, sets sorted lists, dates and the like their usual text.
    Raises AuthorError, naming `what`, for anything else.
    """
    try:
        return _plain(value)
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
        raise AuthorError(
            f"{what} is not JSON: {shown(error)}",
            "pass values that JSON can hold, and bind clients and the like with functools.partial.",
        ) from error


def _plain(value: Any) -> Any:
    match value:
        case float() if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"JSON has no {value}")
        case None | bool() | float() | int():
            return value
        case str():
            return str(value)
        case BaseModel():
            return _plain(value.model_dump(by_alias=True, warnings=False))
        case Mapping():
            return {_member(key): _plain(item) for key, item in value.items()}
        case set() | frozenset():
            # A set's own order differs between processes, and with it the digest.
            return sorted((_plain(item) for item in value), key=canonical)
        case list() | tuple():
            return [_plain(item) for item in value]
        case Iterator():
            raise TypeError("an iterator can be read only once")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name)) for field in fields}
    return to_jsonable_python(value)


def _member(key: Any) -> str:
    name = _plain(key)
    return name if isinstance(name, str) else canonical(name)


def canonical(value: Any) -> str:
    """One text for equal JSON values, whatever the order of their members."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def refuse_nul(value: Any, *, what: str) -> None:
    """Raise AuthorError when a string in the JSON value holds what no database keeps: a NUL, or
    half of a surrogate pair."""
    path = next(_unstorable(value, ""), None)
    if path is not None:
        raise AuthorError(
            f"{what} holds a NUL character or a lone surrogate{f' at {path}' if path else ''}.",
            "remove it, for example with text.replace('\\0', '').",
        )


def _unstorable(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, str):
        if "\0" in value or not _is_unicode(value):
            yield path
    elif isinstance(value, Mapping):
        for key, item in value.items():
            where = f"{path}.{key}" if path else str(key)
            yield from _unstorable(key, where)
            yield from _unstorable(item, where)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unstorable(item, f"{path}.{index}" if path else str(index))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def fault_of(error: ValidationError) -> str:
    """The first thing that is wrong, with its path, and how many more there are."""
    path, text = first_fault(error)
    return f"{path}: {text}" if path else text


def first_fault(error: ValidationError) -> tuple[str, str]:
    """The path of the first thing that is wrong ("" for the whole), and what is wrong with it."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return ".".join(map(str, faults[0]["loc"])), f"{faults[0]['msg']}{more}"


def shown(value: object) -> str:
    """A value as an error message shows it: in one line, and short."""
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
