"""A2A 0.3 over HTTP: what the SDK translates, before the same handler.

A client of 0.3 says no version (§3.6.2). Its tasks, keys and limits are those of every other
caller. Here is what the SDK's adapters have no hook for: streams that are refused before they
begin, that proxies do not buffer and that can be resumed, and errors that do not tell what broke
inside.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from a2a.compat.v0_3 import a2a_v0_3_pb2, conversions, proto_utils, types
from a2a.compat.v0_3.jsonrpc_adapter import JSONRPC03Adapter
from a2a.compat.v0_3.rest_adapter import REST03Adapter
from a2a.server.context import ServerCallContext
from a2a.server.jsonrpc_models import InvalidParamsError as JsonRpcInvalidParams
from a2a.server.jsonrpc_models import InvalidRequestError as JsonRpcInvalidRequest
from a2a.server.jsonrpc_models import JSONRPCError, MethodNotFoundError
from a2a.types import a2a_pb2 as pb
from a2a.utils import json_utils
from a2a.utils.constants import PROTOCOL_VERSION_0_3
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import A2AError, InvalidParamsError
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToDict, Parse
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from outlast.gateway.bindings import bounded, parsing, refusing, with_status
from outlast.gateway.context import CallContexts
from outlast.gateway.envelopes import id_of
from outlast.gateway.frames import JsonRpcFrames, RestFrames, begun, event_id_of
from outlast.gateway.handler import OutlastRequestHandler
from outlast.gateway.refusals import explained, unparsed
from outlast.gateway.sse import EventStream, frame_of
from outlast.gateway.stream import Item, one_line

Method = Callable[..., Awaitable[Response]]

_INTERNAL = -32603
_NUMBER = re.compile(r"-?\d{1,9}", re.ASCII)
_TRANSLATED: Mapping[str, Callable[[Any], Any]] = {
    "message/send": conversions.to_core_send_message_request,
    "message/stream": conversions.to_core_send_message_request,
    "tasks/get": conversions.to_core_get_task_request,
    "tasks/cancel": conversions.to_core_cancel_task_request,
    "tasks/resubscribe": conversions.to_core_subscribe_to_task_request,
    "tasks/pushNotificationConfig/set": (
        conversions.to_core_create_task_push_notification_config_request
    ),
    "tasks/pushNotificationConfig/get": (
        conversions.to_core_get_task_push_notification_config_request
    ),
    "tasks/pushNotificationConfig/list": (
        conversions.to_core_list_task_push_notification_config_request
    ),
    "tasks/pushNotificationConfig/delete": (
        conversions.to_core_delete_task_push_notification_config_request
    ),
    "agent/getAuthenticatedExtendedCard": conversions.to_core_get_extended_agent_card_request,
}
"""The methods of 0.3, each with what makes its request one of 1.0."""


def contexts(handler: OutlastRequestHandler) -> CallContexts:
    """What the contexts of calls in 0.3 are built by."""
    return CallContexts(handler.config.required_extensions, version=PROTOCOL_VERSION_0_3)


def translated_event(response: pb.StreamResponse, *, ends_at_pause: bool) -> Any:
    """What a stream brings, as 0.3 has it. ends_at_pause: a question is the stream's last event,
    and 0.3 tells readers so, while 1.0 ends the stream."""
    said = conversions.to_compat_stream_response(response, "").result
    if isinstance(said, types.TaskStatusUpdateEvent) and ends_at_pause:
        said.final = said.final or said.status.state is types.TaskState.input_required
    return said


class JsonRpc03(JSONRPC03Adapter):
    """JSON-RPC as 0.3 has it, at the same address."""

    def __init__(self, handler: OutlastRequestHandler) -> None:
        super().__init__(handler, context_builder=contexts(handler))
        self._handler = handler

    async def answer(self, body: Any, request: Request) -> Response:
        """The answer to a request that is JSON."""
        request_id = id_of(body)
        method = body.get("method") if isinstance(body, dict) else None
        if not isinstance(method, str) or not self.supports_method(method):
            text = f"A2A 0.3 has no method {str(method)[:64]!r}; 1.0 wants A2A-Version: 1.0"
            return self._refused(request_id, MethodNotFoundError(message=text))
        if request_id != body.get("id"):
            text = "id: must be a text or a whole number"
            return self._refused(request_id, JsonRpcInvalidRequest(message=text))
        try:
            model: Any = self.METHOD_TO_MODEL[method]
            _TRANSLATED[method](model.model_validate(body))
        except ValidationError as error:
            # Before the SDK does it, which would log what the request holds; and before it
            # translates, where what it cannot is no fault of the caller's any more.
            return self._refused(request_id, JsonRpcInvalidParams(message=_told(error)))
        except Exception as error:  # protobuf has no one error for all that it cannot hold
            return self._refused(request_id, JsonRpcInvalidParams(message=unparsed(error)))
        response: Response = await self.handle_request(request_id, method, body, request)
        return response

    def _refused(self, request_id: str | int | None, error: JSONRPCError) -> Response:
        """The SDK leaves out an id that is null; each answer to a request has one."""
        refusal = self._generate_error_response(request_id, error)
        if request_id is not None:
            return refusal
        return JSONResponse({"id": None, **json.loads(bytes(refusal.body))})

    async def _process_non_streaming_request(
        self, request_id: Any, request_obj: Any, context: ServerCallContext
    ) -> Any:
        """The SDK leaves out a result that is null, and then nothing tells success."""
        response = await super()._process_non_streaming_request(request_id, request_obj, context)
        if request_obj.method == "tasks/pushNotificationConfig/delete":
            return JSONResponse({"jsonrpc": "2.0", "id": request_id, "result": None})
        return response

    async def _process_streaming_request(  # type: ignore[override]
        self, request_id: Any, request_obj: Any, context: ServerCallContext
    ) -> EventStream:
        asked = request_obj.method
        if asked == "message/stream":
            params = conversions.to_core_send_message_request(request_obj)
            items = self._handler.stream_of_send(params, context)
        else:
            params = conversions.to_core_subscribe_to_task_request(request_obj)
            items = self._handler.stream_of_task(params, context)
        frames = JsonRpcFrames03(
            self._handler.view_of(context), request_id, ends_at_pause=asked == "message/stream"
        )
        return await begun(items, frames, self._handler.config)

    def _generate_error_response(
        self, request_id: str | int | None, error: Exception | JSONRPCError
    ) -> JSONResponse:
        if not isinstance(error, JSONRPCError) or error.code == _INTERNAL:
            error = explained(error)
        response: JSONResponse = super()._generate_error_response(request_id, error)
        return with_status(response, error)


class JsonRpcFrames03(JsonRpcFrames):
    """How JSON-RPC frames what a stream brings, as 0.3 has it."""

    def __init__(self, view: Any, request_id: str | int | None, *, ends_at_pause: bool) -> None:
        super().__init__(view, request_id)
        self._ends_at_pause = ends_at_pause

    def of_item(self, item: Item) -> bytes:
        said = translated_event(to_stream_response(item.event), ends_at_pause=self._ends_at_pause)
        reply = types.SendStreamingMessageSuccessResponse(id=self._request_id, result=said)
        text = reply.model_dump_json(by_alias=True, exclude_none=True)
        return frame_of(one_line(text), event_id=event_id_of(item, self._view))


def _told_of_errors(endpoint: Method) -> Method:
    """The endpoint, with errors as clients of 0.3 read them: by the names of their types."""

    @functools.wraps(endpoint)
    async def answer(*args: Any) -> Response:
        try:
            return await endpoint(*args)
        except A2AError as error:
            payload = build_rest_error_payload(error)
            named = {"type": type(error).__name__, "message": error.message}
            return JSONResponse({**payload, **named}, status_code=payload["error"]["code"])

    return answer


class Rest03(REST03Adapter):
    """HTTP+JSON as 0.3 has it, below /v1."""

    def __init__(self, handler: OutlastRequestHandler) -> None:
        super().__init__(handler, context_builder=contexts(handler))
        self._handler = handler

    def mounted(self) -> list[BaseRoute]:
        """Its routes. They come before those of tenants, of whom none is called v1."""
        table = self.routes() | {
            ("/v1/message:stream", "POST"): self.on_message_send_stream,
            ("/v1/tasks/{id}:subscribe", "GET"): self.on_subscribe_to_task,
            ("/v1/tasks/{id}:subscribe", "POST"): self.on_subscribe_to_task,
        }
        return [Route(path, bounded(to), methods=[verb]) for (path, verb), to in table.items()]

    @_told_of_errors
    async def _handle_request(
        self, method: Callable[[Request, ServerCallContext], Awaitable[Any]], request: Request
    ) -> Response:
        length = request.query_params.get("historyLength", "")
        if length and not _NUMBER.fullmatch(length):
            raise InvalidParamsError("historyLength: must be a whole number")
        with parsing(), refusing(request):
            if request.url.path.endswith("/message:send"):
                await _sent(request)  # before the SDK does it, as a fault of its own
            answer = await method(request, self._context_builder.build(request))
        return JSONResponse(answer)

    @_told_of_errors
    async def on_message_send_stream(self, request: Request) -> Response:
        with parsing():
            context = self._context_builder.build(request)
            params = await _sent(request)
        with refusing(request):
            items = self._handler.stream_of_send(params, context)
            return await self._begun(items, context, ends_at_pause=True)

    @_told_of_errors
    async def on_subscribe_to_task(self, request: Request) -> Response:
        context = self._context_builder.build(request)
        params = pb.SubscribeToTaskRequest(id=request.path_params["id"])
        with refusing(request):
            items = self._handler.stream_of_task(params, context)
            return await self._begun(items, context, ends_at_pause=False)

    async def _begun(
        self, items: AsyncGenerator[Item, None], context: ServerCallContext, *, ends_at_pause: bool
    ) -> EventStream:
        frames = RestFrames03(self._handler.view_of(context), ends_at_pause=ends_at_pause)
        return await begun(items, frames, self._handler.config)


class RestFrames03(RestFrames):
    """How HTTP+JSON does, as 0.3 has it."""

    def __init__(self, view: Any, *, ends_at_pause: bool) -> None:
        super().__init__(view)
        self._ends_at_pause = ends_at_pause

    def of_item(self, item: Item) -> bytes:
        said = translated_event(to_stream_response(item.event), ends_at_pause=self._ends_at_pause)
        body = MessageToDict(proto_utils.ToProto.stream_response(said))
        return frame_of(one_line(json_utils.dumps(body)), event_id=event_id_of(item, self._view))


async def _sent(request: Request) -> pb.SendMessageRequest:
    """What a message:send or message:stream brings. Raises InvalidParamsError for what the SDK
    does not translate."""
    body = a2a_v0_3_pb2.SendMessageRequest()
    Parse(await request.body(), body, ignore_unknown_fields=True)
    try:
        said = proto_utils.FromProto.message_send_params(body)
        asked = types.SendMessageRequest(id="", params=said)
        return conversions.to_core_send_message_request(asked)
    except ValidationError as error:
        raise InvalidParamsError(_told(error)) from error
    except ValueError as error:
        text = "message.content: each part needs one of text, file and data"
        raise InvalidParamsError(text) from error


def _told(error: ValidationError) -> str:
    """What is wrong with a request, without what it holds."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    places = {f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults}
    return f"the request is none of A2A 0.3: {'; '.join(sorted(places)[:5])}"
