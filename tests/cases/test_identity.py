"""Who calls, while tasks outlast the credentials that they were begun with."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import httpx

from outlast.testing.fleet import Fleet, until
from tests.unit.identity_provider import AUDIENCE, key_for, running_provider

KEY = key_for("ES256")
ROOT = Path(__file__).parents[2]


async def test_case_087_credentials_are_dead_when_the_task_resumes(tmp_path: Path) -> None:
    """A task begun with a token that is over when its question is answered with another."""
    place = tmp_path / "store"
    place.mkdir()
    async with running_provider(KEY) as provider:
        fleet = Fleet(
            f"sqlite:///{place}/outlast.db",
            tmp_path / "logs",
            agent="tests.cases.callers:agent",
            cwd=ROOT,
            jwt_issuer=provider.issuer,
            jwt_audience=AUDIENCE,
            jwt_leeway=0,
            jwt_tenant_claim="org",
            jwt_shown_claims="session",
        )
        async with fleet:
            server = await fleet.serve()
            await server.logged("provider.keys")  # before the first call
            async with httpx.AsyncClient(base_url=server.url, timeout=20) as http:
                soon_over = provider.token(
                    KEY, exp=int(time.time()) + 4, org="acme", scope="a b", session="one"
                )
                task = await sent(http, soon_over, "Who am I?")
                assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"

                async def is_over() -> bool:
                    return await status(http, soon_over, task["id"]) == 401

                await until(is_over)
                other = provider.token(KEY, org="acme", scope="c", session="two", sub="bob")
                assert await status(http, other, task["id"]) == 404
                fresh = provider.token(KEY, org="acme", scope="c", session="two")
                ended = await sent(http, fresh, "still me", taskId=task["id"])
        (part,) = ended["status"]["message"]["parts"]
        assert part["text"] == (
            '["ann","acme",["a","b"],{"session":"one"}] ["ann","acme",["c"],{"session":"two"}]'
        )
        files = [path for path in place.rglob("*") if path.is_file()]
        kept = b"".join(path.read_bytes() for path in files) + server.text().encode()
        assert b'"session"' in kept
        for token in (soon_over, other, fresh):
            for secret in token.split(".")[1:]:
                assert secret.encode() not in kept


async def sent(http: httpx.AsyncClient, token: str, text: str, **more: str) -> dict[str, Any]:
    message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
    answer = await http.post(
        "/message:send", json={"message": message | more}, headers=bearing(token)
    )
    assert answer.status_code == 200, answer.text
    task: dict[str, Any] = answer.json()["task"]
    return task


async def status(http: httpx.AsyncClient, token: str, task_id: str) -> int:
    return (await http.get(f"/tasks/{task_id}", headers=bearing(token))).status_code


def bearing(token: str) -> dict[str, str]:
    return {"A2A-Version": "1.0", "Authorization": f"Bearer {token}"}
