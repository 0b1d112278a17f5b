"""The shell commands of the page on streams run, by curl against a gateway, and bring what it says.

`…` in an output stands for anything.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.model.ids import TaskId
from tests.docs.pages import ROOT, blocks_of
from tests.integration.test_gateway_support import Gateway, only_task, running_gateway

PAGE = ROOT / "docs/guides/streams.md"


class Shell:
    """Runs the page's commands in turn; the first block sets what the others use."""

    def __init__(self, page: Path, gateway: Gateway) -> None:
        blocks = [block for block in blocks_of(page) if block.language in ("sh", "text")]
        self._blocks = iter(blocks)
        self._set = next(self._blocks).text.replace("http://localhost:8000", gateway.url)

    async def run(self, **variables: str) -> tuple[str, str]:
        """What the next command brings, and what the page says that it does."""
        command, told = next(self._blocks), next(self._blocks)
        assert (command.language, told.language) == ("sh", "text")
        script = "".join(f"{name}={value}\n" for name, value in variables.items())
        running = await asyncio.create_subprocess_exec(
            "bash", "-euc", self._set + script + command.text, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(20):
            out, _ = await running.communicate()
        assert running.returncode == 0
        return out.decode().strip(), told.text.strip()

    def rest(self) -> Iterator[str]:
        return (block.text for block in self._blocks)


def brings(came: str, told: str) -> bool:
    pattern = "[^\n]*".join(re.escape(part) for part in told.split("…"))
    return re.fullmatch(pattern, came) is not None


@pytest.mark.skipif(not all(map(shutil.which, ("bash", "curl"))), reason="no bash or no curl here")
async def test_the_commands_of_the_page_on_streams(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, epoch="e1") as gateway:
        shell, hand = Shell(PAGE, gateway), gateway.hand

        following = asyncio.create_task(shell.run())
        task_id = await only_task(gateway)
        await hand.chunk(task_id, "one ", "two", append=False)
        await hand.finish(task_id)
        came, told = await following
        assert brings(came, told), came

        came, told = await shell.run(TASK=task_id, LAST="e1-2")
        assert brings(came, told), came

        came, told = await shell.run(TASK=task_id)
        assert brings(came, told), came

        task_id = await gateway.started()
        waiting = asyncio.create_task(shell.run(TASK=task_id))
        await until_waiting(gateway, task_id)
        await hand.chunk(task_id, "one ", append=False)
        came, told = await waiting
        assert brings(came, told), came

        task_id = await gateway.started()
        await hand.ask(task_id, "sure?")
        came, told = await shell.run(TASK=task_id)
        assert brings(came, told), came
        assert list(shell.rest()) == [], "every command was run"


async def until_waiting(gateway: Gateway, task_id: TaskId) -> None:
    tails = gateway.handler._waiting._tails._tails
    async with asyncio.timeout(20):
        while task_id not in tails:
            await asyncio.sleep(0.005)
