"""What runs in a process until it is stopped, alone or together with others."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

log = structlog.get_logger("outlast")

Stop = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Role:
    """A role of this process: what runs until it is stopped, and how to stop it."""

    run: Callable[[], Awaitable[None]]
    stop: Stop
    problems: Callable[[], list[str]] = list
    hindrances: Callable[[], list[str]] = list


async def run_together(*roles: Role) -> None:
    """Run roles until one of them ends. Then the others stop gracefully, and when they have, the
    first error is raised: nobody is torn down in the middle of something."""
    failures: list[Exception] = []

    async def run(role: Role) -> None:
        try:
            await role.run()
        except Exception as error:
            failures.append(error)
        finally:
            for other in roles:
                other.stop()

    async with asyncio.TaskGroup() as group:
        for role in roles:
            group.create_task(run(role))
    if failures:
        raise failures[0]


async def run_roles(*roles: Role) -> None:
    """Run roles until SIGTERM or SIGINT, or until one of them dies."""

    def stop_all() -> None:
        for role in roles:
            role.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_all)
    await run_together(*roles)
    if problems := [problem for role in roles for problem in role.problems()]:
        # What is stuck cannot be waited for. Leases are given back: nothing is lost by leaving.
        log.error("process.abandoned", problems=problems)
        os._exit(1)
