"""Not a language model: a function in its place, so that the example runs anywhere."""

from __future__ import annotations

from collections.abc import Sequence


async def stand_in_reply(said: Sequence[str]) -> str:
    """Reply to what the user said, the latest last. The same words get the same reply."""
    latest, before = said[-1], said[:-1]
    if not before:
        return f"You said: {latest}. Tell me more, or say bye."
    return f"You said: {latest}. Before that: {before[-1]}. Go on, or say bye."
