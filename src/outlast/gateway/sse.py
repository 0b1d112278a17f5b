"""Streams as server-sent events: one frame an item, with the id by which it is resumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outlast.gateway.context import until_left
from outlast.gateway.stream import Item
from outlast.gateway.waiting import dropped

_SLICE = 16 * 1024
"""What is handed to the server at once. It holds up who writes more than a connection takes, but
only between two writes: a large one would be buffered whole."""

_COMMENT = b": keep-alive\n\n"


class Frames(Protocol):
    """How a binding frames what a stream brings."""

    def of_item(self, item: Item) -> bytes: ...

    def of_error(self, error: Exception) -> bytes: ...


class EventStream(Response):
    """A response that never gets buffered by proxies nor cut for its silence (cases 34 and 35).

    Its items are closed when it ends, whoever ends it: the stream, or the caller by leaving. A
    comment comes when nothing else has for `keepalive_s`; it has no id, so it moves no cursor.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: Item,
        later: AsyncGenerator[Item, None],
        *,
        frames: Frames,
        keepalive_s: float,
    ) -> None:
        """first: what the stream begins with; it was awaited before, so that what is refused
        is an error and not a stream."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._later = later
        self._frames = frames
        self._keepalive_s = keepalive_s
        self._turn = asyncio.Lock()
        self._spoke_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(head)
            if scope["method"] != "HEAD":
                await self._until_over(receive, send)
            else:
                await send({"type": "http.response.body", "body": b""})
        finally:
            await self._later.aclose()

    async def _until_over(self, receive: Receive, send: Send) -> None:
        self._spoke_at = asyncio.get_running_loop().time()
        streaming = asyncio.create_task(self._stream(send))
        leaving = asyncio.create_task(until_left(receive))
        try:
            ended: set[asyncio.Task[None]] = set()
            while not ended:
                ended, _ = await asyncio.wait(
                    {streaming, leaving},
                    timeout=self._patience(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not ended and self._patience() <= 0 and not self._turn.locked():
                    await self._write(send, _COMMENT)
            if streaming in ended:
                streaming.result()
        finally:
            await dropped(streaming)
            await dropped(leaving)

    async def _stream(self, send: Send) -> None:
        await self._write(send, self._frames.of_item(self._first))
        try:
            async for item in self._later:
                await self._write(send, self._frames.of_item(item))
        except Exception as error:
            await self._write(send, self._frames.of_error(error))
        async with self._turn:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, data: bytes) -> None:
        async with self._turn:  # no comment in the middle of a frame
            for start in range(0, len(data), _SLICE):
                body = data[start : start + _SLICE]
                await send({"type": "http.response.body", "body": body, "more_body": True})
            self._spoke_at = asyncio.get_running_loop().time()

    def _patience(self) -> float:
        """How long the silence may go on."""
        silent = asyncio.get_running_loop().time() - self._spoke_at
        # One that is just being written to, and does not take it, is not silent.
        return self._keepalive_s if self._turn.locked() else max(0.0, self._keepalive_s - silent)


def frame_of(data: str, *, event_id: str | None = None, event: str | None = None) -> bytes:
    """One event of a stream; `data` is a single line."""
    lines = [
        *([] if event_id is None else [f"id: {event_id}"]),
        *([] if event is None else [f"event: {event}"]),
        f"data: {data}",
    ]
    return ("\n".join(lines) + "\n\n").encode()
