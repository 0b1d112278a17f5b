"""The public keys of an identity provider, as it publishes them: found, kept, and fetched again.

Who calls decides when a key is looked for, so a lookup costs little whatever a caller invents: one
fetch is under way at a time, and the next begins no sooner than RETRY_S after it began.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import httpx
import structlog
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key
from joserfc.util import base64_to_int

from outlast.model.errors import ConfigError, KeysUnavailable, Unauthenticated

FRESH_S = 300.0
"""From this age on keys are fetched again, beside the calls that use them."""
IDLE_S = 600.0
"""From this age on a call waits for the fetch: a key that was withdrawn before opens nothing."""
RETRY_S = 5.0
"""How long after a fetch began the next one may begin."""

_TIMEOUT_S = 5.0
_LARGEST = 512 * 1024
_RSA_BITS = 2048
_DISCOVERY = "/.well-known/openid-configuration"
_PUBLIC = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
"""What is read of a key, by its type. No symmetric one: what everybody can read signs nothing."""

log = structlog.get_logger("outlast.gateway")


class ProviderKeys:
    """Keys by the `kid` that a token names.

    A key that is not known has them fetched again, since providers rotate theirs. While the
    provider is away, the keys that are known stay good for as long as that lasts.
    """

    def __init__(
        self,
        issuer: str,
        *,
        jwks_url: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """jwks_url: where the keys are; the issuer's discovery document says so when not given.

        Raises ConfigError for an address that is not https, or http of this machine: whoever
        could change the answer on its way could sign tokens.
        """
        self._issuer = issuer
        self._jwks_url = None if jwks_url is None else checked_url(jwks_url, "the key set")
        self._discovery = discovery_url(issuer)
        self._clock = clock
        self._keys: list[Key] = []
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._failure: str | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, kid: str | None, fits: Callable[[Key], bool]) -> Key:
        """The key of this `kid` that fits; without one, the only key that fits.

        Raises Unauthenticated when the provider has no such key, KeysUnavailable when it could
        not be asked.
        """
        key = self._known(kid, fits)
        age = self._clock() - self._fetched_at
        if key is None or (age > IDLE_S and not self._is_known_to_be_away()):
            await self._fetched()
            key = self._known(kid, fits)
        elif age > FRESH_S:
            self._fetch_soon()
        if key is not None:
            return key
        if self._failure is not None:
            raise KeysUnavailable("the identity provider did not tell its keys", happened=False)
        if kid is None:
            raise Unauthenticated("this token does not say with which key it is signed")
        raise Unauthenticated("this token is signed with no key that the identity provider has")

    def begin(self) -> None:
        """Fetch the keys beforehand, so that what is wrong shows before the first call."""
        self._fetch_soon()

    def _known(self, kid: str | None, fits: Callable[[Key], bool]) -> Key | None:
        found = [key for key in self._keys if kid in (None, key.kid) and fits(key)]
        return found[0] if found and (kid is not None or len(found) == 1) else None

    def _is_known_to_be_away(self) -> bool:
        """Whether the provider has failed lately: nobody then waits for it to fail again."""
        return self._failure is not None and self._clock() - self._tried_at <= FRESH_S

    # --- fetching -----------------------------------------------------------------------------

    def _fetch_soon(self) -> asyncio.Task[None] | None:
        """The fetch that is under way, if one is or may begin now."""
        if self._fetching is None and self._clock() - self._tried_at >= RETRY_S:
            self._tried_at = self._clock()
            self._fetching = asyncio.create_task(self._fetch())
        return self._fetching

    async def _fetched(self) -> None:
        if (fetching := self._fetch_soon()) is not None:
            # Shielded: others may wait for it too, and who began it may leave.
            await asyncio.shield(fetching)

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S), _http() as http:
                keys = await self._load(http)
        except Exception as error:
            # Whatever is wrong with the other side takes no key away from those who have one.
            self._failure = str(error) or type(error).__name__
            log.warning("provider.failed", issuer=self._issuer, error=self._failure)
        else:
            if {key.kid for key in keys} != {key.kid for key in self._keys}:
                log.info("provider.keys", issuer=self._issuer, count=len(keys))
            self._keys, self._failure = keys, None
            self._fetched_at = self._clock()
        finally:
            self._fetching = None

    async def _load(self, http: httpx.AsyncClient) -> list[Key]:
        url = self._jwks_url
        if url is None:
            said = await _json_at(http, self._discovery)
            if said.get("issuer") != self._issuer:
                # Else a provider could speak for another one (OpenID Connect Discovery §4.3).
                raise ConfigError(
                    f"{self._discovery} is of the issuer {said.get('issuer')!r}, and not of"
                    f" {self._issuer!r}: set the issuer letter by letter as it says"
                )
            url = checked_url(str(said.get("jwks_uri")), "the key set")
        keys = list(_usable((await _json_at(http, url)).get("keys")))
        if not keys:
            raise KeysUnavailable(f"{url} holds no public key that signs tokens")
        return keys


def discovery_url(issuer: str) -> str:
    """Where the issuer says what it is. Raises ConfigError for an address that cannot be one."""
    return checked_url(issuer, "the issuer").rstrip("/") + _DISCOVERY


def checked_url(url: str, what: str) -> str:
    """The address as it is. Raises ConfigError unless nobody on the way can change its answer."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{what} is no URL: {error}") from None
    is_safe = parsed.scheme == "https" or (parsed.scheme == "http" and _is_local(parsed.host))
    if not is_safe or not parsed.host or parsed.userinfo or parsed.fragment:
        raise ConfigError(
            f"{what} must be an https:// address without a name or password in it, or http:// of"
            f" this machine: not {parsed.copy_with(userinfo=b'')}"
        )
    return url


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _http() -> httpx.AsyncClient:
    # No redirects: an address that was checked would lead to one that was not.
    return httpx.AsyncClient(timeout=_TIMEOUT_S, headers={"Accept": "application/json"})


async def _json_at(http: httpx.AsyncClient, url: str) -> Mapping[str, Any]:
    body = bytearray()
    async with http.stream("GET", url) as response:
        if response.status_code != 200:
            raise KeysUnavailable(f"{url} answers with status {response.status_code}")
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > _LARGEST:
                raise KeysUnavailable(f"{url} answers with more than {_LARGEST} bytes")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise KeysUnavailable(f"{url} does not answer with JSON") from None
    if not isinstance(value, dict):
        raise KeysUnavailable(f"{url} does not answer with a JSON object")
    return value


def _usable(published: object) -> Iterable[Key]:
    """Public keys that sign. One that cannot be read is no reason to do without the others."""
    for entry in published if isinstance(published, list) else ():
        try:
            key = _key(entry)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError):
            continue
        if key is not None:
            yield key


def _key(entry: Mapping[str, Any]) -> Key | None:
    """The public key of an entry; None when it is of another kind, weak, or not for signatures."""
    names = _PUBLIC.get(entry["kty"])
    if names is None or entry.get("use", "sig") != "sig":
        return None
    if "verify" not in entry.get("key_ops", ["verify"]):
        return None
    if entry["kty"] == "RSA" and base64_to_int(entry["n"]).bit_length() < _RSA_BITS:
        return None
    kept = {name: entry[name] for name in ("kty", "kid", "alg", *names) if name in entry}
    return JWKRegistry.import_key(kept)
