"""The gRPC binding as a `Transport`."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

import grpc
import httpx
from a2a.types import a2a_pb2 as pb
from a2a.types import a2a_pb2_grpc
from a2a.utils.grpc_status import status_from_call
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message

from tests.conformance.acts import BindingName
from tests.conformance.replies import Error, Events, Reply
from tests.conformance.transports import METHODS, PATIENCE_S, VERSION, Http, request_of

_REQUESTS: Final[Mapping[str, type[Message]]] = {
    "send_message": pb.SendMessageRequest,
    "send_streaming_message": pb.SendMessageRequest,
    "get_task": pb.GetTaskRequest,
    "list_tasks": pb.ListTasksRequest,
    "cancel_task": pb.CancelTaskRequest,
    "subscribe_to_task": pb.SubscribeToTaskRequest,
    "get_extended_agent_card": pb.GetExtendedAgentCardRequest,
    "create_push_config": pb.TaskPushNotificationConfig,
    "get_push_config": pb.GetTaskPushNotificationConfigRequest,
    "list_push_configs": pb.ListTaskPushNotificationConfigsRequest,
    "delete_push_config": pb.DeleteTaskPushNotificationConfigRequest,
}
_SPOKEN: Final = (("a2a-version", VERSION),)
_OK: Final = 200
"""How the tests write success, whatever the binding."""


class Grpc:
    """Each call goes to the next of the channels. The card is fetched over HTTP, as ever."""

    name: BindingName = "grpc"

    def __init__(self, client: httpx.AsyncClient, channels: Sequence[grpc.aio.Channel]) -> None:
        self._http = Http(client)
        self._stubs = itertools.cycle(
            a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
            for channel in channels
        )

    async def card(self) -> Reply:
        return await self._http.card()

    async def raw(self, request: Mapping[str, Any]) -> Reply | Events:
        raise LookupError("a raw request is one of HTTP")

    async def call(self, operation: str, params: Mapping[str, Any]) -> Reply:
        if operation == "get_agent_card":
            return await self.card()
        try:
            answer = await self._begun(operation, params)
        except grpc.aio.AioRpcError as error:
            return _refused(error)
        body = MessageToDict(answer)
        if isinstance(answer, pb.ListTasksResponse):
            # What is empty or zero is no field in binary form, and must be one in a page's JSON.
            body = {"tasks": [], "nextPageToken": "", "totalSize": 0, **body}
        return Reply(status=_OK, body=body)

    async def stream(self, operation: str, params: Mapping[str, Any]) -> AsyncGenerator[Reply]:
        call = self._begun(operation, params)
        try:
            async for event in call:
                yield Reply(status=_OK, body=MessageToDict(event))
        except grpc.aio.AioRpcError as error:
            yield _refused(error)
        finally:
            call.cancel()

    def _begun(self, operation: str, params: Mapping[str, Any]) -> Any:
        # What the protocol does not know cannot be said in its binary form.
        request = ParseDict(
            request_of(operation, params), _REQUESTS[operation](), ignore_unknown_fields=True
        )
        method = getattr(next(self._stubs), METHODS[operation])
        return method(request, timeout=PATIENCE_S, metadata=_SPOKEN)


def _refused(error: grpc.aio.AioRpcError) -> Reply:
    status = status_from_call(error)
    details = [] if status is None else [MessageToDict(detail) for detail in status.details]
    code = error.code().name
    return Reply(
        status=code, error=Error(code=code, message=error.details() or "", details=details)
    )
