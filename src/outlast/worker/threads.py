"""Blocking code of authors, in a bounded pool of its own."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """A pool that no one else uses: a tool that fills it starves neither beats nor the store."""

    def __init__(self, limit: int = 32) -> None:
        self._pool = ThreadPoolExecutor(limit, thread_name_prefix="outlast-step")

    def start(self, fn: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run `fn` in the pool. The future ends when the thread does, never sooner: cancelling
        whoever awaits it leaves the thread its slot."""
        context = contextvars.copy_context()
        return asyncio.get_running_loop().run_in_executor(
            self._pool, lambda: context.run(fn, *args)
        )

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
