"""The HTTP server under a gateway: uvicorn, stopped by whoever runs the process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from outlast.gateway.handler import OutlastRequestHandler
from outlast.gateway.sse import IS_STREAM
from outlast.model.errors import ConfigError

_BACKLOG = 2048

KEEP_ALIVE_S = 75
"""How long an idle connection is kept. The side that keeps it for less must be the client's: it
would otherwise send a request on a connection that is just being closed, and could not tell what
became of it. Clients in Python give up after 5 s, proxies in front of services after 60 s."""


_UNREAD = 8 * 1024
"""Bytes that wait in this process for a connection to take them, before its writer is held up. Of
readers that stop reading there may be a thousand."""

_LAST_S = 0.5
"""How long readers have to take what their streams ended with, when the server stops."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one, which `getsockname` tells.

    Made before anything else, so that the card can name the port. Raises ConfigError when the
    place is taken, forbidden or not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another host or port"
        ) from None
    # What it accepts inherits this. asyncio sets it only on sockets that name their protocol, and
    # without it the second packet of every answer waits 40 ms for the first one's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's connection, with less of a buffer in front of a slow reader."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_UNREAD)


class GatewayServer(uvicorn.Server):
    """Serves a gateway's application until `stop`.

    Stopping ends open streams and blocking sends at once, since a server that waits for them to
    end by themselves never stops (case 127); requests under way get `grace_s` to finish. Signals
    are left to the process, which may run other roles too.
    """

    def __init__(
        self,
        app: ASGIApp,
        handler: OutlastRequestHandler,
        listener: socket.socket,
        *,
        grace_s: int = 5,
    ) -> None:
        """A server on a socket that `listen` made, which it closes in the end."""
        config = uvicorn.Config(
            app,
            http=Connection,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            # A header that anybody can send must not say where a request comes from: callers
            # whom a proxy names are believed by the address of the proxy.
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=grace_s,
        )
        super().__init__(config)
        self._handler = handler
        self._listener = listener

    def stop(self) -> None:
        """Stop soon; `serve` returns when it is done."""
        self._handler.close()
        self.should_exit = True

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `stop` has been called and requests have ended."""
        await super().serve(sockets or [self._listener])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._handler.close()
        later = asyncio.get_running_loop().call_later(_LAST_S, self._drop_stalled)
        try:
            await super().shutdown(sockets)
        finally:
            later.cancel()

    def _drop_stalled(self) -> None:
        """A stream has ended by now, unless its reader does not take what was written to it."""
        connections: list[Any] = list(self.server_state.connections)
        for connection in connections:
            is_stream = (connection.scope or {}).get(IS_STREAM)
            if is_stream and connection.transport.get_write_buffer_size() > 0:
                connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
