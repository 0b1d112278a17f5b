"""Who a credential says that its bearer is, and what tells credentials apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from outlast.model.errors import Unauthenticated
from outlast.model.task import Caller

CREDENTIALS = ("authorization", "x-api-key")
"""The headers in which callers send credentials."""


@dataclass(frozen=True, kw_only=True)
class Principal:
    """A caller whose credential is valid; never the credential itself.

    tenant: None when the credential is of no tenant. claims: those that the author may see.
    expires_at: seconds since the Unix epoch; None for a credential without an end.
    """

    subject: str
    tenant: str | None = None
    scopes: tuple[str, ...] = ()
    claims: Mapping[str, Any] = field(default_factory=dict)
    expires_at: float | None = None

    def __post_init__(self) -> None:
        # Rows without an owner belong to callers whom nobody authenticated: no credential may
        # open them.
        if not self.subject:
            raise Unauthenticated("the credential names nobody")

    def is_over(self, now: float) -> bool:
        """Whether the credential has come to its end by this time."""
        return self.expires_at is not None and now >= self.expires_at

    def caller_in(self, tenant: str) -> Caller:
        """What the author may know of the caller."""
        return Caller(subject=self.subject, tenant=tenant, scopes=self.scopes, claims=self.claims)


class Authenticator(Protocol):
    """One way of knowing callers, or several."""

    async def authenticate(self, headers: Mapping[str, str], peer: str | None) -> Principal:
        """Who sends these headers, whose names are in lower case, from the address `peer`.

        Raises Unauthenticated, with `is_missing` when they hold no credential that this
        authenticator knows; StoreUnavailable when it cannot look one up.
        """
        ...


def bearer_of(headers: Mapping[str, str]) -> str | None:
    """The token of `Authorization: Bearer`, if there is one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def sends_credential(headers: Mapping[str, str]) -> bool:
    """Whether the caller sends a credential of its own, of whatever kind. Whom it names is then
    up to it alone: one that is not valid must not be excused by what names callers otherwise."""
    return any(name in headers for name in CREDENTIALS)


@dataclass(frozen=True)
class AnyOf:
    """Several ways at once: the first that knows the kind of credential decides.

    A credential that none of them knows is refused as one that is not valid.
    """

    ways: tuple[Authenticator, ...]

    async def authenticate(self, headers: Mapping[str, str], peer: str | None) -> Principal:
        for way in self.ways:
            try:
                return await way.authenticate(headers, peer)
            except Unauthenticated as error:
                if not error.is_missing:
                    raise
        if sends_credential(headers):
            raise Unauthenticated("the credential is of no kind that the Agent Card names")
        raise Unauthenticated("send a credential that the Agent Card names", is_missing=True)
