"""Where a webhook may point: out of the networks that the agent's machines are in.

A caller chooses the address and the agent's machines connect to it, so an address that only they
can reach would make them the caller's hands. Whoever sends asks `admits` again about every address
that a name has led to: what a name stands for today says nothing about tomorrow.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from urllib.parse import SplitResult, urlsplit

from outlast.model.errors import ConfigError, InvalidParams

LONGEST_URL = 2048

_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_INSIDE = ("localhost", "local", "internal", "lan", "svc", "home.arpa", "home", "corp")
"""What names end with that mean something else in every network, or nothing outside of one."""
_FIRST_FREE_PORT = 1024
_GLOBAL = IPv6Network("2000::/3")
_NO_HOSTS = (
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv6Network("2002::/16"),
    IPv6Network("3fff::/20"),
)
"""Of the network's own machinery, or of nobody. Releases of Python differ in what they make of
them."""
_NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What webhooks may point at: whatever is public, over TLS, and what an operator allows."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    @classmethod
    def allowing(cls, said: Iterable[str]) -> Targets:
        """Also these hosts, addresses and networks. Raises ConfigError for what is none."""
        networks: list[IPv4Network | IPv6Network] = []
        hosts: set[str] = set()
        for each in said:
            try:
                networks.append(ipaddress.ip_network(each))
            except ValueError:
                if not _NAME.fullmatch(each.lower()) or _is_numeric(each.lower()):
                    raise ConfigError(
                        f"webhooks can be allowed to a host, an address or a network, not to {each}"
                    ) from None
                hosts.add(each.lower())
        return cls(networks=tuple(networks), hosts=frozenset(hosts))

    def check_url(self, url: str, *, path: str) -> None:
        """Raise InvalidParams for a URL that no webhook may have. The error does not repeat it:
        addresses of webhooks are secrets as often as not."""
        parts = _parts_of(url, path)
        host = (parts.hostname or "").removesuffix(".")
        address = _address_of(host, path)
        if host in self.hosts or (address is not None and self._allows(address)):
            return
        if parts.scheme != "https":
            raise InvalidParams("must be https: what is sent there is not for others", path=path)
        if parts.port not in (None, 443) and parts.port < _FIRST_FREE_PORT:
            raise InvalidParams(f"must be on port 443, or from {_FIRST_FREE_PORT} on", path=path)
        if _is_inside(host) if address is None else not self.admits(address):
            raise InvalidParams("must be on a public host", path=path)

    def admits(self, address: IPv4Address | IPv6Address) -> bool:
        """Whether something may be sent there."""
        return self._allows(address) or is_public(address)

    def _allows(self, address: IPv4Address | IPv6Address) -> bool:
        inner = _inner(address)
        return any(address in network or inner in network for network in self.networks)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether every machine on the internet would reach the same one there."""
    inner = _inner(address)
    if not inner.is_global or any(inner in network for network in _NO_HOSTS):
        return False
    if isinstance(inner, IPv4Address):
        return not inner.is_multicast and not inner.is_reserved
    return inner in _GLOBAL


def _inner(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The address that packets get to: some of version 6 are another spelling of one of 4."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _parts_of(url: str, path: str) -> SplitResult:
    if not 0 < len(url) <= LONGEST_URL or not all(" " < sign < "\x7f" for sign in url):
        raise InvalidParams(
            f"must be a URL of at most {LONGEST_URL} ASCII characters, without spaces", path=path
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidParams("is no URL", path=path) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or "\\" in url:
        raise InvalidParams("must be an absolute URL: https://host/path", path=path)
    if "[" in parts.netloc and ":" not in parts.hostname:
        # RFC 3986 leaves room for addresses of later versions, [v7.x]: not to be read as a name.
        raise InvalidParams("must be on a host, or an address in its usual form", path=path)
    if "@" in parts.netloc:
        raise InvalidParams("must not hold a user: send credentials as authentication", path=path)
    if "#" in url:
        raise InvalidParams("must not have a fragment: it would not be sent", path=path)
    return parts


def _address_of(host: str, path: str) -> IPv4Address | IPv6Address | None:
    """The address that a host is, None for a name. Raises InvalidParams for what is neither, or
    an address to some readers only (2130706433, 0177.0.0.1, 127.1)."""
    if "%" not in host:  # a zone means another interface on every machine
        try:
            return ipaddress.ip_address(host)
        except ValueError:
            pass
    if not _NAME.fullmatch(host) or _is_numeric(host):
        raise InvalidParams("must be on a host, or an address in its usual form", path=path)
    return None


def _is_inside(name: str) -> bool:
    return "." not in name or f".{name}".endswith(tuple(f".{last}" for last in _INSIDE))


def _is_numeric(host: str) -> bool:
    return _NUMBER.fullmatch(host.rpartition(".")[2]) is not None
