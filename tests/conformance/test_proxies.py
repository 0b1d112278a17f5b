"""Two gateways behind real proxies, where they are: what their settings are worth."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from outlast import Client
from outlast.client import ArtifactChanged, Event, Link, Reset
from outlast.testing.fleet import until
from tests.conformance.grpc_transport import Grpc
from tests.conformance.proxied import IDLE_S, PROGRAMS, House, Program, behind, wanted
from tests.conformance.replies import Reply

HEADERS = {"A2A-Version": "1.0"}
PATIENCE_S = 30
KIB = 1024
MIB = 1024 * KIB
RELOADS = {"nginx": signal.SIGHUP, "haproxy": signal.SIGUSR2}
"""By which signal a proxy reads its configuration again."""

pytestmark = pytest.mark.skipif(
    not wanted(), reason=f'no proxies: make conformance PROXIES="{" ".join(PROGRAMS)}"'
)


@pytest.fixture(params=wanted())
def program(request: pytest.FixtureRequest) -> Program:
    return available(request.param)


def available(name: str) -> Program:
    """The program of this name. Skips the test where there is none."""
    found = PROGRAMS[name]
    if not found.is_here:
        pytest.skip(f"there is no {found.name} here")
    return found


@pytest.fixture
async def house(program: Program, tmp_path: Path) -> AsyncIterator[House]:
    async with behind(program, tmp_path) as house:
        yield house


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_nothing_is_held_back(house: House, binding: str, tmp_path: Path) -> None:
    """No chunk is written before the one before it was seen."""
    async with streaming(house, binding, f"write {tmp_path}") as lines:
        for number in range(1, 7):
            await said(lines, f'"{number} "')
            (tmp_path / str(number)).touch()
        await said(lines, "TASK_STATE_COMPLETED")


async def test_a_silent_stream_outlives_the_proxys_patience(house: House, tmp_path: Path) -> None:
    async with streaming(house, "HTTP+JSON", f"wait {tmp_path}/go") as lines:
        await said(lines, "TASK_STATE_WORKING")
        began = time.monotonic()
        comments = 0
        while time.monotonic() < began + 2 * IDLE_S:
            await said(lines, ": keep-alive")
            comments += 1
        assert comments > 2 * IDLE_S
        (tmp_path / "go").touch()
        await said(lines, "TASK_STATE_COMPLETED")


async def test_a_silent_answer_does_not_and_can_be_asked_for_again(
    house: House, tmp_path: Path
) -> None:
    """A send that waits says nothing meanwhile, so the proxy gives up. A repeat finds its task."""
    request = sending(f"wait {tmp_path}/go")
    async with httpx.AsyncClient(headers=HEADERS, timeout=PATIENCE_S) as http:
        answer = await http.post(f"{house.url}/message:send", json=request)
        assert answer.status_code == house.proxy.program.ends_with, answer.text
        request["configuration"] = {"returnImmediately": True}
        task = (await http.post(f"{house.url}/message:send", json=request)).json()["task"]
        (tmp_path / "go").touch()
        listed = (await http.get(f"{house.url}/tasks")).json()
    assert [found["id"] for found in listed["tasks"]] == [task["id"]]


async def test_what_is_cut_goes_on_where_it_was(house: House, tmp_path: Path) -> None:
    """The proxy dies and comes back, then a gateway dies: no event is lost or told twice."""
    async with Client(house.url) as client:
        sent = (await client.send(f"write {tmp_path}", wait=False)).snapshot
        assert sent is not None
        async with aclosing(client.follow(sent.task_id)) as events:
            told = [await shown(events, "1 ")]
            (tmp_path / "1").touch()
            told.append(await shown(events, "2 "))
            house.proxy.kill()
            (tmp_path / "2").touch()
            await house.proxy.start()
            told.append(await shown(events, "3 "))
            (tmp_path / "3").touch()
            told.append(await shown(events, "4 "))
            house.gateways[0].kill()
            for number in (4, 5):
                (tmp_path / str(number)).touch()
                told.append(await shown(events, f"{number + 1} "))
            (tmp_path / "6").touch()
            told.append([event async for event in events])
        result = await client.result(sent.task_id)
    everything = list(itertools.chain(*told))
    assert not any(isinstance(event, Reset) for event in everything)
    chunks = [event.text for event in everything if isinstance(event, ArtifactChanged)]
    assert chunks == [f"{number} " for number in range(1, 7)] + [""]
    assert list(result.artifacts.values()) == ["".join(chunks)]


async def test_too_much_is_refused_clearly_and_costs_nothing_else(house: House) -> None:
    too_large = sending("x" * (8 * MIB + 1024))
    async with httpx.AsyncClient(headers=HEADERS, timeout=PATIENCE_S) as http:
        for size, statuses in ((4, {200}), (100, {200, 400, 431}), (600, {400, 431})):
            headers = {"X-Much": "x" * size * KIB}
            answer = await http.get(f"{house.url}/tasks", headers=headers)
            assert answer.status_code in statuses, f"{size} KiB of headers: {answer.text}"
        answer = await http.post(f"{house.url}/message:send", json=too_large)
        assert answer.status_code == 413, answer.text
        assert "8388608" in answer.json()["error"]["message"]
        answer = await http.post(f"{house.url}/message:send", json=sending("hello"))
        assert answer.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("name", [name for name in RELOADS if name in wanted()])
async def test_a_reload_ends_streams_soon_and_they_go_on(name: str, tmp_path: Path) -> None:
    """As by a changed configuration: old processes leave after their time, and new ones serve."""
    async with behind(available(name), tmp_path) as house, Client(house.url) as client:
        sent = (await client.send(f"write {tmp_path}", wait=False)).snapshot
        assert sent is not None
        links: list[Link] = []
        async with aclosing(client.follow(sent.task_id, on_link=links.append)) as events:
            await shown(events, "1 ")
            assert [link.by for link in links] == ["stream"]
            house.proxy.reload(RELOADS[name])
            following = asyncio.create_task(shown(events, "2 "))
            await until(lambda: lost(links), what="the end of the old stream")
            (tmp_path / "1").touch()
            told = await following
            for number in range(2, 7):
                (tmp_path / str(number)).touch()
            told += [event async for event in events]
    chunks = [event.text for event in told if isinstance(event, ArtifactChanged)]
    assert "".join(chunks) == "2 3 4 5 6 "  # of those written at once the worker makes one
    assert not any(isinstance(event, Reset) for event in told)


async def test_grpc_comes_as_it_is_said_and_may_be_silent(house: House, tmp_path: Path) -> None:
    async with (
        grpc.aio.insecure_channel(house.grpc) as channel,
        httpx.AsyncClient(base_url=house.url) as http,
    ):
        binding = Grpc(http, [channel])
        replies = binding.stream("send_streaming_message", sending(f"write {tmp_path}"))
        async with asyncio.timeout(PATIENCE_S), aclosing(replies):
            for number in range(1, 7):
                await replied(replies, f'"{number} "')
                (tmp_path / str(number)).touch()
            await replied(replies, "TASK_STATE_COMPLETED")
        replies = binding.stream("send_streaming_message", sending(f"wait {tmp_path}/go"))
        async with asyncio.timeout(PATIENCE_S), aclosing(replies):
            await replied(replies, "TASK_STATE_WORKING")
            # Pings are not shown to callers: there is nothing to wait for but the proxy's time.
            asyncio.get_running_loop().call_later(2 * IDLE_S, (tmp_path / "go").touch)
            await replied(replies, "TASK_STATE_COMPLETED")


# --- what the tests share -----------------------------------------------------------------------


def sending(text: str) -> dict[str, Any]:
    message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
    return {"message": message}


@asynccontextmanager
async def streaming(
    house: House, binding: str, text: str
) -> AsyncIterator[AsyncGenerator[str, None]]:
    """The lines of a stream, as they come."""
    path, request = "/message:stream", sending(text)
    if binding == "JSONRPC":
        envelope = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage"}
        path, request = "/", {**envelope, "params": request}
    async with (
        httpx.AsyncClient(headers=HEADERS, timeout=PATIENCE_S) as http,
        http.stream("POST", house.url + path, json=request) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        async with aclosing(_lines(response)) as lines:
            yield lines


async def _lines(response: httpx.Response) -> AsyncGenerator[str, None]:
    async for line in response.aiter_lines():
        yield line


async def said(lines: AsyncGenerator[str, None], words: str) -> str:
    """The next line in which these words are."""
    async with asyncio.timeout(PATIENCE_S):
        return await anext(line async for line in lines if words in line)


async def replied(replies: AsyncGenerator[Reply, None], words: str) -> None:
    """Return at the next reply with these words in it. Fails at an error."""
    async for reply in replies:
        assert reply.error is None, reply.error
        if words in json.dumps(reply.body):
            return
    raise AssertionError(f"the stream has ended without {words}")


async def lost(links: list[Link]) -> bool:
    return any(link.by == "nothing" for link in links)


async def shown(events: AsyncGenerator[Event, None], chunk: str) -> list[Event]:
    """The events up to this chunk."""
    seen: list[Event] = []
    async with asyncio.timeout(PATIENCE_S):
        async for event in events:
            seen.append(event)
            if isinstance(event, ArtifactChanged) and event.text == chunk:
                return seen
    raise AssertionError(f"{chunk!r} did not come, but {seen}")
