"""`outlast keys` and `outlast audit`, and a gateway that takes what they make."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from examples.hello.agent import agent
from outlast import compose
from outlast.cli import app, frame
from outlast.configuration import configuration
from tests.integration.test_gateway_support import epoch_of

AGENT = "examples.hello.agent:agent"


class Operator:
    """Runs commands on one database."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.run("migrate")

    def run(self, *words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(
            app, [*words, "--database", self.database], env={"COLUMNS": "80"}
        )
        assert result.exit_code == code, result.output
        return result

    def make(self, *options: str) -> str:
        return self.run("keys", "create", AGENT, *options).stdout.strip()


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    # Logging would go on to the streams of a command that has ended.
    monkeypatch.setattr(frame, "configure_logging", lambda *_, **__: None)
    return Operator(f"sqlite:///{tmp_path}/x.db")


def test_a_key_is_shown_once_and_kept_nowhere(operator: Operator, tmp_path: Path) -> None:
    key = operator.make("--owner", "ann", "--tenant", "acme", "--lasts", "90d", "--name", "[ci]")
    assert key.startswith("outlast_")
    listed = operator.run("keys", "list", AGENT).stdout
    assert "ann" in listed
    assert "acme" in listed
    assert "[ci]" in listed
    audit = operator.run("audit", AGENT).stdout
    assert "key.created" in audit
    assert key not in listed + audit
    for file in tmp_path.iterdir():
        assert key.encode() not in file.read_bytes()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--owner", " "), "--owner"),
        (("--owner", "ann", "--lasts", "soon"), "--lasts"),
        (("--owner", "ann", "--lasts", "0d"), "--lasts"),
        (("--owner", "ann", "--tenant", "a/b"), "--tenant"),
    ],
)
def test_what_is_no_key_makes_none(operator: Operator, options: tuple[str, ...], said: str) -> None:
    result = operator.run("keys", "create", AGENT, *options, code=1)
    assert said in result.stderr
    assert "outlast_" not in result.stdout
    assert "key.created" not in operator.run("audit", AGENT).stdout


def test_a_gateway_lets_in_who_has_a_key_until_it_is_revoked(operator: Operator) -> None:
    key = operator.make("--owner", "ann")
    assert asyncio.run(asked(operator.database, key)) == [200, 401, 200]
    (key_id,) = {
        word for word in operator.run("keys", "list", AGENT).stdout.split() if len(word) == 12
    }
    assert f"{key_id} is revoked" in operator.run("keys", "revoke", AGENT, key_id).stdout
    assert "no key" in operator.run("keys", "revoke", AGENT, key_id, code=1).stderr
    assert "key.revoked" in operator.run("audit", AGENT, "--limit", "1").stdout
    assert asyncio.run(asked(operator.database, key)) == [401, 401, 200]


def test_what_was_refused_is_in_the_audit_log(operator: Operator) -> None:
    key = operator.make("--owner", "ann", "--tenant", "acme")
    asyncio.run(asked(operator.database, key, "/evil/tasks"))
    asyncio.run(asked(operator.database, key[:-1], "/tasks"))
    audit = operator.run("audit", AGENT).stdout
    kinds = [word for word in audit.split() if word.endswith((".refused", ".created"))]
    assert kinds == ["caller.refused", "tenant.refused", "key.created"]
    assert "127.0.0.1" in audit
    assert "evil" not in audit
    assert key[:-1] not in audit


async def asked(database: str, key: str, path: str = "/tasks") -> list[int]:
    """The statuses of a call with this key, of one without any, and of the card's."""
    settings = configuration({"OUTLAST_API_KEYS": "true"}, database=database, port=0)
    async with compose.open_stores(settings) as stores:
        with capture_logs() as lines:
            role = compose.gateway_role(agent, stores, settings, await epoch_of(stores))
            running = asyncio.ensure_future(role.run())
            while not lines:
                await asyncio.sleep(0)
        async with httpx.AsyncClient(
            base_url=lines[0]["url"], headers={"A2A-Version": "1.0"}
        ) as http:
            known = await http.get(path, headers={"X-API-Key": key})
            unknown = await http.get("/tasks")
            card = await http.get("/.well-known/agent-card.json")
        role.stop()
        await running
    body: Any = card.json()
    assert set(body["securitySchemes"]) == {"apiKey", "apiKeyAsBearer"}
    assert len(body["securityRequirements"]) == 2
    return [known.status_code, unknown.status_code, card.status_code]
