"""A bound on the size of request bodies, kept by counting what arrives.

Counting holds whatever a caller claims about the length, and costs no memory: what is too much is
not kept.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LINGER_S = 5.0
_LINGER_FACTOR = 16


class BodyTooLarge(Exception):
    """The body of a request has more bytes than this gateway reads."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the request's body is larger than {limit} bytes; send files by url")


class BodyLimit:
    """ASGI middleware: reading a body past the limit raises BodyTooLarge in whoever reads it."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
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
