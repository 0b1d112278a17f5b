"""What a test expects of a value, and where a value differs from it.

An expectation is a scalar (equal), a list (element by element), a map of operators (all hold), or
a map of fields. A map is one of operators when each of its keys names one: a field may be called
`type` as long as a neighbour is not an operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


class _Missing:
    """The value of a field that is not there."""

    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = _Missing()


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """Where a value is not as expected."""

    path: str
    expected: Any
    seen: Any

    def __str__(self) -> str:
        return f"{self.path or 'the value'}: expected {self.expected!r}, saw {self.seen!r}"


def mismatches(expected: Any, value: Any, path: str = "") -> Iterator[Mismatch]:
    """Every place where `value` differs from what is expected; none when it matches."""
    if isinstance(expected, Mapping):
        if expected and expected.keys() <= _OPERATORS.keys():
            for name, operand in expected.items():
                yield from _OPERATORS[name](operand, value, path)
        else:
            for name, inner in expected.items():
                field = value.get(name, MISSING) if isinstance(value, Mapping) else MISSING
                yield from mismatches(inner, field, f"{path}.{name}" if path else str(name))
    elif isinstance(expected, list):
        yield from _elements(expected, value, path)
    elif not _equal(expected, value):
        yield Mismatch(path=path, expected=expected, seen=value)


def matches(expected: Any, value: Any) -> bool:
    return next(mismatches(expected, value), None) is None


# --- operators ----------------------------------------------------------------------------------

_Operator = Callable[[Any, Any, str], Iterator[Mismatch]]


def _equal(left: Any, right: Any) -> bool:
    """JSON's equality: true is no number."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _is(name: str, holds: Callable[[Any, Any], bool]) -> _Operator:
    def check(operand: Any, value: Any, path: str) -> Iterator[Mismatch]:
        if not holds(operand, value):
            yield Mismatch(path=path, expected={name: operand}, seen=value)

    return check


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "number": _number,
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, Mapping),
    "null": lambda value: value is None,
}


def _elements(expected: Sequence[Any], value: Any, path: str) -> Iterator[Mismatch]:
    for index, inner in enumerate(expected):
        there = isinstance(value, list) and index < len(value)
        yield from mismatches(inner, value[index] if there else MISSING, f"{path}[{index}]")


def _items(expected: Any, value: Any, path: str) -> Iterator[Mismatch]:
    """A map is for every element, a list for one after another."""
    if isinstance(expected, list):
        yield from _elements(expected, value, path)
    elif not isinstance(value, list):
        yield Mismatch(path=path, expected={"type": "array"}, seen=value)
    else:
        yield from _elements([expected] * len(value), value, path)


def _all_of(expected: Any, value: Any, path: str) -> Iterator[Mismatch]:
    for inner in expected:
        yield from mismatches(inner, value, path)


def _any_match(expected: Any, value: Any) -> bool:
    return any(matches(inner, value) for inner in expected)


def _length(holds: Callable[[int, int], bool]) -> Callable[[Any, Any], bool]:
    return lambda operand, value: isinstance(value, list) and holds(len(value), operand)


def _compared(holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda operand, value: _number(value) and holds(value, operand)


def _text(holds: Callable[[str, str], bool]) -> Callable[[Any, Any], bool]:
    return lambda operand, value: isinstance(value, str) and holds(value, operand)


_OPERATORS: Final[Mapping[str, _Operator]] = {
    "type": _is("type", lambda name, value: _TYPES[name](value)),
    "exists": _is("exists", lambda wanted, value: (value is not MISSING) == wanted),
    "absent": _is("absent", lambda wanted, value: (value is MISSING) == wanted),
    "contains": _is("contains", _text(lambda value, part: part in value)),
    "matches": _is("matches", _text(lambda value, pattern: bool(re.search(pattern, value)))),
    "starts_with": _is("starts_with", _text(str.startswith)),
    "ends_with": _is("ends_with", _text(str.endswith)),
    "gte": _is("gte", _compared(lambda value, limit: value >= limit)),
    "lte": _is("lte", _compared(lambda value, limit: value <= limit)),
    "gt": _is("gt", _compared(lambda value, limit: value > limit)),
    "lt": _is("lt", _compared(lambda value, limit: value < limit)),
    "count": _is("count", _length(lambda length, count: length == count)),
    "count_gte": _is("count_gte", _length(lambda length, count: length >= count)),
    "count_lte": _is("count_lte", _length(lambda length, count: length <= count)),
    "one_of": _is("one_of", _any_match),
    "any_of": _is("any_of", _any_match),
    "all_of": _all_of,
    "not": _is("not", lambda inner, value: not matches(inner, value)),
    "items": _items,  # not in the format's grammar; its tests use it
}
