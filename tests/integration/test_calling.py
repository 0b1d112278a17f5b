"""The caller's commands: what they print, how they exit, and what a terminal shows."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from a2a.server.tasks import TaskUpdater
from a2a.types import a2a_pb2 as pb
from typer.testing import CliRunner

from outlast.cli import app as commands
from outlast.gateway.app import create_app
from outlast.gateway.auth.api_keys import ApiKeys, digest_of, key_id_of, new_key
from outlast.gateway.cards import agent_card
from outlast.gateway.config import GatewayConfig
from outlast.gateway.handler import OutlastRequestHandler
from outlast.gateway.scopes import with_principal
from outlast.gateway.server import GatewayServer, listen
from outlast.model.ids import TaskId
from outlast.model.task import State
from outlast.store.access import Access
from outlast.store.protocols import NewKey
from outlast.testing.fleet import until
from tests.integration.test_client_elsewhere import elsewhere
from tests.integration.test_gateway_support import Gateway, running_gateway


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


async def outlast(*arguments: str, stdin: str = "", **environment: str) -> Ran:
    """The command, as from a shell whose output goes into files."""
    done = await asyncio.to_thread(
        CliRunner().invoke, commands, arguments, input=stdin, env={"OUTLAST_URL": "", **environment}
    )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Ran(done.exit_code, done.stdout, done.stderr)


@dataclass
class Running:
    """A command that runs in a process of its own, and what it has shown so far."""

    child: asyncio.subprocess.Process
    output: int
    raw: bytes = b""

    @property
    def text(self) -> str:
        """Without colours and movements of the cursor."""
        shown = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", self.raw)
        return shown.decode(errors="ignore").replace("\r\n", "\n")

    async def shows(self, pattern: str) -> re.Match[str]:
        """The first match in what it shows, once it is there."""

        async def found() -> re.Match[str] | None:
            self._read()
            return re.search(pattern, self.text)

        match = await until(found, what=pattern)
        assert match is not None
        return match

    async def ended(self) -> int:
        async with asyncio.timeout(30):
            code = await self.child.wait()
        self._read()
        return code

    def _read(self) -> None:
        with suppress(BlockingIOError, OSError):  # nothing yet; a terminal that was closed
            while more := os.read(self.output, 65536):
                self.raw += more


@asynccontextmanager
async def started(
    *arguments: str, on_terminal: bool = False, stdin: str = "", **environment: str
) -> AsyncIterator[Running]:
    """The command with its output on a pipe or on a terminal."""
    output, theirs = os.openpty() if on_terminal else os.pipe()
    os.set_blocking(output, False)
    inherited = {name: value for name, value in os.environ.items() if name[:8] != "OUTLAST_"}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "outlast", *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=theirs, stderr=theirs,
        env={**inherited, "TERM": "xterm", "COLUMNS": "200", **environment},
    )  # fmt: skip
    os.close(theirs)
    assert child.stdin is not None
    child.stdin.write(stdin.encode())
    child.stdin.close()
    try:
        yield Running(child, output)
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()
        os.close(output)


async def test_the_commands_of_a_caller(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        hello = await outlast("send", gateway.url, "hello")
        assert (hello.code, hello.out[:12]) == (0, "hello to you")
        sent = await outlast("send", gateway.url, "begin", "--no-wait")
        text, state = sent.out.split()
        assert (sent.code, state) == (0, "submitted")
        task_id = TaskId(text)
        await gateway.hand.ask(task_id, "Sure?")
        asked = await outlast("get", gateway.url, task_id)
        assert (asked.code, asked.out) == (6, f"{task_id} input-required Sure?\n")
        assert (await outlast("answer", gateway.url, task_id, "yes")).code == 0
        await gateway.hand.chunk(task_id, "lamps", append=False)
        await gateway.hand.finish(task_id, State.FAILED, "none left")
        watched = await outlast("watch", gateway.url, task_id)
        assert watched.code == 3
        assert watched.out.splitlines() == [f"{task_id} failed none left", "--- out", "lamps"]
        assert (await outlast("cancel", gateway.url, task_id)).code == 1


async def test_what_is_typed_to_answer_is_said_and_answers_that_question(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "Sure?")
        asked = await outlast("get", gateway.url, task_id)
        assert " until 20" in asked.err
        command = shlex.split(asked.err.partition("answer with: ")[2])
        assert command[:4] == ["outlast", "answer", gateway.url, task_id]
        typed = ["yes" if word == "ANSWER" else word for word in command[1:]]
        assert (await outlast(*typed)).code == 0
        await gateway.hand.ask(task_id, "Really?")
        late = await outlast(*typed)
        assert late.code == 1
        assert "is over" in late.err


async def test_a_program_reads_a_document_a_line(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        async with started("watch", gateway.url, task_id, "--json") as watching:
            await watching.shows('{"task":')
            await gateway.hand.chunk(task_id, "one ", "two", append=False)
            await gateway.hand.report(task_id, "half done")
            await gateway.hand.finish(task_id, text="thanks")
            assert await watching.ended() == 0
        lines = [json.loads(line) for line in watching.text.splitlines()]
        assert [next(iter(line)) for line in lines] == [
            "task", "artifactUpdate", "artifactUpdate", "statusUpdate", "statusUpdate",
        ]  # fmt: skip
        (task,) = (await outlast("get", gateway.url, task_id, "--json")).json
        assert task["status"] == lines[-1]["statusUpdate"]["status"]
        sent = await outlast("send", gateway.url, "hello", "--json")
        assert list(sent.json[0]) == ["message"]


async def test_a_send_that_watches_prints_what_comes_as_it_comes(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        async with started("send", "-", "--watch", stdin="begin", OUTLAST_URL=gateway.url) as sent:
            task_id = TaskId((await sent.shows(r"(\S+) submitted\n"))[1])
            await gateway.hand.chunk(task_id, "one ", append=False)
            await sent.shows("one $")
            await gateway.hand.chunk(task_id, "two")
            await gateway.hand.report(task_id, "half done")
            await gateway.hand.finish(task_id, text="thanks")
            assert await sent.ended() == 0
        lines = sent.text.splitlines()
        assert lines[1:] == ["--- out", "one two", "working half done", "completed thanks"]


async def test_a_terminal_shows_what_happens_and_how_to_come_back(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        async with started("watch", gateway.url, task_id, on_terminal=True) as watching:
            await watching.shows(f"task {task_id}")
            await gateway.hand.chunk(task_id, "whole\nhalf a", append=False)
            await watching.shows("half a")
            await gateway.hand.chunk(task_id, " line\x1b]0;renamed\x07\n")
            await watching.shows("half a line")
            pause = await gateway.hand.ask(task_id, "Sure?")
            await watching.shows(r"\? Sure\?")
            await watching.shows(f"pause {pause} · until ")
            command = f"outlast answer {gateway.url} {task_id} ANSWER --pause {pause}"
            await watching.shows(re.escape(command))
            watching.child.send_signal(signal.SIGINT)
            assert await watching.ended() == 130
        assert f"come back with: outlast watch {gateway.url} {task_id}" in watching.text
        assert b"\x1b]" not in watching.raw, "agents do not rename windows"
        assert (await gateway.task(task_id)).status.state == pb.TASK_STATE_INPUT_REQUIRED


async def test_what_an_agent_without_numbers_cannot_promise_is_said() -> None:
    go = asyncio.Event()

    async def work(task: TaskUpdater, _: Any) -> None:
        await go.wait()
        await task.complete()

    async with elsewhere(work) as house:
        task_id = await house.started()
        url = house.proxy.url("http://127.0.0.1")
        async with started("watch", url, task_id) as watching:
            await watching.shows(f"{task_id} ")
            house.proxy.refuse()
            await watching.shows("trying again")
            house.proxy.heal()
            await watching.shows("numbers no events: what was missed is told by comparing")
            go.set()
            assert await watching.ended() == 0
        assert watching.text.endswith("completed\n")


async def test_lists_are_filtered_and_cut(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        tasks = [await gateway.started() for _ in range(3)]
        await gateway.hand.ask(tasks[1], "Which\none?")
        listed = await outlast("list", gateway.url)
        first = listed.out.splitlines()[0].split("\t")
        assert (first[0], first[3]) == (tasks[1], "Which one?")
        cut = await outlast("list", gateway.url, "--limit", "2")
        assert (len(cut.out.splitlines()), "--all" in cut.err) == (2, True)
        everything = await outlast("list", gateway.url, "--limit", "1", "--all")
        assert len(everything.out.splitlines()) == 3
        waiting = await outlast("list", gateway.url, "--state", "input-required", "--json")
        assert [task["id"] for task in waiting.json] == [tasks[1]]
        since = waiting.json[0]["status"]["timestamp"]
        newer = await outlast("list", gateway.url, "--since", since, "--json")
        assert [task["id"] for task in newer.json] == [tasks[1]]
        assert "such as" in (await outlast("list", gateway.url, "--since", "monday")).err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["get", "{url}", "nothing"], 7, "there is no task nothing"),
        (["get", "nothing"], 2, "OUTLAST_URL"),
        (["get", "nothing", "nothing"], 1, "http(s)://host"),
        (["get", "{url}", "x", "--header", "s3cret"], 1, "NAME:VALUE"),
        (["get", "{url}", "x", "--header", "Cookie: s3cret"], 1, "--header Cookie:@FILE"),
        (["get", "{url}", "x", "--header", "Cookie:@/nowhere/s"], 1, "No such file"),
        (["send", "{url}", "x", "--watch", "--no-wait"], 2, "give one of them"),
        (["answer", "{url}", "nothing", "yes"], 7, "there is no task nothing"),
    ],
)
async def test_what_is_wrong_is_said_in_a_line(
    sqlite_url: str, arguments: list[str], code: int, told: str
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        ran = await outlast(*(word.format(url=gateway.url) for word in arguments))
        assert (ran.code, ran.out) == (code, "")
        assert told in ran.err
        assert "s3cret" not in ran.err
        assert code == 2 or len(ran.err.splitlines()) == 1


@asynccontextmanager
async def guarded(gateway: Gateway, key: str) -> AsyncIterator[str]:
    """The URL of a gateway on the same store, for the owner of this API key alone."""
    access = Access(gateway.database)
    digest = digest_of(key)
    new = NewKey(
        key_id=key_id_of(digest), agent="tester", digest=digest, name="ann", owner="ann",
        tenant="", scopes=(), lasts=None,
    )  # fmt: skip
    await access.create_key(new, source="test")
    listener = listen("127.0.0.1", 0)
    config = GatewayConfig(url=f"http://127.0.0.1:{listener.getsockname()[1]}")
    handler = OutlastRequestHandler(
        gateway.agent, gateway.tasks, gateway.log, gateway.database.wakeups, config,
        identify=with_principal("tester"),
    )  # fmt: skip
    card = agent_card(gateway.agent, config)
    app = create_app(handler, card, authenticator=ApiKeys(access, "tester"))
    server = GatewayServer(app, handler, listener)
    serving = asyncio.create_task(server.serve())
    try:
        yield config.url
    finally:
        server.stop()
        await serving


async def test_credentials_come_from_the_environment_or_from_a_file(
    sqlite_url: str, tmp_path: Path
) -> None:
    key, other = new_key(), new_key()
    file = tmp_path / "key"
    file.write_text(f"{key}\n")
    async with running_gateway(sqlite_url) as gateway, guarded(gateway, key) as url:
        sent = await outlast("send", url, "begin", "--no-wait", OUTLAST_TOKEN=key)
        assert sent.code == 0, sent.err
        task_id = sent.out.split()[0]
        assert (await outlast("get", url, task_id, "--header", f"X-API-Key:@{file}")).code == 0
        for token, told in (("", "is not set"), (other, "is not accepted")):
            refused = await outlast("get", url, task_id, OUTLAST_TOKEN=token)
            assert refused.code == 1
            assert refused.err.endswith(f"OUTLAST_TOKEN, which {told}\n")
            assert other not in refused.err


async def test_an_authorization_goes_beside_the_conversation(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "Log in", state=State.AUTH_REQUIRED)
        asked = await outlast("get", gateway.url, task_id)
        command = shlex.split(asked.err.partition("answer with: outlast ")[2])
        done = await outlast(*command, stdin='{"token": "s3cret"}')
        assert (done.code, done.err) == (0, "")
        assert (await outlast("get", gateway.url, task_id)).out == f"{task_id} working\n"
