"""The mode of idempotency as an operator sets it, in a gateway made of the configuration."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from structlog.testing import capture_logs

from examples.hello.agent import agent
from outlast import compose
from outlast.configuration import Configuration, configuration
from outlast.gateway.config import Idempotency
from outlast.wire.extension import EXTENSION_URI
from tests.integration.test_gateway_support import epoch_of

UNIQUE = str(uuid.uuid4())


def test_the_setting_knows_every_mode() -> None:
    modes = get_args(Configuration.model_fields["idempotency"].annotation)
    assert modes == tuple(mode.value for mode in Idempotency)


@pytest.mark.parametrize(
    ("mode", "once"),
    [
        (None, {"unique": True, "reused": False, "header": True}),
        ("always", {"unique": True, "reused": True, "header": True}),
        ("header", {"unique": False, "reused": False, "header": True}),
        ("off", {"unique": False, "reused": False, "header": False}),
    ],
)
async def test_what_is_sent_twice_counts_once_as_the_operator_says(
    tmp_path: Path, mode: str | None, once: dict[str, bool]
) -> None:
    sends = {
        "unique": (UNIQUE, {}),
        "reused": ("msg-1", {}),
        "header": ("msg-2", {"Idempotency-Key": "order-7"}),
    }
    async with answering(tmp_path, mode) as http:
        card: Any = (await http.get("/.well-known/agent-card.json")).json()
        (ours,) = [
            extension
            for extension in card["capabilities"]["extensions"]
            if extension["uri"] == EXTENSION_URI
        ]
        assert ours["params"]["idempotency"] == (mode or "auto")
        found = {}
        for name, (message_id, headers) in sends.items():
            first = await task_of(http, message_id, headers)
            found[name] = first == await task_of(http, message_id, headers)
        assert found == once


async def task_of(http: httpx.AsyncClient, message_id: str, headers: dict[str, str]) -> str:
    body = {
        "message": {"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": "World"}]},
        "configuration": {"returnImmediately": True},
    }
    reply = await http.post("/message:send", json=body, headers=headers)
    task_id: str = reply.json()["task"]["id"]
    return task_id


@asynccontextmanager
async def answering(folder: Path, mode: str | None) -> AsyncIterator[httpx.AsyncClient]:
    """A caller of a gateway that runs with this setting, or without one."""
    environment = {} if mode is None else {"OUTLAST_IDEMPOTENCY": mode}
    settings = configuration(environment, database=f"sqlite:///{folder}/outlast.db", port=0)
    await compose.migrate(settings)
    async with compose.open_stores(settings) as stores:
        with capture_logs() as lines:
            role = compose.gateway_role(agent, stores, settings, await epoch_of(stores))
            running = asyncio.ensure_future(role.run())
            while not lines:
                await asyncio.sleep(0)
        async with httpx.AsyncClient(
            base_url=lines[0]["url"], headers={"A2A-Version": "1.0"}
        ) as http:
            yield http
        role.stop()
        await running
