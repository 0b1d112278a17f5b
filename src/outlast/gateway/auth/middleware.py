"""The door of the HTTP bindings: nobody unknown gets as far as a request's body."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.utils import errors as a2a
from a2a.utils.error_handlers import build_rest_error_payload
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from outlast.gateway.auth.door import admitted
from outlast.gateway.auth.principal import Authenticator
from outlast.gateway.errors import RefusedError, of_caller, unavailable
from outlast.model.errors import StoreUnavailable, Unauthenticated

PUBLIC = frozenset({"/.well-known/agent-card.json", "/healthz", "/readyz"})
"""What everybody may read: how to call, and whether anybody would answer."""

PRINCIPAL = "outlast.principal"
"""Where the ASGI scope holds the caller."""


class Authentication:
    """ASGI middleware: a request of an unknown caller ends here with 401 and a challenge, before
    its body is read; that of a known one goes on with its Principal in the scope."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_public(scope):
            peer = scope["client"][0] if scope.get("client") else None
            try:
                scope[PRINCIPAL] = await admitted(self._authenticator, _sent(scope), peer)
            except Unauthenticated as error:
                await _unauthenticated(error, scope)(scope, receive, send)
                return
            except StoreUnavailable as error:
                away = unavailable(error, "authenticate")
                await refusal_of(scope, away, 503, {"Retry-After": "5"})(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _sent(scope: Scope) -> Iterator[tuple[str, str]]:
    for name, value in scope["headers"]:
        yield name.decode("latin-1"), value.decode("latin-1")


def _path(scope: Scope) -> str:
    """The path below the prefix at which the application is mounted."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


def _is_public(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD") and _path(scope) in PUBLIC


def _unauthenticated(error: Unauthenticated, scope: Scope) -> Response:
    refusal = of_caller(error)
    assert isinstance(refusal, RefusedError)
    return refusal_of(scope, refusal, 401, refusal.headers)


def refusal_of(
    scope: Scope, error: a2a.A2AError, status: int, headers: Mapping[str, str] | None = None
) -> Response:
    """The error as the binding says it which the path is of. The body has not been read, so a
    JSON-RPC error names no id."""
    is_json_rpc = scope["method"] == "POST" and _path(scope) in ("", "/")
    body = build_error_response(None, error) if is_json_rpc else build_rest_error_payload(error)
    if not is_json_rpc:
        body["error"]["code"] = status
    return JSONResponse(body, status_code=status, headers=dict(headers or {}))
