"""What an operator can set for a gateway. All of it is published, in the card or as policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MIB = 1024 * 1024


class Idempotency(StrEnum):
    """Which sends can be repeated without starting anything twice.

    AUTO: those with an Idempotency-Key, and those whose messageId is unique by construction.
    ALWAYS: every messageId counts. HEADER: only an Idempotency-Key does. OFF: nothing does.
    """

    AUTO = "auto"
    ALWAYS = "always"
    HEADER = "header"
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class Extension:
    """An extension of A2A that the agent speaks, as its card declares it (§4.6).

    required: calls that do not activate it are refused.
    """

    uri: str
    description: str = ""
    required: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Durability:
    """What the deployment around a gateway is set to: nothing that a gateway does, but what it
    tells its callers. Lengths of time are in seconds.

    retention_s: how long a finished task can be read. resume_window_s: how long its stream can be
    resumed at any event. tombstone_s: how long its owner is told that it has expired.
    idempotency_window_s: how long a repeat finds the first send.
    beat_s, lease_s, recovery_s, poll_s: how a dead worker is found. grace_s: how long a stop lets
    steps go on. crash_limit: deaths of workers in one step after which its task fails.
    """

    retention_s: float
    resume_window_s: float
    tombstone_s: float
    idempotency_window_s: float
    beat_s: float
    lease_s: float
    recovery_s: float
    poll_s: float
    grace_s: float
    crash_limit: int


@dataclass(frozen=True, kw_only=True)
class GatewayConfig:
    """Lengths of time are in seconds, sizes in bytes.

    url: where callers reach this gateway; stands in the card. agent_version: stands there too.
    extensions: what the agent speaks beside our own extension.
    grpc_url: host:port of its gRPC server; stands in the card when there is one.
    epoch: of the store, as `AdminStore.check` tells it; part of the names of pauses.
    blocking_cap_s: how long a blocking send waits before it answers with the task as it is.
    poll_s: how often a waiting request looks at the store when no wake-up comes.
    keepalive_s: between comments on a silent stream.
    store_patience_s: how long a call to a store that is away is repeated.
    serves_0_3: whether clients of A2A 0.3 are answered too, at addresses of their own in the card.
    push_notifications: whether callers may register webhooks; stands in the card.
    durability: what the deployment promises beside; told where it is known.
    webhook_targets: hosts, addresses and networks that webhooks may point at although they are not
        public.
    max_open_tasks: unfinished tasks of one owner, over all gateways. max_open_calls: streams,
        lists and waiting calls of one owner in this process. max_sends: of one owner's in a
        minute, in this process. None: no limit.
    max_depth: nesting of JSON values. Protobuf's parsers stop at 100 levels and an object takes
        three, so that anything deeper would come back to gRPC clients as an error.
    """

    url: str = "http://127.0.0.1:8000"
    grpc_url: str | None = None
    agent_version: str = "1.0.0"
    extensions: tuple[Extension, ...] = ()
    epoch: str = ""
    idempotency: Idempotency = Idempotency.AUTO
    blocking_cap_s: float = 600
    poll_s: float = 1.0
    keepalive_s: float = 15
    router_timeout_s: float = 5
    store_patience_s: float = 20
    durability: Durability | None = None
    serves_0_3: bool = False
    push_notifications: bool = False
    webhook_targets: tuple[str, ...] = ()
    max_body: int = 8 * MIB
    max_message: int = 4 * MIB
    max_part: int = 1 * MIB
    max_parts: int = 1000
    max_depth: int = 24
    max_open_tasks: int | None = None
    max_open_calls: int | None = None
    max_sends: int | None = None

    @property
    def required_extensions(self) -> frozenset[str]:
        """The URIs of the extensions that every call must activate."""
        return frozenset(extension.uri for extension in self.extensions if extension.required)
