"""What became of a review that was killed, cut off, kept waiting and let down by its network.

Read after the run, from the database and from the directory's own counters; nothing in it was
counted along the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from a2a.types import a2a_pb2 as pb
from pydantic import BaseModel, ConfigDict

from outlast.model.commit import EventKind, LoggedEvent
from outlast.model.content import Message
from outlast.model.ids import Fence, Millis, WorkerId
from outlast.model.task import State, Task
from outlast.store.protocols import InspectStore, LogStore, WorkStore
from outlast.testing.checker import (
    Finding,
    Sighting,
    check_answers,
    check_effects,
    check_finished,
    check_runs,
    check_seen,
    check_store,
    read_log,
)

DAY = timedelta(days=1)
REVOKING = "apply_revocations"
FETCHED, REVOKE = "fetched ", "revoke:"


class Counters(BaseModel):
    """What the directory counted: calls on arrival, revocations when they were applied."""

    model_config = ConfigDict(frozen=True)

    fetches: dict[str, int]
    revoke_calls: dict[str, int]
    revoke_calls_without_key: int
    applied_by_key: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Witness:
    """What no row knows: what was done to the review, and what its caller saw.

    systems: those under review, in order. struck: how many of them were to be fetched when the
    worker was killed. killed_at: by the store's clock, read just before the signal. pids: of every
    worker. seen: what all streams brought, in order; held: the Task that the caller put together
    from it; got: what GetTask says in the end.
    """

    systems: Sequence[str]
    struck: int
    killed: WorkerId
    killed_at: Millis
    pids: Mapping[WorkerId, int]
    approved: Sequence[str]
    seen: Sequence[Sighting]
    held: pb.Task
    got: pb.Task


@dataclass(frozen=True, kw_only=True)
class Run:
    """A row of `task_runs`."""

    fence: Fence
    worker_id: WorkerId
    step: str
    attempt: int
    started_at: Millis
    outcome: str | None

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Run:
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True)
class Account:
    """The rows and counters, and what they add up to. `broken`: the laws that they break."""

    witness: Witness
    task: Task
    runs: Sequence[Run]
    events: Sequence[LoggedEvent]
    effects: Sequence[str]
    counters: Counters
    broken: Sequence[Finding] = ()

    # --- the kill -----------------------------------------------------------------------------

    @property
    def killed_run(self) -> Run | None:
        mine = [run for run in self.runs if run.worker_id == self.witness.killed]
        return mine[-1] if mine else None

    @property
    def next_run(self) -> Run | None:
        killed = self.killed_run
        return next((run for run in self.runs if killed and run.fence > killed.fence), None)

    @property
    def take_over(self) -> timedelta | None:
        """From the kill to the claim of the next run."""
        found = self.next_run
        return found and timedelta(milliseconds=found.started_at - self.witness.killed_at)

    def fetched(self, fence: Fence | None = None) -> list[str]:
        """The systems that were committed as fetched, in order; under one lease if it is given."""
        return [
            text.removeprefix(FETCHED)
            for event in self.events
            if fence in (None, event.fence) and (text := _text_of(event)).startswith(FETCHED)
        ]

    # --- the directory ------------------------------------------------------------------------

    @property
    def fetch_calls(self) -> int:
        return sum(self.counters.fetches.values())

    @property
    def fetched_again(self) -> dict[str, int]:
        """Calls beyond the first, of the systems that had any."""
        return {name: n - 1 for name, n in self.counters.fetches.items() if n > 1}

    @property
    def revoke_calls(self) -> int:
        return sum(self.counters.revoke_calls.values()) + self.counters.revoke_calls_without_key

    @property
    def revoking_runs(self) -> list[Run]:
        return [run for run in self.runs if run.step == REVOKING]

    def revoke_key(self, grant: str) -> str:
        """The key under which the directory was to be asked for this grant."""
        return f"{self.task.ledger_id}:{REVOKE}{grant}"

    # --- the caller ---------------------------------------------------------------------------

    @property
    def asked_at(self) -> datetime | None:
        return next((_time_of(event) for event in self.events if "ask" in event.body), None)

    @property
    def answered_at(self) -> datetime | None:
        answers = (event for event in self.events if event.kind is EventKind.MESSAGE)
        return next((_time_of(event) for event in answers), None)

    @property
    def seen_as_events(self) -> int:
        return sum(not sighting.is_task for sighting in self.witness.seen)

    @property
    def seen_inside_tasks(self) -> int:
        """Events that came while the caller was away: inside the Task that it came back to."""
        return self.task.generation - self.seen_as_events


async def read_account(
    inspect: InspectStore,
    log: LogStore,
    work: WorkStore,
    counters: Counters,
    witness: Witness,
) -> Account:
    """Read everything, and check it. Raises LookupError when the task itself is gone."""
    task = await inspect.find(_id_of(witness.held))
    if task is None:
        raise LookupError(f"the store has no task {witness.held.id}")
    account = Account(
        witness=witness,
        task=task,
        runs=[Run.read(row) for row in await inspect.runs(task.task_id)],
        events=await read_log(log, task.task_id),
        effects=[
            f"{row['ledger_id']}:{row['key'].removeprefix('effect:')}"
            for row in await inspect.effects()
            if row["ledger_id"] == task.ledger_id
        ],
        counters=counters,
    )
    laws = [
        *await check_store(inspect),
        *await check_finished(inspect, task.task_id),
        *await check_runs(inspect, log, task.task_id),
        *await check_answers(log, work, task),
        *await check_effects(inspect, counters.applied_by_key, ledgers=[task.ledger_id]),
        *check_seen(witness.seen, last=task.generation),
    ]
    return replace(account, broken=[*laws, *check_review(account)])
