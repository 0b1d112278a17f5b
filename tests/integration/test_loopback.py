"""Who authenticates nobody keeps to loopback, unless it is told otherwise."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from examples.hello.agent import agent
from outlast import compose
from outlast.configuration import Configuration, configuration
from outlast.model.errors import ConfigError


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


async def listens(settings: Configuration) -> None:
    async with compose.open_stores(settings) as stores:
        role = compose.gateway_role(agent, stores, settings, "epoch")
        running = asyncio.ensure_future(role.run())
        role.stop()
        await running
