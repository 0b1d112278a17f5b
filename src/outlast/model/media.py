"""Media types: which of them one side sends and the other reads."""

from __future__ import annotations

import re
from collections.abc import Iterable

_RANGE = re.compile(r"\*/\*|[a-z0-9!#$&^_.+-]{1,127}/(\*|[a-z0-9!#$&^_.+-]{1,127})")


def is_media_range(text: str) -> bool:
    """Whether this is a media type, or all of one kind (`image/*`), or all (`*/*`)."""
    return _RANGE.fullmatch(text.partition(";")[0].strip().lower()) is not None


def is_among(said: str, ranges: Iterable[str]) -> bool:
    """Whether this media type, or one of this range, is in one of `ranges`.

    Parameters such as a charset do not count. A word alone stands for all of a kind: `text` is
    what clients of older versions say.
    """
    return any(_meet(_essence(said), _essence(known)) for known in ranges)


def _meet(one: str, other: str) -> bool:
    (kind, _, name), (other_kind, _, other_name) = one.partition("/"), other.partition("/")
    return (kind == other_kind or "*" in (kind, other_kind)) and (
        name == other_name or "*" in (name, other_name)
    )


def _essence(text: str) -> str:
    said = text.partition(";")[0].strip().lower()
    return said if "/" in said else f"{said}/*"
