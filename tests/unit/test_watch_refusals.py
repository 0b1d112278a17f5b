"""Refusals become audit entries, few however many they are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from outlast.gateway.auth.principal import Principal
from outlast.gateway.auth.watch import Refusal, Watch, Watched
from outlast.model.errors import StoreUnavailable, Unauthenticated
from outlast.store.protocols import ApiKey, AuditEntry, NewKey


class Book:
    """The store's side: what is noted, or nothing while it is away."""

    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []
        self.is_away = False

    async def note(self, entry: AuditEntry) -> None:
        if self.is_away:
            raise StoreUnavailable("away")
        self.entries.append(entry)

    async def valid_key(self, agent: str, digest: str) -> ApiKey | None:
        raise NotImplementedError

    async def create_key(self, key: NewKey, *, source: str) -> ApiKey:
        raise NotImplementedError

    async def keys(self, agent: str) -> Sequence[ApiKey]:
        raise NotImplementedError

    async def revoke_key(self, agent: str, key_id: str, *, source: str) -> bool:
        raise NotImplementedError

    async def audit(self, agent: str, *, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        raise NotImplementedError


def refusal(source: str) -> Refusal:
    return Refusal(kind="caller.refused", detail="not valid", source=source)


async def test_what_is_alike_is_one_entry() -> None:
    book = Book()
    watch = Watch(book, "agent", written_every_s=3600)
    for _ in range(1000):
        watch.note(refusal("10.0.0.1"))
    watch.note(refusal("10.0.0.2"))
    assert book.entries == []
    await watch.close()
    assert [(entry.source, entry.detail) for entry in book.entries] == [
        ("10.0.0.1", "not valid (1000 times)"),
        ("10.0.0.2", "not valid"),
    ]


async def test_however_many_addresses_there_are_the_entries_are_bounded() -> None:
    book = Book()
    watch = Watch(book, "agent", written_every_s=3600)
    for n in range(5000):
        watch.note(refusal(f"10.0.{n // 256}.{n % 256}"))
    await watch.close()
    assert len(book.entries) == 101
    assert book.entries[-1].detail == "and others (4900 times)"


async def test_they_are_written_without_anybody_waiting_and_again_later() -> None:
    book = Book()
    watch = Watch(book, "agent", written_every_s=0)
    for count in (1, 2):
        watch.note(refusal("10.0.0.1"))
        async with asyncio.timeout(10):
            while len(book.entries) < count:
                await asyncio.sleep(0)
    await watch.close()
    assert len({entry.audit_id for entry in book.entries}) == 2


async def test_a_store_that_is_away_costs_the_entries_and_nothing_else() -> None:
    book = Book()
    book.is_away = True
    watch = Watch(book, "agent", written_every_s=3600)
    watch.note(refusal("10.0.0.1"))
    with capture_logs() as lines:
        await watch.close()
    assert [line["event"] for line in lines] == ["audit.lost"]


class Never:
    def __init__(self, *, is_missing: bool) -> None:
        self.is_missing = is_missing

    async def authenticate(self, headers: Mapping[str, str], peer: str | None) -> Principal:
        raise Unauthenticated("no", is_missing=self.is_missing)


@pytest.mark.parametrize("is_missing", [True, False])
async def test_who_sends_no_credential_is_not_noted(is_missing: bool) -> None:
    book = Book()
    watch = Watch(book, "agent", written_every_s=3600)
    with pytest.raises(Unauthenticated):
        await Watched(Never(is_missing=is_missing), watch).authenticate({}, "10.0.0.1")
    await watch.close()
    assert len(book.entries) == (0 if is_missing else 1)
