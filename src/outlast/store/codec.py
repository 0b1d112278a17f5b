"""JSON columns are text, through this codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


def to_text(value: Any) -> str:
    return orjson.dumps(value).decode()


def to_text_or_none(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else to_text(value)


def from_text(text: str) -> Any:
    return orjson.loads(text)
