"""What a handler may know of the HTTP request that a call came in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.utils.constants import (
    PROTOCOL_VERSION_0_3,
    PROTOCOL_VERSION_1_0,
    VERSION_HEADER,
)
from a2a.utils.errors import VersionNotSupportedError
from starlette.requests import Request
from starlette.types import Receive

from outlast.gateway.auth.middleware import PRINCIPAL
from outlast.gateway.refusals import check_extensions

# The second is what clients of the draft before 1.0 send.
_EXTENSION_HEADERS = (HTTP_EXTENSION_HEADER, f"X-{HTTP_EXTENSION_HEADER}")
_SEEN = frozenset({"idempotency-key", "last-event-id", "traceparent", "tracestate"})
_SEEN_BY_PREFIX = ("a2a-", "x-a2a-", "outlast-")

_VERSION = re.compile(r"(\d+\.\d+)(\.\d+)?")  # a patch number is never considered (§3.6)


class CallContexts(DefaultServerCallContextBuilder):
    """Builds call contexts. Their state holds the `headers` that are `seen`, the caller's
    `principal` where callers are authenticated, and `left`, which returns when the caller has
    left."""

    def __init__(
        self, required: frozenset[str] = frozenset(), *, version: str = PROTOCOL_VERSION_1_0
    ) -> None:
        """Contexts of calls that speak this version and have activated the `required`
        extensions."""
        self._required = required
        self._version = version

    def build(self, request: Request) -> ServerCallContext:
        """The context of a call. Raises VersionNotSupportedError, ExtensionSupportRequiredError."""
        check_spoken(version_said(request), self._version)
        context = super().build(request)
        context.state["headers"] = seen(request.headers, self._version)
        context.state["principal"] = request.scope.get(PRINCIPAL)
        context.state["left"] = partial(until_left, request.receive)
        context.requested_extensions = requested_extensions(request)
        check_extensions(context.requested_extensions, self._required)
        return context


def is_seen(name: str) -> bool:
    """Whether handlers see a header, or gRPC metadata, of this name. They see those that they
    read and no others: which ones hold credentials depends on what stands in front."""
    return name in _SEEN or name.startswith(_SEEN_BY_PREFIX)


def seen(headers: Mapping[str, str], version: str = PROTOCOL_VERSION_1_0) -> dict[str, str]:
    """What handlers see of a call's headers, whose names are in lower case."""
    return {name: value for name, value in headers.items() if is_seen(name)} | {
        VERSION_HEADER.lower(): version
    }


def version_said(request: Request) -> str:
    """The version that a request says it speaks, by header or by query parameter."""
    return request.headers.get(VERSION_HEADER) or request.query_params.get(VERSION_HEADER) or ""


def version_meant(said: str) -> str | None:
    """The version that this means, None for what is none. Nothing at all means 0.3 (§3.6.2)."""
    if not said.strip():
        return PROTOCOL_VERSION_0_3
    match = _VERSION.fullmatch(said.strip())
    return None if match is None else match[1]


def check_spoken(said: str, version: str = PROTOCOL_VERSION_1_0) -> None:
    """Raise VersionNotSupportedError unless what a request says its version is means this one."""
    if version_meant(said) == version:
        return
    what = (
        f"A2A {said} is" if said else f"a request without {VERSION_HEADER} means A2A 0.3, which is"
    )
    raise VersionNotSupportedError(f"{what} not served here; send {VERSION_HEADER}: {version}")


def requested_extensions(request: Request) -> set[str]:
    """The extensions that the caller wants to use."""
    values = [value for name in _EXTENSION_HEADERS for value in request.headers.getlist(name)]
    requested: set[str] = get_requested_extensions(values)
    return requested


async def until_left(receive: Receive) -> None:
    """Return when the connection is gone. The body has been read by now, so that is the only
    thing which can still come."""
    while (await receive())["type"] != "http.disconnect":
        pass
