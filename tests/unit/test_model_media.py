"""Which media types meet."""

from __future__ import annotations

import pytest

from outlast.model.media import is_among, is_media_range


@pytest.mark.parametrize(
    ("said", "ranges", "meets"),
    [
        ("text/plain", ["text/plain"], True),
        ("Text/Plain; charset=utf-8", ["text/plain"], True),
        ("text/plain", ["application/json", "text/plain;q=0.5"], True),
        ("text/markdown", ["text/plain"], False),
        ("text/markdown", ["text/*"], True),
        ("text/*", ["text/plain"], True),
        ("*/*", ["text/plain"], True),
        ("image/png", ["*/*"], True),
        ("image/png", ["text/*", "application/json"], False),
        ("text", ["text/plain"], True),
        ("text", ["application/json"], False),
        ("", ["text/plain"], False),
        ("text/plain", [], False),
    ],
)
def test_a_type_meets_a_range(said: str, ranges: list[str], meets: bool) -> None:
    assert is_among(said, ranges) is meets


@pytest.mark.parametrize("text", ["text/plain", "image/*", "*/*", "application/vnd.a+json; v=1"])
def test_what_is_a_media_range(text: str) -> None:
    assert is_media_range(text)


@pytest.mark.parametrize("text", ["", "text", "/", "text/", "*/plain", "text/pl ain", "a/b/c"])
def test_what_is_none(text: str) -> None:
    assert not is_media_range(text)
