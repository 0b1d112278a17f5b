"""A TCP proxy that delays, swallows, cuts and resets what passes, when a test says so.

    async with Proxy("127.0.0.1", server.port) as proxy:
        ...                                   # clients connect to proxy.port
        proxy.blackhole()                     # as when a cable is pulled: nothing arrives, no error
        proxy.heal()                          # what was sent meanwhile arrives, late
        proxy.reset()                         # every connection ends with a reset

It runs in the test's own event loop, so a test that blocks the loop blocks the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal, Self
from urllib.parse import urlsplit, urlunsplit

Side = Literal["client", "server"]

_CHUNK: Final = 65536
_RESET: Final = struct.pack("ii", 1, 0)


@dataclass(eq=False)
class _Link:
    """One client's connection, and the one to the server that was made for it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter

    def reset(self) -> None:
        """Both ends see "connection reset by peer"."""
        for writer in (self.client, self.server):
            plug = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):  # it has ended already
                plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


@dataclass(eq=False)
class _Way:
    """What happens to the bytes towards one side."""

    is_open: asyncio.Event
    left: int | None = None


@dataclass(eq=False)
class Proxy:
    """Between clients and the server at (host, port), or those that `lead_to` names. `delay_s`
    holds back every chunk, both ways.

    seen: bytes passed on towards each side.
    """

    host: str
    port_of_server: int
    delay_s: float = 0.0
    seen: dict[Side, int] = field(default_factory=lambda: {"client": 0, "server": 0})
    _servers: deque[tuple[str, int]] = field(default_factory=deque)
    _ways: dict[Side, _Way] = field(default_factory=dict)
    _links: set[_Link] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _listener: asyncio.Server | None = None
    _refuses: bool = False

    async def __aenter__(self) -> Self:
        self._ways = {"client": _Way(asyncio.Event()), "server": _Way(asyncio.Event())}
        self.heal()
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._listener is not None
        self._listener.close()
        self.reset()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listener.wait_closed()

    @property
    def port(self) -> int:
        """Where clients connect, on 127.0.0.1."""
        assert self._listener is not None
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    def url(self, url: str) -> str:
        """The URL with this proxy's address in the place of the server's."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    def lead_to(self, *urls: str) -> None:
        """From now on new connections go to these servers in turn, past any that takes none: what
        a balancer does that knows nothing of tasks."""
        parts = map(urlsplit, urls)
        self._servers = deque((str(part.hostname), int(part.port or 80)) for part in parts)

    # --- faults -------------------------------------------------------------------------------

    def blackhole(self, *towards: Side) -> None:
        """From now on nothing arrives at these sides (both, when none is named). Connections
        stand, new ones too, as before a server that is frozen."""
        for side in towards or self._ways:
            self._ways[side].is_open.clear()

    def heal(self) -> None:
        """Everything passes again; what was held back comes first."""
        self._refuses = False
        for way in self._ways.values():
            way.left = None
            way.is_open.set()

    def cut_after(self, count: int, towards: Side = "client") -> None:
        """After `count` more bytes towards that side every connection is reset, once."""
        self._ways[towards].left = count

    def reset(self) -> None:
        """Reset every connection."""
        for link in list(self._links):
            link.reset()

    def refuse(self) -> None:
        """Reset every connection, and each new one at once, until `heal`."""
        self._refuses = True
        self.reset()

    # --- traffic ------------------------------------------------------------------------------

    async def _connected(
        self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        ends = await self._next_server()
        if ends is None:
            to_client.transport.abort()
            return
        from_server, to_server = ends
        link = _Link(to_client, to_server)
        if self._refuses:
            link.reset()
            return
        self._links.add(link)
        pumps = [
            asyncio.create_task(self._pump(from_client, to_server, "server")),
            asyncio.create_task(self._pump(from_server, to_client, "client")),
        ]
        self._tasks.update(pumps)
        try:
            await asyncio.wait(pumps)
        finally:
            self._tasks.difference_update(pumps)
            self._links.discard(link)
            for writer in (to_client, to_server):
                writer.close()

    async def _next_server(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in range(len(self._servers) or 1):
            host, port = self._servers[0] if self._servers else (self.host, self.port_of_server)
            self._servers.rotate(-1)
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(host, port)
        return None

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, towards: Side
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._ways[towards].is_open.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._pass_on(data, writer, towards)
            await self._ways[towards].is_open.wait()
            if writer.can_write_eof():
                writer.write_eof()

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter, towards: Side) -> None:
        way = self._ways[towards]
        passed = data if way.left is None else data[: way.left]
        self.seen[towards] += len(passed)
        writer.write(passed)
        await writer.drain()
        if way.left is not None:
            way.left -= len(passed)
            if way.left <= 0:
                way.left = None
                self.reset()
