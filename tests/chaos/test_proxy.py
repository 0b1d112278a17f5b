"""The proxy itself: what it does to a connection is what a test believes that it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from outlast.testing.proxy import Proxy

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """Before a server that sends back what it gets."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1024):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with Proxy("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
        yield proxy
    server.close()
    await server.wait_closed()


@asynccontextmanager
async def client(proxy: Proxy) -> AsyncIterator[Ends]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ask(ends: Ends, text: bytes, *, within: float = 5) -> bytes:
    reader, writer = ends
    writer.write(text)
    return await asyncio.wait_for(reader.readexactly(len(text)), within)


async def test_passes_everything_on(proxy: Proxy) -> None:
    async with client(proxy) as ends:
        assert await ask(ends, b"hello") == b"hello"
        ends[1].write_eof()
        assert await ends[0].read() == b""
    assert proxy.seen == {"client": 5, "server": 5}


async def test_blackhole_holds_back_and_heal_delivers_late(proxy: Proxy) -> None:
    async with client(proxy) as ends:
        proxy.blackhole()
        with pytest.raises(TimeoutError):
            await ask(ends, b"hello", within=0.05)
        async with client(proxy) as later:
            with pytest.raises(TimeoutError):
                await ask(later, b"a new connection stands too", within=0.05)
        proxy.heal()
        assert await ends[0].readexactly(5) == b"hello"


async def test_blackhole_one_way_loses_the_reply_only(proxy: Proxy) -> None:
    async with client(proxy) as ends:
        proxy.blackhole("client")
        with pytest.raises(TimeoutError):
            await ask(ends, b"hello", within=0.05)
        assert proxy.seen == {"client": 0, "server": 5}


async def test_cut_after_some_bytes(proxy: Proxy) -> None:
    async with client(proxy) as ends:
        proxy.cut_after(3)
        ends[1].write(b"hello")
        assert await ends[0].readexactly(3) == b"hel"
        with pytest.raises(ConnectionResetError):
            await ends[0].readexactly(1)
    async with client(proxy) as ends:
        assert await ask(ends, b"once") == b"once"


async def test_reset_and_refuse(proxy: Proxy) -> None:
    async with client(proxy) as ends:
        assert await ask(ends, b"hello") == b"hello"
        proxy.refuse()
        with pytest.raises(ConnectionError):
            await ask(ends, b"hello")
    async with client(proxy) as ends:
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await ask(ends, b"hello")
    proxy.heal()
    async with client(proxy) as ends:
        assert await ask(ends, b"hello") == b"hello"


async def test_delay(proxy: Proxy) -> None:
    clock = asyncio.get_running_loop().time
    async with client(proxy) as ends:
        proxy.delay_s = 0.05
        began = clock()
        await ask(ends, b"hello")
        assert clock() - began >= 0.1, "there and back"


async def test_leads_to_servers_in_turn_and_past_one_that_is_gone(proxy: Proxy) -> None:
    async def name(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes) -> None:
        writer.write(text)
        await writer.drain()
        writer.close()

    async def said() -> bytes:
        async with client(proxy) as (reader, _):
            return await reader.read()

    servers = [
        await asyncio.start_server(partial(name, text=text), "127.0.0.1", 0)
        for text in (b"one", b"two")
    ]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    proxy.lead_to(*(f"http://127.0.0.1:{port}" for port in ports))
    assert [await said() for _ in range(4)] == [b"one", b"two", b"one", b"two"]
    servers[0].close()
    await servers[0].wait_closed()
    assert [await said() for _ in range(2)] == [b"two", b"two"]
    servers[1].close()
    await servers[1].wait_closed()
