"""Sizes that are refused, and where: all published (`outlast policy`)."""

from __future__ import annotations

from outlast.model.errors import AuthorError

MIB = 1024 * 1024

CHECKPOINT_LIMIT = MIB
CHECKPOINT_WARNING = 256 * 1024
LEDGER_RESULT_LIMIT = MIB
PART_LIMIT = MIB
ARTIFACT_LIMIT = 16 * MIB
KEY_LIMIT = 512


def check_size(size: int, limit: int, *, what: str, fix: str) -> None:
    """Raise AuthorError when `size` bytes are more than `limit`."""
    if size > limit:
        raise AuthorError(f"{what} has {in_bytes(size)}; the limit is {in_bytes(limit)}.", fix)


def size_of(text: str) -> int:
    """Bytes of the text as it is stored."""
    return len(text.encode())


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
