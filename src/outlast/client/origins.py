"""To whom credentials go: to the place that the caller named, and not wherever a card points.

An Agent Card is what somebody else wrote. Whoever can change one could have a caller's token sent
to a host of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import httpx
from a2a.types import a2a_pb2 as pb

from outlast.model.errors import ConfigError

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_NO_CREDENTIALS = frozenset(
    {"accept", "accept-encoding", "connection", "user-agent", "a2a-version"}
)


@dataclass(frozen=True)
class Origin:
    """A place by scheme, host and port. The names of loopback are one host."""

    scheme: str
    host: str
    port: int | None

    @classmethod
    def of(cls, url: str) -> Origin | None:
        """None for what is no URL of a host."""
        try:
            parts = httpx.URL(url)
        except httpx.InvalidURL:
            return None
        # As it is sent: a text of somebody else's may hold anything, and is shown in errors.
        host = parts.raw_host.decode("ascii").lower()
        if parts.scheme not in ("http", "https") or not host:
            return None
        return cls(parts.scheme, "localhost" if host in _LOOPBACK else host, parts.port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port is None else f":{self.port}")


def holds_credentials(http: httpx.AsyncClient) -> bool:
    """Whether the client sends with its requests what only the caller has. Any header that httpx
    and the SDK do not set counts: which of them are secrets, only their reader knows. A cookie
    with a domain goes nowhere else by itself."""
    return (
        http.auth is not None
        or any(not cookie.domain for cookie in http.cookies.jar)
        or bool(set(http.headers) - _NO_CREDENTIALS)
    )


def within_reach(
    interfaces: Iterable[pb.AgentInterface], given: str, *, trust_card: bool
) -> list[pb.AgentInterface]:
    """Those of a card's interfaces to which credentials may go that are meant for the agent at
    the URL `given`: those of its origin.

    With `trust_card` any, but none over plain HTTP when `given` is over TLS. Raises ConfigError
    when none is left.
    """
    asked = Origin.of(given)
    elsewhere = [Origin.of(item.url) for item in interfaces]
    found = [
        item
        for item, origin in zip(interfaces, elsewhere, strict=True)
        if origin is not None
        and (origin == asked or (trust_card and not _loses_tls(asked, origin)))
    ]
    if not found:
        raise ConfigError(_told(asked, elsewhere))
    return found


def _loses_tls(asked: Origin | None, origin: Origin) -> bool:
    return origin.scheme == "http" and (asked is None or asked.scheme == "https")


def _told(asked: Origin | None, elsewhere: Iterable[Origin | None]) -> str:
    known = [origin for origin in elsewhere if origin is not None]
    if not known:
        return "the agent's card names no address that is http(s)://host…"
    if all(_loses_tls(asked, origin) for origin in known):
        return (
            f"the card of {asked} points at {known[0]}, without TLS: credentials that are meant"
            " for https are not sent there"
        )
    return (
        f"the card of {asked} points at {known[0]}, and your credentials were given for {asked}"
        " alone: give the other address if you know it, or allow it with trust_card=True"
        " (--trust-card)"
    )
