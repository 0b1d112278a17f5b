"""The keys of an identity provider: found, kept while it is away, and fetched again in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from joserfc.jwk import Key
from structlog.testing import capture_logs

from outlast.gateway.auth.provider_keys import (
    FRESH_S,
    IDLE_S,
    RETRY_S,
    ProviderKeys,
    discovery_url,
)
from outlast.model.errors import ConfigError, KeysUnavailable, Unauthenticated
from tests.unit.identity_provider import Provider, key_for, running_provider

FIRST, SECOND = key_for("ES256"), key_for("ES256", "second")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds + 1


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with running_provider(FIRST) as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(provider: Provider, clock: Clock) -> ProviderKeys:
    return ProviderKeys(provider.issuer, clock=clock)


def any_key(key: Key) -> bool:
    return True


async def known(keys: ProviderKeys, kid: str | None) -> Key:
    return await keys.find(kid, any_key)


async def test_keys_are_found_by_discovery_once(keys: ProviderKeys, provider: Provider) -> None:
    for _ in range(3):
        assert (await known(keys, "first")).thumbprint() == FIRST.thumbprint()
    assert provider.asked == ["/.well-known/openid-configuration", "/keys"]


async def test_keys_can_be_fetched_before_the_first_call(
    keys: ProviderKeys, provider: Provider
) -> None:
    provider.turn.clear()
    keys.begin()
    first_call = asyncio.create_task(known(keys, "first"))
    provider.turn.set()
    await first_call
    assert provider.asked.count("/keys") == 1


async def test_an_address_of_the_key_set_needs_no_discovery(provider: Provider) -> None:
    keys = ProviderKeys("https://elsewhere.example", jwks_url=f"{provider.issuer}/keys")
    await known(keys, "first")
    assert provider.asked == ["/keys"]


async def test_no_private_part_of_a_published_key_is_kept(
    keys: ProviderKeys, provider: Provider
) -> None:
    provider.keys = [FIRST.as_dict(private=True)]
    assert not (await known(keys, "first")).is_private


async def test_a_new_key_has_the_keys_fetched_again(
    keys: ProviderKeys, provider: Provider, clock: Clock
) -> None:
    await known(keys, "first")
    provider.publish(FIRST, SECOND)
    clock.pass_by(RETRY_S)
    assert (await known(keys, "second")).kid == "second"
    assert (await known(keys, "first")).kid == "first"
    assert provider.asked.count("/keys") == 2


async def test_invented_keys_cost_one_fetch_in_a_while(
    keys: ProviderKeys, provider: Provider, clock: Clock
) -> None:
    for _ in range(3):
        for number in range(50):
            with pytest.raises(Unauthenticated):
                await known(keys, f"invented {number}")
        clock.pass_by(RETRY_S)
    assert provider.asked.count("/keys") == 3


async def test_calls_at_once_share_one_fetch_and_who_leaves_does_not_end_it(
    keys: ProviderKeys, provider: Provider
) -> None:
    provider.turn.clear()
    calls = [asyncio.create_task(known(keys, "first")) for _ in range(20)]
    while not provider.asked:
        await asyncio.sleep(0.001)
    calls[0].cancel()
    provider.turn.set()
    await asyncio.gather(*calls[1:])
    assert calls[0].cancelled()
    assert provider.asked.count("/keys") == 1


async def test_who_has_a_key_is_not_locked_out_while_the_provider_is_away(
    keys: ProviderKeys, provider: Provider, clock: Clock
) -> None:
    await known(keys, "first")
    provider.is_away = True
    with capture_logs() as lines:
        for _ in range(3):
            clock.pass_by(IDLE_S)
            await known(keys, "first")
            with pytest.raises(KeysUnavailable):
                await known(keys, "second")
    assert {line["event"] for line in lines} == {"provider.failed"}
    provider.is_away = False
    provider.publish(SECOND)
    clock.pass_by(RETRY_S)
    assert (await known(keys, "second")).kid == "second"


async def test_an_outage_is_no_refusal_and_is_asked_about_once_in_a_while(
    keys: ProviderKeys, provider: Provider, clock: Clock
) -> None:
    provider.is_away = True
    for _ in range(5):
        with pytest.raises(KeysUnavailable):
            await known(keys, "first")
    assert len(provider.asked) == 1
    provider.is_away = False
    clock.pass_by(RETRY_S)
    await known(keys, "first")


async def test_old_keys_are_fetched_again_beside_the_calls_that_use_them(
    keys: ProviderKeys, provider: Provider, clock: Clock
) -> None:
    await known(keys, "first")
    clock.pass_by(FRESH_S)
    provider.turn.clear()
    provider.publish(SECOND)
    await known(keys, "first")
    provider.turn.set()
    async with asyncio.timeout(10):
        assert (await known(keys, "second")).kid == "second"
    with pytest.raises(Unauthenticated):
        await known(keys, "first")


async def test_a_key_withdrawn_long_ago_opens_nothing_after_an_idle_time(
    keys: ProviderKeys, provider: Provider, clock: Clock
) -> None:
    await known(keys, "first")
    provider.publish(SECOND)
    clock.pass_by(IDLE_S)
    with pytest.raises(Unauthenticated):
        await known(keys, "first")


async def test_an_outage_that_nobody_saw_end_keeps_no_withdrawn_key(
    keys: ProviderKeys, provider: Provider, clock: Clock
) -> None:
    await known(keys, "first")
    provider.is_away = True
    clock.pass_by(IDLE_S)
    await known(keys, "first")
    provider.is_away = False
    provider.publish(SECOND)
    clock.pass_by(FRESH_S)
    with pytest.raises(Unauthenticated):
        await known(keys, "first")


async def test_in_an_outage_nobody_waits_who_has_a_key(
    keys: ProviderKeys, provider: Provider, clock: Clock
) -> None:
    await known(keys, "first")
    provider.is_away = True
    clock.pass_by(IDLE_S)
    await known(keys, "first")
    provider.turn.clear()  # from now on it does not even refuse
    for _ in range(5):
        clock.pass_by(RETRY_S)
        await asyncio.wait_for(known(keys, "first"), 2)


async def test_a_token_without_a_kid_has_the_only_key_that_fits(
    keys: ProviderKeys, provider: Provider, clock: Clock
) -> None:
    assert (await known(keys, None)).kid == "first"
    provider.publish(FIRST, SECOND)
    clock.pass_by(IDLE_S)
    with pytest.raises(Unauthenticated):
        await known(keys, None)
    assert (await keys.find(None, lambda key: key.kid == "second")).kid == "second"


PUBLISHED: dict[str, Any] = FIRST.as_dict(private=False)


@pytest.mark.parametrize(
    "other",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "other"},
        {**PUBLISHED, "kid": "other", "use": "enc"},
        {**PUBLISHED, "kid": "other", "key_ops": ["sign"]},
        {**PUBLISHED, "kid": "other", "key_ops": 3},
        {**PUBLISHED, "kid": "other", "x": "AAAA"},
        {"kty": "RSA", "kid": "other", "n": "u" * 171, "e": "AQAB"},
        {"kty": "RSA", "kid": "other", "e": "AQAB"},
        {"kty": "AKP", "kid": "other"},
        {"kty": ["EC"], "kid": "other"},
        "other",
        None,
    ],
)
async def test_what_is_no_key_for_signatures_is_passed_over(
    keys: ProviderKeys, provider: Provider, other: object
) -> None:
    provider.keys = [other, PUBLISHED]
    assert (await known(keys, "first")).kid == "first"
    with pytest.raises(Unauthenticated):
        await known(keys, "other")


WELL_KNOWN = "/.well-known/openid-configuration"


@pytest.mark.parametrize(
    ("path", "said", "told"),
    [
        (WELL_KNOWN, {"issuer": "https://other.example", "jwks_uri": "…"}, "letter by letter"),
        (WELL_KNOWN, {"jwks_uri": "http://127.0.0.1/keys"}, "letter by letter"),
        (WELL_KNOWN, ["issuer"], "JSON object"),
        (WELL_KNOWN, (302, {"Location": "/keys"}, b""), "status 302"),
        ("/keys", (500, {}, b"broken"), "status 500"),
        ("/keys", b"<html>", "JSON"),
        ("/keys", b"[" * 100_000, "JSON"),
        ("/keys", b" " * 600_000, "more than"),
        ("/keys", {"keys": []}, "no public key"),
        ("/keys", {"keys": "none"}, "no public key"),
        ("/keys", {"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}, "no public key"),
    ],
)
async def test_a_provider_that_answers_nonsense_changes_nothing(
    keys: ProviderKeys, provider: Provider, clock: Clock, path: str, said: object, told: str
) -> None:
    await known(keys, "first")
    provider.answers[path] = said
    clock.pass_by(IDLE_S)
    with capture_logs() as lines:
        await known(keys, "first")
    assert told in lines[0]["error"]
    with pytest.raises(KeysUnavailable):
        await known(keys, "second")


async def test_a_provider_leads_nowhere_that_is_not_safe(
    keys: ProviderKeys, provider: Provider
) -> None:
    provider.answers[WELL_KNOWN] = {
        "issuer": provider.issuer,
        "jwks_uri": "http://keys.example.com/",
    }
    with capture_logs() as lines, pytest.raises(KeysUnavailable):
        await known(keys, "first")
    assert "https://" in lines[0]["error"]


async def test_a_provider_that_says_nothing_is_given_up(
    keys: ProviderKeys, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.gateway.auth.provider_keys._TIMEOUT_S", 0.05)
    provider.turn.clear()
    with pytest.raises(KeysUnavailable):
        await known(keys, "first")


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example.com",
        "ftp://login.example.com",
        "login.example.com",
        "https://",
        "https://ann:secret@login.example.com",
        "https://login.example.com/#part",
        "http://[::1",
        "",
    ],
)
def test_addresses_that_others_can_speak_for_are_refused(url: str) -> None:
    for issuer, jwks_url in ((url, None), ("https://login.example.com", url)):
        with pytest.raises(ConfigError) as refused:
            ProviderKeys(issuer, jwks_url=jwks_url)
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize("issuer", ["https://a.example/realm", "https://a.example/realm/"])
def test_an_issuer_may_end_in_a_slash(issuer: str) -> None:
    assert discovery_url(issuer) == "https://a.example/realm/.well-known/openid-configuration"
