"""Callers known by a token that an identity provider has signed (RFC 7519, OpenID Connect).

Needs `outlast[jwt]`. A token is read and forgotten: none is stored, and none is logged.
"""

from __future__ import annotations

import binascii
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from joserfc import jwt
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError, MissingClaimError
from joserfc.jwk import Key
from joserfc.jws import JWSRegistry
from joserfc.util import urlsafe_b64decode

from outlast.gateway.auth.principal import Principal, bearer_of
from outlast.gateway.auth.provider_keys import ProviderKeys
from outlast.gateway.auth.token_rules import TokenRules
from outlast.model.errors import Unauthenticated

_TYPES = frozenset({"", "jwt", "at+jwt"})
"""Others are not meant for us: a logout token says who somebody is, too (RFC 8725 §3.11)."""

_REFUSED = {
    "iss": "it is of another issuer",
    "aud": "it was given out for another audience",
    "nbf": "it is not valid yet",
    "iat": "it was issued in the future",
}

_LONGEST = 16 * 1024
_LATEST = 2.0**40
"""Seconds since the Unix epoch: later than anything that this gateway lives to see."""


class SignedTokens:
    """Callers known by `Authorization: Bearer <JWT>`."""

    def __init__(
        self, rules: TokenRules, keys: ProviderKeys, *, now: Callable[[], float] = time.time
    ) -> None:
        self._rules = rules
        self._keys = keys
        self._signatures = _Signatures(rules.algorithms)
        self._claims = jwt.JWTClaimsRegistry(
            now=lambda: int(now()),
            leeway=rules.leeway_s,
            iss={"essential": True, "value": rules.issuer},
            aud={"essential": True, "values": list(rules.audiences)},
            exp={"essential": True},
        )

    async def authenticate(self, headers: Mapping[str, str], peer: str | None) -> Principal:
        """Who the token says that its bearer is, for as long as it says so.

        Raises Unauthenticated, with `is_missing` for a bearer that is no signed token;
        KeysUnavailable when the provider could not be asked for the token's key.
        """
        token = bearer_of(headers)
        if token is None or (header := _header_of(token)) is None:
            raise Unauthenticated("send a token of the identity provider", is_missing=True)
        if len(token) > _LONGEST:
            raise Unauthenticated(f"this token is longer than {_LONGEST} bytes")
        algorithm = self._signatures.chosen(header)
        key = await self._keys.find(_kid_of(header), partial(_fits, algorithm))
        return self._principal(self._verified(token, key))

    def _verified(self, token: str, key: Key) -> Mapping[str, Any]:
        try:
            claims = jwt.decode(token, key, registry=self._signatures).claims
            self._claims.validate(claims)
        except ExpiredTokenError:
            raise Unauthenticated("this token has expired") from None
        except MissingClaimError as error:
            raise Unauthenticated(f"this token does not say its {error.claim}") from None
        except InvalidClaimError as error:
            # Which claim it is, and never what the token says there.
            why = _REFUSED.get(error.claim, f"its {error.claim} is of a wrong type")
            raise Unauthenticated(f"this token is not valid here: {why}") from None
        except (JoseError, ValueError, TypeError, RecursionError):
            raise Unauthenticated("this token's signature is not valid") from None
        return claims

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        rules = self._rules
        tenant = None if rules.tenant_claim is None else _name(claims, rules.tenant_claim)
        shown = {name: _claim(claims, name) for name in rules.shown_claims}
        return Principal(
            subject=_name(claims, rules.subject_claim),
            tenant=tenant,
            scopes=_scopes(claims, rules.scope_claim),
            claims={name: value for name, value in shown.items() if value is not None},
            # With the leeway, or a stream would end while the same token still opens one.
            expires_at=float(min(claims["exp"] + rules.leeway_s, _LATEST)),
        )


class _Signatures(JWSRegistry):
    """The library's rules for signed tokens, with an allow-list of our own. Headers that it does
    not know are ignored unless they are critical (RFC 7515 §4)."""

    max_header_length = _LONGEST
    max_payload_length = _LONGEST

    def __init__(self, allowed: tuple[str, ...]) -> None:
        super().__init__(algorithms=allowed, strict_check_header=False)
        self._told = ", ".join(allowed)
        self._by_name: dict[str, Any] = {name: self.algorithms[name] for name in allowed}

    def get_alg(self, name: str) -> Any:
        """Never one that is not allowed, whatever a token says of itself."""
        if name not in self._by_name:
            raise Unauthenticated(f"tokens must be signed with one of {self._told}")
        return self._by_name[name]

    def chosen(self, header: Mapping[str, Any]) -> Any:
        """The algorithm that a token names. Raises Unauthenticated for one that is not allowed,
        and for a token that is made for something else."""
        kind = str(header.get("typ", "")).lower().removeprefix("application/")
        if kind not in _TYPES:
            raise Unauthenticated("this token is made for something else: its typ is no JWT's")
        return self.get_alg(str(header["alg"]))


def _header_of(token: str) -> Mapping[str, Any] | None:
    """What a token says of itself; None for what is no signed token."""
    first, *others = token.split(".", 3)
    if len(others) != 2 or not token.isascii() or len(first) > _LONGEST:
        return None
    try:
        header = json.loads(urlsafe_b64decode(first.encode()))
    except (binascii.Error, ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) and isinstance(header.get("alg"), str) else None


def _kid_of(header: Mapping[str, Any]) -> str | None:
    kid = header.get("kid")
    if kid is not None and not isinstance(kid, str):
        raise Unauthenticated("this token names its key by something that is no text")
    return kid


def _fits(algorithm: Any, key: Key) -> bool:
    """Whether the key is of the algorithm's type and curve, and not published for another one."""
    try:
        algorithm.check_key(key)
    except JoseError:
        return False
    return True


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """The claim of this name, or the one within another that the name's dots lead to."""
    if name in claims:
        return claims[name]
    outer, dot, inner = name.partition(".")
    within = claims.get(outer)
    return _claim(within, inner) if dot and isinstance(within, Mapping) else None


def _name(claims: Mapping[str, Any], claim: str) -> str:
    """A claim that names somebody. A token without it must not become one of nobody's."""
    value = _claim(claims, claim)
    if not isinstance(value, str) or not 0 < len(value) <= 255 or not value.isprintable():
        raise Unauthenticated(f"this token says no usable {claim}")
    return value


def _scopes(claims: Mapping[str, Any], claim: str) -> tuple[str, ...]:
    value = _claim(claims, claim)
    listed = value.split() if isinstance(value, str) else [] if value is None else value
    if not isinstance(listed, list) or not all(isinstance(scope, str) for scope in listed):
        raise Unauthenticated(f"this token says no usable {claim}")
    return tuple(listed)
