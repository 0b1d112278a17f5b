"""The SDK's dispatchers, with what they have no hook for.

Everything here overrides something of the pinned SDK version, and says which gap it closes. The
request contexts are in `context`, the errors in `errors`, the response that is a stream in `sse`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from a2a.server.context import ServerCallContext
from a2a.server.jsonrpc_models import JSONParseError, JSONRPCError
from a2a.server.request_handlers.response_helpers import EXCEPTION_MAP
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.server.routes.rest_dispatcher import RestDispatcher
from a2a.types import a2a_pb2 as pb
from a2a.utils.constants import PROTOCOL_VERSION_0_3
from a2a.utils.error_handlers import (
    rest_error_handler,
    rest_stream_error_handler,
)
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidParamsError,
    InvalidRequestError,
)
from a2a.utils.proto_utils import parse_params
from google.protobuf.json_format import MessageToDict, Parse, ParseError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router

from outlast.gateway.body import BodyRefused
from outlast.gateway.context import CallContexts, version_meant, version_said
from outlast.gateway.envelopes import Envelope, NotJson, envelope_of, id_of, json_of, params_of
from outlast.gateway.errors import (
    REFUSALS,
    RefusedError,
    of_caller,
    translated,
    unexpected,
)
from outlast.gateway.frames import JsonRpcFrames, RestFrames, begun
from outlast.gateway.handler import OutlastRequestHandler
from outlast.gateway.listing import check_status_name, listing_to_json
from outlast.gateway.refusals import (
    UNSUPPORTED_MEDIA_TYPE,
    check_content_type,
    explained,
    rest_refusal,
    unparsed,
)
from outlast.gateway.sse import EventStream
from outlast.gateway.stream import Item
from outlast.model.errors import InvalidParams
from outlast.wire.mismatch import TaskGenerationMismatchError

# Else the SDK would say it as an internal error.
EXCEPTION_MAP[TaskGenerationMismatchError] = JSONRPCError

T = TypeVar("T")
P = TypeVar("P", pb.CancelTaskRequest, pb.SubscribeToTaskRequest)
Endpoint = Callable[[Request], Awaitable[Response]]

_STREAMS = frozenset({"SendStreamingMessage", "SubscribeToTask"})
_REFUSED = "outlast.refused"
_MEDIA_TYPE = "application/a2a+json"


class Older(Protocol):
    """JSON-RPC of an older version, at the same address."""

    async def answer(self, body: Any, request: Request) -> Response: ...


class JsonRpcBinding(JsonRpcDispatcher):
    """JSON-RPC. The SDK logs whatever it cannot read, and answers a body that is no JSON text, or
    too much of it, as an error of its own; and its streams have no ids and can be buffered by
    proxies."""

    def __init__(self, handler: OutlastRequestHandler, older: Older | None = None) -> None:
        """`older` answers whatever speaks A2A 0.3."""
        super().__init__(handler, context_builder=CallContexts(handler.config.required_extensions))
        self._handler = handler
        self._older = older

    async def handle_requests(self, request: Request) -> Response:
        body: Any = None
        try:
            check_content_type(request)
            body = json_of(await request.body())
            if self._older and version_meant(version_said(request)) == PROTOCOL_VERSION_0_3:
                return await self._older.answer(body, request)
            return await self._answer(envelope_of(body), request)
        except ContentTypeNotSupportedError as error:
            refusal = self._generate_error_response(id_of(body), error)
            if body is None:  # it is the request's own type, and not that of a part
                refusal.status_code = UNSUPPORTED_MEDIA_TYPE
            return refusal
        except BodyRefused as error:
            refusal = self._generate_error_response(None, InvalidRequestError(str(error)))
            refusal.status_code = error.status
            refusal.headers.update(error.headers)
            return refusal
        except NotJson as error:
            return self._generate_error_response(None, JSONParseError(message=str(error)))
        except InvalidParams as error:
            return self._generate_error_response(id_of(body), of_caller(error))
        except ClientDisconnect:
            return Response()
        except Exception as error:
            return self._generate_error_response(id_of(body), error)

    async def _answer(self, envelope: Envelope, request: Request) -> Response:
        """The answer to a call, and its stream. Raises the protocol's errors."""
        if envelope.method == "ListTasks":
            _check_listing(envelope.params)
        params = params_of(envelope, self.METHOD_TO_MODEL)
        context = self._context_builder.build(request)
        context.tenant = params.tenant
        context.state["method"] = envelope.method
        context.state["request_id"] = envelope.id
        if envelope.method in _STREAMS:
            return await self._process_streaming_request(envelope.id, params, context)
        result = await self._process_non_streaming_request(params, context)
        return JSONResponse({"jsonrpc": "2.0", "id": envelope.id, "result": result})

    async def _handle_list_tasks(
        self, request_obj: pb.ListTasksRequest, context: ServerCallContext
    ) -> dict[str, Any]:
        response = await self.request_handler.on_list_tasks(request_obj, context)
        return listing_to_json(response, artifacts=request_obj.include_artifacts)

    async def _process_streaming_request(  # type: ignore[override]
        self, request_id: Any, request_obj: Any, context: ServerCallContext
    ) -> EventStream:
        if context.state["method"] == "SendStreamingMessage":
            items = self._handler.stream_of_send(request_obj, context)
        else:
            items = self._handler.stream_of_task(request_obj, context)
        frames = JsonRpcFrames(self._handler.view_of(context), request_id)
        return await begun(items, frames, self._handler.config)

    def _generate_error_response(self, request_id: Any, error: Any) -> JSONResponse:
        response: JSONResponse = super()._generate_error_response(request_id, explained(error))
        return with_status(response, error)


class RestBinding(RestDispatcher):
    """HTTP+JSON. The SDK answers requests that do not parse as internal errors, or as invalid
    requests where a parameter is wrong; and its streams have no ids and can be buffered."""

    def __init__(self, handler: OutlastRequestHandler) -> None:
        super().__init__(handler, context_builder=CallContexts(handler.config.required_extensions))
        self._handler = handler

    def _build_call_context(self, request: Request) -> ServerCallContext:
        """The SDK takes a tenant in the query for some methods, and overlooks it for others."""
        context = super()._build_call_context(request)
        for tenant in filter(None, request.query_params.getlist("tenant")):
            if context.tenant not in ("", tenant):
                said = f"the path or another parameter says {context.tenant!r}"
                raise of_caller(InvalidParams(said, path="tenant"))
            context.tenant = tenant
        return context

    async def _handle_non_streaming(
        self, request: Request, handler_func: Callable[[ServerCallContext], Awaitable[T]]
    ) -> T:
        with parsing(), refusing(request):
            result: T = await super()._handle_non_streaming(request, handler_func)
            return result

    @rest_stream_error_handler
    async def on_message_send_stream(self, request: Request) -> Response:
        with parsing():
            context = self._build_call_context(request)
            params = Parse(
                await request.body(), pb.SendMessageRequest(), ignore_unknown_fields=True
            )
        with refusing(request):
            return await self._begun(self._handler.stream_of_send(params, context), context)

    @rest_stream_error_handler
    async def on_subscribe_to_task(self, request: Request) -> Response:
        with parsing():
            context = self._build_call_context(request)
            params = await _said(request, pb.SubscribeToTaskRequest())
        with refusing(request):
            return await self._begun(self._handler.stream_of_task(params, context), context)

    @rest_error_handler
    async def on_cancel_task(self, request: Request) -> Response:
        """The SDK does not look at the body, which may name another tenant."""

        async def handle(context: ServerCallContext) -> pb.Task:
            params = await _said(request, pb.CancelTaskRequest())
            return await self._handler.on_cancel_task(params, context)

        task = await self._handle_non_streaming(request, handle)
        return JSONResponse(MessageToDict(task), media_type=_MEDIA_TYPE)

    async def _begun(
        self, items: AsyncGenerator[Item, None], context: ServerCallContext
    ) -> EventStream:
        frames = RestFrames(self._handler.view_of(context))
        return await begun(items, frames, self._handler.config)

    @rest_error_handler
    async def authorize_task(self, request: Request) -> Response:
        """The protocol leaves to the agent how an authorization comes (§7.6.1): like this."""

        async def handle(context: ServerCallContext) -> tuple[bool, pb.Task]:
            task_id = request.path_params["id"]
            body = await request.body()
            return await self._handler.on_authorize_task(task_id, body, context)

        first, task = await self._handle_non_streaming(request, handle)
        answer = {"alreadyAuthorized": not first, "task": MessageToDict(task)}
        return JSONResponse(answer, media_type=_MEDIA_TYPE)

    @rest_error_handler
    async def set_push_notification(self, request: Request) -> Response:
        """The SDK puts the path's task in the place of the body's, unseen."""

        async def handle(context: ServerCallContext) -> pb.TaskPushNotificationConfig:
            params = pb.TaskPushNotificationConfig()
            Parse(await request.body(), params, ignore_unknown_fields=True)
            task_id = request.path_params["id"]
            if params.task_id not in ("", task_id):
                raise of_caller(InvalidParams(f"the path says {task_id!r}", path="taskId"))
            params.task_id = task_id
            return await self._handler.on_create_task_push_notification_config(params, context)

        response = await self._handle_non_streaming(request, handle)
        return JSONResponse(MessageToDict(response), media_type=_MEDIA_TYPE)

    async def handle_authenticated_agent_card(self, request: Request) -> Response:
        """The extended card, which no cache may show to others (§13.3)."""
        response: Response = await super().handle_authenticated_agent_card(request)
        response.headers["Cache-Control"] = "private, max-age=300"
        response.headers["Vary"] = "Authorization, X-API-Key"
        return response

    @rest_error_handler
    async def list_tasks(self, request: Request) -> Response:
        """The SDK writes out every field that is not set, of every message."""
        params = pb.ListTasksRequest()

        async def handle(context: ServerCallContext) -> pb.ListTasksResponse:
            with translated("ListTasks"):
                for said in request.query_params.getlist("status"):
                    check_status_name(said)
            parse_params(request.query_params, params)
            return await self.request_handler.on_list_tasks(params, context)

        response = await self._handle_non_streaming(request, handle)
        body = listing_to_json(response, artifacts=params.include_artifacts)
        return JSONResponse(body, media_type=_MEDIA_TYPE)

    def routes(self) -> list[BaseRoute]:
        """The specification's paths (§11.3), at the root and below a tenant."""
        config = "/tasks/{id}/pushNotificationConfigs"
        table: list[tuple[str, str, Endpoint]] = [
            ("POST", "/message:send", self.on_message_send),
            ("POST", "/message:stream", self.on_message_send_stream),
            ("POST", "/tasks/{id}:cancel", self.on_cancel_task),
            ("POST", "/tasks/{id}:authorize", self.authorize_task),
            # The prose of the specification says POST, its protobuf says GET: clients do both.
            ("GET", "/tasks/{id}:subscribe", self.on_subscribe_to_task),
            ("POST", "/tasks/{id}:subscribe", self.on_subscribe_to_task),
            ("GET", "/tasks/{id}", self.on_get_task),
            ("GET", "/tasks", self.list_tasks),
            ("POST", config, self.set_push_notification),
            ("GET", config, self.list_push_notifications),
            ("GET", config + "/{push_id}", self.get_push_notification),
            ("DELETE", config + "/{push_id}", self.delete_push_notification),
            ("GET", "/extendedAgentCard", self.handle_authenticated_agent_card),
        ]
        routes = [Route(path, bounded(to), methods=[method]) for method, path, to in table]
        return [*routes, Mount("/{tenant}", app=Router(routes, redirect_slashes=False))]


def with_status(response: JSONResponse, error: Any) -> JSONResponse:
    """A JSON-RPC error, with a status where what stands between, and a client that knows HTTP
    alone, should see it too."""
    if isinstance(error, RefusedError):
        response.status_code = REFUSALS[type(error)].http_code
        response.headers.update(error.headers)
    return response


def bounded(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with the body read before: what is too large, or too slow, has its own
    status."""

    async def read_first(request: Request) -> Response:
        try:
            if await request.body():
                check_content_type(request)
        except ContentTypeNotSupportedError as error:
            return rest_refusal(error, UNSUPPORTED_MEDIA_TYPE)
        except BodyRefused as error:
            refusal = rest_refusal(InvalidRequestError(str(error)), error.status)
            refusal.headers.update(error.headers)
            return refusal
        except ClientDisconnect:
            return Response()
        response = await endpoint(request)
        refused: RefusedError | None = request.scope.get(_REFUSED)
        if refused is not None:
            response.headers.update(refused.headers)
        return response

    return read_first


async def _said(request: Request, params: P) -> P:
    """What a request about the task in its path says, in its query and in its body, which may be
    empty. Raises InvalidParamsError when one of them names another task."""
    parse_params(request.query_params, params)
    if (body := await request.body()).strip():
        Parse(body, params, ignore_unknown_fields=True)
    in_path = request.path_params["id"]
    if params.id not in ("", in_path):
        raise InvalidParamsError(f"id: the path says {in_path!r}, the request does not")
    params.id = in_path
    return params


@contextmanager
def refusing(request: Request) -> Iterator[None]:
    """The SDK makes a response of an error without its headers: keep them for `bounded`."""
    try:
        yield
    except RefusedError as error:
        request.scope[_REFUSED] = error
        raise


def _check_listing(params: Any) -> None:
    """Raise InvalidParams for a status that the parser would take for none."""
    if isinstance(params, dict) and params.get("status") is not None:
        check_status_name(params["status"])


@contextmanager
def parsing() -> Iterator[None]:
    try:
        yield
    except ParseError as error:
        if str(error).startswith("Failed to load JSON"):
            raise InvalidRequestError(f"the body is not JSON: {error}") from error
        raise InvalidParamsError(unparsed(error)) from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the body is not UTF-8: {error}") from error
    except A2AError:
        raise
    except Exception as error:
        raise unexpected(error, "HTTP+JSON") from error
