"""Ways of knowing callers, each by itself."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from outlast.gateway.auth import api_keys
from outlast.gateway.auth.api_keys import ApiKeys, digest_of, is_well_formed, new_key
from outlast.gateway.auth.principal import AnyOf, Authenticator, Principal
from outlast.gateway.auth.proxy import TrustedProxy
from outlast.gateway.auth.watch import Watch, Watched
from outlast.gateway.errors import challenge_of
from outlast.model.errors import ConfigError, Unauthenticated
from outlast.model.ids import Millis
from outlast.store.protocols import ApiKey, AuditEntry, NewKey
from tests.unit.test_watch_refusals import Book

KEY = new_key()


class Keys:
    """The store's side: one valid key. Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.expires_at = Millis(4_000_000_000_000)

    async def valid_key(self, agent: str, digest: str) -> ApiKey | None:
        self.asked += 1
        if (agent, digest) != ("agent", digest_of(KEY)):
            return None
        return ApiKey(
            key_id="1",
            name="ci",
            owner="ann",
            tenant="acme",
            scopes=("run",),
            created_at=Millis(0),
            expires_at=self.expires_at,
            revoked_at=None,
        )

    async def create_key(self, key: NewKey, *, source: str) -> ApiKey:
        raise NotImplementedError

    async def keys(self, agent: str) -> Sequence[ApiKey]:
        raise NotImplementedError

    async def revoke_key(self, agent: str, key_id: str, *, source: str) -> bool:
        raise NotImplementedError

    async def note(self, entry: AuditEntry) -> None:
        raise NotImplementedError

    async def audit(self, agent: str, *, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        raise NotImplementedError


async def refused(way: Authenticator, peer: str | None = None, **headers: str) -> Unauthenticated:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with pytest.raises(Unauthenticated) as caught:
        await way.authenticate(named, peer)
    return caught.value


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
async def test_a_key_is_known_by_either_header(header: str) -> None:
    keys = Keys()
    way = ApiKeys(keys, "agent")
    value = KEY if header == "x-api-key" else f"bearer {KEY}"
    found = await way.authenticate({header: value}, None)
    assert found == Principal(subject="ann", tenant="acme", scopes=("run",), expires_at=4e9)
    assert KEY not in repr(found)
    await way.authenticate({header: value}, None)
    assert keys.asked == 1


async def test_a_key_that_should_be_over_is_asked_for_again() -> None:
    keys = Keys()
    keys.expires_at = Millis(5000)
    way = ApiKeys(keys, "agent")
    for _ in range(2):
        await way.authenticate({"x-api-key": KEY}, None)
    assert keys.asked == 2


async def test_a_slow_store_does_not_lengthen_a_keys_life(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    # The module's own clock alone: the event loop reads the same function.
    clock = SimpleNamespace(monotonic=lambda: now, time=time.time)
    monkeypatch.setattr(api_keys, "time", clock)

    class Slow(Keys):
        async def valid_key(self, agent: str, digest: str) -> ApiKey | None:
            nonlocal now
            now += 4
            return await super().valid_key(agent, digest)

    keys = Slow()
    way = ApiKeys(keys, "agent")
    await way.authenticate({"x-api-key": KEY}, None)
    now += 0.9
    await way.authenticate({"x-api-key": KEY}, None)
    assert keys.asked == 1
    now += 0.1
    await way.authenticate({"x-api-key": KEY}, None)
    assert keys.asked == 2


@pytest.mark.parametrize(
    "key", ["", "outlast_", KEY[:-1], KEY + "a", KEY[:20] + "é" + KEY[21:], KEY.upper(), "secret"]
)
async def test_what_is_no_key_costs_no_look_into_the_store(key: str) -> None:
    keys = Keys()
    assert not is_well_formed(key)
    error = await refused(ApiKeys(keys, "agent"), x_api_key=key)
    assert keys.asked == 0
    assert len(key) < 9 or key not in str(error)


async def test_a_key_that_the_store_does_not_know_is_refused_and_asked_for_again() -> None:
    keys = Keys()
    way = ApiKeys(keys, "agent")
    other = new_key()
    assert not (await refused(way, x_api_key=other)).is_missing
    await refused(way, x_api_key=other)
    assert keys.asked == 2


async def test_another_kind_of_bearer_is_left_to_others() -> None:
    assert (await refused(ApiKeys(Keys(), "agent"), authorization="Bearer a.b.c")).is_missing


async def test_a_proxy_is_believed_from_its_addresses_only() -> None:
    way = TrustedProxy("X-Client-Name", ["10.0.0.0/8", "::1"])
    for peer in ("10.1.2.3", "::1"):
        assert (await way.authenticate({"x-client-name": "CN=ann"}, peer)).subject == "CN=ann"
    for other in ("11.1.2.3", "::2", "proxy", "", None):
        assert (await refused(way, other, x_client_name="CN=ann")).is_missing
    assert (await refused(way, "10.1.2.3", x_client_name=" ")).is_missing


@pytest.mark.parametrize("proxies", [[], ["proxy.example"], ["10.0.0.1/8"]])
def test_proxies_are_addresses_or_networks(proxies: list[str]) -> None:
    with pytest.raises(ConfigError):
        TrustedProxy("x-client-name", proxies)


async def test_several_ways_stand_beside_each_other() -> None:
    way = AnyOf((ApiKeys(Keys(), "agent"), TrustedProxy("x-client-name", ["10.0.0.1"])))
    assert (await way.authenticate({"x-api-key": KEY}, None)).subject == "ann"
    assert (await way.authenticate({"x-client-name": "bob"}, "10.0.0.1")).subject == "bob"
    assert (await refused(way)).is_missing
    # A bad credential is not excused by another one: the caller should learn of it.
    error = await refused(way, "10.0.0.1", x_api_key="wrong", x_client_name="bob")
    assert not error.is_missing


@pytest.mark.parametrize("proxy_first", [True, False])
@pytest.mark.parametrize(
    "sent",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer"},
        {"authorization": "Basic YW5uOnB3"},
        {"authorization": "outlast_abc"},
        {"x-api-key": "wrong"},
        {"x-api-key": ""},
    ],
)
async def test_a_credential_that_was_sent_decides_whatever_a_proxy_says(
    sent: dict[str, str], proxy_first: bool
) -> None:
    keys, proxy = ApiKeys(Keys(), "agent"), TrustedProxy("x-client-name", ["10.0.0.1"])
    way = AnyOf((proxy, keys) if proxy_first else (keys, proxy))
    book = Book()
    watch = Watch(book, "agent", written_every_s=3600)
    with pytest.raises(Unauthenticated) as caught:
        await Watched(way, watch).authenticate({**sent, "x-client-name": "bob"}, "10.0.0.1")
    await watch.close()
    assert not caught.value.is_missing
    assert challenge_of(caught.value).endswith('error="invalid_token"')
    assert [(entry.kind, entry.source) for entry in book.entries] == [
        ("caller.refused", "10.0.0.1")
    ]


@pytest.mark.parametrize("header", ["Authorization", "X-API-Key"])
def test_a_proxy_names_callers_in_another_header_than_they_do(header: str) -> None:
    with pytest.raises(ConfigError, match=header):
        TrustedProxy(header, ["10.0.0.1"])


def test_nobody_is_no_principal() -> None:
    with pytest.raises(Unauthenticated):
        Principal(subject="")
