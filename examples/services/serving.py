"""Serve a small app on a port of this machine, in a process of its own."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request


def serve(app: Starlette, *, name: str, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT. Port 0 takes a free one.

    Prints `<name> listening on <url>` once a connection can be made, and nothing else, so that a
    parent process can read the port from the first line.
    """
    with socket.create_server((host, port), backlog=1024) as listener:
        bound = listener.getsockname()[1]
        print(f"{name} listening on http://{host}:{bound}", flush=True)
        config = uvicorn.Config(
            app, http=CuttableConnection, lifespan="off", log_level="warning", timeout_keep_alive=75
        )
        uvicorn.Server(config).run(sockets=[listener])


class CuttableConnection(H11Protocol):
    """An HTTP connection that the app can cut without an answer, which ASGI has no word for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Copied into each request's scope; the transport exists only from connection_made on.
        self.app_state = {**self.app_state, "cut": lambda: self.transport.abort()}


def cut(request: Request) -> None:
    """Reset the connection of this request: its caller never learns what became of it."""
    abort: Callable[[], None] = request.scope["state"]["cut"]
    abort()
