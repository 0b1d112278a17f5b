"""Who may call an agent, and what happened at its door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outlast.model.ids import uuid7
from outlast.store.codec import from_text, to_text
from outlast.store.database import Database, Row, Rows, Script, catalog
from outlast.store.protocols import AUDIT_KEPT, ApiKey, AuditEntry, NewKey

_TRIMMED_AT_ONCE = 100


class Access:
    """`AccessStore` on any database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = catalog(database.dialect)

    async def create_key(self, key: NewKey, *, source: str) -> ApiKey:
        def script() -> Script[ApiKey]:
            created = yield self._queries(
                "api_keys_create",
                key_id=key.key_id,
                agent=key.agent,
                digest=key.digest,
                name=key.name,
                owner=key.owner,
                tenant=key.tenant,
                scopes=to_text(list(key.scopes)),
                lasts=key.lasts,
            )
            if created:
                entry = _about(key.agent, "key.created", key.key_id, vars(key), source)
                yield from self._noted(entry)
            rows = yield self._queries("api_keys_get", agent=key.agent, digest=key.digest)
            return _key_of(rows[0])

        return await self._database.transact(script)

    async def valid_key(self, agent: str, digest: str) -> ApiKey | None:
        def script() -> Script[Rows]:
            return (yield self._queries("api_keys_valid", agent=agent, digest=digest))

        rows = await self._database.read(script)
        return _key_of(rows[0]) if rows else None

    async def keys(self, agent: str) -> Sequence[ApiKey]:
        def script() -> Script[Rows]:
            return (yield self._queries("api_keys_list", agent=agent))

        return [_key_of(row) for row in await self._database.read(script)]

    async def revoke_key(self, agent: str, key_id: str, *, source: str) -> bool:
        def script() -> Script[bool]:
            rows = yield self._queries("api_keys_revoke", agent=agent, key_id=key_id)
            if not rows:
                return False
            yield from self._noted(_about(agent, "key.revoked", key_id, rows[0], source))
            return True

        return await self._database.transact(script)

    async def note(self, entry: AuditEntry) -> None:
        await self._database.transact(lambda: self._noted(entry))

    async def audit(self, agent: str, *, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        def script() -> Script[Rows]:
            return (yield self._queries("audit_read", agent=agent, n=limit))

        return await self._database.read(script)

    def _noted(self, entry: AuditEntry) -> Script[None]:
        yield self._queries("audit_note", **vars(entry))
        yield self._queries("audit_trim", age=AUDIT_KEPT, n=_TRIMMED_AT_ONCE)


def _about(agent: str, kind: str, key_id: str, row: Mapping[str, Any], source: str) -> AuditEntry:
    return AuditEntry(
        audit_id=str(uuid7()),
        agent=agent,
        kind=kind,
        subject=row["owner"],
        tenant=row["tenant"] or "",
        source=source,
        detail=f"{key_id} {row['name']}",
    )


def _key_of(row: Row) -> ApiKey:
    return ApiKey(**{**row, "scopes": tuple(from_text(row["scopes"]))})
