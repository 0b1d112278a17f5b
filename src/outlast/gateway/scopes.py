"""Who calls, and whose tasks that caller can see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from a2a.server.context import ServerCallContext

from outlast.model.errors import InvalidParams
from outlast.model.task import Caller, Scope


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The scope that every read and write of a request is bound to, and what the author may know
    of the caller. Its streams end at `expires_at`, in seconds of Unix time."""

    scope: Scope
    caller: Caller
    expires_at: float | None = None


ResolveIdentity = Callable[[ServerCallContext, str], Identity]
"""Who a request comes from, given its context and tenant."""


class Addressed(Protocol):
    """A request of the protocol: each has a tenant."""

    @property
    def tenant(self) -> str: ...


def without_authentication(agent: str) -> ResolveIdentity:
    """Everybody is the same owner, so only the tenant that they name tells callers apart: for a
    gateway that only this machine can reach."""

    def resolve(context: ServerCallContext, tenant: str) -> Identity:
        return Identity(
            scope=Scope(agent=agent, tenant=tenant, owner=""), caller=Caller(tenant=tenant)
        )

    return resolve


def tenant_of(context: ServerCallContext, params: Addressed) -> str:
    """The tenant that a request is for: from its path, else from its body.

    Raises InvalidParams when the two differ, and for a name that no path can hold.
    """
    tenant = context.tenant or params.tenant
    if params.tenant not in ("", tenant):
        raise InvalidParams(f"the path says {context.tenant!r}", path="tenant")
    if "/" in tenant or "\0" in tenant or len(tenant) > 255 or tenant in RESERVED:
        raise InvalidParams(f"{tenant!r} cannot be the name of a tenant", path="tenant")
    return tenant


RESERVED = frozenset({".well-known", "extendedAgentCard", "healthz", "readyz", "tasks"})
"""Paths of our own, which come before those of tenants."""
