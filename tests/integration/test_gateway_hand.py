"""A worker's hand: it writes to tasks what a worker would, when a test says so."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from outlast import Agent, Message, Text
from outlast.model.artifacts import artifact_event
from outlast.model.commit import (
    Committed,
    Ending,
    Event,
    Finish,
    Move,
    Pause,
    Write,
    status_event,
)
from outlast.model.content import Artifact
from outlast.model.ids import Millis, Seq, TaskId, WorkerId, WriteNo
from outlast.model.lease import Lease
from outlast.model.ledger import Intent, LedgerKind
from outlast.model.pause import Ask, DueBy, OnDeadline
from outlast.model.task import State
from outlast.model.topics import task_topic
from outlast.store.database import Database
from outlast.store.protocols import NewWorker, VersionOf
from outlast.store.work import Work


@dataclass
class Hand:
    """A worker that does nothing by itself."""

    work: Work
    database: Database
    agent: Agent
    worker_id: WorkerId = field(default_factory=lambda: WorkerId(str(uuid.uuid4())))
    leases: dict[TaskId, tuple[Lease, WriteNo]] = field(default_factory=dict)

    async def register(self) -> None:
        versions = [
            VersionOf(
                workflow=workflow.name,
                version=workflow.version,
                steps=[step.name for step in workflow.steps],
                fingerprint=workflow.fingerprint,
            )
            for workflow in self.agent.workflows
        ]
        await self.work.register(
            NewWorker(
                worker_id=self.worker_id,
                agent=self.agent.name,
                host="here",
                beat_ms=1000,
                lease_ms=15000,
                versions=versions,
                presence=None,
            )
        )

    async def lease(self, task_id: TaskId) -> tuple[Lease, WriteNo]:
        if task_id not in self.leases:
            for workflow in self.agent.workflows:
                for lease in await self.work.claim(
                    self.worker_id, self.agent.name, workflow.name, workflow.version, limit=100
                ):
                    self.leases[lease.task_id] = (lease, WriteNo(0))
        return self.leases[task_id]

    async def write(
        self,
        task_id: TaskId,
        *events: Event,
        ending: Ending | None = None,
        ledger: Sequence[Intent] = (),
        move: Move | None = None,
    ) -> Seq:
        """Commit, and ring, as a worker does. Returns the seq of the last event."""
        lease, write_no = await self.lease(task_id)
        write = Write(
            task_id=task_id,
            ledger_id=lease.ledger_id,
            fence=lease.fence,
            write_no=write_no,
            events=events,
            ledger=tuple(ledger),
            move=move,
            ending=ending,
        )
        (verdict,) = await self.work.commit([write], patient=True)
        assert isinstance(verdict, Committed), verdict
        if ending is None:
            self.leases[task_id] = (lease, WriteNo(write_no + 1))
        else:
            del self.leases[task_id]
        self.database.wakeups.send([task_topic(task_id)])
        return verdict.last_seq

    async def report(self, task_id: TaskId, text: str) -> Seq:
        said = Message.agent(text).to_json()
        return await self.write(task_id, status_event(State.WORKING, said))

    async def chunk(
        self, task_id: TaskId, *texts: str, append: bool = True, name: str = "out"
    ) -> Seq:
        events = [
            artifact_event(
                Artifact(id=name, parts=(Text(text),)).to_json(),
                append=append or index > 0,
                last_chunk=False,
            )
            for index, text in enumerate(texts)
        ]
        return await self.write(task_id, *events)

    async def ask(
        self,
        task_id: TaskId,
        text: str,
        schema: dict[str, Any] | None = None,
        *,
        state: State = State.INPUT_REQUIRED,
        in_band: bool = False,
        on_deadline: OnDeadline = OnDeadline.FAIL,
    ) -> Seq:
        key = f"ask-{uuid.uuid4()}"
        due = DueBy(after=Millis(3_600_000))
        ask = Ask(
            ledger_key=key, schema=schema, in_band=in_band, on_deadline=on_deadline, due=due
        ).to_json()
        return await self.write(
            task_id,
            status_event(state, Message.agent(text).to_json(), ask=ask),
            ending=Pause(state=state, deadline=due),
            ledger=[Intent(key=key, kind=LedgerKind.ANSWER)],
        )

    async def finish(
        self, task_id: TaskId, state: State = State.COMPLETED, text: str = "done"
    ) -> Seq:
        event = status_event(state, Message.agent(text).to_json())
        return await self.write(task_id, event, ending=Finish(state=state))

    async def finish_reading(self, task_id: TaskId, read: Seq) -> Seq:
        """The end of a task with an inbox, which has been read up to there."""
        lease, _ = await self.lease(task_id)
        move = Move(checkpoint="{}", step=lease.step, visit=lease.visit, read=read, closes=True)
        return await self.write(
            task_id,
            status_event(State.COMPLETED),
            ending=Finish(state=State.COMPLETED),
            move=move,
        )
