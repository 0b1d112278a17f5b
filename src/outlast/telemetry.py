"""Logging: one line per event, with names that stay the same.

Event names are `<thing>.<what happened>`; the thing is a word of the glossary.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Literal

import structlog

EVENTS: Mapping[str, str] = {
    "worker.registered": "a worker is among the living",
    "worker.declared_dead": "this worker finds that others have declared it dead",
    "worker.dead": "a watcher has proved another worker dead and freed its tasks",
    "worker.draining": "a graceful stop waits for running steps",
    "worker.blocked": "code of a step blocks the worker's loop: leases are kept, nothing else runs",
    "process.abandoned": "the process leaves although something in it is stuck",
    "step.ignores_stop": "a step goes on although it was stopped; its task is held or given back",
    "beat.failed": "a beat did not reach the store; it is tried again at once",
    "beat.died": "the beat thread has ended with an error",
    "claim.failed": "a claim did not reach the store, or its reply did not come back",
    "lease.given_back": "a lease whose claim this worker never heard of was released",
    "run.began": "a run of a task begins under a new lease",
    "run.ended": "a run has written what ends its lease",
    "run.lease_lost": "a run has lost its lease and stopped; another run may go on",
    "run.broke": "a run ended with an unexpected error; the task is held",
    "run.not_written": "what a run wanted to write was refused; the task is held",
    "run.not_held": "not even the hold could be written",
    "inbox.unread": "a message came that the ending step has not read: the step starts over",
    "step.failed": "a step raised or took too long",
    "task.held": "a task waits for an operator",
    "sweep.failed": "a duty did not reach the store; it is tried again at its next turn",
    "deadlines.moved": "deadlines that passed during an outage were moved by it",
    "deadlines.ended": "tasks ended because a deadline passed",
    "fold.failed": "a task cannot be folded: its reads go on, slower, from its log",
    "tasks.expired": "finished tasks were deleted because their retention is over",
    "gateway.listening": "the gateway answers requests",
    "provider.keys": "the identity provider publishes other keys than before; they are used now",
    "provider.failed": "the identity provider's keys could not be fetched; known ones stay good",
    "caller.refused": "a request came without a credential that is valid",
    "audit.lost": "refusals were not written into the audit log: the store could not be reached",
    "request.store_away": "a request ended because the store could not be reached",
    "request.failed": "a request met an unexpected error; the reference is in the reply",
    "checkpoint.large": "a checkpoint has grown past the size from which it is warned of",
}
"""Every event that is logged, and what it says. A test keeps the list complete."""


def configure_logging(
    level: str = "info", *, style: Literal["console", "json"] | None = None
) -> None:
    """Log to standard error: readable lines on a terminal, JSON elsewhere."""
    chosen = style or ("console" if sys.stderr.isatty() else "json")
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer()
        if chosen == "console"
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    _configure_libraries(renderer)


def _configure_libraries(renderer: structlog.typing.Processor) -> None:
    """What libraries log goes through the same renderer: callers' text cannot forge a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                renderer,
            ],
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.TimeStamper(fmt="iso"),
                structlog.processors.format_exc_info,
            ],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    # The SDK warns of every request that it refuses: the caller has been told, that is enough.
    logging.getLogger("a2a").setLevel(logging.ERROR)
