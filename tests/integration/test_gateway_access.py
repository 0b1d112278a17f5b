"""The door of a gateway, on its real routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from outlast.gateway.app import create_app
from outlast.gateway.auth.api_keys import ApiKeys, digest_of, key_id_of, new_key
from outlast.gateway.auth.ways import Way, by_proxy
from outlast.gateway.cards import agent_card
from outlast.gateway.config import GatewayConfig
from outlast.gateway.handler import OutlastRequestHandler
from outlast.gateway.scopes import with_principal
from outlast.model.ids import Millis
from outlast.store.access import Access
from outlast.store.admin import Admin
from outlast.store.database import Database
from outlast.store.protocols import NewKey
from tests.contract.stores import statements
from tests.integration.test_gateway_support import Gateway, running_gateway

KEYS = {name: new_key() for name in ("ann", "bob", "eve", "old")}


@pytest.fixture
async def gateway(sqlite_url: str) -> AsyncIterator[Gateway]:
    async with running_gateway(sqlite_url) as running:
        access = Access(running.database)
        for owner, tenant in {"ann": "acme", "bob": "acme", "eve": "evil", "old": "acme"}.items():
            digest = digest_of(KEYS[owner])
            new = NewKey(
                key_id=key_id_of(digest),
                agent="tester",
                digest=digest,
                name=owner,
                owner=owner,
                tenant=tenant,
                scopes=(),
                lasts=Millis(1) if owner == "old" else None,
            )
            await access.create_key(new, source="test")
        await Admin(running.database).move_clock(Millis(1000))
        yield running


def app_of(gateway: Gateway) -> Starlette:
    handler = OutlastRequestHandler(
        gateway.agent,
        gateway.tasks,
        gateway.log,
        gateway.database.wakeups,
        GatewayConfig(serves_0_3=True),
        identify=with_principal("tester"),
    )
    keys = ApiKeys(Access(gateway.database), "tester")
    return create_app(handler, agent_card(gateway.agent, handler.config), authenticator=keys)


def caller(app: Starlette, owner: str | None = None, prefix: str = "") -> httpx.AsyncClient:
    headers = {"A2A-Version": "1.0"} | ({"X-API-Key": KEYS[owner]} if owner else {})
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url=f"http://test{prefix}", headers=headers
    )


SEND: dict[str, Any] = {
    "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "begin"}]},
    "configuration": {"returnImmediately": True},
}


async def begun(client: httpx.AsyncClient) -> str:
    answer = await client.post("/message:send", json=SEND)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["task"]["id"])


def routes_of(app: Starlette) -> list[tuple[str, str]]:
    """Every route but the public ones, also below a tenant, with names in place of parameters."""
    found: list[tuple[str, str]] = []

    def walk(routes: Any, prefix: str) -> None:
        for route in routes:
            if isinstance(route, Mount):
                walk(route.routes, prefix + route.path)
            elif isinstance(route, Route):
                path = prefix + route.path
                for part in ("tenant", "id", "push_id"):
                    path = path.replace("{" + part + "}", part)
                found.extend((method, path) for method in route.methods or ())

    walk(app.routes, "")
    public = {"/.well-known/agent-card.json", "/healthz", "/readyz"}
    return [(method, path) for method, path in found if path not in public]


@pytest.mark.parametrize("prefix", ["", "/agents/one"])
@pytest.mark.parametrize("sent", ["nothing", "malformed", "unknown", "expired", "twice"])
async def test_every_route_is_for_known_callers(gateway: Gateway, prefix: str, sent: str) -> None:
    inner = app_of(gateway)
    app = Starlette(routes=[Mount(prefix, inner)]) if prefix else inner
    headers: list[tuple[str, str]] = {
        "nothing": [],
        "malformed": [("Authorization", "Bearer outlast_x")],
        "unknown": [("X-API-Key", new_key())],
        "expired": [("X-API-Key", KEYS["old"])],
        "twice": [("X-API-Key", KEYS["ann"]), ("X-API-Key", KEYS["ann"])],
    }[sent]
    routes = routes_of(inner)
    assert len(routes) > 40
    async with caller(app, prefix=prefix) as client:
        for method, path in routes:
            with statements() as asked:
                answer = await client.request(method, path, headers=headers)
            assert answer.status_code == 401, (method, path)
            assert answer.headers["WWW-Authenticate"].startswith("Bearer"), (method, path)
            assert sent in ("unknown", "expired") or asked == [], (method, path)
            if method != "HEAD":
                assert "UNAUTHENTICATED" in answer.text
        for path in ("/.well-known/agent-card.json", "/healthz", "/readyz"):
            assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("other", ["bob", "eve"])
async def test_the_task_of_another_does_not_exist(gateway: Gateway, other: str) -> None:
    app = app_of(gateway)
    async with caller(app, "ann") as ann, caller(app, other) as foreign:
        task_id = await begun(ann)
        before = (await ann.get(f"/tasks/{task_id}")).json()
        unknown = "0" * len(task_id)
        for method, path in (
            ("GET", "/tasks/ID"),
            ("POST", "/tasks/ID:cancel"),
            ("POST", "/tasks/ID:subscribe"),
        ):
            got = await foreign.request(method, path.replace("ID", task_id))
            none = await foreign.request(method, path.replace("ID", unknown))
            assert got.status_code == none.status_code == 404
            assert got.text.replace(task_id, unknown) == none.text
        listed = (await foreign.get("/tasks")).json()
        assert (listed["tasks"], listed["totalSize"]) == ([], 0)
        assert (await ann.get(f"/tasks/{task_id}")).json() == before


async def test_the_credential_says_which_tenant(gateway: Gateway) -> None:
    app = app_of(gateway)
    async with caller(app, "ann") as ann, caller(app, "eve") as eve:
        task_id = await begun(ann)
        assert (await ann.get(f"/acme/tasks/{task_id}")).status_code == 200
        texts = []
        for path in (f"/acme/tasks/{task_id}", f"/none/tasks/{task_id}"):
            answer = await eve.get(path)
            assert answer.status_code == 400
            texts.append(answer.text.replace("acme", "none"))
        assert texts[0] == texts[1]


async def test_rows_without_an_owner_are_visible_to_no_one(gateway: Gateway) -> None:
    task_id = await gateway.started()
    async with caller(app_of(gateway), "ann") as ann:
        assert (await ann.get(f"/tasks/{task_id}")).status_code == 404


async def test_a_proxy_that_names_callers_is_believed_by_its_address(
    sqlite_url: str,
) -> None:
    def from_(proxy: str) -> Callable[[Database], list[Way]]:
        return lambda _: [by_proxy("X-Client-Name", [proxy])]

    async with running_gateway(sqlite_url, know=from_("127.0.0.0/8")) as behind:
        ann = {"X-Client-Name": "CN=ann"}
        answer = await behind.post("/message:send", SEND, **ann)
        task_id = answer.json()["task"]["id"]
        assert (await behind.get(f"/tasks/{task_id}", **ann)).status_code == 200
        bob = await behind.get(f"/tasks/{task_id}", **{"X-Client-Name": "CN=bob"})
        assert bob.status_code == 404
        twice = [("X-Client-Name", "CN=ann"), ("X-Client-Name", "CN=bob"), ("A2A-Version", "1.0")]
        assert (await behind.http.get(behind.url + "/tasks", headers=twice)).status_code == 401
        assert behind.card.security_schemes["mutualTLS"].HasField("mtls_security_scheme")
    async with running_gateway(sqlite_url, know=from_("10.0.0.0/8")) as elsewhere:
        for headers in (ann, {**ann, "X-Forwarded-For": "10.0.0.1"}):
            assert (await elsewhere.get("/tasks", **headers)).status_code == 401
