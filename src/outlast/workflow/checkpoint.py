"""Checkpoints: the author's type on one side, JSON text in the task's row on the other."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import structlog
from pydantic import BaseModel, TypeAdapter, ValidationError

from outlast.model.errors import AuthorError
from outlast.workflow.jsontype import JsonType, canonical, fault_of
from outlast.workflow.limits import CHECKPOINT_LIMIT, CHECKPOINT_WARNING, check_size, size_of

C = TypeVar("C")

_log = structlog.get_logger("outlast.workflow")
_WHOLE = "(the whole value)"


class CheckpointType(Generic[C]):
    """A workflow's checkpoints as JSON text."""

    def __init__(self, type_: type[C] | TypeAdapter[C], *, workflow: str) -> None:
        """Raises AuthorError for a type that cannot be read from JSON."""
        self.type = type_
        self.what = f"the checkpoint of {workflow}"
        self._json = JsonType(type_, what=self.what)

    def encode(self, checkpoint: C) -> str:
        """The text that is stored.

        Raises AuthorError when it is too large, holds a NUL character, or would come back as
        something else: a later run would then start from what the author never wrote.
        """
        text = self._json.encode(checkpoint, what=self.what)
        self._check_size(text)
        try:
            again = self._json.decode(text)
        except ValidationError as error:
            raise self._does_not_survive(fault_of(error)) from error
        if not _is_same(checkpoint, again):
            for path in _lost(checkpoint, again, ""):
                raise self._does_not_survive(path or _WHOLE)
        return text

    def decode(self, text: str) -> C:
        """The checkpoint that the text stands for, a new object each time.

        Raises AuthorError when the type has changed and stored checkpoints no longer fit it.
        """
        try:
            return self._json.decode(text)
        except ValidationError as error:
            raise AuthorError(
                f"A stored checkpoint no longer fits {self._name}: {fault_of(error)}",
                "give new fields a default, or put the change under a new version.",
            ) from error

    def as_written(self, checkpoint: C) -> str:
        """The text of a checkpoint just decoded, to compare with: no check is made."""
        return self._json.encode(checkpoint, what=self.what)

    def from_data(self, data: Any) -> C:
        """The checkpoint that a caller's data part describes. Raises pydantic's ValidationError."""
        return self._json.decode(json.dumps(data))

    def empty(self) -> C | None:
        """The checkpoint without any data, or None when it has required fields."""
        try:
            return self._json.decode("{}")
        except ValidationError:
            return None

    def check_instance(self, value: object, *, of: str) -> None:
        """Raise AuthorError unless `value` is what `of` should have returned: a checkpoint."""
        if not is_instance(value, self.type):
            raise AuthorError(
                f"{of} returned {type(value).__name__} where {self._name} is wanted.",
                f"return the first checkpoint: `return {self._name}(…)`.",
            )

    @property
    def _name(self) -> str:
        return getattr(self.type, "__name__", repr(self.type))

    def _check_size(self, text: str) -> None:
        size = size_of(text)
        check_size(
            size,
            CHECKPOINT_LIMIT,
            what=self.what,
            fix="keep large values elsewhere (a memo, an artifact, your own store) and their ids "
            "in the checkpoint.",
        )
        if size >= CHECKPOINT_WARNING:
            _log.warning("checkpoint.large", checkpoint=self._name, bytes=size)

    def _does_not_survive(self, path: str) -> AuthorError:
        return AuthorError(
            f"{self.what} does not survive JSON: {path}",
            "give the field the type of what it holds; a date or a model in a field of type Any, "
            "or a subclass in one of its base class, comes back as something else.",
        )


def is_instance(value: object, type_: object) -> bool:
    """Whether the value is of the type, as far as Python can tell: a TypedDict cannot be asked."""
    try:
        return not isinstance(type_, type) or isinstance(value, type_)
    except TypeError:
        return True


def changed_fields(before: str, after: str) -> list[str]:
    """The top-level fields in which two checkpoints differ."""
    old, new = json.loads(before), json.loads(after)
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [] if old == new else [_WHOLE]
    return [
        name
        for name in old | new
        if name not in old or name not in new or canonical(old[name]) != canonical(new[name])
    ]


def _lost(value: Any, again: Any, path: str) -> Iterator[str]:
    """Paths at which a value that came back from JSON differs from what was sent there."""
    members = _members_of(value)
    found = _members_of(again)
    if members is None or found is None or _kind_of(value) is not _kind_of(again):
        if not _is_same(value, again):
            yield path
        return
    for name in members | found:
        where = f"{path}.{name}" if path else str(name)
        if name in members and name in found:
            yield from _lost(members[name], found[name], where)
        else:
            yield where


def _members_of(value: Any) -> dict[Any, Any] | None:
    """What the value is made of, or None for one that has to be compared as a whole."""
    match value:
        case BaseModel():
            names = type(value).model_fields
            fields = {name: getattr(value, name) for name in names if hasattr(value, name)}
            return fields | (value.model_extra or {})
        case dict():
            return value
        case list() | tuple():
            return dict(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _kind_of(value: Any) -> type:
    """The type, where a tuple counts as a list: JSON has one of them, and so do most fields."""
    return list if isinstance(value, tuple) else type(value)


def _is_same(value: Any, again: Any) -> bool:
    if getattr(type(value), "__eq__", None) is object.__eq__:
        return type(value) is type(again)  # nothing more can be told
    try:
        return bool(value == again) or bool(value != value and again != again)  # NaN is NaN
    except Exception:
        return False  # arrays, for one, have no single answer
