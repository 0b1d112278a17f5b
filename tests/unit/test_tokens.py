"""Tokens of an identity provider: which are taken, and what they say of their bearer."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from joserfc import jws, jwt
from joserfc.jwk import RSAKey
from structlog.testing import capture_logs

from outlast.gateway.auth.jwt import SignedTokens
from outlast.gateway.auth.principal import AnyOf, Principal
from outlast.gateway.auth.provider_keys import ProviderKeys
from outlast.gateway.auth.proxy import TrustedProxy
from outlast.gateway.auth.token_rules import ALGORITHMS, TokenRules
from outlast.model.errors import ConfigError, KeysUnavailable, Unauthenticated
from tests.unit.identity_provider import AUDIENCE, Provider, key_for, running_provider

KEY = key_for("ES256")
RSA = key_for("RS256", "rsa")
STRANGER = key_for("ES256")
SOON = int(time.time()) + 86_400  # later than any test of this run


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with running_provider(KEY, RSA) as running:
        yield running


def tokens(provider: Provider, *, now: float | None = None, **rules: Any) -> SignedTokens:
    said = TokenRules(issuer=provider.issuer, audiences=(AUDIENCE,), **rules)
    clock = time.time if now is None else lambda: now
    return SignedTokens(said, ProviderKeys(provider.issuer), now=clock)


async def principal(way: SignedTokens, token: str) -> Principal:
    return await way.authenticate({"authorization": f"Bearer {token}"}, None)


async def refusal(way: SignedTokens, token: str) -> Unauthenticated:
    with capture_logs() as lines, pytest.raises(Unauthenticated) as refused:
        await principal(way, token)
    for part in (part for part in token.split(".") if len(part) > 8):
        assert part not in str(refused.value) + repr(lines)
    return refused.value


# --- what is taken ------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_every_algorithm_of_the_list_is_checked(provider: Provider, algorithm: str) -> None:
    key = RSA if algorithm[0] in "RP" else key_for(algorithm, "other")
    provider.publish(KEY, key)
    way = tokens(provider)
    token = provider.token(key, algorithm) if algorithm != "EdDSA" else eddsa(provider, key)
    assert (await principal(way, token)).subject == "ann"
    *signed, signature = token.split(".")
    cut = "A" if signature[0] != "A" else "B"
    forged = ".".join([*signed, cut + signature[1:]])
    assert "signature" in str(await refusal(way, forged))


def eddsa(provider: Provider, key: Any) -> str:
    """The name of the algorithm is deprecated, and providers use it."""
    with pytest.warns(match="EdDSA"):
        return provider.token(key, "EdDSA")


async def test_a_token_says_who_calls(provider: Provider) -> None:
    way = tokens(
        provider,
        leeway_s=30,
        tenant_claim="https://example.com/tenant",
        scope_claim="scp",
        shown_claims=("email", "realm_access.roles", "absent"),
    )
    exp = int(time.time()) + 60
    claims: dict[str, Any] = {
        "sub": "ann",
        "aud": ["other", AUDIENCE],
        "exp": exp,
        "https://example.com/tenant": "acme",
        "scp": ["read", "write"],
        "email": "ann@example.com",
        "phone": "123",
        "realm_access": {"roles": ["admin"]},
    }
    found = await principal(way, provider.token(KEY, **claims))
    assert found == Principal(
        subject="ann",
        tenant="acme",
        scopes=("read", "write"),
        claims={"email": "ann@example.com", "realm_access.roles": ["admin"]},
        expires_at=exp + 30,
    )


async def test_scopes_are_a_text_with_spaces_or_absent(provider: Provider) -> None:
    way = tokens(provider)
    assert (await principal(way, provider.token(KEY, scope="a  b"))).scopes == ("a", "b")
    assert (await principal(way, provider.token(KEY))).scopes == ()


async def test_clocks_may_differ_by_the_leeway(provider: Provider) -> None:
    at = 1_000_000
    way = tokens(provider, now=at, leeway_s=30)
    for exp, nbf in ((at - 29, None), (at + 1, at + 30)):
        found = await principal(way, provider.token(KEY, exp=exp, nbf=nbf))
        assert found.expires_at == exp + 30 > at
    assert "expired" in str(await refusal(way, provider.token(KEY, exp=at - 30)))
    early = provider.token(KEY, exp=at + 100, nbf=at + 31)
    assert "not valid yet" in str(await refusal(way, early))


@pytest.mark.parametrize("typ", ["JWT", "jwt", "at+jwt", "application/at+JWT", None])
async def test_types_of_tokens_for_callers(provider: Provider, typ: str | None) -> None:
    token = jwt.encode(
        {"alg": "ES256", "kid": KEY.kid} | ({"typ": typ} if typ else {}),
        {"iss": provider.issuer, "aud": AUDIENCE, "sub": "ann", "exp": int(time.time()) + 60},
        KEY,
        default_type=None,
    )
    assert (await principal(tokens(provider), token)).subject == "ann"


async def test_what_a_header_holds_besides_is_ignored(provider: Provider) -> None:
    claims = {"iss": provider.issuer, "aud": AUDIENCE, "sub": "ann", "exp": SOON}
    token = signed_token({"alg": "ES256", "kid": KEY.kid, "nonce": "n" * 600}, claims)
    assert (await principal(tokens(provider), token)).subject == "ann"


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"iss": "https://other.example"}, "another issuer"),
        ({"iss": None}, "does not say its iss"),
        ({"aud": "https://other.example"}, "another audience"),
        ({"aud": []}, "another audience"),
        ({"aud": [1]}, "another audience"),
        ({"aud": None}, "does not say its aud"),
        ({"exp": None}, "does not say its exp"),
        ({"exp": "soon"}, "exp is of a wrong type"),
        ({"exp": True}, "exp is of a wrong type"),
        ({"exp": float("nan")}, "exp is of a wrong type"),
        ({"exp": 0}, "expired"),
        ({"nbf": SOON}, "not valid yet"),
        ({"iat": SOON}, "in the future"),
        ({"sub": None}, "no usable sub"),
        ({"sub": ""}, "no usable sub"),
        ({"sub": 7}, "sub is of a wrong type"),
        ({"sub": "a\0b"}, "no usable sub"),
        ({"sub": "a" * 256}, "no usable sub"),
        ({"scope": {"a": 1}}, "no usable scope"),
        ({"scope": ["a", 1]}, "no usable scope"),
        ({"header_typ": "logout+jwt"}, "something else"),
        ({"header_kid": "unknown"}, "no key"),
        ({"header_kid": "rsa"}, "no key"),
    ],
)
async def test_a_token_that_is_not_for_here(
    provider: Provider, changed: dict[str, Any], told: str
) -> None:
    error = await refusal(tokens(provider), provider.token(KEY, **changed))
    assert told in str(error)
    assert not error.is_missing


async def test_an_end_in_the_far_future_is_an_end(provider: Provider) -> None:
    found = await principal(tokens(provider), provider.token(KEY, exp=10**400))
    assert found.expires_at == 2.0**40


@pytest.mark.parametrize("missing", ["tenant", "org.name"])
async def test_a_token_without_the_tenant_that_it_needs(provider: Provider, missing: str) -> None:
    way = tokens(provider, tenant_claim=missing)
    for claims in ({}, {"tenant": ""}, {"tenant": None}, {"org": "acme"}, {"tenant": ["acme"]}):
        assert missing in str(await refusal(way, provider.token(KEY, **claims)))


async def test_the_subject_can_be_another_claim(provider: Provider) -> None:
    way = tokens(provider, subject_claim="client_id")
    token = provider.token(KEY, sub=None, client_id="robot")
    assert (await principal(way, token)).subject == "robot"
    assert "client_id" in str(await refusal(way, provider.token(KEY)))


def forged(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(map(letters, parts))


def signed_token(header: dict[str, Any], claims: dict[str, Any]) -> str:
    """Signed by KEY, with a header that no library would write."""
    signed = forged(header, claims).rpartition(".")[0]
    algorithm: Any = jws.JWSRegistry.algorithms["ES256"]
    return f"{signed}.{letters(algorithm.sign(signed.encode(), KEY))}"


def letters(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@pytest.mark.parametrize("algorithm", ["none", "None", "nOnE", "HS256", "", "dir", "ES256K"])
async def test_no_algorithm_but_those_of_the_list(provider: Provider, algorithm: str) -> None:
    claims = {"iss": provider.issuer, "aud": AUDIENCE, "sub": "ann", "exp": SOON}
    way = tokens(provider)
    for kid in ({}, {"kid": KEY.kid}):
        token = forged({"alg": algorithm, "typ": "JWT", **kid}, claims)
        assert "ES256" in str(await refusal(way, token))
    assert provider.asked == []


@pytest.mark.parametrize("encoding", ["PEM", "DER"])
async def test_a_public_key_is_no_secret_to_sign_with(provider: Provider, encoding: Any) -> None:
    """What is public signs by HS256 where a server takes the algorithm from the token."""
    claims = {"iss": provider.issuer, "aud": AUDIENCE, "sub": "ann", "exp": SOON}
    signed = forged({"alg": "HS256", "kid": RSA.kid}, claims).rpartition(".")[0]
    assert isinstance(RSA, RSAKey)
    secret = RSA.as_bytes(encoding, private=False)
    token = f"{signed}.{letters(hmac.digest(secret, signed.encode(), 'sha256'))}"
    assert "RS256" in str(await refusal(tokens(provider), token))


async def test_a_key_that_a_token_brings_along_is_not_used(provider: Provider) -> None:
    token = provider.token(
        STRANGER,
        header_jwk=STRANGER.as_dict(private=False),
        header_jku="https://evil.example/keys",
    )
    assert "signature" in str(await refusal(tokens(provider), token))


async def test_the_list_can_be_shorter(provider: Provider) -> None:
    way = tokens(provider, algorithms=("RS256",))
    assert "RS256" in str(await refusal(way, provider.token(KEY)))
    assert (await principal(way, provider.token(RSA, "RS256"))).subject == "ann"
    with pytest.raises(Unauthenticated, match="RS256"):
        await principal(way, provider.token(RSA, "PS256"))


async def test_a_key_published_for_one_algorithm_serves_no_other(provider: Provider) -> None:
    provider.keys = [{**RSA.as_dict(private=False), "alg": "RS256"}]
    way = tokens(provider)
    await principal(way, provider.token(RSA, "RS256"))
    assert "no key" in str(await refusal(way, provider.token(RSA, "PS256")))


@pytest.mark.parametrize("critical", [["exp"], ["nonsense"], [], "b64", 7])
async def test_what_a_header_calls_critical_is_not_ignored(
    provider: Provider, critical: object
) -> None:
    claims = {"iss": provider.issuer, "aud": AUDIENCE, "sub": "ann", "exp": SOON}
    header = {"alg": "ES256", "kid": KEY.kid, "crit": critical, "nonsense": 1}
    token = signed_token(header, claims)
    if critical == []:
        assert (await principal(tokens(provider), token)).subject == "ann"
    else:
        await refusal(tokens(provider), token)


DEEP = letters(b'{"alg":' + b"[" * 3000)


@pytest.mark.parametrize(
    "bearer",
    [
        "outlast_abc",
        "",
        "a.b",
        "..",
        "a.b.c",
        "é.b.c",
        f"{DEEP}.b.c",
        forged(["alg"], {}),  # type: ignore[arg-type]
        forged({"alg": 1}, {}),
        forged({}, {}),
        forged({"alg": "ES256"}, {}) + ".d.e",
    ],
)
async def test_a_bearer_that_is_no_token_is_left_to_those_who_read_credentials(
    provider: Provider, bearer: str
) -> None:
    assert (await refusal(tokens(provider), bearer)).is_missing
    assert provider.asked == []
    both = AnyOf((tokens(provider), TrustedProxy("x-client", ["10.0.0.1"])))
    headers = {"authorization": f"Bearer {bearer}", "x-client": "bob"}
    with pytest.raises(Unauthenticated) as refused:
        await both.authenticate(headers, "10.0.0.1")
    assert not refused.value.is_missing


async def test_a_long_token_is_not_read(provider: Provider) -> None:
    error = await refusal(tokens(provider), provider.token(KEY, more="a" * 16_000))
    assert "longer" in str(error)
    assert provider.asked == []


async def test_a_token_can_not_be_judged_while_the_provider_was_never_there(
    provider: Provider,
) -> None:
    provider.is_away = True
    with pytest.raises(KeysUnavailable):
        await principal(tokens(provider), provider.token(KEY))


@pytest.mark.parametrize(
    "rules",
    [
        {"audiences": ()},
        {"audiences": ("",)},
        {"algorithms": ()},
        {"algorithms": ("RS256", "HS256")},
        {"algorithms": ("none",)},
    ],
)
def test_rules_that_would_let_others_in(rules: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TokenRules(**{"issuer": "https://a.example", "audiences": (AUDIENCE,)} | rules)
