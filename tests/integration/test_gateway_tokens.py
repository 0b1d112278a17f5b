"""A gateway whose callers have tokens of an identity provider."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx
import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict
from structlog.testing import capture_logs

from outlast import Client, compose
from outlast.admission import ways_of_knowing
from outlast.client import Opened, Patience, StatusChanged
from outlast.configuration import configuration
from outlast.gateway.auth.jwt import SignedTokens
from outlast.gateway.auth.provider_keys import ProviderKeys
from outlast.gateway.auth.token_rules import TokenRules
from outlast.gateway.auth.ways import Way, any_of, by_api_keys, by_tokens
from outlast.gateway.cards import agent_card
from outlast.gateway.config import GatewayConfig
from outlast.model.errors import ConfigError, Unauthenticated
from outlast.model.ids import Seq, TaskId
from outlast.model.task import Scope, State
from outlast.store.access import Access
from outlast.store.database import Database
from tests.docs.pages import ROOT, blocks_of
from tests.integration.test_gateway_grpc import Called, _info, called
from tests.integration.test_gateway_support import Gateway, make_agent, message
from tests.unit.identity_provider import AUDIENCE, Provider, key_for, running_provider

KEY = key_for("ES256")


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with running_provider(KEY) as running:
        yield running


@dataclass
class Clock:
    """One that stands still, so that a token is taken however slow this machine is. Streams end by
    the real one."""

    now: float = field(default_factory=lambda: float(int(time.time())))

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def guarded(
    database_url: str, provider: Provider, *, clock: Clock | None = None, **rules: Any
) -> AsyncIterator[Called]:
    """A gateway that wants the provider's tokens. clock: by which it judges them."""
    said = TokenRules(issuer=provider.issuer, audiences=(AUDIENCE,), **{"leeway_s": 0, **rules})

    def know(database: Database) -> list[Way]:
        way = by_tokens(said)
        if clock is not None:
            tokens = SignedTokens(said, ProviderKeys(provider.issuer), now=clock)
            way = Way(authenticator=tokens, schemes=way.schemes)
        return [by_api_keys(Access(database), "tester"), way]

    async with called(database_url, know=know, keepalive_s=0.1) as both:
        yield both


def bearing(token: str) -> dict[str, str]:
    return {"A2A-Version": "1.0", "Authorization": f"Bearer {token}"}


def metadata_of(token: str) -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, value in bearing(token).items()]


async def begun(gateway: Gateway, token: str) -> TaskId:
    send = MessageToDict(pb.SendMessageRequest(message=message("begin")))
    send["configuration"] = {"returnImmediately": True}
    answer = await gateway.http.post(
        f"{gateway.url}/message:send", json=send, headers=bearing(token)
    )
    assert answer.status_code == 200, answer.text
    return TaskId(answer.json()["task"]["id"])


async def test_owner_tenant_and_claims_are_the_tokens(sqlite_url: str, provider: Provider) -> None:
    rules: dict[str, Any] = {"tenant_claim": "org", "shown_claims": ("plan",)}
    async with guarded(sqlite_url, provider, **rules) as both:
        gateway = both.gateway
        token = provider.token(KEY, org="acme", plan="gold", scope="run", phone="123")
        task_id = await begun(gateway, token)
        scope = Scope(agent="tester", tenant="acme", owner="ann")
        (first,) = await gateway.log.events_since(task_id, Seq(0), limit=9)
        assert first.body["caller"] == {
            "subject": "ann",
            "tenant": "acme",
            "scopes": ["run"],
            "claims": {"plan": "gold"},
        }
        assert await gateway.tasks.get(scope, task_id) is not None
        for other, status in (({"sub": "bob"}, 404), ({"org": "evil"}, 404), ({}, 200)):
            other_token = provider.token(KEY, **{"org": "acme", **other})
            found = await gateway.http.get(
                f"{gateway.url}/tasks/{task_id}", headers=bearing(other_token)
            )
            assert found.status_code == status


async def test_a_refused_token_is_challenged_and_named_nowhere(
    sqlite_url: str, provider: Provider
) -> None:
    async with guarded(sqlite_url, provider) as both:
        for changed, told in (({"exp": 1}, "expired"), ({"aud": "other"}, "audience")):
            token = provider.token(KEY, **changed)
            with capture_logs() as lines:
                answer = await both.gateway.get("/tasks", **bearing(token))
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="a2a", error="invalid_token"'
            assert told in answer.text
            assert [line["event"] for line in lines if "caller" in line["event"]]
            for part in token.split("."):
                assert part not in answer.text + repr(lines)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await both.stub.ListTasks(
                    pb.ListTasksRequest(),
                    metadata=metadata_of(token),
                )
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_while_the_provider_is_away_nobody_is_told_that_a_token_is_bad(
    sqlite_url: str, provider: Provider
) -> None:
    provider.is_away = True
    async with guarded(sqlite_url, provider) as both:
        answer = await both.gateway.get("/tasks", **bearing(provider.token(KEY)))
        assert answer.status_code == 503
        assert answer.headers["Retry-After"]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await both.stub.ListTasks(
                pb.ListTasksRequest(),
                metadata=metadata_of(provider.token(KEY)),
            )
        info = _info(refused.value)
        assert (info.reason, info.metadata["retryable"]) == ("INTERNAL_ERROR", "true")
        assert "identity provider" in (refused.value.details() or "")


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_a_stream_ends_with_its_token_and_does_not_look_finished(
    sqlite_url: str, provider: Provider, binding: str
) -> None:
    clock = Clock()
    async with guarded(sqlite_url, provider, clock=clock) as both:
        task_id = await begun(both.gateway, provider.token(KEY))
        token = provider.token(KEY, exp=int(clock.now) + 1)
        async with asyncio.timeout(10):
            states = await states_of_stream(both, binding, task_id, token)
        assert states == ["TASK_STATE_SUBMITTED"]
        assert time.time() >= clock.now + 1


async def states_of_stream(both: Called, binding: str, task_id: str, token: str) -> list[str]:
    """The states that a subscription shows before it ends."""
    if binding == "GRPC":
        call = both.stub.SubscribeToTask(
            pb.SubscribeToTaskRequest(id=task_id),
            metadata=metadata_of(token),
        )
        shown = [pb.TaskState.Name((await call.read()).task.status.state)]
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call.read()
        assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
        return shown
    path, body = f"/tasks/{task_id}:subscribe", None
    if binding == "JSONRPC":
        path = "/"
        body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task_id}}
    async with both.gateway.http.stream(
        "POST", both.gateway.url + path, json=body, headers=bearing(token)
    ) as response:
        assert response.status_code == 200
        lines = [line async for line in response.aiter_lines()]
    frames = [httpx.Response(200, text=line[5:]).json() for line in lines if line[:5] == "data:"]
    return [(frame.get("result") or frame)["task"]["status"]["state"] for frame in frames]


def documented() -> Any:
    """The credential that renews itself, as the guide writes it."""
    (block,) = (
        block.text
        for block in blocks_of(ROOT / "docs/guides/oidc.md")
        if "class ClientCredentials" in block.text
    )
    found: dict[str, Any] = {}
    exec(block, found)
    return found["ClientCredentials"]("https://login.example.com/token", AUDIENCE, "ann", "secret")


async def test_a_client_follows_a_task_past_the_end_of_its_token(
    sqlite_url: str, provider: Provider
) -> None:
    clock = Clock()
    async with guarded(sqlite_url, provider, clock=clock) as both:
        gateway = both.gateway
        task_id = await begun(gateway, provider.token(KEY))
        was_renewed = asyncio.Event()
        auth, given = documented(), list[str]()

        async def new_token() -> str:
            if given:
                was_renewed.set()
            lasts = 600 if given else 1
            given.append(provider.token(KEY, exp=int(clock.now) + lasts))
            return given[-1]

        auth.new_token = new_token
        patience = Patience(total=20, first=0.01, longest=0.05)
        async with Client(gateway.url, auth=auth, patience=patience) as client:

            async def go_on() -> None:
                await was_renewed.wait()
                await gateway.hand.report(task_id, "still at it")
                await gateway.hand.finish(task_id)

            going_on = asyncio.create_task(go_on())
            async with asyncio.timeout(20), aclosing(client.follow(task_id)) as events:
                shown = [await anext(events)]
                clock.now += 1
                shown += [event async for event in events]
            await going_on
        assert isinstance(shown[0], Opened)
        assert not any(isinstance(event, Opened) for event in shown[1:])
        states = [event.state for event in shown[1:] if isinstance(event, StatusChanged)]
        assert states == [State.WORKING, State.COMPLETED]


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = TokenRules(issuer="https://login.example.com", audiences=(AUDIENCE,))
    for name in [name for name in sys.modules if name.partition(".")[0] == "joserfc"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("jwt", "provider_keys"):
        monkeypatch.delitem(sys.modules, f"outlast.gateway.auth.{name}")
    with pytest.raises(ConfigError) as refused:
        by_tokens(rules)
    assert "pip install 'outlast[jwt]'" in str(refused.value)


async def test_who_brings_a_token_is_judged_by_it_whatever_a_proxy_says(
    sqlite_url: str, provider: Provider
) -> None:
    settings = configuration(
        {
            "OUTLAST_JWT_ISSUER": provider.issuer,
            "OUTLAST_JWT_AUDIENCE": AUDIENCE,
            "OUTLAST_PROXY_HEADER": "X-Client-Name",
            "OUTLAST_PROXIES": "10.0.0.1",
        },
        database=sqlite_url,
    )
    async with compose.open_stores(settings) as stores:
        way = any_of(ways_of_knowing(make_agent().name, stores.access, settings))
    assert way is not None
    named = {"x-client-name": "bob"}
    assert (await way.authenticate(named, "10.0.0.1")).subject == "bob"
    good, bad = provider.token(KEY), provider.token(KEY, exp=1)
    found = await way.authenticate({**named, "authorization": f"Bearer {good}"}, "10.0.0.1")
    assert found.subject == "ann"
    with pytest.raises(Unauthenticated, match="expired"):
        await way.authenticate({**named, "authorization": f"Bearer {bad}"}, "10.0.0.1")


@pytest.mark.parametrize(
    ("jwks_url", "scheme"),
    [
        (
            None,
            {
                "openIdConnect": {
                    "openIdConnectSecurityScheme": {
                        "openIdConnectUrl": "https://a.example/.well-known/openid-configuration",
                    }
                }
            },
        ),
        (
            "https://a.example/keys",
            {"token": {"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "JWT"}}},
        ),
    ],
)
def test_the_card_says_where_tokens_come_from(jwks_url: str | None, scheme: dict[str, Any]) -> None:
    rules = TokenRules(issuer="https://a.example", audiences=(AUDIENCE, "https://b.example"))
    way = by_tokens(rules, jwks_url=jwks_url)
    card = MessageToDict(agent_card(make_agent(), GatewayConfig(), [way]))
    ((name, kinds),) = card["securitySchemes"].items()
    ((kind, said),) = kinds.items()
    assert said.pop("description") == (
        f"A token of https://a.example for {AUDIENCE} or https://b.example."
    )
    assert {name: {kind: said}} == scheme
    assert card["securityRequirements"] == [{"schemes": {name: {}}}]
