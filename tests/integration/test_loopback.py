"""Who authenticates nobody keeps to loopback, unless it is told otherwise."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.responses import Response
from starlette.types import ASGIApp, Message
from structlog.testing import capture_logs

from examples.hello.agent import agent
from outlast import compose
from outlast.configuration import Configuration, configuration
from outlast.gateway.auth.hosts import OwnHosts
from outlast.model.errors import ConfigError
from tests.integration.test_gateway_support import epoch_of


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.invalid"])
async def test_other_hosts_are_refused(tmp_path: Path, host: str) -> None:
    settings = configuration({}, database=f"sqlite:///{tmp_path}/x.db", host=host, port=0)
    with pytest.raises(ConfigError, match="OUTLAST_OPEN_TO_ALL"):
        await compose.answer_calls(agent, settings)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_loopback_is_listened_on(tmp_path: Path, host: str) -> None:
    settings = configuration({}, database=f"sqlite:///{tmp_path}/x.db", host=host, port=0)
    await listens(settings)


async def test_a_gateway_can_be_opened_to_all(tmp_path: Path) -> None:
    settings = configuration(
        {"OUTLAST_OPEN_TO_ALL": "true"},
        database=f"sqlite:///{tmp_path}/x.db",
        host="0.0.0.0",
        port=0,
    )
    await listens(settings)


@pytest.mark.parametrize(
    "known",
    [
        {"OUTLAST_API_KEYS": "true"},
        {"OUTLAST_PROXY_HEADER": "X-Client-Name", "OUTLAST_PROXIES": "10.0.0.0/8, ::1"},
        {"OUTLAST_JWT_ISSUER": "https://login.example.com", "OUTLAST_JWT_AUDIENCE": "agent"},
    ],
)
async def test_a_gateway_that_knows_its_callers_listens_anywhere(
    tmp_path: Path, known: dict[str, str]
) -> None:
    database = f"sqlite:///{tmp_path}/x.db"
    await listens(configuration(known, database=database, host="0.0.0.0", port=0))


@pytest.mark.parametrize(
    ("header", "proxies"), [("X-Client-Name", "proxy.example"), ("Outlast-Wait", "10.0.0.1")]
)
async def test_a_proxy_that_cannot_be_believed_is_refused(
    tmp_path: Path, header: str, proxies: str
) -> None:
    settings = configuration(
        {"OUTLAST_PROXY_HEADER": header, "OUTLAST_PROXIES": proxies},
        database=f"sqlite:///{tmp_path}/x.db",
        port=0,
    )
    with pytest.raises(ConfigError):
        await listens(settings)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("localhost", 200),
        ("agent.localhost:8000", 200),
        ("agent.example.com", 200),
        ("AGENT.example.com:443", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:8000", 403),
        ("evil.example:127.0.0.1", 403),
        ("[evil", 403),
        ("", 403),
    ],
)
async def test_other_names_are_refused(host: str, status: int) -> None:
    app = OwnHosts(Response(), "https://agent.example.com/a2a")
    assert await status_of(app, [(b"host", host.encode())]) == status


async def test_who_says_no_name_is_no_browser() -> None:
    assert await status_of(OwnHosts(Response(), "http://127.0.0.1:8000"), []) == 200


async def status_of(app: ASGIApp, headers: list[tuple[bytes, bytes]]) -> int:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("no body is read")

    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    await app(scope, receive, send)
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("setting", "status"), [(None, 403), ("OUTLAST_OPEN_TO_ALL", 200), ("OUTLAST_API_KEYS", 401)]
)
async def test_a_web_page_cannot_reach_loopback_under_its_own_name(
    tmp_path: Path, setting: str | None, status: int
) -> None:
    given = {} if setting is None else {setting: "true"}
    settings = configuration(given, database=f"sqlite:///{tmp_path}/x.db", port=0)
    async with compose.open_stores(settings) as stores:
        with capture_logs() as lines:
            role = compose.gateway_role(agent, stores, settings, await epoch_of(stores))
            running = asyncio.ensure_future(role.run())
            while not lines:
                await asyncio.sleep(0)
        async with httpx.AsyncClient(base_url=lines[0]["url"]) as http:
            headers = {"Host": "evil.example:8000", "A2A-Version": "1.0"}
            answer = await http.get("/tasks", headers=headers)
        role.stop()
        await running
    assert answer.status_code == status


async def listens(settings: Configuration) -> None:
    async with compose.open_stores(settings) as stores:
        role = compose.gateway_role(agent, stores, settings, await epoch_of(stores))
        running = asyncio.ensure_future(role.run())
        role.stop()
        await running
