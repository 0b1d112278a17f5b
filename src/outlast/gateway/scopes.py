"""Who calls, and whose tasks that caller can see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from a2a.server.context import ServerCallContext

from outlast.gateway.auth.principal import Principal
from outlast.model.errors import InvalidParams, Unauthenticated
from outlast.model.task import Caller, Scope


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The scope that every read and write of a request is bound to, and what the author may know
    of the caller. expires_at: when its credential does and its streams end, in seconds since the
    Unix epoch."""

    scope: Scope
    caller: Caller
    expires_at: float | None = None


ResolveIdentity = Callable[[ServerCallContext, str], Identity]
"""Who a request comes from, given its context and tenant."""


class Addressed(Protocol):
    """A request of the protocol: each has a tenant."""

    @property
    def tenant(self) -> str: ...


class AboutTask(Addressed, Protocol):
    """A request about something of a task."""

    @property
    def task_id(self) -> str: ...


def without_authentication(agent: str) -> ResolveIdentity:
    """Everybody is the same owner, so only the tenant that they name tells callers apart: for a
    gateway that only this machine can reach."""

    def resolve(context: ServerCallContext, tenant: str) -> Identity:
        return Identity(
            scope=Scope(agent=agent, tenant=tenant, owner=""), caller=Caller(tenant=tenant)
        )

    return resolve


def with_principal(
    agent: str,
    *,
    tenant_from_request: bool = False,
    on_foreign: Callable[[Principal], None] | None = None,
) -> ResolveIdentity:
    """Owner and tenant are the credential's. One without a tenant may name its tenant in the
    request only where `tenant_from_request` says so. `on_foreign` hears of callers who name a
    tenant that is not theirs."""

    def refuse(principal: Principal, tenant: str) -> InvalidParams:
        if on_foreign is not None:
            on_foreign(principal)
        return _foreign(tenant)

    def resolve(context: ServerCallContext, tenant: str) -> Identity:
        principal: Principal | None = context.state.get("principal")
        if principal is None:
            # A route that a binding left out of authentication must not fall back to nobody.
            raise Unauthenticated("nobody has authenticated this call", is_missing=True)
        if principal.tenant is None:
            if tenant and not tenant_from_request:
                raise refuse(principal, tenant)
        elif tenant not in ("", principal.tenant):
            raise refuse(principal, tenant)
        own = tenant if principal.tenant is None else principal.tenant
        return Identity(
            scope=Scope(agent=agent, tenant=own, owner=principal.subject),
            caller=principal.caller_in(own),
            expires_at=principal.expires_at,
        )

    return resolve


def _foreign(tenant: str) -> InvalidParams:
    """The same words whether such a tenant exists or not."""
    return InvalidParams(f"your credential is not of the tenant {tenant!r}", path="tenant")


def tenant_of(context: ServerCallContext, params: Addressed) -> str:
    """The tenant that a request is for: from its path, else from its body.

    Raises InvalidParams when the two differ, and for a name that no path can hold.
    """
    tenant = context.tenant or params.tenant
    if params.tenant not in ("", tenant):
        raise InvalidParams(f"the path says {context.tenant!r}", path="tenant")
    check_tenant(tenant, path="tenant")
    return tenant


def check_tenant(tenant: str, *, path: str) -> None:
    """Raise InvalidParams for a name that no path can hold."""
    if "/" in tenant or "\0" in tenant or len(tenant) > 255 or tenant in RESERVED:
        raise InvalidParams(f"{tenant!r} cannot be the name of a tenant", path=path)


RESERVED = frozenset({".well-known", "extendedAgentCard", "healthz", "readyz", "tasks", "v1"})
"""Paths of our own, which come before those of tenants."""
