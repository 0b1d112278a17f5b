"""What a run says besides its checkpoint: events that go out now, or with the next commit.

Chunks of a stream go out before the commit that they belong to: they are provisional. A run that
dies leaves them, so the next run first puts each such artifact back to what it was at the last
commit (*rewinds* it), before it writes chunks of its own and before any commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from outlast.model.artifacts import artifact_event
from outlast.model.commit import Event
from outlast.model.ledger import LedgerWrite
from outlast.workflow.session import Session, Written

ArtifactJson = dict[str, Any]

_UNDER_WAY = 256
"""Writes that may be on their way before a fast writer waits for the oldest of them."""


class Outbox:
    """The events of one run, in the order in which readers shall see them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._said: list[Event] = []
        self._provisional: dict[str, int] = {}
        self._failure: Exception | None = None
        self._kept: set[str] = set()
        self._taken_back: set[str] = set()
        self._rewound = False
        self._turn = asyncio.Lock()
        self._under_way: dict[asyncio.Task[Written], None] = {}

    @property
    def said(self) -> tuple[str, ...]:
        """Artifacts that wait for the next commit."""
        return tuple(dict.fromkeys(_id_of(event) for event in self._said))

    @property
    def provisional(self) -> tuple[str, ...]:
        """Artifacts to which this run has written chunks since its last commit."""
        return tuple(self._provisional)

    def say(self, event: Event) -> None:
        """Let the artifact's event go out with the next commit, in place of one that waits."""
        self._said = [said for said in self._said if _id_of(said) != _id_of(event)]
        self._said.append(event)

    def keep(self, artifact_id: str) -> None:
        """What readers hold of this artifact is complete, though no commit has followed it."""
        self._kept.add(artifact_id)

    def has_taken_back(self, artifact_id: str) -> bool:
        """Whether this run has rewound the artifact."""
        return artifact_id in self._taken_back

    async def post(self, *events: Event) -> None:
        """Let the events go out soon, without waiting until they are in the store.

        They go out before whatever is written later. Waits only when much is under way already.
        """
        while len(self._under_way) >= _UNDER_WAY:
            await asyncio.wait((next(iter(self._under_way)),))
        self._session.check()
        self._raise_failure()
        task = asyncio.create_task(self._session.write(events=events, urgent=False))
        self._under_way[task] = None
        task.add_done_callback(self._arrived)
        # The task must have called `write` before anything else can, or order is lost.
        await asyncio.sleep(0)

    def size_of_provisional(self, artifact_id: str) -> int | None:
        """How large this run has made the artifact since its last commit; None: not at all."""
        return self._provisional.get(artifact_id)

    async def post_chunk(
        self, artifact: ArtifactJson, *, append: bool, last: bool, size: int
    ) -> None:
        """A chunk of an artifact, after the rewinds that must precede a run's first chunk.

        size: the bytes of the artifact with this chunk.
        """
        async with self._turn:
            skip = () if append else (artifact["artifactId"],)
            rewinds = await self._rewinds(skip=skip)
            self._provisional[artifact["artifactId"]] = size
            chunk = artifact_event(artifact, append=append, last_chunk=last)
            await self.post(*rewinds, chunk)

    async def close_chunks(
        self, artifact: ArtifactJson, *, append: bool, size: int, ledger: Sequence[LedgerWrite]
    ) -> None:
        """The last chunk together with what the ledger keeps of the stream, in one write."""
        async with self._turn:
            skip = () if append else (artifact["artifactId"],)
            rewinds = await self._rewinds(skip=skip)
            self._provisional[artifact["artifactId"]] = size
        chunk = artifact_event(artifact, append=append, last_chunk=True)
        await self._session.write(events=(*rewinds, chunk), ledger=ledger)

    async def take(self) -> list[Event]:
        """What a commit carries: the rewinds that are due, then what was said since the last.

        From here on the run counts it as committed: write it, or end the run.
        """
        async with self._turn:
            self._raise_failure()
            rewinds = await self._rewinds(skip=self.said)
            said, self._said = self._said, []
            self._provisional.clear()
            return [*rewinds, *said]

    async def rewinds(self) -> list[Event]:
        """The rewinds that are due, once; nothing after a commit or a chunk of this run."""
        async with self._turn:
            return await self._rewinds(skip=())

    async def drained(self) -> None:
        """Return when nothing is under way any more, whatever became of it."""
        while self._under_way:
            await asyncio.wait(tuple(self._under_way))

    async def _rewinds(self, *, skip: Collection[str]) -> list[Event]:
        if self._rewound:
            return []
        left = await self._session.provisional_artifacts()
        due = [known for known in left if known not in self._kept]
        before = await self._session.committed_artifacts() if due else {}
        self._rewound = True
        taken_back = [known for known in due if known not in skip]
        self._taken_back.update(taken_back)
        return [_rewind(known, before.get(known)) for known in taken_back]

    def _arrived(self, task: asyncio.Task[Written]) -> None:
        del self._under_way[task]
        if task.cancelled():
            return
        failure = task.exception()
        # A Stopped has stopped the run already; what the store refuses, the next verb tells.
        if isinstance(failure, Exception):
            self._failure = self._failure or failure

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _rewind(artifact_id: str, before: ArtifactJson | None) -> Event:
    # One empty text: an artifact needs a part, and nothing can take it back altogether.
    empty: ArtifactJson = {"artifactId": artifact_id, "parts": [{"text": ""}]}
    return artifact_event(before or empty, append=False, last_chunk=False)


def _id_of(event: Event) -> str:
    return str(event.body["artifact"]["artifactId"])
