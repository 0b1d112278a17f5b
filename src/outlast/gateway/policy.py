"""What callers can rely on and must keep to, read from what runs: `outlast policy` prints it, and
the Agent Card carries it as the params of our extension.

Names end in their unit. Nothing here is a number of its own: each comes from the configuration, the
workflows, or the constant that the code itself obeys.
"""

from __future__ import annotations

from typing import Any

from outlast.gateway.body import READ_S
from outlast.gateway.config import Durability, GatewayConfig, Idempotency
from outlast.gateway.listing import LARGEST_PAGE, MOST_BYTES
from outlast.store.protocols import MOST_WEBHOOKS, TOTAL_BOUND
from outlast.workflow.agent import Agent
from outlast.workflow.limits import ARTIFACT_LIMIT
from outlast.workflow.workflow import Workflow

Policy = dict[str, Any]

_PROMISES = {
    "restart": "a task outlives every process; its step starts again from its last commit",
    "effects": "an effect has one key and one result; the call itself may be made again",
    "events": "the events of a task have one order; no stream misses or repeats one",
}


def policy_of(agent: Agent, config: GatewayConfig) -> Policy:
    """The policy of this agent behind a gateway of this configuration, as JSON."""
    return {
        **({} if config.durability is None else _kept(config.durability)),
        **_lives(agent.workflows),
        "workflows": [_workflow(workflow) for workflow in agent.workflows],
        **_repeats(config),
        "blockingCapSeconds": config.blocking_cap_s,
        "keepaliveSeconds": config.keepalive_s,
        **({} if config.durability is None else {"recovery": _recovery(config.durability)}),
        "limits": _limits(config),
        "promises": dict(_PROMISES),
    }


def _kept(durability: Durability) -> Policy:
    return {
        "retentionSeconds": durability.retention_s,
        "resumeWindowSeconds": min(durability.resume_window_s, durability.retention_s),
        "tombstoneSeconds": durability.tombstone_s,
    }


def _lives(workflows: tuple[Workflow[Any], ...]) -> Policy:
    """The longest of all, for who only wants to know how long to remember a task."""
    return {
        "longestLifeSeconds": max(map(_longest_life, workflows)),
        "longestPauseSeconds": max(map(_longest_pause, workflows)),
    }


def _workflow(workflow: Workflow[Any]) -> Policy:
    """A version that this gateway serves; its tasks run on it to their end, or are migrated."""
    return {
        "name": workflow.name,
        "version": workflow.version,
        "longestLifeSeconds": _longest_life(workflow),
        "longestPauseSeconds": _longest_pause(workflow),
    }


def _longest_life(workflow: Workflow[Any]) -> float:
    return workflow.max_age.total_seconds()


def _longest_pause(workflow: Workflow[Any]) -> float:
    return min(workflow.longest_pause.total_seconds(), _longest_life(workflow))


def _repeats(config: GatewayConfig) -> Policy:
    said: Policy = {"idempotency": config.idempotency.value}
    if config.idempotency is not Idempotency.OFF and config.durability is not None:
        said["idempotencyWindowSeconds"] = config.durability.idempotency_window_s
    return said


def _recovery(durability: Durability) -> Policy:
    """takeOver: from the death of a worker to the next run of its tasks at the latest, where
    another worker has room: a whole lease without a beat, the looks before and after it, and the
    poll of whoever no wake-up has reached. Looks and polls are spread, hence one more of each."""
    return {
        "takeOverSeconds": durability.lease_s + 3 * durability.recovery_s + 2 * durability.poll_s,
        "beatSeconds": durability.beat_s,
        "leaseSeconds": durability.lease_s,
        "graceSeconds": durability.grace_s,
        "workerDeathsUntilFailed": durability.crash_limit,
    }


def _limits(config: GatewayConfig) -> Policy:
    some = {
        "openTasks": config.max_open_tasks,
        "openCalls": config.max_open_calls,
        "sendsPerMinute": config.max_sends,
        "webhooksPerTask": MOST_WEBHOOKS if config.push_notifications else None,
    }
    return {
        "bodyBytes": config.max_body,
        "bodySeconds": READ_S,
        "messageBytes": config.max_message,
        "partBytes": config.max_part,
        "parts": config.max_parts,
        "depth": config.max_depth,
        "artifactBytes": ARTIFACT_LIMIT,
        "pageTasks": LARGEST_PAGE,
        "pageBytes": MOST_BYTES,
        "exactTotal": TOTAL_BOUND,
        **{name: limit for name, limit in some.items() if limit is not None},
    }
