"""Paths into a response (`tasks[*].id`), what is captured by them, and conditions on them."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.conformance.matching import MISSING

_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d+|\*)\]")
_VARIABLE: Final = re.compile(r"\{\{\s*([^{}]+?)\s*\}\}")
_UNTIL: Final = re.compile(r"^(?P<path>\S+)\s+(?P<how>==|!=|in)\s+(?P<value>.+)$")


class Unresolved(LookupError):
    """A test names a variable that nothing has captured or defined."""


def values_at(value: Any, path: str) -> Iterator[Any]:
    """Every value at the path; `[*]` stands for each element."""
    values = [value]
    for name, index in _STEP.findall(path):
        values = [found for one in values for found in _below(one, name, index)]
    yield from values


def value_at(value: Any, path: str) -> Any:
    """The value at the path, MISSING when there is none."""
    return next(values_at(value, path), MISSING)


def _below(value: Any, name: str, index: str) -> list[Any]:
    if name:
        return [value[name]] if isinstance(value, Mapping) and name in value else []
    if not isinstance(value, list):
        return []
    if index == "*":
        return value
    return value[int(index) : int(index) + 1]


def holds(condition: str, value: Any) -> bool:
    """Whether `path == x`, `path != x` or `path in [x, y]` is true of the value."""
    match = _UNTIL.match(condition)
    if match is None:
        raise ValueError(f"not a condition: {condition!r}")
    seen = str(value_at(value, match["path"]))
    named = [item.strip(" \"'") for item in match["value"].strip("[]").split(",")]
    return (seen in named) != (match["how"] == "!=")


def resolved(value: Any, known: Mapping[str, Any]) -> Any:
    """The value with each `{{name}}` replaced: captured or defined, `env.NAME`, or `$uuid`.

    A text that is a variable and nothing else becomes what it names, whatever its type.
    """
    if isinstance(value, Mapping):
        return {key: resolved(inner, known) for key, inner in value.items()}
    if isinstance(value, list):
        return [resolved(inner, known) for inner in value]
    if not isinstance(value, str):
        return value
    if whole := _VARIABLE.fullmatch(value):
        return _variable(whole[1], known)
    return _VARIABLE.sub(lambda match: str(_variable(match[1], known)), value)


def _variable(name: str, known: Mapping[str, Any]) -> Any:
    if name in known:
        return known[name]
    if name == "$uuid":
        return str(uuid.uuid4())
    if name.startswith("env.") and name[4:] in os.environ:
        return os.environ[name[4:]]
    raise Unresolved(f"nothing has captured or defined {name}")
