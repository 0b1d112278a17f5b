"""What a directory has been asked and has done: its counters, and its revocations.

Kept in an append-only file when there is one, so that a test can kill the directory too.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal

from examples.access_review.records import Record, Revocation


class Entry(Record):
    """One line of the file.

    name: the system of a fetch, the grant of a call or a revocation, "" of a listing.
    key: the caller's idempotency key, where it sent one.
    request: what that key stands for.
    """

    what: Literal["list_systems", "list_users", "fetch", "call", "revocation", "repeat", "refusal"]
    name: str = ""
    key: str | None = None
    request: str = ""
    at: datetime | None = None


class KeyReused(Exception):
    """The key stands for another request."""


@dataclass
class Tally:
    """What the entries so far add up to."""

    listings: Counter[str] = field(default_factory=Counter)
    fetches: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    calls_without_key: int = 0
    applied: Counter[str] = field(default_factory=Counter)
    applied_by_key: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    refusals: int = 0
    answers: dict[str, tuple[str, Revocation]] = field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        match entry.what:
            case "list_systems" | "list_users":
                self.listings[entry.what] += 1
            case "fetch":
                self.fetches[entry.name] += 1
            case "call":
                if entry.key is None:
                    self.calls_without_key += 1
                else:
                    self.calls[entry.key] += 1
            case "repeat":
                self.duplicates += 1
            case "refusal":
                self.refusals += 1
            case "revocation":
                self.applied[entry.name] += 1
                if entry.key is not None and entry.at is not None:
                    self.applied_by_key[entry.key] += 1
                    answer = Revocation(grant=entry.name, revoked_at=entry.at)
                    self.answers[entry.key] = (entry.request, answer)


@dataclass
class State:
    """Counts every call on arrival; applies a revocation once per key.

    Nothing here waits, so in the directory's one event loop each method is one indivisible act.
    """

    _file: BinaryIO | None = None
    _tally: Tally = field(default_factory=Tally)

    @classmethod
    def open(cls, path: Path | None) -> State:
        """Read the file back. A last line that a kill cut short was never acknowledged: it goes."""
        if path is None:
            return cls()
        file = path.open("a+b")
        file.seek(0)
        lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        file.truncate(len(whole))
        state = cls(file)
        for line in whole.splitlines():
            state._tally.add(Entry.model_validate_json(line))
        return state

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def forget(self) -> None:
        """Start over, as if nothing had been asked or done."""
        if self._file is not None:
            self._file.truncate(0)
            os.fsync(self._file.fileno())
        self._tally = Tally()

    def note_listing(self, what: Literal["list_systems", "list_users"]) -> None:
        self._write(Entry(what=what))

    def note_fetch(self, system: str) -> None:
        self._write(Entry(what="fetch", name=system))

    def note_call(self, grant: str, key: str | None) -> None:
        self._write(Entry(what="call", name=grant, key=key))

    def revoke(self, grant: str, key: str | None, request: str) -> Revocation:
        """Revoke, and return what is in the file by then.

        A repeat under a key returns the first answer and applies nothing; other content under the
        key raises `KeyReused`. Without a key each call is applied, as if it were new.
        """
        if key is not None and key in self._tally.answers:
            first_request, answer = self._tally.answers[key]
            if first_request != request:
                self._write(Entry(what="refusal", name=grant, key=key))
                raise KeyReused(key)
            self._write(Entry(what="repeat", name=grant, key=key))
            return answer
        now = datetime.now(UTC)
        self._write(Entry(what="revocation", name=grant, key=key, request=request, at=now))
        return Revocation(grant=grant, revoked_at=now)

    def is_revoked(self, grant: str) -> bool:
        return grant in self._tally.applied

    def counters(self) -> dict[str, Any]:
        tally = self._tally
        return {
            "listings": dict(tally.listings),
            "fetches": dict(tally.fetches),
            "revoke_calls": dict(tally.calls),
            "revoke_calls_without_key": tally.calls_without_key,
            "applied": dict(tally.applied),
            "applied_by_key": dict(tally.applied_by_key),
            "duplicates": tally.duplicates,
            "refusals": tally.refusals,
        }

    def _write(self, entry: Entry) -> None:
        """Count it once it is on the disk: an answer never tells of what a kill could undo."""
        if self._file is not None:
            self._file.write(entry.model_dump_json(exclude_defaults=True).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        self._tally.add(entry)
