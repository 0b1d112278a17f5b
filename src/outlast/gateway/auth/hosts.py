"""By which names a gateway that knows nobody may be called.

A gateway on loopback trusts whoever is on the machine. A web page is not, but its browser is: a
page whose own name is made to point at 127.0.0.1 may send there what it likes, and read the
answers. Such requests carry the page's name in `Host`.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from outlast.gateway.auth.middleware import refusal_of
from outlast.gateway.errors import ForbiddenError


class OwnHosts:
    """ASGI middleware: a request to another name than loopback's and that of `url` ends here, with
    403, before its body is read."""

    def __init__(self, app: ASGIApp, url: str) -> None:
        self._app = app
        self._own = urlsplit(url).hostname

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_own(Headers(scope=scope).get("host")):
            error = ForbiddenError(
                "nobody is authenticated here, so only this machine is answered, by its own name:"
                " call 127.0.0.1, or let the operator set OUTLAST_URL to the name that you used"
            )
            await refusal_of(scope, error, 403)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_own(self, said: str | None) -> bool:
        """Browsers always say a host; what says none is no browser."""
        if said is None:
            return True
        try:
            host = urlsplit(f"//{said}").hostname or ""
        except ValueError:
            return False
        return host == self._own or is_loopback(host)


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own, whoever resolves it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
