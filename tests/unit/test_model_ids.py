"""Ids that sort by age, as RFC 9562 lays them out."""

from __future__ import annotations

import os
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.ids import new_message_id, new_task_id, uuid7


def test_version_and_variant_are_those_of_the_standard() -> None:
    for _ in range(1_000):
        made = uuid7()
        assert made.version == 7
        assert made.variant == uuid.RFC_4122


@given(
    millis=st.integers(0, (1 << 48) - 1),
    tail=st.binary(min_size=10, max_size=10),
)
def test_time_and_randomness_have_their_places(millis: int, tail: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: millis * 1_000_000)
        patch.setattr(os, "urandom", lambda count: tail[:count])
        made = uuid7().int
    random = int.from_bytes(tail, "big")
    assert made >> 80 == millis
    assert made >> 76 & 0xF == 7
    assert made >> 64 & 0xFFF == random >> 68
    assert made >> 62 & 0b11 == 0b10
    assert made & (1 << 62) - 1 == random & (1 << 62) - 1


def test_the_time_is_the_time() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid7().int >> 80
    assert before <= made <= time.time_ns() // 1_000_000


@given(st.lists(st.integers(0, (1 << 48) - 1), min_size=2, max_size=5, unique=True))
def test_later_ids_sort_after_earlier_ones_as_text(times: list[int]) -> None:
    made = []
    for millis in sorted(times):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time_ns", lambda millis=millis: millis * 1_000_000)
            made.append(str(uuid7()))
    assert made == sorted(made)


def test_no_two_are_equal() -> None:
    made = [*(new_task_id() for _ in range(5_000)), *(new_message_id() for _ in range(5_000))]
    assert len(set(made)) == 10_000
    assert all(str(uuid.UUID(one)) == one for one in made)
