"""Calls of one agent through the SDK's client: found by its card, repeated where that is safe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client import Client as SdkClient
from a2a.client.client import ClientCallContext
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict

from outlast.client.failures import delay_before, failure_of, translated
from outlast.client.origins import holds_credentials, within_reach
from outlast.client.transports import JsonRpcWithIds, RestWithIds
from outlast.model.errors import ConfigError, Uncertain
from outlast.wire.extension import EXTENSION_URI

T = TypeVar("T")

_BINDINGS = {"JSONRPC": JsonRpcWithIds, "HTTP+JSON": RestWithIds}
_REPLY_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a client goes on trying, in seconds: `total` in all, with pauses that grow from
    `first` to `longest`."""

    total: float = 60.0
    first: float = 0.1
    longest: float = 5.0


class Calls:
    """The agent of one card."""

    def __init__(
        self,
        card: pb.AgentCard,
        http: httpx.AsyncClient,
        patience: Patience,
        *,
        given: str | None = None,
        trust_card: bool = False,
    ) -> None:
        """given: the URL whose card it is, and to whose origin alone credentials go; None for a
        card of the caller's own.

        Raises ConfigError when the card offers no way in which this client speaks, or none to
        which credentials may go.
        """
        self.card = card
        self.http = http
        self.patience = patience
        self.extension = _extension_of(card)
        self._spoken = _spoken(card)
        if given is not None and holds_credentials(http):
            self._spoken = within_reach(self._spoken, given, trust_card=trust_card)
        self.plain = self._client(streaming=False)
        self.streaming = self._client(streaming=True)

    @property
    def is_ours(self) -> bool:
        """Whether the agent speaks our extension."""
        return self.extension is not None

    @property
    def recognises_repeats(self) -> bool:
        """Whether a message that is sent twice under one key is taken once."""
        return bool((self.extension or {}).get("idempotency", "off") != "off")

    @property
    def silence_s(self) -> float:
        """How long a stream may be silent before its connection counts as dead."""
        said = (self.extension or {}).get("keepaliveSeconds")
        return 300.0 if said is None else max(5.0, 3 * float(said))

    def context(self, headers: Mapping[str, str] | None = None, timeout: float = _REPLY_S) -> Any:
        """What goes with a call."""
        said = {"A2A-Extensions": EXTENSION_URI} if self.is_ours else {}
        return ClientCallContext(service_parameters=said | dict(headers or {}), timeout=timeout)

    async def repeated(
        self, call: Callable[[], Awaitable[T]], *, task_id: str = "", repeatable: bool = True
    ) -> T:
        """As the function of this name, with the client's patience."""
        return await repeated(call, self.patience, task_id=task_id, repeatable=repeatable)

    async def get(self, request: pb.GetTaskRequest, context: Any = None) -> pb.Task:
        return await self.plain.get_task(request, context=context or self.context())

    async def send(self, request: pb.SendMessageRequest, context: Any) -> pb.StreamResponse:
        (response,) = [item async for item in self.plain.send_message(request, context=context)]
        return response

    def subscribe(self, task_id: str, tenant: str, context: Any) -> AsyncIterator[Any]:
        request = pb.SubscribeToTaskRequest(id=task_id, tenant=tenant)
        return self.streaming.subscribe(request, context=context)

    def http_url(self) -> str:
        """Where what is not of the protocol (authorizing) is to be found."""
        urls = {item.protocol_binding: item.url for item in self._spoken}
        return str(urls.get("HTTP+JSON") or urls["JSONRPC"]).rstrip("/")

    def _client(self, *, streaming: bool) -> SdkClient:
        factory = ClientFactory(
            ClientConfig(
                streaming=streaming,
                httpx_client=self.http,
                supported_protocol_bindings=list(_BINDINGS),
            )
        )
        for binding, transport in _BINDINGS.items():
            factory.register(binding, _made_by(transport, self.http))
        offered = pb.AgentCard()
        offered.CopyFrom(self.card)
        del offered.supported_interfaces[:]
        offered.supported_interfaces.extend(self._spoken)
        return factory.create(offered)


async def repeated(
    call: Callable[[], Awaitable[T]],
    patience: Patience,
    *,
    task_id: str = "",
    repeatable: bool = True,
) -> T:
    """What the call brings, in as many tries as the patience allows.

    Not `repeatable`: only those tries are followed by another that certainly changed nothing.
    Raises the protocol's refusals as errors of ours, at once; Uncertain; and Unreachable.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + patience.total
    attempt = 0
    while True:
        try:
            return await call()
        except Exception as error:
            failure = failure_of(error)
            if failure.is_passing and failure.was_sent and not repeatable:
                raise Uncertain(
                    "the connection was lost before the agent answered, and this agent does"
                    " not recognise a repeat: look whether the message was taken before you"
                    " send it again"
                ) from error
            delay = delay_before(attempt, failure, first=patience.first, longest=patience.longest)
            if not failure.is_passing or loop.time() + delay > until:
                raise translated(error, task_id) from error
        attempt += 1
        await asyncio.sleep(delay)


async def card_at(url: str, http: httpx.AsyncClient) -> pb.AgentCard:
    """The card of the agent at this URL. Raises ConfigError for what is no URL of one."""
    parts = httpx.URL(url) if "://" in url else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.host:
        raise ConfigError(f"an agent's address is http(s)://host…, not {url!r}")
    base, path = url, None
    if url.endswith(".json"):
        base, path = f"{parts.scheme}://{parts.netloc.decode()}", parts.path
    return await A2ACardResolver(http, base).get_agent_card(relative_card_path=path)


def _spoken(card: pb.AgentCard) -> list[pb.AgentInterface]:
    spoken = [
        item
        for item in card.supported_interfaces
        if item.protocol_binding in _BINDINGS and not item.protocol_version.startswith("0.")
    ]
    if not spoken:
        raise ConfigError(
            "the agent's card offers neither JSON-RPC nor HTTP+JSON of A2A 1.0, and this client"
            " speaks nothing else"
        )
    return spoken


def _made_by(transport: Any, http: httpx.AsyncClient) -> Any:
    def make(card: pb.AgentCard, url: str, config: ClientConfig) -> Any:
        return transport(http, card, url, is_shared_httpx=True)

    return make


def _extension_of(card: pb.AgentCard) -> Mapping[str, Any] | None:
    for extension in card.capabilities.extensions:
        if extension.uri == EXTENSION_URI:
            params: Mapping[str, Any] = MessageToDict(extension.params)
            return params
    return None
