"""Which sends can be repeated, and what a repeat must equal."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.gateway.config import Idempotency
from outlast.gateway.keys import digest_of_message, is_unique, key_of
from outlast.model.errors import InvalidParams
from outlast.model.ids import uuid7

UUID4 = str(uuid.uuid4())


@pytest.mark.parametrize(
    "message_id",
    [str(uuid.uuid1()), UUID4, UUID4.upper(), str(uuid7()), "01ARZ3NDEKTSV4RRFFQ69G5FAV"],
)
def test_ids_that_nobody_meets_twice_are_keys(message_id: str) -> None:
    assert is_unique(message_id)


@pytest.mark.parametrize(
    "message_id",
    [
        "msg-1",
        "1",
        "",
        "00000000-0000-0000-0000-000000000000",
        "11111111-1111-1111-1111-111111111111",
        str(uuid.uuid3(uuid.NAMESPACE_DNS, "same content, same id")),
        str(uuid.uuid5(uuid.NAMESPACE_DNS, "same content, same id")),
        UUID4.replace("-", ""),
        f"message-{UUID4}",
        "d41d8cd98f00b204e9800998ecf8427e",
        "81ARZ3NDEKTSV4RRFFQ69G5FAV",
    ],
)
def test_ids_that_clients_may_use_again_are_none(message_id: str) -> None:
    assert not is_unique(message_id)


@pytest.mark.parametrize(
    ("mode", "message_id", "header", "expected"),
    [
        (Idempotency.AUTO, UUID4, None, UUID4),
        (Idempotency.AUTO, "msg-1", None, None),
        (Idempotency.AUTO, UUID4, "k", "k"),
        (Idempotency.ALWAYS, "msg-1", None, "msg-1"),
        (Idempotency.ALWAYS, "msg-1", "k", "k"),
        (Idempotency.HEADER, UUID4, None, None),
        (Idempotency.HEADER, UUID4, "k", "k"),
        (Idempotency.OFF, UUID4, "k", None),
    ],
)
def test_the_mode_says_what_counts(
    mode: Idempotency, message_id: str, header: str | None, expected: str | None
) -> None:
    key = key_of(message_id, header, mode)

    assert key.is_callers == (expected is not None)
    assert key.text == expected or expected is None
    if expected is None:
        assert key != key_of(message_id, header, mode), "a key of its own for every send"


@pytest.mark.parametrize("header", ["", " ", "k" * 256])
def test_a_header_that_is_no_key_is_refused(header: str) -> None:
    with pytest.raises(InvalidParams, match="Idempotency-Key"):
        key_of(UUID4, header, Idempotency.AUTO)


@given(st.permutations(["role", "parts", "contextId", "metadata"]), st.text(max_size=5))
def test_a_digest_covers_the_content_and_not_the_id(order: list[str], message_id: str) -> None:
    content: dict[str, Any] = {
        "role": "ROLE_USER",
        "parts": [{"data": {"b": 1, "a": "é"}}],
        "contextId": "c",
        "metadata": {"x": {"z": 1, "y": 2}},
    }
    digest = digest_of_message(content)

    assert digest_of_message({name: content[name] for name in order}) == digest
    assert digest_of_message({**content, "messageId": message_id}) == digest
    for name in order:
        assert digest_of_message({**content, name: "other"}) != digest
