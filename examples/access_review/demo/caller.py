"""The review's caller: the SDK's own client, with a line that can be cut."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from a2a.client import (
    A2ACardResolver,
    Client,
    ClientCallContext,
    ClientConfig,
    ClientFactory,
)
from a2a.client.service_parameters import ServiceParametersFactory, with_a2a_extensions
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict

from examples.access_review.demo import DemoFailed
from examples.access_review.demo.seen import Seen
from outlast.wire.extension import EXTENSION_URI

# Comments keep a stream alive every 15 seconds.
_PATIENCE = httpx.Timeout(10, read=45)


class StreamEnded(DemoFailed):
    """The stream ended before what was waited for."""


@dataclass(eq=False)
class _Line:
    """The connection that the latest stream came over."""

    stream: Any = None

    async def note(self, response: httpx.Response) -> None:
        if "event-stream" in response.headers.get("content-type", ""):
            self.stream = response.extensions["network_stream"]

    def cut(self) -> None:
        """As a network does it: the socket is gone, and nobody has said goodbye."""
        self.stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


@dataclass(eq=False)
class Caller:
    """Sends the review, listens in the background, answers.

    Activates Outlast's extension, so that each item says its generation. on_item is called after
    each item that came.
    """

    streaming: Client
    plain: Client
    on_item: Callable[[Seen], None]
    seen: Seen = field(default_factory=Seen)
    _line: _Line = field(default_factory=_Line)
    _listening: asyncio.Task[None] | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    # --- calls --------------------------------------------------------------------------------

    def send(self, text: str) -> None:
        """SendStreamingMessage, listened to in the background."""
        request = pb.SendMessageRequest(message=_message([{"text": text}]))
        self._listen(self.streaming.send_message(request, context=_extended()))

    def subscribe(self) -> None:
        """SubscribeToTask, listened to in the background."""
        request = pb.SubscribeToTaskRequest(id=self.seen.task.id)
        self._listen(self.streaming.subscribe(request, context=_extended()))

    async def answer(self, data: Mapping[str, Any], *, pause: str) -> None:
        """Answer the question of this pause, and no later one."""
        message = _message(
            [{"data": data}],
            taskId=self.seen.task.id,
            metadata={EXTENSION_URI: {"pause": pause}},
        )
        async for _ in self.plain.send_message(pb.SendMessageRequest(message=message)):
            pass

    async def get(self) -> pb.Task:
        request = pb.GetTaskRequest(id=self.seen.task.id)
        return await self.plain.get_task(request, context=_extended())

    # --- the stream ---------------------------------------------------------------------------

    async def until(self, condition: Callable[[Seen], bool]) -> None:
        """Wait until what was seen fulfils this. Raises StreamEnded when that cannot come."""
        while not condition(self.seen):
            if self._listening is None or self._listening.done():
                raise StreamEnded("the stream ended early") from self._end()
            self._news.clear()
            await self._news.wait()

    async def cut(self) -> str:
        """Cut the line; returns what the SDK's client made of that."""
        assert self._listening is not None
        self._line.cut()
        await asyncio.wait([self._listening])
        return str(self._end() or "the stream ended")

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    def _listen(self, items: AsyncIterator[pb.StreamResponse]) -> None:
        assert self._listening is None or self._listening.done()
        self._listening = asyncio.create_task(self._take(items))
        self._listening.add_done_callback(lambda _: self._news.set())

    async def _take(self, items: AsyncIterator[pb.StreamResponse]) -> None:
        async for item in items:
            self.seen.take(item)
            self.on_item(self.seen)
            self._news.set()

    def _end(self) -> BaseException | None:
        """Why the stream ended, if not in good order."""
        ended = self._listening
        return None if ended is None or ended.cancelled() else ended.exception()


@asynccontextmanager
async def open_caller(url: str, on_item: Callable[[Seen], None]) -> AsyncIterator[Caller]:
    """A caller of the agent behind this URL, by its card."""
    line = _Line()
    async with httpx.AsyncClient(
        timeout=_PATIENCE, trust_env=False, event_hooks={"response": [line.note]}
    ) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        streaming = ClientFactory(ClientConfig(httpx_client=http)).create(card)
        plain = ClientConfig(httpx_client=http, streaming=False, polling=True)
        caller = Caller(streaming, ClientFactory(plain).create(card), on_item, _line=line)
        try:
            yield caller
        finally:
            await caller.close()


def _message(parts: Sequence[Mapping[str, Any]], **more: Any) -> pb.Message:
    body = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": parts, **more}
    message = pb.Message()
    ParseDict(body, message)
    return message


def _extended() -> ClientCallContext:
    wanted = [with_a2a_extensions([EXTENSION_URI])]
    return ClientCallContext(service_parameters=ServiceParametersFactory.create(wanted))
