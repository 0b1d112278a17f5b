"""The SDK's transports, with what they have no hook for: the ids of a stream's events.

The id of the event that was yielded last stands in the call context's state under LAST_ID, and
under ANSWERED that the server has begun to answer.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx
from a2a.client.client import ClientCallContext
from a2a.client.errors import A2AClientError
from a2a.client.transports.http_helpers import get_http_args, handle_http_exceptions
from a2a.client.transports.jsonrpc import JsonRpcTransport
from a2a.client.transports.rest import RestTransport
from a2a.types import a2a_pb2 as pb
from a2a.utils.proto_utils import parse_lenient

from outlast.wire.mismatch import CODE, TaskGenerationMismatchError

LAST_ID = "last_event_id"
ANSWERED = "answered"
CONNECT_S = 10.0


class JsonRpcWithIds(JsonRpcTransport):
    """JSON-RPC. The SDK drops the `id:` lines of streams, and does not know the errors that others
    have added to its table since it was imported."""

    def _create_jsonrpc_error(self, error_dict: dict[str, Any]) -> Exception:
        error: Exception = super()._create_jsonrpc_error(error_dict)
        if error_dict.get("code") != CODE:
            return error
        details = error_dict.get("data")
        infos = (
            [one for one in details if isinstance(one, dict)] if isinstance(details, list) else []
        )
        known = next((one["metadata"] for one in infos if "metadata" in one), None)
        return TaskGenerationMismatchError(error_dict.get("message"), known)

    async def _send_stream_request(
        self, rpc_request_payload: dict[str, Any], context: ClientCallContext | None = None
    ) -> AsyncGenerator[pb.StreamResponse]:
        with handle_http_exceptions():
            async with _opened(
                self.httpx_client, "POST", self.url, context, rpc_request_payload
            ) as response:
                async for event, data in _events(response, context):
                    if event == "error":
                        self._handle_sse_error(data)
                    reply = self._check_jsonrpc_response(json.loads(data))
                    yield parse_lenient(reply["result"], pb.StreamResponse())


class RestWithIds(RestTransport):
    """HTTP+JSON. The SDK drops the `id:` lines of streams."""

    async def _send_stream_request(
        self,
        method: str,
        target: str,
        tenant: str,
        context: ClientCallContext | None = None,
        *,
        json: dict[str, Any] | None = None,
    ) -> AsyncGenerator[pb.StreamResponse]:
        url = f"{self.url}{self._get_path(target, tenant)}"
        with handle_http_exceptions(self._handle_http_error):
            async with _opened(self.httpx_client, method, url, context, json) as response:
                async for event, data in _events(response, context):
                    if event == "error":
                        self._handle_sse_error(data)
                    yield parse_lenient(data, pb.StreamResponse())


class _opened:
    """A streaming response. A class and no generator: an abandoned stream closes it from another
    task, which a generator does not survive."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        method: str,
        url: str,
        context: ClientCallContext | None,
        body: dict[str, Any] | None,
    ) -> None:
        arguments = get_http_args(context)
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        headers |= arguments.get("headers", {})
        silence = None if context is None else context.timeout
        self._client = client
        self._context = context
        self._request = client.build_request(
            method,
            url,
            json=body,
            headers=headers,
            timeout=httpx.Timeout(CONNECT_S, read=silence),
        )
        self._response: httpx.Response | None = None

    async def __aenter__(self) -> httpx.Response:
        self._response = await self._client.send(self._request, stream=True)
        if self._context is not None:
            self._context.state[ANSWERED] = True
        if self._response.is_error:
            await self._response.aread()
            await self._response.aclose()
            self._response.raise_for_status()
        return self._response

    async def __aexit__(self, *exc: object) -> None:
        if self._response is not None:
            await self._response.aclose()


async def _events(
    response: httpx.Response, context: ClientCallContext | None
) -> AsyncGenerator[tuple[str, str], None]:
    """The event names and data of a stream; of a plain response its whole body."""
    if "text/event-stream" not in response.headers.get("content-type", ""):
        yield "message", (await response.aread()).decode()
        return
    name, last_id, data = "message", None, list[str]()
    async with aclosing(_lines(response)) as lines:
        async for line in lines:
            if not line:
                if data:
                    if context is not None and last_id is not None:
                        context.state[LAST_ID] = last_id
                    yield name, "\n".join(data)
                name, data = "message", []
                continue
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            match field:
                case "data":
                    data.append(value)
                case "event":
                    name = value
                case "id":
                    last_id = value
    if data:
        # Cut between two lines: half an event is none.
        raise A2AClientError("the stream was cut in the middle of an event")


async def _lines(response: httpx.Response) -> AsyncGenerator[str, None]:
    """Lines as streams of events end them. httpx also splits at U+0085, U+2028 and U+2029, which
    servers leave in their JSON."""
    pending = b""
    async for chunk in response.aiter_bytes():
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode()
