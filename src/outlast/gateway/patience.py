"""Calling a store that may be away for a moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from outlast.model.errors import StoreUnavailable

T = TypeVar("T")

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 1.0


async def persist(call: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """The result of `call`, which is repeated with the same arguments while the store is away.

    The store does no work twice, so a repeat after an unknown outcome is safe. Raises the last
    StoreUnavailable when `patience_s` is over.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    delay = _FIRST_DELAY_S
    while True:
        try:
            return await call()
        except StoreUnavailable:
            if loop.time() + delay > deadline:
                raise
        await asyncio.sleep(delay * random.uniform(0.5, 1.5))
        delay = min(delay * 2, _LONGEST_DELAY_S)


def jittered(seconds: float) -> float:
    """About so long: those who began to wait together must not look together."""
    return seconds * random.uniform(0.75, 1.25)
