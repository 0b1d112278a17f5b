"""Callers whose client certificate a proxy has checked, and who are named in a header by it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from outlast.gateway.auth.principal import CREDENTIALS, Principal, sends_credential
from outlast.model.errors import ConfigError, Unauthenticated


class TrustedProxy:
    """Believes a header, from the addresses of known proxies only: from anywhere else it is as if
    the header were not there, since anybody can send one. A caller who sends a credential of its
    own is left to those who read it: it may have meant to call as somebody else."""

    def __init__(self, header: str, proxies: Sequence[str]) -> None:
        """`proxies` are addresses or networks. Raises ConfigError for one that is neither, for
        none, and for a header in which callers send credentials of their own."""
        if header.lower() in CREDENTIALS:
            raise ConfigError(f"{header} is where callers send credentials: name another header")
        if not proxies:
            raise ConfigError("a header that names callers needs the addresses of its proxies")
        try:
            self._proxies = [ipaddress.ip_network(proxy) for proxy in proxies]
        except ValueError as error:
            raise ConfigError(f"a proxy is an address or a network: {error}") from None
        self._header = header.lower()

    async def authenticate(self, headers: Mapping[str, str], peer: str | None) -> Principal:
        if sends_credential(headers):
            raise Unauthenticated("a credential was sent, which decides alone", is_missing=True)
        subject = headers.get(self._header, "").strip()
        if not subject or not self._trusts(peer):
            raise Unauthenticated("no proxy names the caller", is_missing=True)
        return Principal(subject=subject)

    def _trusts(self, peer: str | None) -> bool:
        try:
            address = ipaddress.ip_address(peer or "")
        except ValueError:
            return False
        return any(address in network for network in self._proxies)
