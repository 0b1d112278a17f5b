"""API keys: `outlast_` and 59 characters, of which the store knows the hash.

The last seven are a checksum: what was mistyped, cut or guessed is refused without a look into the
database.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
import zlib
from collections import OrderedDict
from collections.abc import Mapping

from outlast.gateway.auth.principal import Principal, bearer_of
from outlast.model.errors import Unauthenticated
from outlast.store.protocols import AccessStore, ApiKey

PREFIX = "outlast_"
HEADER = "x-api-key"
CACHE_S = 5.0
"""How long a key is believed without asking the store: a revoked one works for so long."""

_SECRET = 52
_CACHED = 10_000


def new_key() -> str:
    """A key of 256 random bits. It is shown once and kept nowhere."""
    secret = _letters(secrets.token_bytes(32))
    return PREFIX + secret + _checksum(secret)


def digest_of(key: str) -> str:
    """What the store knows a key by. It is random, so a plain hash cannot be guessed from."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_id_of(digest: str) -> str:
    """What people call a key by."""
    return digest[:12]


def is_well_formed(key: str) -> bool:
    secret = key[len(PREFIX) : len(PREFIX) + _SECRET]
    return len(secret) == _SECRET and key.isascii() and key == PREFIX + secret + _checksum(secret)


def _letters(raw: bytes) -> str:
    return base64.b32encode(raw).decode().rstrip("=").lower()


def _checksum(secret: str) -> str:
    return _letters(zlib.crc32(secret.encode()).to_bytes(4, "big"))


def _is_over(key: ApiKey) -> bool:
    """By the clock of this machine; whether it is really over the store says."""
    return key.expires_at is not None and key.expires_at <= time.time() * 1000


class ApiKeys:
    """Callers known by `Authorization: Bearer outlast_…` or `X-API-Key`."""

    def __init__(self, store: AccessStore, agent: str) -> None:
        self._store = store
        self._agent = agent
        # By digest, so that a dump of this process's memory holds no more keys than it must.
        self._known: OrderedDict[str, tuple[float, ApiKey]] = OrderedDict()

    async def authenticate(self, headers: Mapping[str, str], peer: str | None) -> Principal:
        key = headers.get(HEADER) or bearer_of(headers)
        if key is None or (HEADER not in headers and not key.startswith(PREFIX)):
            raise Unauthenticated("send an API key", is_missing=True)
        if not is_well_formed(key):
            raise Unauthenticated("this is no API key: it was cut or mistyped")
        found = await self._find(digest_of(key))
        if found is None:
            raise Unauthenticated("this API key is not known, has expired or was revoked")
        return Principal(
            subject=found.owner,
            tenant=found.tenant,
            scopes=found.scopes,
            expires_at=None if found.expires_at is None else found.expires_at / 1000,
        )

    async def _find(self, digest: str) -> ApiKey | None:
        since, known = self._known.get(digest, (0.0, None))
        if known is not None and time.monotonic() - since < CACHE_S and not _is_over(known):
            return known
        # Its age counts from here: it may be revoked while the answer is on its way.
        asked_at = time.monotonic()
        found = await self._store.valid_key(self._agent, digest)
        # Only what exists is kept: keys that somebody invents would push out those in use.
        self._known.pop(digest, None)
        if found is not None:
            self._known[digest] = (asked_at, found)
            if len(self._known) > _CACHED:
                self._known.popitem(last=False)
        return found
