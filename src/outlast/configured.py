"""What a configuration means to each part of a process."""

from __future__ import annotations

from outlast.admission import knows_callers
from outlast.configuration import Configuration
from outlast.gateway.config import Durability, GatewayConfig, Idempotency
from outlast.store.protocols import Settings


def store_settings(configuration: Configuration) -> Settings:
    return Settings(
        retention_ms=int(configuration.retention * 1000),
        resume_window_ms=int(configuration.resume_window * 1000),
        crash_limit=configuration.crash_limit,
        crash_backoff_ms=int(configuration.crash_backoff * 1000),
    )


def gateway_config(configuration: Configuration) -> GatewayConfig:
    """What is configured for every gateway, wherever it listens and whatever its store."""

    def of_owners(limit: int) -> int | None:
        return limit if limit and knows_callers(configuration) else None

    return GatewayConfig(
        idempotency=Idempotency(configuration.idempotency),
        blocking_cap_s=configuration.blocking_cap,
        poll_s=configuration.poll,
        durability=_durability(configuration),
        max_open_tasks=of_owners(configuration.owner_tasks),
        max_open_calls=of_owners(configuration.owner_calls),
        max_sends=of_owners(configuration.owner_sends),
        max_body=configuration.max_body,
        max_message=configuration.max_message,
        max_part=configuration.max_part,
        max_parts=configuration.max_parts,
        max_depth=configuration.max_depth,
        serves_0_3=configuration.compat_0_3,
        push_notifications=configuration.push_notifications,
        webhook_targets=configuration.webhook_targets,
    )


def _durability(configuration: Configuration) -> Durability:
    window = idempotency_window(configuration)
    return Durability(
        retention_s=configuration.retention,
        resume_window_s=configuration.resume_window,
        tombstone_s=max(configuration.tombstone, window),
        idempotency_window_s=window,
        beat_s=configuration.beat,
        lease_s=configuration.lease,
        recovery_s=configuration.recovery,
        poll_s=configuration.poll,
        grace_s=configuration.grace,
        crash_limit=configuration.crash_limit,
    )


def idempotency_window(configuration: Configuration) -> float:
    """How long a repeat of a send finds the first: as long as a finished task at most."""
    return min(configuration.idempotency_window, configuration.retention)
