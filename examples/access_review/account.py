"""What became of a review that was killed, cut off, kept waiting and let down by its network.

Read after the run, from the database and from the directory's own counters; nothing in it was
counted along the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Self

from a2a.types import a2a_pb2 as pb
from pydantic import BaseModel, ConfigDict

from outlast.model.commit import EventKind, LoggedEvent
from outlast.model.content import Message
from outlast.model.ids import Fence, Millis, TaskId, WorkerId
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

FETCHED = "fetched "
DAY = timedelta(days=1)


# --- what it is read from -----------------------------------------------------------------------


class Counters(BaseModel):
    """What the directory counted: calls when they came, revocations when they were applied."""

    model_config = ConfigDict(frozen=True)

    fetches: dict[str, int]
    revoke_calls: dict[str, int]
    revoke_calls_without_key: int
    applied_by_key: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Witness:
    """What no row knows: what was done to the review, and what its caller saw.

    systems: those under review, in order; struck: the one during whose fetch the worker was killed.
    killed_at: by the store's clock, read just before the signal. pids: of every worker.
    approved: the grants that the owners let go. seen: what all streams brought, in order; held:
    the Task that the caller put together from it; got: what GetTask said in the end.
    """

    systems: Sequence[str]
    struck: str
    killed: WorkerId
    killed_at: Millis
    pids: Mapping[WorkerId, int]
    approved: Sequence[str]
    seen: Sequence[Sighting]
    held: pb.Task
    got: pb.Task


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the store, as far as the account needs it."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        return cls(**{field.name: row[field.name] for field in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class Run(Row):
    fence: Fence
    worker_id: WorkerId
    step: str
    started_at: Millis
    ended_at: Millis | None
    outcome: str | None


@dataclass(frozen=True, kw_only=True)
class Effect(Row):
    ledger_id: str
    key: str
    done_at: Millis | None

    @property
    def name(self) -> str:
        """What the outside knows it by."""
        return f"{self.ledger_id}:{self.key.removeprefix('effect:')}"


# --- the account --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Account:
    """Rows and counters, and what they add up to. broken: the promises that they break."""

    witness: Witness
    task: Task
    runs: Sequence[Run]
    events: Sequence[LoggedEvent]
    effects: Sequence[Effect]
    counters: Counters
    broken: Sequence[Finding] = ()

    # The kill.

    @property
    def killed_run(self) -> Run | None:
        """What the worker that was killed was running when the signal was sent."""
        mine = [run for run in self.runs if run.worker_id == self.witness.killed]
        return next((run for run in mine[::-1] if run.started_at <= self.witness.killed_at), None)

    @property
    def next_run(self) -> Run | None:
        """The run that went on with what the killed one left."""
        killed = self.killed_run
        return next((run for run in self.runs if killed and run.fence > killed.fence), None)

    @property
    def take_over(self) -> timedelta | None:
        """From the kill to the claim of the next run."""
        successor = self.next_run
        if successor is None:
            return None
        return timedelta(milliseconds=successor.started_at - self.witness.killed_at)

    def fetched_under(self, run: Run | None) -> list[str]:
        """The systems whose fetch this run committed, in order."""
        return [
            text.removeprefix(FETCHED)
            for event in self.events
            if run and event.fence == run.fence and (text := _text_of(event)).startswith(FETCHED)
        ]

    # What the directory was asked.

    @property
    def fetch_calls(self) -> int:
        return sum(self.counters.fetches.values())

    @property
    def fetched_again(self) -> dict[str, int]:
        """Calls beyond the first, of the systems that had any."""
        return {name: calls - 1 for name, calls in self.counters.fetches.items() if calls > 1}

    @property
    def revoke_calls(self) -> int:
        return sum(self.counters.revoke_calls.values()) + self.counters.revoke_calls_without_key

    def revoke_key(self, grant: str) -> str:
        """The key under which the directory must be asked to revoke this grant."""
        return f"{self.task.ledger_id}:revoke:{grant}"

    # The question, and the network.

    @property
    def asked_at(self) -> datetime | None:
        return next((_time_of(event) for event in self.events if "ask" in event.body), None)

    @property
    def answered_at(self) -> datetime | None:
        answers = (event for event in self.events if event.kind is EventKind.MESSAGE)
        return next((_time_of(event) for event in answers), None)

    @property
    def failed_runs(self) -> list[Run]:
        """The runs whose step failed, each of which was followed by another attempt."""
        return [run for run in self.runs if run.outcome == "retried"]

    @property
    def retried_after(self) -> list[timedelta]:
        """For each failed run, how long the next attempt was waited for."""
        return [
            timedelta(milliseconds=following.started_at - run.ended_at)
            for run, following in pairwise(self.runs)
            if run.outcome == "retried" and run.ended_at is not None
        ]

    @property
    def revoked_before_failure(self) -> int:
        """The revocations whose results were in the ledger when a step failed first."""
        ends = [run.ended_at for run in self.failed_runs if run.ended_at is not None]
        return sum(
            effect.done_at is not None and effect.done_at <= min(ends, default=0)
            for effect in self.effects
        )

    # The caller, and the end.

    @property
    def last_words(self) -> str:
        return _text_of(self.events[-1]) if self.events else ""

    @property
    def unseen(self) -> list[Finding]:
        """What the caller missed, or saw twice."""
        return check_seen(self.witness.seen, last=self.task.generation)

    @property
    def seen_one_by_one(self) -> int:
        return sum(not sighting.is_task for sighting in self.witness.seen)

    @property
    def seen_inside_tasks(self) -> int:
        """The event that each stream opened with, and those that came while nobody listened."""
        return self.task.generation - self.seen_one_by_one

    @property
    def streams(self) -> int:
        return sum(sighting.is_task for sighting in self.witness.seen)


async def read_account(
    inspect: InspectStore, log: LogStore, work: WorkStore, counters: Counters, witness: Witness
) -> Account:
    """Read everything, and check it. Raises LookupError when the task itself is gone."""
    task = await inspect.find(TaskId(witness.held.id))
    if task is None:
        raise LookupError(f"the store has lost task {witness.held.id}")
    effects = map(Effect.of, await inspect.effects())
    account = Account(
        witness=witness,
        task=task,
        runs=[Run.of(row) for row in await inspect.runs(task.task_id)],
        events=await read_log(log, task.task_id),
        effects=[effect for effect in effects if effect.ledger_id == task.ledger_id],
        counters=counters,
    )
    broken = [
        *await check_store(inspect),
        *await check_finished(inspect, task.task_id),
        *await check_runs(inspect, log, task.task_id),
        *await check_answers(log, work, task),
        *await check_effects(inspect, counters.applied_by_key, ledgers=[task.ledger_id]),
        *account.unseen,
        *check_review(account),
    ]
    return replace(account, broken=broken)


# --- what must hold for this review, beside the laws of every task ------------------------------


def check_review(account: Account) -> list[Finding]:
    """One system at most was fetched twice, each grant was revoked once, and the rest was kept."""
    return [
        *_check_end(account),
        *_check_take_over(account),
        *_check_fetches(account),
        *_check_revocations(account),
        *_check_caller(account),
    ]


def _check_end(account: Account) -> Iterator[Finding]:
    if account.task.state is not State.COMPLETED:
        yield Finding("the_review_completes", f"it is {account.task.state}")
    asked, answered = account.asked_at, account.answered_at
    if asked is None or answered is None or answered - asked < DAY:
        yield Finding("the_answer_came_a_day_late", f"asked {asked}, answered {answered}")
    if not account.failed_runs:
        yield Finding("the_network_failed", "no run was followed by another attempt")


def _check_take_over(account: Account) -> Iterator[Finding]:
    killed, successor = account.killed_run, account.next_run
    if killed is None or killed.outcome != "lost":
        yield Finding("the_killed_run_is_lost", f"{killed}")
    if successor is None or successor.worker_id == account.witness.killed:
        yield Finding("another_worker_takes_over", f"{successor}")
    systems = list(account.witness.systems)
    kept = systems[: systems.index(account.witness.struck)]
    if account.fetched_under(killed) != kept:
        yield Finding("what_was_committed_is_kept", f"{account.fetched_under(killed)}")


def _check_fetches(account: Account) -> Iterator[Finding]:
    systems = list(account.witness.systems)
    committed = [name for run in account.runs for name in account.fetched_under(run)]
    if committed != systems:
        yield Finding("each_system_is_committed_once", f"{committed}")
    if missing := sorted(set(systems) - account.counters.fetches.keys()):
        yield Finding("each_system_is_fetched", ", ".join(missing))
    if account.fetch_calls > len(systems) + 1:
        yield Finding("a_crash_costs_one_fetch", f"fetched again: {account.fetched_again}")


def _check_revocations(account: Account) -> Iterator[Finding]:
    wanted = {account.revoke_key(grant) for grant in account.witness.approved}
    counters = account.counters
    for name, keys in (("called", counters.revoke_calls), ("applied", counters.applied_by_key)):
        for key in sorted(wanted ^ keys.keys()):
            yield Finding(f"what_was_approved_is_{name}", f"{key}: {keys.get(key, 0)} times")
    if counters.revoke_calls_without_key:
        yield Finding("each_call_has_a_key", f"{counters.revoke_calls_without_key} had none")
    for key in sorted(wanted ^ {effect.name for effect in account.effects}):
        yield Finding("what_was_approved_is_in_the_ledger", key)


def _check_caller(account: Account) -> Iterator[Finding]:
    held, got = account.witness.held, account.witness.got
    if (held.status, list(held.artifacts)) != (got.status, list(got.artifacts)):
        yield Finding("events_add_up_to_the_task", f"{held.status} is not {got.status}")
    rows = [line for text in _texts(held, "revocations.csv") for line in text.splitlines()[1:]]
    if sorted(line.partition(",")[0] for line in rows) != sorted(account.witness.approved):
        yield Finding("the_report_says_what_was_done", f"{len(rows)} rows")


def _texts(task: pb.Task, artifact: str) -> Iterator[str]:
    for found in task.artifacts:
        if found.artifact_id == artifact:
            for part in found.parts:
                yield part.raw.decode() or part.text


def _text_of(event: LoggedEvent) -> str:
    said = event.body.get("message") if event.kind is EventKind.STATUS else None
    return "" if said is None else Message.from_json(said).text


def _time_of(event: LoggedEvent) -> datetime:
    return datetime.fromtimestamp(event.created_at / 1000, UTC)
