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
from outlast.model.delivery import Webhook
from outlast.model.errors import InvalidParams
from outlast.model.ids import ContextId, Seq, TaskId
from outlast.wire.extension import EXTENSION_URI, IF_GENERATION, said_under_uri


@dataclass(frozen=True, kw_only=True)
class Send:
    """A send, read and checked. `body` is the message as JSON, as it came; `webhook` came with it.
    if_generation: the generation at which its task must be."""

    identity: Identity
    message: Message
    body: Mapping[str, Any]
    metadata: Mapping[str, Any]
    key: SendKey
    digest: str
    if_generation: Seq | None = None
    webhook: Webhook | None = None


def read_send(
    params: pb.SendMessageRequest,
    identity: Identity,
    headers: Mapping[str, str],
    config: GatewayConfig,
) -> Send:
    """The send that a request asks for. Raises InvalidParams with the path of what is wrong."""
    body = read_message(params.message, config)
    message = Message.from_json(body)
    return Send(
        identity=identity,
        message=message,
        body=body,
        metadata=read_metadata(params.metadata, config),
        key=key_of(params.message.message_id, headers.get(HEADER), config.idempotency),
        digest=digest_of_message(body),
        if_generation=_insisted(message),
    )


def _insisted(message: Message) -> Seq | None:
    said = said_under_uri(message.metadata, path="message.metadata").get(IF_GENERATION)
    if said is None or (isinstance(said, int) and not isinstance(said, bool) and said > 0):
        return said  # type: ignore[return-value]
    raise InvalidParams(
        "must be a generation of the task, as its metadata says it: a whole number from 1 on",
        path=f"message.metadata['{EXTENSION_URI}'].{IF_GENERATION}",
    )


def of_task(body: Mapping[str, Any], task_id: TaskId, context_id: ContextId) -> dict[str, Any]:
    """A caller's message as the log keeps it: it says which task and context it belongs to."""
    return {**body, "taskId": task_id, "contextId": context_id}
