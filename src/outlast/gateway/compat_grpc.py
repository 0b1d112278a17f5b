"""A2A 0.3 over gRPC: what the SDK translates, before the same handler."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
from a2a.compat.v0_3 import conversions, proto_utils, types
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.server.context import ServerCallContext
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a
from a2a.utils.constants import PROTOCOL_VERSION_0_3

from outlast.gateway.auth.principal import Authenticator, Principal
from outlast.gateway.compat import translated_event
from outlast.gateway.errors import translated
from outlast.gateway.grpc_binding import (
    UNTIL_ENDED,
    UNTIL_SETTLED,
    Answering,
    GrpcContexts,
    begun,
    status_of,
)
from outlast.gateway.handler import OutlastRequestHandler

T = TypeVar("T")


class Grpc03(Answering, CompatGrpcHandler):
    """The service of 0.3. Its name is another one than that of 1.0, so one server has both."""

    def __init__(
        self, handler: OutlastRequestHandler, authenticator: Authenticator | None = None
    ) -> None:
        contexts = GrpcContexts(handler.config.required_extensions, version=PROTOCOL_VERSION_0_3)
        super().__init__(handler, contexts)
        self._handler = handler
        self._authenticator = authenticator

    async def _handle_unary(
        self,
        context: Any,
        handler_func: Callable[[ServerCallContext], Awaitable[T]],
        default_response: T,
    ) -> T:
        async def named(call: ServerCallContext) -> T:
            call.state["principal"] = self.caller
            await begun(None, call, context)
            with translated("A2A 0.3"):
                return await handler_func(call)

        answer: T = await super()._handle_unary(context, named, default_response)
        return answer

    async def SendStreamingMessage(self, request: Any, context: Any) -> None:  # type: ignore[override]
        def open_stream(call: ServerCallContext) -> AsyncGenerator[Any, None]:
            said = proto_utils.FromProto.message_send_params(request)
            asked = types.SendMessageRequest(id=0, params=said)
            params = conversions.to_core_send_message_request(asked)
            return self._handler.on_message_send_stream(params, call)

        await self._stream(context, open_stream, UNTIL_SETTLED)

    async def TaskSubscription(self, request: Any, context: Any) -> None:  # type: ignore[override]
        def open_stream(call: ServerCallContext) -> AsyncGenerator[Any, None]:
            task_id = self._extract_task_id(request.name)
            return self._handler.on_subscribe_to_task(pb.SubscribeToTaskRequest(id=task_id), call)

        await self._stream(context, open_stream, UNTIL_ENDED)

    async def _stream(
        self,
        context: Any,
        open_stream: Callable[[ServerCallContext], AsyncGenerator[Any, None]],
        ends: frozenset[int],
    ) -> None:
        async def begin(principal: Principal | None) -> AsyncGenerator[Any, None]:
            call = self._context_builder.build(context)
            call.state["principal"] = principal
            await begun(None, call, context)
            with translated("A2A 0.3"):
                return open_stream(call)

        def said(response: pb.StreamResponse) -> Any:
            event = translated_event(response, ends_at_pause=ends is UNTIL_SETTLED)
            return proto_utils.ToProto.stream_response(event)

        await self.write_stream(context, begin, ends=ends, said=said)

    async def abort_context(self, error: a2a.A2AError, context: Any) -> None:
        """End the call as 0.3 does: clients read which error it is from the text."""
        status = status_of(error)
        code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
        await context.abort(code, f"{type(error).__name__}: {status.message}")
