"""Streams as server-sent events: one frame an item, with the id by which it is resumed.

A reader that stops reading costs its connection and nothing else: what was to be written to it is
let go of, and read from the log again when it reads on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outlast.gateway.context import until_left
from outlast.gateway.stream import Item
from outlast.gateway.waiting import dropped

_SLICE = 8 * 1024
"""What is handed to the server at once. It holds up who writes more than a connection takes, but
only between two writes: a large one would be buffered whole."""

_STALLED_S = 1.0
"""A reader that takes nothing for so long has stopped reading."""

IS_STREAM = "outlast.stream"
"""In the scope of a request that a stream answers."""

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
        self._held = Held(first, later, frames)
        self._frames = frames
        self._keepalive_s = keepalive_s
        self._turn = asyncio.Lock()
        self._spoke_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        scope[IS_STREAM] = True
        try:
            await send(head)
            if scope["method"] != "HEAD":
                await self._until_over(receive, send)
            else:
                await send({"type": "http.response.body", "body": b""})
        finally:
            await self._held.aclose()

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
        try:
            await self._write_held(send)
            while await self._held.advance():
                await self._write_held(send)
        except Cut:
            pass
        except Exception as error:
            await self._write(send, self._frames.of_error(error))
        async with self._turn:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write_held(self, send: Send) -> None:
        with self._stalling():
            await self._turn.acquire()  # no comment in the middle of a frame
        try:
            place = 0
            while body := await self._held.piece(place):
                with self._stalling():
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                place += len(body)
            self._spoke_at = asyncio.get_running_loop().time()
        finally:
            self._turn.release()

    @contextmanager
    def _stalling(self) -> Iterator[None]:
        """Let go of what is held if this takes too long."""
        timer = asyncio.get_running_loop().call_later(_STALLED_S, self._held.let_go)
        try:
            yield
        finally:
            timer.cancel()

    async def _write(self, send: Send, data: bytes) -> None:
        async with self._turn:
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._spoke_at = asyncio.get_running_loop().time()

    def _patience(self) -> float:
        """How long the silence may go on."""
        silent = asyncio.get_running_loop().time() - self._spoke_at
        # One that is just being written to, and does not take it, is not silent.
        return self._keepalive_s if self._turn.locked() else max(0.0, self._keepalive_s - silent)


class Cut(Exception):
    """An item that was let go of cannot be read again as it was. The stream ends: half an event is
    none to any reader, and it can resume."""


class Held:
    """What a stream holds for its reader: the item that is being written, as its frame, and where
    the later ones come from. One writer at a time uses it."""

    def __init__(self, first: Item, later: AsyncGenerator[Item, None], frames: Frames) -> None:
        self._frames = frames
        self._again = first.again
        self._later: AsyncGenerator[Item, None] | None = later
        self._seq = first.seq
        self._frame: bytes | None = frames.of_item(first)
        self._was = 0
        self._closing: asyncio.Task[None] | None = None
        self._kept = ExitStack()

    async def advance(self) -> bool:
        """Go on to the next item. False: there is none."""
        later = self._later or await self._read_again()
        self._frame = None
        try:
            item = await anext(later)
        except StopAsyncIteration:
            return False
        self._seq, self._frame = item.seq, self._frames.of_item(item)
        return True

    async def piece(self, place: int) -> bytes:
        """The item's frame from there on, as much of it as is written at once; nothing after its
        end. Raises Cut for what goes wrong in the middle of a frame."""
        if self._frame is None:
            try:
                await self._read_again()
            except Exception as error:
                if place > 0:
                    raise Cut from error
                raise
        assert self._frame is not None
        return self._frame[place : place + _SLICE]

    def let_go(self) -> None:
        """Hold nothing but the place in the log; not while an item is awaited. What can be had
        from nowhere else, a direct Message, is kept."""
        if self._again is None or self._later is None:
            return
        if self._closing is None:
            self._kept.enter_context(self._again.kept())
        self._was = hash(self._frame)
        self._frame = None
        self._closing = asyncio.create_task(_closed(self._later))
        self._later = None

    async def aclose(self) -> None:
        """Nobody writes any more."""
        with self._kept:
            if self._later is not None:
                await self._later.aclose()
            await self._until_closed()

    async def _until_closed(self) -> None:
        if self._closing is not None:
            await asyncio.wait({self._closing})

    async def _read_again(self) -> AsyncGenerator[Item, None]:
        await self._until_closed()
        assert self._again is not None
        assert self._seq is not None, "what has no place in the log is not let go of"
        self._later = self._again.at(self._seq)
        try:
            self._frame = self._frames.of_item(await anext(self._later))
        except StopAsyncIteration:
            raise Cut from None  # its time is over, or the gateway's
        if hash(self._frame) != self._was:
            raise Cut
        return self._later


async def _closed(items: AsyncGenerator[Item, None]) -> None:
    await items.aclose()


def frame_of(data: str, *, event_id: str | None = None, event: str | None = None) -> bytes:
    """One event of a stream; `data` is a single line."""
    lines = [
        *([] if event_id is None else [f"id: {event_id}"]),
        *([] if event is None else [f"event: {event}"]),
        f"data: {data}",
    ]
    return ("\n".join(lines) + "\n\n").encode()
