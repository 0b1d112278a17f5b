"""How each HTTP binding frames what a stream brings."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.utils import json_utils
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import A2AError

from outlast.gateway.config import GatewayConfig
from outlast.gateway.sse import EventStream, Frames, frame_of
from outlast.gateway.stream import Item
from outlast.wire.extension import View


class RestFrames:
    """How HTTP+JSON frames what a stream brings."""

    def __init__(self, view: View) -> None:
        self._view = view

    def of_item(self, item: Item) -> bytes:
        return frame_of(item.json, event_id=event_id_of(item, self._view))

    def of_error(self, error: Exception) -> bytes:
        return frame_of(json_utils.dumps(build_rest_error_payload(error)), event="error")


class JsonRpcFrames:
    """How JSON-RPC does: each is a reply to the request. The item's own text is not made anew."""

    def __init__(self, view: View, request_id: str | int | None) -> None:
        self._view = view
        self._request_id = request_id
        self._after = f',"id":{json.dumps(request_id)},"jsonrpc":"2.0"}}'

    def of_item(self, item: Item) -> bytes:
        reply = f'{{"result":{item.json}{self._after}'
        return frame_of(reply, event_id=event_id_of(item, self._view))

    def of_error(self, error: Exception) -> bytes:
        assert isinstance(error, A2AError), "nothing else leaves the handler"
        reply = build_error_response(self._request_id, error)
        return frame_of(json_utils.dumps(reply), event="error")


async def begun(
    items: AsyncGenerator[Item, None], frames: Frames, config: GatewayConfig
) -> EventStream:
    """The stream, once its first item is there: what is refused before it is a plain error."""
    return EventStream(await anext(items), items, frames=frames, keepalive_s=config.keepalive_s)


def event_id_of(item: Item, view: View) -> str | None:
    """The id by which a stream is resumed after this item."""
    return None if item.seq is None else view.event_id(item.seq)
