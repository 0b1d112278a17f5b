"""Requests that are refused before they reach a handler, and errors that the SDK makes by itself.

Each carries a `google.rpc.ErrorInfo` on every binding, so that a caller can tell errors apart by
their reason alone (specification §9.5, §11.6).
"""

from __future__ import annotations

import re

from a2a.server.jsonrpc_models import JSONRPCError
from a2a.utils.error_handlers import A2A_DOMAIN, ERROR_INFO_TYPE, build_rest_error_payload
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    ExtensionSupportRequiredError,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from outlast.gateway.errors import unexpected

MEDIA_TYPES = ("application/json", "application/a2a+json")
UNSUPPORTED_MEDIA_TYPE = 415
_REASONS = {-32700: "JSON_PARSE", -32601: "METHOD_NOT_FOUND", -32600: "INVALID_REQUEST"}
_INTERNAL = -32603
_PYTHONS = re.compile(
    r"'[\w.]+' object (is not|has no) .*"
    r"|\S+ indices must be .*"
    r"|expected string or bytes-like object.*"
    r"|(argument|int\(\) argument|float\(\) argument|a bytes-like object) .*",
    re.DOTALL,
)


def check_content_type(request: Request) -> None:
    """Raise ContentTypeNotSupportedError unless the body says that it is JSON.

    A body that says nothing is refused too: a web page may send one to any address without asking
    (as text or without a type), and never one of these types.
    """
    said = request.headers.get("content-type", "")
    if said.partition(";")[0].strip().lower() in MEDIA_TYPES:
        return
    raise ContentTypeNotSupportedError(
        f"a body of type {said[:100]!r} is not read here; send Content-Type: {MEDIA_TYPES[0]}"
        if said
        else f"the body does not say its type; send Content-Type: {MEDIA_TYPES[0]}",
        {"supported": ", ".join(MEDIA_TYPES)},
    )


def check_extensions(requested: set[str], required: frozenset[str]) -> None:
    """Raise ExtensionSupportRequiredError unless all that is required has been activated."""
    if missing := sorted(required - requested):
        raise ExtensionSupportRequiredError(
            f"this agent requires {', '.join(missing)}; name it in the header A2A-Extensions",
            {"extensions": ", ".join(missing)},
        )


def rest_refusal(error: A2AError, status: int) -> Response:
    """The error as HTTP+JSON says it, with a status of its own."""
    payload = build_rest_error_payload(error)
    payload["error"]["code"] = status
    return JSONResponse(payload, status_code=status)


def unparsed(error: Exception) -> str:
    """What is wrong with a request that protobuf does not read. Of a value of another type it
    tells what Python could not do with it; and it repeats half a character, which no answer can
    hold."""
    told = str(error).encode("utf-8", "backslashreplace").decode()
    return f"the request does not parse: {_PYTHONS.sub('has the wrong type', told)}"


def explained(error: A2AError | JSONRPCError | Exception) -> A2AError | JSONRPCError:
    """An error that the SDK makes by itself, with its ErrorInfo. The text of what broke inside is
    for operators."""
    if isinstance(error, A2AError):
        return error
    if not isinstance(error, JSONRPCError):
        return unexpected(error, "JSON-RPC")
    if error.code == _INTERNAL:
        return unexpected(RuntimeError(error.message), "JSON-RPC")
    info = {
        "@type": ERROR_INFO_TYPE,
        "reason": _REASONS.get(error.code, "INVALID_REQUEST"),
        "domain": A2A_DOMAIN,
        "metadata": {},
    }
    return JSONRPCError(code=error.code, message=error.message, data=[info])
