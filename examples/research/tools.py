"""The tools that the model may call. Made up, like the model, so that the example runs anywhere."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel, ConfigDict


class Call(BaseModel):
    """One call of a tool, as the model asked for it."""

    model_config = ConfigDict(frozen=True)

    id: str
    tool: str
    argument: str

    @property
    def is_dangerous(self) -> bool:
        """Whether it changes something outside. Those want approval first."""
        return self.tool in {"publish", "notify"}


class Tools:
    """Looks things up, and does the few things that cannot be taken back."""

    def __init__(self) -> None:
        self.done: dict[str, str] = {}
        """What was done, by idempotency key: a repeat does nothing."""

    async def look_up(self, call: Call) -> str:
        await asyncio.sleep(0.01)
        if call.argument == "":
            raise ValueError("nothing to look up")
        return f"{call.tool}: {len(call.argument)} letters about {call.argument}"

    async def act(self, call: Call, *, idempotency_key: str) -> str:
        return self.done.setdefault(idempotency_key, f"{call.tool} {call.argument}")
