"""A send as its request asks for it, read and checked before anything is looked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from a2a.types import a2a_pb2 as pb

from outlast.gateway.config import GatewayConfig
from outlast.gateway.keys import HEADER, SendKey, digest_of_message, key_of
from outlast.gateway.limits import read_message, read_metadata
from outlast.gateway.scopes import Identity
from outlast.model.content import Message
from outlast.model.ids import ContextId, TaskId


@dataclass(frozen=True, kw_only=True)
class Send:
    """A send, read and checked. `body` is the message as JSON, as it came."""

    identity: Identity
    message: Message
    body: Mapping[str, Any]
    metadata: Mapping[str, Any]
    key: SendKey
    digest: str


def read_send(
    params: pb.SendMessageRequest,
    identity: Identity,
    headers: Mapping[str, str],
    config: GatewayConfig,
) -> Send:
    """The send that a request asks for. Raises InvalidParams with the path of what is wrong."""
    body = read_message(params.message, config)
    return Send(
        identity=identity,
        message=Message.from_json(body),
        body=body,
        metadata=read_metadata(params.metadata, config),
        key=key_of(params.message.message_id, headers.get(HEADER), config.idempotency),
        digest=digest_of_message(body),
    )


def of_task(body: Mapping[str, Any], task_id: TaskId, context_id: ContextId) -> dict[str, Any]:
    """A caller's message as the log keeps it: it says which task and context it belongs to."""
    return {**body, "taskId": task_id, "contextId": context_id}
