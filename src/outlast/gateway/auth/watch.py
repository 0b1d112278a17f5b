"""What the audit log learns of those who were not let in.

Anybody can send bad credentials, as many as they like, so these are counted here and written now
and then, one entry for all that are alike: they cost the store next to nothing, and hold up no
answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from outlast.gateway.auth.principal import Authenticator, Principal
from outlast.model.errors import StoreUnavailable, Unauthenticated
from outlast.model.ids import uuid7
from outlast.store.protocols import AccessStore, AuditEntry

WRITTEN_EVERY_S = 10.0
_KINDS = 100
"""How many different refusals are told apart between two writes; the rest are counted together."""

log = structlog.get_logger("outlast.gateway")


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Who was refused what. No field may hold what a caller has sent."""

    kind: str
    detail: str
    source: str = ""
    subject: str = ""
    tenant: str = ""


class Watch:
    """Counts refusals, and writes them into the audit log."""

    def __init__(
        self, store: AccessStore, agent: str, *, written_every_s: float = WRITTEN_EVERY_S
    ) -> None:
        self._store = store
        self._agent = agent
        self._written_every_s = written_every_s
        self._counts: Counter[Refusal] = Counter()
        self._writing: asyncio.Task[None] | None = None

    def note(self, refusal: Refusal) -> None:
        """One more. It is written within `written_every_s`, or when the watch is closed."""
        if refusal not in self._counts and len(self._counts) >= _KINDS:
            refusal = Refusal(kind=refusal.kind, detail="and others")
        self._counts[refusal] += 1
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_later())

    async def close(self) -> None:
        """Write what is left, if the store is there."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])
        await self._write()

    async def _write_later(self) -> None:
        await asyncio.sleep(self._written_every_s)
        await self._write()

    async def _write(self) -> None:
        while self._counts:
            refusal, count = next(iter(self._counts.items()))
            del self._counts[refusal]
            try:
                await self._store.note(self._entry(refusal, count))
            except StoreUnavailable as error:
                # They stand in the process's own log, too.
                log.warning("audit.lost", refusals=count, error=str(error))

    def _entry(self, refusal: Refusal, count: int) -> AuditEntry:
        return AuditEntry(
            audit_id=str(uuid7()),
            agent=self._agent,
            kind=refusal.kind,
            subject=refusal.subject,
            tenant=refusal.tenant,
            source=refusal.source,
            detail=refusal.detail if count == 1 else f"{refusal.detail} ({count} times)",
        )


@dataclass(frozen=True)
class Watched:
    """An authenticator under watch: who sends a credential that is not valid is noted. Who sends
    none is not: that is how clients ask what to send."""

    authenticator: Authenticator
    watch: Watch

    async def authenticate(self, headers: Mapping[str, str], peer: str | None) -> Principal:
        try:
            return await self.authenticator.authenticate(headers, peer)
        except Unauthenticated as error:
            if not error.is_missing:
                self.watch.note(
                    Refusal(kind="caller.refused", detail=str(error), source=peer or "")
                )
            raise
