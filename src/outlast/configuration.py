"""The configuration of a process: from the environment, checked once, published by the policy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from outlast.model.errors import ConfigError
from outlast.model.targets import Targets

PREFIX = "OUTLAST_"
MIB = 1024 * 1024
_OTHERS = ("OUTLAST_TEST_",)
_TOKEN = f"{PREFIX}TOKEN"  # of commands that call an agent: no setting of a process


def _parted(said: object) -> object:
    return tuple(filter(None, map(str.strip, said.split(",")))) if isinstance(said, str) else said


Several = Annotated[tuple[str, ...], BeforeValidator(_parted)]
"""Several texts in one, with commas between them."""


class Configuration(BaseModel):
    """Every setting, with its default. Times are in seconds.

    Each is read from the environment variable `OUTLAST_<NAME>`, and most have an option of the
    same name on the command line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    database: str = "sqlite:///outlast.db"
    """`sqlite:///path` (relative to the working folder, `sqlite:////path` absolute) or a
    `postgresql://` URL."""

    database_pool: int = Field(default=10, ge=1, le=200)
    """PostgreSQL connections of a process, apart from the beat's and the listener's."""

    database_pooler: bool = False
    """Behind a transaction pooler: no presence, no wake-ups, no prepared statements."""

    database_timeout: float = Field(default=10.0, gt=0)
    """The deadline of every call to the database."""

    host: str = "127.0.0.1"
    """The address that the gateway listens on."""

    port: int = Field(default=8000, ge=0, le=65535)
    """Its port; 0 takes a free one."""

    open_to_all: bool = False
    """Listen on a host that other machines reach although nobody is authenticated: whoever reaches
    the gateway may do everything, so keep something in front of it that knows its callers."""

    api_keys: bool = False
    """Callers are known by API keys, which `outlast keys create` makes."""

    proxy_header: str | None = None
    """Callers are known by this header of a proxy that has checked their client certificates. The
    proxy must replace it in every request."""

    proxies: Several | None = None
    """The addresses and networks, with commas between them, from which that header is believed."""

    jwt_issuer: str | None = None
    """Callers are known by tokens of this OpenID Connect provider: its URL, letter by letter as its
    tokens name it. Needs `outlast[jwt]`."""

    jwt_audience: Several | None = None
    """What those tokens are for. With commas between several, of which a token names one."""

    jwt_jwks_url: str | None = None
    """Where the provider's keys are, if its discovery document does not say so."""

    jwt_algorithms: Several | None = None
    """What may have signed tokens, with commas between; every asymmetric algorithm when not
    given."""

    jwt_leeway: int = Field(default=30, ge=0, le=300)
    """By how much the provider's clock may differ, in whole seconds."""

    jwt_subject_claim: str = Field(default="sub", min_length=1)
    """The claim that names the caller: one that the provider gives to nobody else, ever."""

    jwt_tenant_claim: str | None = Field(default=None, min_length=1)
    """The claim that names the caller's tenant; a token without it is then refused. Without this
    setting tokens are of no tenant."""

    jwt_scope_claim: str = Field(default="scope", min_length=1)
    """The claim with the caller's scopes: a text with spaces between them, or a list."""

    jwt_shown_claims: Several | None = None
    """The claims that the author's code may see, with commas between. Others are forgotten at
    once."""

    tenant_from_request: bool = False
    """A caller whose credential is of no tenant may name one in the request: for proxies that
    check tenants. Otherwise it has none, and naming one is refused."""

    url: str | None = None
    """The public URL in the Agent Card; the address that is listened on when not given."""

    grpc_port: int | None = Field(default=None, ge=0, le=65535)
    """The port of the gRPC binding on the same host, 0 for a free one; off when not given. Needs
    `outlast[grpc]`."""

    grpc_url: str | None = None
    """`host:port` of the gRPC binding in the Agent Card; what is listened on when not given."""

    grpc_tls_cert: str | None = None
    """A PEM file with the certificate chain of the gRPC binding; in the clear when not given."""

    grpc_tls_key: str | None = None
    """A PEM file with its key."""

    compat_0_3: bool = False
    """Answer clients of A2A 0.3 too; the Agent Card then names both versions."""

    push_notifications: bool = False
    """Let callers register webhooks for their tasks. Nothing is sent to them yet, although the
    Agent Card says so where this is on: leave it off but to try the operations."""

    webhook_targets: Several = ()
    """Hosts, addresses and networks, with commas between them, that webhooks may point at although
    they are not public, also without TLS."""

    concurrency: int = Field(default=100, ge=1)
    """Tasks that one worker runs at once."""

    beat: float = Field(default=1.0, gt=0)
    """How often a worker shows that it lives."""

    lease: float = Field(default=15.0, gt=0)
    """How long a lease outlasts the last beat."""

    grace: float = Field(default=20.0, ge=0)
    """How long a stop lets steps reach their next commit."""

    poll: float = Field(default=1.0, gt=0)
    """How often work and events are looked for when no wake-up comes."""

    recovery: float = Field(default=1.0, gt=0)
    """How often the beats of other workers are looked at."""

    retention: float = Field(default=30 * 86400.0, gt=0)
    """How long a finished task can still be read."""

    resume_window: float = Field(default=7 * 86400.0, ge=0)
    """How long after a task's end a stream can be resumed at any of its events. Then a log that is
    folded is trimmed, and a resume begins with the task as it ended."""

    tombstone: float = Field(default=90 * 86400.0, gt=0)
    """How long its owner is told that a task has expired, and a repeat of its send too."""

    idempotency: Literal["auto", "always", "header", "off"] = "auto"
    """Which sends may be repeated and start nothing twice: `auto`, those with an Idempotency-Key
    and those whose `messageId` is a UUID or ULID; `always`, under any `messageId`; `header`, only
    those with an Idempotency-Key; `off`, none."""

    idempotency_window: float = Field(default=86400.0, gt=0)
    """How long a repeat of a send finds the first one; at most the retention."""

    crash_limit: int = Field(default=3, ge=1)
    """Proven deaths of workers in one step after which the task fails."""

    crash_backoff: float = Field(default=2.0, ge=0)
    """The delay after the second death in a step; it doubles with each further one."""

    blocking_cap: float = Field(default=600.0, gt=0)
    """How long a blocking send waits before it answers with the task as it is."""

    owner_tasks: int = Field(default=10_000, ge=0)
    """Unfinished tasks that one owner may have, over all gateways; 0 for any number. This limit and
    the two after it hold where callers are known: else there are no owners."""

    owner_calls: int = Field(default=1000, ge=0)
    """Streams, lists and waiting calls that one owner may have open in one gateway process; 0 for
    any number."""

    owner_sends: int = Field(default=6000, ge=0)
    """Messages that one owner may send in a minute through one gateway process; 0 for any
    number."""

    max_body: int = Field(default=8 * MIB, ge=1024)
    """Bytes of a request's body."""

    max_message: int = Field(default=4 * MIB, ge=1024)
    """Bytes of a message as JSON."""

    max_part: int = Field(default=1 * MIB, ge=1024)
    """Bytes of one part of a message; larger files go by url."""

    max_parts: int = Field(default=1000, ge=1)
    """Parts of a message."""

    max_depth: int = Field(default=24, ge=4, le=24)
    """Levels of nesting in what a message holds. gRPC clients can read no more than 24."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is logged."""

    log_style: Literal["console", "json"] | None = None
    """Readable lines or one JSON object a line; readable on a terminal when not given."""

    @model_validator(mode="after")
    def _a_header_has_its_proxies(self) -> Configuration:
        if (self.proxy_header is None) != (self.proxies is None):
            raise ValueError("proxy_header and proxies go together: give both or neither")
        return self

    @model_validator(mode="after")
    def _tokens_have_an_issuer_and_an_audience(self) -> Configuration:
        if (self.jwt_issuer is None) != (self.jwt_audience is None):
            raise ValueError("jwt_issuer and jwt_audience go together: give both or neither")
        others = {name for name in self.model_fields_set if name.startswith("jwt_")}
        if self.jwt_issuer is None and others:
            raise ValueError(f"{', '.join(sorted(others))}: of no use without jwt_issuer")
        return self

    @model_validator(mode="after")
    def _a_certificate_has_a_key(self) -> Configuration:
        if (self.grpc_tls_cert is None) != (self.grpc_tls_key is None):
            raise ValueError("grpc_tls_cert and grpc_tls_key go together: give both or neither")
        return self

    @field_validator("webhook_targets")
    @classmethod
    def _targets_are_hosts_or_networks(cls, said: tuple[str, ...]) -> tuple[str, ...]:
        try:
            Targets.allowing(said)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return said

    @model_validator(mode="after")
    def _a_lease_outlasts_beats(self) -> Configuration:
        if self.lease < 3 * self.beat - 1e-9:  # 3 × 0.1 is a little more than 0.3
            raise ValueError(
                f"a lease of {self.lease:g} s must outlast at least three beats of {self.beat:g} s"
            )
        return self

    @model_validator(mode="after")
    def _a_window_fits_into_retention(self) -> Configuration:
        if (
            "idempotency_window" in self.model_fields_set
            and self.idempotency_window > self.retention
        ):
            raise ValueError(
                f"an idempotency_window of {self.idempotency_window:g} s must be no longer than the"
                f" retention of {self.retention:g} s"
            )
        return self


def configuration(environment: Mapping[str, str] | None = None, **options: object) -> Configuration:
    """The environment's settings, with what the command line gives in their place.

    Raises ConfigError that names the setting, what was wrong and what would be right.
    """
    environment = os.environ if environment is None else environment
    given: dict[str, object] = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and not name.startswith(_OTHERS) and name != _TOKEN
    }
    given |= {name: value for name, value in options.items() if value is not None}
    try:
        return Configuration.model_validate(given)
    except ValidationError as error:
        raise ConfigError("; ".join(map(_told, error.errors()))) from None


def _told(fault: object) -> str:
    assert isinstance(fault, Mapping)
    name = ".".join(map(str, fault["loc"])) or "configuration"
    if fault["type"] == "extra_forbidden":
        known = ", ".join(sorted(Configuration.model_fields))
        return f"there is no setting {PREFIX}{name.upper()}; known are: {known}"
    return f"{name}: {fault['msg']}"
