"""Sizes and values that are refused. The sizes are published (`outlast policy`)."""

from __future__ import annotations

import re
from datetime import timedelta

from outlast.model.errors import AuthorError

MIB = 1024 * 1024

CHECKPOINT_LIMIT = MIB
CHECKPOINT_WARNING = 256 * 1024
LEDGER_RESULT_LIMIT = MIB
PART_LIMIT = MIB
ARTIFACT_LIMIT = 16 * MIB
KEY_LIMIT = 512

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_size(size: int, limit: int, *, what: str, fix: str) -> None:
    """Raise AuthorError when `size` bytes are more than `limit`."""
    if size > limit:
        raise AuthorError(f"{what} has {in_bytes(size)}; the limit is {in_bytes(limit)}.", fix)


def size_of(text: str) -> int:
    """Bytes of the text as it is stored."""
    return len(text.encode())


def check_name(name: object, *, of: str) -> str:
    """Raise AuthorError for a name that would not survive in URLs, keys and metrics."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise AuthorError(
        f"{name!r} cannot be the name of {of}.",
        "use up to 100 letters, digits, '.', '_' and '-', for example 'access-review'.",
    )


def check_duration(value: object, *, of: str) -> timedelta:
    """Raise AuthorError for what is not a length of time above zero."""
    if isinstance(value, timedelta) and value > timedelta(0):
        return value
    raise AuthorError(f"{of} is {value!r}.", "give a timedelta above zero.")


def in_bytes(size: int) -> str:
    for unit, name in ((MIB, "MiB"), (1024, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} bytes"


def check_key(key: object, *, verb: str) -> str:
    """A key as the ledger takes it. Raises AuthorError."""
    if not isinstance(key, str) or not key or "\0" in key or size_of(key) > KEY_LIMIT:
        raise AuthorError(
            f"{verb} got the key {key!r:.80}: a key is a text of 1 to {KEY_LIMIT} bytes.",
            "name what the call is about, for example an id: f'revoke:{grant_id}'.",
        )
    return key
