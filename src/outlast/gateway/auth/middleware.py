"""The door of the HTTP bindings: nobody unknown gets as far as a request's body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from outlast.gateway.auth.principal import Authenticator
from outlast.model.errors import StoreUnavailable, Unauthenticated

PUBLIC = frozenset({"/.well-known/agent-card.json", "/healthz", "/readyz"})
"""What everybody may read: how to call, and whether anybody would answer."""

PRINCIPAL = "outlast.principal"
"""Where the ASGI scope holds the caller."""

_ONCE = frozenset({"authorization", "x-api-key"})

log = structlog.get_logger("outlast.gateway")


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
                headers = headers_of(scope["headers"])
                scope[PRINCIPAL] = await self._authenticator.authenticate(headers, peer)
            except Unauthenticated as error:
                log.info("caller.refused", source=peer, reason=str(error))
                await _unauthenticated(error, scope)(scope, receive, send)
                return
            except StoreUnavailable as error:
                log.warning("request.store_away", method="authenticate", error=str(error))
                await _away(scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def headers_of(raw: Iterable[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """Headers with names in lower case. Raises Unauthenticated for two credentials under one
    name: whoever looks at another one of them than a proxy in front did could be led astray."""
    headers: dict[str, str] = {}
    for name_bytes, value in raw:
        name = name_bytes.decode("latin-1").lower()
        if name in headers and name in _ONCE:
            raise Unauthenticated(f"the header {name} was sent more than once")
        headers[name] = (f"{headers[name]}, " if name in headers else "") + value.decode("latin-1")
    return headers


def _path(scope: Scope) -> str:
    """The path below the prefix at which the application is mounted."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


def _is_public(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD") and _path(scope) in PUBLIC


def _unauthenticated(error: Unauthenticated, scope: Scope) -> Response:
    # RFC 6750 §3.1: a request without any credential is told no error code.
    challenge = 'Bearer realm="a2a"' + ("" if error.is_missing else ', error="invalid_token"')
    return _refusal(scope, 401, "UNAUTHENTICATED", str(error), {"WWW-Authenticate": challenge})


def _away(scope: Scope) -> Response:
    text = "the agent's store did not answer in time; send the same request again later"
    return _refusal(scope, 503, "UNAVAILABLE", text, {"Retry-After": "5"})


def _refusal(
    scope: Scope, status: int, reason: str, text: str, headers: Mapping[str, str]
) -> Response:
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": "a2a-protocol.org",
        "metadata": {},
    }
    if scope["method"] == "POST" and _path(scope) in ("", "/"):
        body: dict[str, object] = {
            "jsonrpc": "2.0",
            "id": None,
            "error": {"code": -32603, "message": text, "data": [info]},
        }
    else:
        error = {"code": status, "status": reason, "message": text, "details": [info]}
        body = {"error": error}
    return JSONResponse(body, status_code=status, headers=dict(headers))
