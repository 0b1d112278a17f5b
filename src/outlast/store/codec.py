"""JSON columns are text, through this codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from outlast.store.database import StatementRefused


def to_text(value: Any) -> str:
    """Raises StatementRefused for what is no JSON in UTF-8: half a character, too deep a value."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:
        raise StatementRefused("json", str(error)) from None


def to_text_or_none(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else to_text(value)


def from_text(text: str) -> Any:
    return orjson.loads(text)
