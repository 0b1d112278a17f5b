"""The caller's commands, run as commands."""

from __future__ import annotations

import asyncio
import sys

from outlast.model.ids import TaskId
from outlast.model.task import State
from tests.integration.test_gateway_support import running_gateway


async def outlast(*arguments: str) -> tuple[int | None, str]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "outlast", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await child.communicate()
    return child.returncode, out.decode()


async def test_the_commands_of_a_caller(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        assert (await outlast("send", gateway.url, "hello"))[0] == 0
        code, out = await outlast("send", gateway.url, "begin", "--no-wait")
        task_id, state = out.split()
        assert (code, state) == (0, "submitted")
        await gateway.hand.ask(gateway_task := TaskId(task_id), "Sure?")
        assert (await outlast("get", gateway.url, task_id))[0] == 6
        assert (await outlast("answer", gateway.url, task_id, "yes"))[0] == 0
        await gateway.hand.chunk(gateway_task, "lamps", append=False)
        await gateway.hand.finish(gateway_task, State.FAILED, "none left")
        code, out = await outlast("watch", gateway.url, task_id)
        assert code == 3
        assert "none left" in out
        assert "lamps" in out
        assert (await outlast("cancel", gateway.url, task_id))[0] == 1
        assert (await outlast("get", gateway.url, "nothing"))[0] == 7
