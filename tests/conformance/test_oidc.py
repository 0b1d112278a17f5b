"""A gateway behind a real provider of OpenID Connect, where one is there."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from joserfc.jwk import Key, RSAKey

from outlast import Client
from outlast.model.errors import Refused, TaskNotFound
from outlast.testing.fleet import Fleet, until

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = Path(os.environ.get("OIDC", "node")).resolve()
IS_HERE = bool(shutil.which("node")) and (FOLDER / "node_modules/oidc-provider").is_dir()
AUDIENCE = "https://agent.example.com"

pytestmark = pytest.mark.skipif(
    not IS_HERE,
    reason="no oidc-provider here: say `npm install oidc-provider@9` in some folder, and name it:"
    " make conformance OIDC=folder",
)


def new_key(kid: str) -> Key:
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig", "alg": "RS256"})


@asynccontextmanager
async def running(*keys: Key, port: int = 0) -> AsyncIterator[str]:
    """The provider, with these keys, of which it signs with the first. Brings its issuer."""
    given = json.dumps([key.as_dict(private=True) for key in keys])
    process = await asyncio.create_subprocess_exec(
        *("node", str(HERE / "oidc_provider.mjs"), str(FOLDER), str(port), given),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            issuer = (await process.stdout.readline()).decode().strip()
        assert issuer.startswith("http://"), issuer
        yield issuer
    finally:
        process.kill()
        await process.communicate()


async def token(issuer: str, name: str, audience: str = AUDIENCE) -> str:
    """A token by client credentials, as a program gets one."""
    async with httpx.AsyncClient() as http:
        answer = await http.post(
            f"{issuer}/token",
            data={"grant_type": "client_credentials", "scope": "run", "resource": audience},
            auth=(name, "secret"),
        )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["access_token"])


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    database = f"sqlite:///{tmp_path}/outlast.db"
    agent = "tests.cases.callers:agent"
    async with Fleet(database, tmp_path / "logs", agent=agent, cwd=ROOT) as fleet:
        fleet.settings |= {
            "jwt_audience": AUDIENCE,
            "jwt_tenant_claim": "tenant",
            "jwt_shown_claims": "plan",
        }
        yield fleet


async def test_a_token_of_a_real_provider_says_who_calls(fleet: Fleet) -> None:
    async with running(new_key("one")) as issuer:
        server = await fleet.serve(jwt_issuer=issuer)
        async with Client(server.url, auth=await token(issuer, "ann")) as ann:
            (scheme,) = ann.card.security_schemes.values()
            found = scheme.open_id_connect_security_scheme.open_id_connect_url
            assert found == f"{issuer}/.well-known/openid-configuration"
            asked = (await ann.send("Who am I?")).snapshot
            assert asked is not None
            task_id = asked.task_id
            await ann.answer(task_id, "still me")
            told = (await ann.result(task_id)).text
        once = '["ann","acme",["run"],{"plan":"plan of ann"}]'
        assert told == f"{once} {once}"
        async with Client(server.url, auth=await token(issuer, "bob")) as bob:
            with pytest.raises(TaskNotFound):
                await bob.get(task_id)
        elsewhere = await token(issuer, "ann", "https://other.example.com")
        async with Client(server.url, auth=elsewhere) as stray:
            with pytest.raises(Refused):
                await stray.get(task_id)


async def test_a_real_provider_goes_away_and_comes_back_with_another_key(fleet: Fleet) -> None:
    async with running(new_key("old")) as issuer:
        server = await fleet.serve(jwt_issuer=issuer)
        early = await token(issuer, "ann")
        assert await status(server.url, early) == 200
    assert await status(server.url, early) == 200  # the provider is away
    async with running(new_key("new"), port=int(issuer.rpartition(":")[2])) as again:
        assert again == issuer
        late = await token(issuer, "ann")

        async def is_known() -> bool:
            return await status(server.url, late) == 200

        await until(is_known)
        assert await status(server.url, early) == 401


async def status(url: str, bearer: str) -> int:
    headers = {"A2A-Version": "1.0", "Authorization": f"Bearer {bearer}"}
    async with httpx.AsyncClient() as http:
        return (await http.get(f"{url}/tasks", headers=headers)).status_code
