"""Wake-ups inside one process: what both drivers share."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable


class Bell:
    """One listener of one topic."""

    def __init__(self, board: Board, topic: str) -> None:
        self._board = board
        self._topic = topic
        self._rung = asyncio.Event()

    async def wait(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._rung.wait()
        except TimeoutError:
            return False
        self._rung.clear()
        return True

    def ring(self) -> None:
        self._rung.set()

    def close(self) -> None:
        self._board.drop(self._topic, self)

    def __enter__(self) -> Bell:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Board:
    """Who listens for what. All calls come from the event loop's own thread."""

    def __init__(self) -> None:
        self._bells: defaultdict[str, set[Bell]] = defaultdict(set)

    def subscribe(self, topic: str) -> Bell:
        bell = Bell(self, topic)
        self._bells[topic].add(bell)
        return bell

    def drop(self, topic: str, bell: Bell) -> None:
        bells = self._bells.get(topic)
        if bells is not None:
            bells.discard(bell)
            if not bells:
                del self._bells[topic]

    @property
    def is_empty(self) -> bool:
        return not self._bells

    def ring(self, topics: Iterable[str]) -> None:
        for topic in topics:
            for bell in self._bells.get(topic, ()):
                bell.ring()

    def ring_all(self) -> None:
        """Something changed and nobody knows what, or wake-ups may have been missed."""
        self.ring(list(self._bells))
