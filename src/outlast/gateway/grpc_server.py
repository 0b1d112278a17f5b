"""The gRPC server beside a gateway's HTTP server; needs the extra `grpc`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.types import a2a_pb2_grpc

from outlast.gateway.auth.principal import Authenticator
from outlast.gateway.compat_grpc import Grpc03
from outlast.gateway.grpc_binding import Door, GrpcBinding
from outlast.gateway.handler import OutlastRequestHandler
from outlast.model.errors import ConfigError

_CLIENTS_PING_MS = 5_000
"""Clients may ping this often. By default gRPC drops those that do more than every 5 minutes, and
a client behind a proxy has to."""

MOST_CALLS = 10_000
"""Calls under way in this process, streams among them; by default gRPC takes any number. More are
refused with RESOURCE_EXHAUSTED."""

MOST_CALLS_OF_CONNECTION = 1_000
"""Of these, those on one connection. More wait in the client until others have ended."""


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """A certificate chain and its key, as PEM files."""

    cert: str
    key: str


class GrpcServer:
    """Serves a gateway's handler over gRPC until `stop`.

    Stopping ends open streams and blocking sends at once; other calls get `grace_s` to finish.
    """

    def __init__(
        self,
        handler: OutlastRequestHandler,
        *,
        host: str,
        port: int,
        tls: TlsFiles | None = None,
        grace_s: float = 5,
        authenticator: Authenticator | None = None,
    ) -> None:
        """A server that listens; port 0 takes a free one, which `port` tells. With an
        authenticator, calls are for callers that it knows. Wants a running event loop. Raises
        ConfigError when the place is taken or not of this machine, and for files that are no
        certificate and key."""
        self._handler = handler
        self._grace_s = grace_s
        self._stopping = asyncio.Event()
        older = Grpc03(handler, authenticator) if handler.config.serves_0_3 else None
        binding = GrpcBinding(handler, authenticator)
        self._server = grpc.aio.server(
            interceptors=[Door(binding, older)],
            options=_options(handler),
            maximum_concurrent_rpcs=MOST_CALLS,
        )
        register: Any = a2a_pb2_grpc.add_A2AServiceServicer_to_server
        register(binding, self._server)
        if older is not None:
            register_older: Any = a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server
            register_older(older, self._server)
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port: int = (
                self._server.add_insecure_port(place)
                if tls is None
                else self._server.add_secure_port(place, _credentials(tls))
            )
        except RuntimeError:
            what = "" if tls is None else ", or the certificate and key do not belong together"
            raise ConfigError(
                f"cannot listen for gRPC on {place}: it is taken or not of this machine{what}"
            ) from None

    async def serve(self) -> None:
        """Serve until `stop` has been called and calls have ended."""
        await self._server.start()
        try:
            await self._stopping.wait()
        finally:
            self._handler.close()
            await self._server.stop(self._grace_s)

    def stop(self) -> None:
        """Stop soon; `serve` returns when it is done."""
        self._handler.close()
        self._stopping.set()


def _options(handler: OutlastRequestHandler) -> list[tuple[str, int]]:
    config = handler.config
    keepalive_ms = int(config.keepalive_s * 1000)
    return [
        ("grpc.max_receive_message_length", config.max_body),
        ("grpc.max_concurrent_streams", MOST_CALLS_OF_CONNECTION),
        # Two servers on one port would share its callers, unseen.
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _CLIENTS_PING_MS),
    ]


def _credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    try:
        pair = (Path(tls.key).read_bytes(), Path(tls.cert).read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename} for gRPC: {error.strerror}") from None
    return grpc.ssl_server_credentials([pair])
