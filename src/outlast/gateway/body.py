"""Bounds on the size of request bodies and on the time that they take.

The size is kept by counting what arrives. Counting holds whatever a caller claims about the length,
and costs no memory: what is too much is not kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

READ_S = 30.0
"""How long a body may take from when it is asked for to its last byte. What has arrived of it is
held until then: callers who send a byte now and then could hold any number of bodies."""

_LINGER_S = 5.0
_LINGER_FACTOR = 16


class BodyRefused(Exception):
    """The body of a request is not read to its end. `status` and `headers` are for the response."""

    status: int
    headers: Mapping[str, str] = {}


class BodyTooLarge(BodyRefused):
    """The body of a request has more bytes than this gateway reads."""

    status = 413

    def __init__(self, limit: int) -> None:
        super().__init__(f"the request's body is larger than {limit} bytes; send files by url")


class BodyTooSlow(BodyRefused):
    """The body of a request takes longer than this gateway waits."""

    status = 408
    headers: Mapping[str, str] = {"Connection": "close"}  # the rest of it may still come

    def __init__(self) -> None:
        super().__init__(f"the request did not arrive within {READ_S:g} s; send it again")


class BodyLimit:
    """ASGI middleware: reading a body past the limits raises BodyTooLarge or BodyTooSlow in whoever
    reads it."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received = 0
        until: float | None = None
        whole = False

        async def counted() -> Message:
            nonlocal received, until, whole
            if whole:
                return await receive()  # the caller's leaving, which may be days away
            until = until or asyncio.get_running_loop().time() + READ_S
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise BodyTooSlow from None
            whole = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self._limit:
                await self._linger(receive, message)
                raise BodyTooLarge(self._limit)
            return message

        await self._app(scope, counted, send)

    async def _linger(self, receive: Receive, message: Message) -> None:
        """Let a caller that is still sending come to an end, within reason: one whose connection
        is cut while it writes never reads why."""
        left = self._limit * _LINGER_FACTOR
        try:
            async with asyncio.timeout(_LINGER_S):
                while left > 0 and message.get("more_body", False):
                    message = await receive()
                    left -= len(message.get("body", b""))
        except TimeoutError:
            pass
