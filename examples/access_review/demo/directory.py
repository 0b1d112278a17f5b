"""The directory as the demo sees it: what it counted, and the faults that it can be asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from examples.access_review.account import Counters

_LOOK_EVERY_S = 0.01


@dataclass(frozen=True)
class DirectoryDesk:
    """Talks to the directory's tester's side."""

    http: httpx.AsyncClient

    async def counters(self) -> Counters:
        answer = await self.http.get("/counters")
        answer.raise_for_status()
        return Counters.model_validate_json(answer.content)

    async def until_asked_for(self, system: str) -> None:
        """Wait until the fetch of this system has arrived."""
        while not (await self.counters()).fetches.get(system):
            await asyncio.sleep(_LOOK_EVERY_S)

    async def ask_for(self, faults: Sequence[Mapping[str, Any]]) -> None:
        """Of the faults that strike a call, the first one acts."""
        (await self.http.post("/faults", json=faults)).raise_for_status()


@asynccontextmanager
async def open_desk(url: str) -> AsyncIterator[DirectoryDesk]:
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=10) as http:
        yield DirectoryDesk(http)


def slow_fetches(*, before: int, stall_s: float, each_s: float) -> list[dict[str, Any]]:
    """Fetches that can be watched, and one, after `before` others, that takes long enough to be
    killed within."""
    return [
        {"kind": "fetch", "action": "hang", "skip": before, "times": 1, "seconds": stall_s},
        {"kind": "fetch", "action": "hang", "times": None, "seconds": each_s},
    ]


def network_failure(*, after: int, each_s: float) -> list[dict[str, Any]]:
    """A network that fails after so many revocations: the next one is applied and its answer lost,
    and when it is asked for again, the connection is cut before anything happens."""
    return [
        {"kind": "revoke", "action": "drop", "when": "after", "skip": after, "times": 1},
        {"kind": "revoke", "action": "drop", "when": "before", "skip": after + 1, "times": 1},
        {"kind": "revoke", "action": "hang", "when": "before", "times": None, "seconds": each_s},
    ]
