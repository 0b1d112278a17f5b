"""gRPC: the SDK's handler, with what it has no hook for.

Everything here overrides something of the pinned SDK version. It needs the extra `grpc`, so nobody
imports this module but where the binding is wanted. gRPC itself ends the handling of a call whose
caller has left: it cancels it, and what was being written is written to its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote

import grpc
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.grpc_handler import GrpcHandler, GrpcServerCallContextBuilder
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a
from a2a.utils.constants import PROTOCOL_VERSION_1_0, VERSION_HEADER
from a2a.utils.grpc_status import status_to_grpc
from a2a.utils.proto_utils import to_stream_response, validation_errors_to_bad_request
from google.protobuf import duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from outlast.gateway import body
from outlast.gateway.auth.door import admitted
from outlast.gateway.auth.principal import Authenticator, Principal
from outlast.gateway.context import check_spoken, seen
from outlast.gateway.errors import TooManyError, of_caller, translated
from outlast.gateway.handler import OutlastRequestHandler
from outlast.gateway.refusals import check_extensions
from outlast.model.errors import Unauthenticated
from outlast.wire.extension import EXTENSION_URI

T = TypeVar("T")

_DOMAIN = "a2a-protocol.org"
_LONGEST_TEXT = 400
"""Characters of an error's text. It travels in trailing metadata, twice, and clients take 8 KiB of
that: more would reach the caller as another error than its own."""

_EPOCH = "outlast-epoch"
_OLDER = "/a2a.v1."
_UNREADABLE = "the request is not a message of the method's type"
_CALLER: ContextVar[Principal | None] = ContextVar("caller")
"""Who makes the call that this task handles; there is none before `Door` has let the call in."""

_SPARE = 0.1
_MOST_SPARE_S = 1.0
UNTIL_ENDED = frozenset(
    {
        pb.TASK_STATE_COMPLETED,
        pb.TASK_STATE_FAILED,
        pb.TASK_STATE_CANCELED,
        pb.TASK_STATE_REJECTED,
    }
)


UNTIL_SETTLED = UNTIL_ENDED | {pb.TASK_STATE_INPUT_REQUIRED}


class GrpcContexts(GrpcServerCallContextBuilder):
    """Builds call contexts from metadata, as `CallContexts` does from headers: the `headers` that
    are `seen`, and `left`, which returns shortly before the caller's own deadline, so that a
    blocking send answers with the task instead of an error that names none."""

    def __init__(
        self, required: frozenset[str] = frozenset(), *, version: str = PROTOCOL_VERSION_1_0
    ) -> None:
        """Contexts of calls that speak this version and have activated the `required`
        extensions."""
        self._required = required
        self._version = version

    def build(self, context: Any) -> ServerCallContext:
        """The context of a call. Raises VersionNotSupportedError, ExtensionSupportRequiredError."""
        metadata = metadata_of(context)
        check_spoken(metadata.get(VERSION_HEADER.lower(), ""), self._version)
        call = ServerCallContext(
            requested_extensions=get_requested_extensions(
                [metadata.get(HTTP_EXTENSION_HEADER.lower(), "")]
            )
        )
        check_extensions(call.requested_extensions, self._required)
        call.state["headers"] = seen(metadata, self._version)
        if context.time_remaining() is not None:
            call.state["left"] = partial(_until_late, context)
        return call


class Answering:
    """What the handlers of every version of A2A do with a call."""

    _handler: OutlastRequestHandler
    _authenticator: Authenticator | None

    async def let_in(self, context: Any) -> None:
        """Find out who calls, before anything else is looked at; the call of somebody unknown ends
        here."""
        try:
            _CALLER.set(await self._known(context))
        except a2a.A2AError as error:
            await self.abort_context(error, context)

    async def _known(self, context: Any) -> Principal | None:
        if self._authenticator is None:
            return None
        with translated("authenticate"):
            sent = [(name, value) for name, value in _said(context) if isinstance(value, str)]
            return await admitted(self._authenticator, sent, peer_of(context))

    @property
    def caller(self) -> Principal | None:
        """Who makes the call that is being handled."""
        return _CALLER.get()

    async def refuse_unreadable(self, context: Any) -> None:
        """End a call whose request does not parse."""
        await self.abort_context(a2a.InvalidRequestError(_UNREADABLE), context)

    async def write_stream(
        self,
        context: Any,
        begin: Callable[[Principal | None], Awaitable[AsyncGenerator[Any, None]]],
        *,
        ends: frozenset[int],
        said: Callable[[pb.StreamResponse], Any] = lambda response: response,
    ) -> None:
        """Write what a stream brings, as it is `said`. A coroutine, not a generator: gRPC closes no
        generator of a cancelled call."""
        is_end = False
        principal = self.caller
        try:
            async with aclosing(await begin(principal)) as events:
                async for event in events:
                    response = to_stream_response(event)
                    is_end = _is_end(response, ends)
                    await context.write(said(response))
                    del event, response  # the next one may be days away
        except a2a.A2AError as error:
            await self.abort_context(error, context)
        if is_end:
            return
        # OK would say that this was all.
        if self._handler.closing.is_closed:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "the gateway is stopping; subscribe again"
            )
        if principal is not None and principal.is_over(time.time()):
            over = Unauthenticated("your credential is no longer valid; subscribe with a new one")
            await self.abort_context(of_caller(over), context)

    async def abort_context(self, error: a2a.A2AError, context: Any) -> None:
        """End the call with the error's status (§5.4) and details (§10.6)."""
        status = status_to_grpc(status_of(error))
        context.set_trailing_metadata(status.trailing_metadata)
        await context.abort(status.code, status.details)


class GrpcBinding(Answering, GrpcHandler):
    """gRPC. The SDK's handler does not look at versions, drops the details of errors, and leaves
    open what a cancelled stream was made of."""

    def __init__(
        self, handler: OutlastRequestHandler, authenticator: Authenticator | None = None
    ) -> None:
        super().__init__(handler, GrpcContexts(handler.config.required_extensions))
        self._handler = handler
        self._authenticator = authenticator

    async def _handle_unary(
        self,
        request: Any,
        context: Any,
        handler_func: Callable[[ServerCallContext], Awaitable[T]],
        default_response: T,
    ) -> T:
        async def named(call: ServerCallContext) -> T:
            call.state["principal"] = self.caller
            await begun(request, call, context, self._handler.config.epoch)
            return await handler_func(call)

        answer: T = await super()._handle_unary(request, context, named, default_response)
        return answer

    async def SendStreamingMessage(self, request: Any, context: Any) -> None:  # type: ignore[override]
        await self._stream(request, context, self._handler.on_message_send_stream, UNTIL_SETTLED)

    async def SubscribeToTask(self, request: Any, context: Any) -> None:  # type: ignore[override]
        await self._stream(request, context, self._handler.on_subscribe_to_task, UNTIL_ENDED)

    async def _stream(
        self,
        request: Any,
        context: Any,
        open_stream: Callable[[Any, ServerCallContext], AsyncGenerator[Any, None]],
        ends: frozenset[int],
    ) -> None:
        async def begin(principal: Principal | None) -> AsyncGenerator[Any, None]:
            call = self._build_call_context(context, request)
            call.state["principal"] = principal
            await begun(request, call, context, self._handler.config.epoch)
            return open_stream(request, call)

        await self.write_stream(context, begin, ends=ends)


class Door(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """The door of this binding: nobody unknown gets as far as a request's message, as over HTTP.

    gRPC reads a call's one message before it asks anybody. So every method becomes one that reads
    its messages itself, and reads one, once its caller is known. And requests that do not parse
    get through to the binding, which says what is wrong with them: gRPC's own answer is an unknown
    error with the name of a class of ours.
    """

    def __init__(self, binding: Answering, older: Answering | None = None) -> None:
        """`older` answers calls of 0.3. It says itself what is wrong with their requests: the
        SDK's code for them would not know what an unreadable one is."""
        self._binding = binding
        self._older = older

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        method = handler.unary_stream if handler.response_streaming else handler.unary_unary
        answering = self._binding
        if self._older is not None and handler_call_details.method.startswith(_OLDER):
            answering = self._older
            method = partial(_checked, method, self._older)
        return make(
            partial(_past_the_door, method, answering),
            request_deserializer=partial(_read, handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )


class Unreadable:
    """In a request's place: one that does not parse."""

    tenant = ""


def metadata_of(context: Any) -> dict[str, str]:
    """What a call's metadata says, as headers: names in lower case, values of one name joined."""
    said: dict[str, str] = {}
    for name, value in _said(context):
        if isinstance(value, str):
            name = name.lower()
            said[name] = f"{said[name]}, {value}" if name in said else value
    return said


def peer_of(context: Any) -> str | None:
    """The address that a call comes from; gRPC says `ipv4:127.0.0.1:80`, `ipv6:%5B::1%5D:80`."""
    kind, _, place = str(context.peer()).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    return unquote(place).rpartition(":")[0].strip("[]")


def _said(context: Any) -> Iterable[tuple[str, str | bytes]]:
    said: Iterable[tuple[str, str | bytes]] = context.invocation_metadata() or ()
    return said


def status_of(error: a2a.A2AError) -> status_pb2.Status:
    """The error as every client can read it: its status, and its reason with what is known."""
    unknown = a2a.A2A_ERROR_MAPPING[a2a.InternalError]
    mapping = a2a.A2A_ERROR_MAPPING.get(type(error), unknown)
    code = grpc.StatusCode[mapping.grpc_status].value[0]
    status = status_pb2.Status(code=code, message=_bounded(error.message))
    data = dict(error.data or {})
    violations = data.pop("errors", [])
    info = error_details_pb2.ErrorInfo(
        reason=mapping.reason,
        domain=_DOMAIN,
        metadata={name: _bounded(str(value)) for name, value in data.items()},
    )
    status.details.add().Pack(info)
    if isinstance(error, TooManyError):
        delay = duration_pb2.Duration(seconds=error.retry_after_s)
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    if violations:
        bounded: Any = [{name: _bounded(text) for name, text in one.items()} for one in violations]
        status.details.add().Pack(validation_errors_to_bad_request(bounded))
    return status


async def begun(request: Any, call: ServerCallContext, context: Any, epoch: str = "") -> None:
    """Refuse what does not parse, and say that our extension was activated (§4.6), and in which
    epoch generations are counted: streams have no ids here that would say it."""
    if isinstance(request, Unreadable):
        raise a2a.InvalidRequestError(_UNREADABLE)
    if EXTENSION_URI in call.requested_extensions:
        said = [(HTTP_EXTENSION_HEADER.lower(), EXTENSION_URI)]
        if epoch:
            said.append((_EPOCH, epoch))
        await context.send_initial_metadata(said)


async def _until_late(context: Any) -> None:
    remaining: float = context.time_remaining()
    await asyncio.sleep(remaining - min(_SPARE * remaining, _MOST_SPARE_S))


async def _past_the_door(method: Any, answering: Answering, requests: Any, context: Any) -> Any:
    await answering.let_in(context)
    request: Any = Unreadable()  # a call may end without a message
    try:
        async with asyncio.timeout(body.READ_S):
            request = await anext(aiter(requests), request)
    except TimeoutError:
        await answering.abort_context(a2a.InvalidRequestError(str(body.BodyTooSlow())), context)
    return await method(request, context)


async def _checked(method: Any, older: Answering, request: Any, context: Any) -> Any:
    if isinstance(request, Unreadable):
        await older.refuse_unreadable(context)
    return await method(request, context)


def _read(deserialize: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return deserialize(data)
    except DecodeError:
        return Unreadable()


def _is_end(last: pb.StreamResponse, ends: frozenset[int]) -> bool:
    match last.WhichOneof("payload"):
        case "message":
            return True
        case "task":
            return last.task.status.state in ends
        case "status_update":
            return last.status_update.status.state in ends
        case _:
            return False


def _bounded(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
