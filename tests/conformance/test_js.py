"""The JavaScript client as a caller of a real server, where one is there."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from outlast.testing.fleet import Fleet, until
from outlast.testing.proxy import Proxy
from tests.conformance.houses import free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = Path(os.environ.get("JS", "node")).resolve()
IS_HERE = bool(shutil.which("node")) and (FOLDER / "node_modules/@a2a-js/sdk").is_dir()
PATIENCE_S = 30

pytestmark = pytest.mark.skipif(
    not IS_HERE,
    reason="no @a2a-js/sdk here: say `npm install @a2a-js/sdk@1` in some folder, and name it:"
    " make conformance JS=folder",
)


class Script:
    """`js_client.mjs` at work, and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def says(self) -> list[Any]:
        """The next line. Fails with what the script has to say of its end."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            line = await self._process.stdout.readline()
            if not line:
                pytest.fail((await self._process.stderr.read()).decode())
        said: list[Any] = json.loads(line)
        return said

    async def comes_to(self, *words: Any) -> list[list[Any]]:
        """What was said before it says this."""
        before = []
        while (said := await self.says()) != [*words]:
            assert said[0] in ("task", "statusUpdate"), said
            before.append(said)
        return before

    async def ends(self) -> None:
        """It has nothing more to say and no complaint."""
        said, complaint = await asyncio.wait_for(self._process.communicate(), PATIENCE_S)
        assert (said, self._process.returncode) == (b"", 0), complaint.decode()


@asynccontextmanager
async def script(*arguments: str) -> AsyncIterator[Script]:
    process = await asyncio.create_subprocess_exec(
        *("node", str(HERE / "js_client.mjs"), str(FOLDER), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Script(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_the_javascript_client_does_all_that_it_can(binding: str, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/outlast.db"
    agent = "tests.conformance.paced:agent"
    async with (
        Proxy("127.0.0.1", 0) as proxy,
        Fleet(database, tmp_path / "logs", agent=agent, cwd=ROOT) as fleet,
    ):
        url = f"http://127.0.0.1:{proxy.port}"
        port = free_port()
        await fleet.serve(url=url, port=port)
        direct = f"http://127.0.0.1:{port}"
        proxy.lead_to(direct)
        async with script(url, binding, str(tmp_path)) as js:
            assert await js.says() == ["card", "paced", binding, "1.0"]
            assert await js.says() == ["sent", "TASK_STATE_COMPLETED", "Done: hello"]
            await writes_and_is_cut(js, proxy, direct, tmp_path)
            assert await js.says() == ["asked", "TASK_STATE_INPUT_REQUIRED", "Which one?"]
            told = "You said the red one."
            assert await js.says() == ["answered", True, "TASK_STATE_COMPLETED", told]
            assert await js.says() == ["canceled", "TASK_STATE_CANCELED"]
            assert await js.says() == ["listed", 4, True]
            assert (await js.says())[:3] == ["refused", "cancel", "TASK_NOT_CANCELABLE"]
            assert (await js.says())[:3] == ["refused", "get", "TASK_NOT_FOUND"]
            await js.ends()


async def writes_and_is_cut(js: Script, proxy: Proxy, direct: str, place: Path) -> None:
    """Each chunk is there before the next is written, and each once, although nothing arrives
    after the third, and the connection is reset when the fourth has been written."""
    first, *_ = await js.comes_to("chunk", "1 ")
    assert first[0] == "task"
    for number in (1, 2):
        (place / str(number)).touch()
        assert await js.comes_to("chunk", f"{number + 1} ") == []
    proxy.blackhole("client")
    (place / "3").touch()
    await until(lambda: shows(direct, "4 "))
    proxy.reset()
    proxy.heal()
    assert (await js.says())[0] == "cut"
    first, *_ = await js.comes_to("chunk", "4 ")
    assert first[0] == "task", "a resumed stream begins with the task as of the last event"
    for number in (4, 5):
        (place / str(number)).touch()
        assert await js.comes_to("chunk", f"{number + 1} ") == []
    (place / "6").touch()
    assert await js.says() == ["chunk", ""]
    before = await js.comes_to("written", "1 2 3 4 5 6 ")
    assert before[-1] == ["statusUpdate", "TASK_STATE_COMPLETED"]


async def shows(url: str, chunk: str) -> bool:
    """Whether a task's artifact goes so far."""
    query = {"includeArtifacts": "true"}
    async with httpx.AsyncClient(headers={"A2A-Version": "1.0"}) as http:
        page = (await http.get(f"{url}/tasks", params=query)).json()
    return f'"{chunk}"' in json.dumps(page)
