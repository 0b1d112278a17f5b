"""Not a language model: functions in its place, so that the example runs anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from examples.research.tools import Call

SOURCES = ("archive", "catalogue", "web", "papers", "patents", "news", "forum", "maps", "prices")


async def stand_in_plan(question: str) -> list[Call]:
    """Choose ten look-ups, one of which cannot work, and two calls that change something."""
    calls = [(source, question) for source in SOURCES]
    calls += [("glossary", ""), ("publish", "the answer"), ("notify", "the readers")]
    return [
        Call(id=f"{tool}-{number}", tool=tool, argument=argument)
        for number, (tool, argument) in enumerate(calls, start=1)
    ]


async def stand_in_answer(question: str, notes: Sequence[str]) -> AsyncIterator[str]:
    """Give the answer piece by piece, as a model does."""
    yield f"# {question}\n\n"
    for note in notes:
        await asyncio.sleep(0)
        yield f"- {note}\n"
