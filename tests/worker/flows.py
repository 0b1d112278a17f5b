"""What the workflows of these tests are made of: notes for a checkpoint, gates at which a step
waits for the test, and an outside that counts its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from outlast import Context, Message, Workflow


class Notes(BaseModel):
    """A checkpoint."""

    done: list[str] = []


Ctx = Context[Notes, Any]


def flow(name: str = "review", version: int = 1, **options: Any) -> Workflow[Notes]:
    """A workflow that begins with empty notes. The test adds its steps."""
    made = Workflow(name, version, checkpoint=Notes, **options)

    @made.start
    async def begin(message: Message) -> Notes:
        return Notes()

    return made


def single(name: str = "review", version: int = 1, **options: Any) -> Workflow[Notes]:
    """A workflow with one step that does nothing."""
    made = flow(name, version, **options)

    @made.step
    async def work(ctx: Ctx) -> None: ...

    return made


class Gate:
    """A place in a step where it waits until the test opens the gate, once for all."""

    def __init__(self) -> None:
        self.arrivals = 0
        self._arrived = asyncio.Condition()
        self._open = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    async def __call__(self) -> None:
        """What the step awaits."""
        async with self._arrived:
            self.arrivals += 1
            self._arrived.notify_all()
        await self._open.wait()

    async def reached(self, times: int = 1) -> None:
        """Returns when steps have come to it this often."""
        async with asyncio.timeout(15), self._arrived:
            await self._arrived.wait_for(lambda: self.arrivals >= times)

    def open(self) -> None:
        self._open.set()


@dataclass
class Outside:
    """A service that honours idempotency keys and counts its calls."""

    calls: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    applied: dict[str, str] = field(default_factory=dict)
    before_reply: Callable[[], Any] | None = None

    async def send(self, what: str, *, idempotency_key: str) -> str:
        self.calls.append(what)
        self.keys.append(idempotency_key)
        first = self.applied.setdefault(idempotency_key, f"{what} #{len(self.applied) + 1}")
        if self.before_reply is not None:
            await self.before_reply()
        return first
