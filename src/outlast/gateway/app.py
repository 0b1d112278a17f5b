"""The gateway as an ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from a2a.server.routes.agent_card_routes import create_agent_card_routes
from a2a.types import a2a_pb2 as pb
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outlast.gateway.auth.hosts import OwnHosts
from outlast.gateway.auth.middleware import Authentication
from outlast.gateway.auth.principal import Authenticator
from outlast.gateway.bindings import JsonRpcBinding, RestBinding
from outlast.gateway.body import BodyLimit
from outlast.gateway.compat import JsonRpc03, Rest03
from outlast.gateway.context import requested_extensions
from outlast.gateway.handler import OutlastRequestHandler
from outlast.wire.extension import EXTENSION_URI

Problems = Callable[[], Sequence[str]]
"""What is wrong with this process, so that it should be restarted; nothing, as a rule."""

Unready = Callable[[], Awaitable[Sequence[str]]]
"""What keeps this process from serving right now."""

_CARD_CACHE = "public, max-age=300"


def create_app(
    handler: OutlastRequestHandler,
    card: pb.AgentCard,
    *,
    problems: Problems = tuple,
    unready: Unready | None = None,
    authenticator: Authenticator | None = None,
    only_as: str | None = None,
) -> Starlette:
    """Both bindings, the card, `/healthz` and `/readyz`.

    With an authenticator, the last three stay public, and all else is for callers that it knows;
    the handler then wants `with_principal`. `only_as`: callers reach it on loopback, or by the name
    in this URL, and whoever uses another is refused.

    The application does not notice by itself that its server stops: `handler.close()` ends what
    waits, and `GatewayServer` calls it.
    """
    handler.publish(card)
    older = handler.config.serves_0_3
    json_rpc = JsonRpcBinding(handler, JsonRpc03(handler) if older else None)
    app = Starlette(
        routes=[
            Route("/healthz", _healthz(problems), methods=["GET"]),
            Route("/readyz", _readyz(handler, unready), methods=["GET"]),
            *create_agent_card_routes(card, cache_control=_CARD_CACHE),
            Route("/", json_rpc.handle_requests, methods=["POST"]),
            *(Rest03(handler).mounted() if older else []),
            *RestBinding(handler).routes(),
        ],
        middleware=[
            *([Middleware(OwnHosts, url=only_as)] if only_as is not None else []),
            *([Middleware(Authentication, authenticator=authenticator)] if authenticator else []),
            Middleware(BodyLimit, limit=handler.config.max_body),
            Middleware(
                NamesExtensions,
                uris=[EXTENSION_URI, *(each.uri for each in handler.config.extensions)],
            ),
        ],
        exception_handlers={HTTPException: _no_such_route},
    )
    # A tenant's name without a path behind it is no folder.
    app.router.redirect_slashes = False
    return app


class NamesExtensions:
    """ASGI middleware: a response says which extensions were activated for it (§4.6)."""

    def __init__(self, app: ASGIApp, uris: Sequence[str]) -> None:
        self._app = app
        self._uris = uris

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        requested = requested_extensions(Request(scope)) if scope["type"] == "http" else set()
        activated = ", ".join(uri for uri in self._uris if uri in requested)
        if not activated:
            await self._app(scope, receive, send)
            return

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["A2A-Extensions"] = activated
            await send(message)

        await self._app(scope, receive, named)


def _healthz(problems: Problems) -> Callable[[Request], Awaitable[Response]]:
    async def healthz(request: Request) -> Response:
        return _health(problems())

    return healthz


def _readyz(
    handler: OutlastRequestHandler, unready: Unready | None
) -> Callable[[Request], Awaitable[Response]]:
    async def readyz(request: Request) -> Response:
        if handler.closing.is_closed:
            return _health(["the gateway is stopping"])
        return _health([] if unready is None else await unready())

    return readyz


def _health(problems: Sequence[str]) -> Response:
    body = {"status": "failing" if problems else "ok", "problems": list(problems)}
    return JSONResponse(body, status_code=503 if problems else 200)


async def _no_such_route(request: Request, error: Exception) -> Response:
    """A path or verb that the protocol does not have, said as the protocol says errors."""
    assert isinstance(error, HTTPException)
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "METHOD_NOT_FOUND",
        "domain": "a2a-protocol.org",
        "metadata": {},
    }
    body = {
        "code": error.status_code,
        "status": "NOT_FOUND" if error.status_code == 404 else "INVALID_ARGUMENT",
        "message": f"there is no {request.method} {request.url.path} here",
        "details": [info],
    }
    return JSONResponse(
        {"error": body}, status_code=error.status_code, headers=dict(error.headers or {})
    )
