"""Every verb of the store as something that can be sent, lost, repeated and late, and what the
model makes of it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlast.model.commit import Busy, Committed, Verdict, Write
from outlast.model.ids import Fence, LedgerId, Millis, TaskId, WorkerId, WriteNo
from outlast.model.lease import Death, Lease
from outlast.model.ledger import Intent, Result
from outlast.model.task import Scope
from outlast.store.database import Rows, Statement
from outlast.store.protocols import AnswerTo, NewTask, Sent, TakenOver, ToInbox
from tests.statemachine.play import Attempt, Verb, require
from tests.statemachine.stage import AGENT, FLOW, HOUR, Stage
from tests.statemachine.world import World

Heard = Callable[[Any], None]

LONGEST, GAP = Millis(24 * HOUR), Millis(HOUR // 2)
"""What an outage is, and how much of it is excused."""


def _ignore(result: Any) -> None: ...


# --- verbs that lock their row first ------------------------------------------------------------


class Locked(Verb):
    """What it finds is what it found when it commits, or refuses."""

    def model(self, world: World) -> Any:
        raise NotImplementedError

    def committed(self, attempt: Attempt, result: Any) -> None:
        attempt.expected = self.model(attempt.world)

    def refused(self, attempt: Attempt) -> None:
        self.model(attempt.world)


@dataclass(eq=False)
class Create(Locked):
    new: NewTask
    heard: Heard = _ignore

    def call(self, stage: Stage) -> Coroutine[Any, Any, Sent]:
        return stage.tasks.create(self.new)

    def model(self, world: World) -> Sent:
        return world.create(self.new)

    def hear(self, result: Any) -> None:
        self.heard(result)


@dataclass(eq=False)
class Answer(Locked):
    answer: AnswerTo
    heard: Heard = _ignore

    def call(self, stage: Stage) -> Coroutine[Any, Any, Sent]:
        return stage.tasks.answer(self.answer)

    def model(self, world: World) -> Sent:
        return world.answer(self.answer)

    def hear(self, result: Any) -> None:
        self.heard(result)


@dataclass(eq=False)
class Receive(Locked):
    sent: ToInbox
    heard: Heard = _ignore

    def call(self, stage: Stage) -> Coroutine[Any, Any, Sent]:
        return stage.tasks.receive(self.sent)

    def model(self, world: World) -> Sent:
        return world.receive(self.sent)

    def hear(self, result: Any) -> None:
        self.heard(result)


@dataclass(eq=False)
class Cancel(Locked):
    scope: Scope
    task_id: TaskId

    def call(self, stage: Stage) -> Coroutine[Any, Any, Any]:
        return stage.tasks.cancel(self.scope, self.task_id)

    def model(self, world: World) -> Any:
        return world.cancel(self.scope, self.task_id)

    def check(self, attempt: Attempt, result: Any) -> None:
        super().check(attempt, result.state)


@dataclass(eq=False)
class Resolve(Locked):
    task_id: TaskId
    key: str
    fence: Fence
    write_no: WriteNo
    result: str | None

    def call(self, stage: Stage) -> Coroutine[Any, Any, bool]:
        return stage.admin.resolve(
            self.task_id, self.key, fence=self.fence, write_no=self.write_no, result=self.result
        )

    def model(self, world: World) -> bool:
        return world.resolve(self.task_id, self.key, (self.fence, self.write_no), self.result)


# --- verbs that are one guarded update ----------------------------------------------------------


class Guarded(Verb):
    """Whether it does anything is decided when its first statement has run: then it has the row,
    or it changes nothing. `said`: what it returns when it did and when it did not."""

    said: tuple[Any, Any] = (True, False)

    def guard(self, world: World) -> bool:
        raise NotImplementedError

    def apply(self, world: World, attempt: Attempt) -> None:
        raise NotImplementedError

    def executed(self, attempt: Attempt, statement: Statement, rows: Rows) -> None:
        if "did" not in attempt.notes:
            attempt.notes |= {"did": bool(rows), "tick": attempt.play.tick}
            expected = self.guard(attempt.world)
            require(bool(rows) == expected, f"{self} found {rows}", expected)

    def committed(self, attempt: Attempt, result: Any) -> None:
        did = attempt.notes["did"]
        if did:
            self.apply(attempt.world, attempt)
        attempt.expected = self.said[0 if did else 1]


@dataclass(eq=False)
class Settle(Guarded):
    ledger_id: LedgerId
    key: str
    result: str

    def call(self, stage: Stage) -> Coroutine[Any, Any, bool]:
        return stage.work.settle(self.ledger_id, self.key, self.result)

    def guard(self, world: World) -> bool:
        return world.is_open(self.ledger_id, self.key)

    def apply(self, world: World, attempt: Attempt) -> None:
        world.settle(self.ledger_id, self.key, self.result)


@dataclass(eq=False)
class Release(Guarded):
    worker_id: WorkerId
    task_id: TaskId
    fence: Fence

    def call(self, stage: Stage) -> Coroutine[Any, Any, bool]:
        return stage.beats.release(self.worker_id, self.task_id, self.fence)

    def guard(self, world: World) -> bool:
        return world.is_leased(self.worker_id, self.task_id, self.fence)

    def apply(self, world: World, attempt: Attempt) -> None:
        world.release(self.task_id, self.fence)


@dataclass(eq=False)
class Unhold(Guarded):
    task_id: TaskId

    def call(self, stage: Stage) -> Coroutine[Any, Any, bool]:
        return stage.admin.unhold(self.task_id)

    def guard(self, world: World) -> bool:
        return world.jobs[self.task_id].held is not None

    def apply(self, world: World, attempt: Attempt) -> None:
        world.unhold(self.task_id)


@dataclass(eq=False)
class SignOff(Guarded):
    worker_id: WorkerId
    said = (None, None)

    def call(self, stage: Stage) -> Coroutine[Any, Any, None]:
        return stage.work.sign_off(self.worker_id)

    def guard(self, world: World) -> bool:
        return world.is_alive(self.worker_id)

    def apply(self, world: World, attempt: Attempt) -> None:
        world.sign_off(self.worker_id, attempt.notes["tick"])


@dataclass(eq=False)
class Beat(Guarded):
    worker_id: WorkerId

    def call(self, stage: Stage) -> Coroutine[Any, Any, Any]:
        return stage.beats.beat(self.worker_id, presence=None)

    def guard(self, world: World) -> bool:
        return world.is_alive(self.worker_id)

    def executed(self, attempt: Attempt, statement: Statement, rows: Rows) -> None:
        super().executed(attempt, statement, rows)
        if statement.query.name == "tasks_leased_to":
            attempt.notes["leased"] = attempt.world.leased_to(self.worker_id)

    def apply(self, world: World, attempt: Attempt) -> None:
        world.beat(self.worker_id)

    def check(self, attempt: Attempt, result: Any) -> None:
        found = None if result is None else {task: one.fence for task, one in result.items()}
        expected = attempt.notes.get("leased")
        require(found == expected, f"{self} was told {found}", expected)


# --- claims and commits -------------------------------------------------------------------------


@dataclass(eq=False)
class Claim(Verb):
    worker_id: WorkerId
    version: int
    limit: int
    heard: Heard = _ignore

    def call(self, stage: Stage) -> Coroutine[Any, Any, Sequence[Lease]]:
        return stage.work.claim(self.worker_id, AGENT, FLOW, self.version, limit=self.limit)

    def executed(self, attempt: Attempt, statement: Statement, rows: Rows) -> None:
        if statement.query.name != "tasks_claim":
            return
        granted = [row["task_id"] for row in rows]
        attempt.notes |= {"granted": granted, "tick": attempt.play.tick}
        world, others = attempt.world, attempt.held_by_others()
        if not world.is_alive(self.worker_id):
            require(not granted, f"a dead worker was granted {granted}", [])
            return
        due = [t for t in world.ready(self.version) if t in granted or t not in others]
        expected = due[: self.limit]
        require(sorted(granted) == sorted(expected), f"{self} was granted {granted}", expected)

    def committed(self, attempt: Attempt, result: Any) -> None:
        for task_id in attempt.notes["granted"]:
            attempt.world.grant(self.worker_id, task_id, attempt.notes["tick"])
        attempt.expected = {
            task_id: _lease(attempt.world, task_id) for task_id in attempt.notes["granted"]
        }

    def check(self, attempt: Attempt, result: Sequence[Lease]) -> None:
        found = {
            lease.task_id: (
                lease.fence,
                lease.state,
                lease.step,
                lease.visit,
                lease.checkpoint,
                lease.attempt,
                lease.crashes,
                lease.last_seq,
                lease.commit_seq,
                lease.read_seq,
                lease.cancel_requested,
            )
            for lease in result
        }
        require(found == attempt.expected, f"{self} got {found}", attempt.expected)

    def hear(self, result: Any) -> None:
        self.heard(result)


def _lease(world: World, task_id: str) -> Any:
    job = world.jobs[task_id]
    return (
        job.fence,
        job.state,
        job.step,
        job.visit,
        job.checkpoint,
        job.attempt,
        job.crashes,
        job.seq,
        job.commit_seq,
        job.read,
        job.marked,
    )


@dataclass(eq=False)
class CommitOf(Verb):
    """One batch. `heard` gets the verdicts in its order."""

    writes: Sequence[Write]
    patient: bool = False
    heard: Heard = _ignore
    by_task: dict[str, Write] = field(init=False)

    def __post_init__(self) -> None:
        self.by_task = {write.task_id: write for write in self.writes}

    def call(self, stage: Stage) -> Coroutine[Any, Any, Sequence[Verdict]]:
        return stage.work.commit(self.writes, patient=self.patient)

    def executed(self, attempt: Attempt, statement: Statement, rows: Rows) -> None:
        match statement.query.name:
            case "tasks_lock" | "tasks_lock_patiently":
                locked = {row["task_id"] for row in rows}
                held = set() if self.patient else attempt.held_by_others()
                free = self.by_task.keys() - locked - held
                require(not free, f"{self} did not lock {free}", held)
                attempt.notes = {"locked": locked, "verdicts": {}}
            case "tasks_commit" | "tasks_outcome":
                self._judge(attempt, statement.params["task_id"])

    def _judge(self, attempt: Attempt, task_id: str) -> None:
        """What the write should be told, as the store is when it looks. None: it is applied."""
        verdict = attempt.world.verdict_on(self.by_task[task_id])
        if verdict is None and task_id not in attempt.notes["locked"]:
            verdict = Busy()
        attempt.notes["verdicts"].setdefault(task_id, verdict)

    def committed(self, attempt: Attempt, result: Any) -> None:
        verdicts = attempt.notes["verdicts"]
        attempt.expected = [
            verdicts[write.task_id] or attempt.world.apply(write) for write in self.writes
        ]

    def check(self, attempt: Attempt, result: Sequence[Verdict]) -> None:
        require(attempt.expected is not None, f"{self} has not committed and was told", result)
        for write, told, expected in zip(self.writes, result, attempt.expected, strict=True):
            require(type(told) is type(expected), f"{write} was told {told}", expected)
            if isinstance(told, Committed):
                same = (told.last_seq, told.marked) == (expected.last_seq, expected.marked)
                require(same, f"{write} was told {told}", expected)
                self._check_settled(attempt, write, told, expected)

    def _check_settled(
        self, attempt: Attempt, write: Write, told: Committed, expected: Committed
    ) -> None:
        """What stood in the ledger before must be told; of a repeat, its own result may be too."""
        asked = {entry.key for entry in write.ledger if isinstance(entry, Intent | Result)}
        ledger = attempt.world.ledger
        for key in asked & (told.settled.keys() | expected.settled.keys()):
            entry = ledger.get((write.ledger_id, key))
            result = None if entry is None else entry.result
            require(told.settled.get(key) == result, f"{write} was told {told}", result)

    def hear(self, result: Any) -> None:
        self.heard(result)


# --- sweeps -------------------------------------------------------------------------------------


class _Frees(Verb):
    """What the two sweeps of dead workers share."""

    def executed(self, attempt: Attempt, statement: Statement, rows: Rows) -> None:
        notes = attempt.notes
        if statement.query.name == "tasks_orphaned":
            found = [row["task_id"] for row in rows]
            expected = self.lost(attempt)
            require(found == expected[: statement.params["n"]], f"{self} found {found}", expected)
            notes |= {"fences": {row["task_id"]: row["fence"] for row in rows}, "freed": []}
        elif statement.query.name == "tasks_take_free":
            task_id = statement.params["task_id"]
            held = attempt.held_by_others()
            require(bool(rows) or task_id in held, f"{self} left {task_id}", held)
            if rows and rows[0]["fence"] == notes["fences"][task_id]:
                notes["freed"].append(task_id)

    def lost(self, attempt: Attempt) -> list[str]:
        return attempt.world.orphans()

    def check(self, attempt: Attempt, result: TakenOver | None) -> None:
        told = None if result is None else (list(result.freed), list(result.failed))
        require(told == attempt.expected, f"{self} was told {told}", attempt.expected)


@dataclass(eq=False)
class TakeOver(_Frees):
    death: Death

    def call(self, stage: Stage) -> Coroutine[Any, Any, TakenOver | None]:
        return stage.sweeping.take_over(self.death)

    def executed(self, attempt: Attempt, statement: Statement, rows: Rows) -> None:
        if statement.query.name == "workers_bury":
            crew = attempt.world.crews[self.death.worker_id]
            expected = crew.died is None and crew.beat == self.death.beat
            require(bool(rows) == expected, f"{self} found {rows}", expected)
            attempt.notes |= {"buried": bool(rows), "tick": attempt.play.tick}
        super().executed(attempt, statement, rows)

    def lost(self, attempt: Attempt) -> list[str]:
        world = attempt.world
        return sorted([*world.orphans(), *world.leased_to(self.death.worker_id)])

    def committed(self, attempt: Attempt, result: Any) -> None:
        if attempt.notes["buried"]:
            died = attempt.notes["tick"]
            attempt.world.bury(self.death.worker_id, died, is_gone=self.death.early)
            attempt.expected = attempt.world.free(attempt.notes["freed"])


@dataclass(eq=False)
class FreeOrphans(_Frees):
    def call(self, stage: Stage) -> Coroutine[Any, Any, TakenOver]:
        return stage.sweeping.free_orphans()

    def committed(self, attempt: Attempt, result: Any) -> None:
        attempt.expected = attempt.world.free(attempt.notes["freed"])

    def check(self, attempt: Attempt, result: TakenOver | None) -> None:
        if attempt.expected is None:  # its first look found nothing to do
            attempt.expected = ([], [])
        super().check(attempt, result)


class _Ends(Verb):
    """What the sweeps of deadlines share: a look, then a transaction for each that was due."""

    look: str

    def due(self, world: World) -> set[str]:
        raise NotImplementedError

    def end(self, attempt: Attempt, task_id: str) -> bool:
        raise NotImplementedError

    def executed(self, attempt: Attempt, statement: Statement, rows: Rows) -> None:
        if statement.query.name == self.look:
            found = {row["task_id"] for row in rows}
            expected = self.due(attempt.world)
            require(found == expected, f"{self} found {found}", expected)
            attempt.notes["rows"] = {row["task_id"]: row for row in rows}
            attempt.expected = []
        elif statement.query.name == "tasks_take_free":
            task_id = statement.params["task_id"]
            held = attempt.held_by_others()
            require(bool(rows) or task_id in held, f"{self} left {task_id}", held)
            attempt.notes |= {"task_id": task_id, "has": bool(rows)}

    def committed(self, attempt: Attempt, result: Any) -> None:
        task_id = attempt.notes["task_id"]
        ended = attempt.notes["has"] and self.end(attempt, task_id)
        require(bool(result) == ended, f"{self} of {task_id} said {result}", ended)
        if ended:
            attempt.expected.append(task_id)


@dataclass(eq=False)
class EndPauses(_Ends):
    look = "tasks_overdue_pauses"

    def call(self, stage: Stage) -> Coroutine[Any, Any, Sequence[TaskId]]:
        return stage.sweeping.end_overdue_pauses()

    def due(self, world: World) -> set[str]:
        return set(world.overdue_pauses())

    def end(self, attempt: Attempt, task_id: str) -> bool:
        return attempt.world.end_pause(task_id, attempt.notes["rows"][task_id]["pause_id"])


@dataclass(eq=False)
class EndLives(_Ends):
    look = "tasks_overdue_lives"

    def call(self, stage: Stage) -> Coroutine[Any, Any, Sequence[TaskId]]:
        return stage.sweeping.end_overdue_lives()

    def due(self, world: World) -> set[str]:
        return world.overdue_lives()

    def end(self, attempt: Attempt, task_id: str) -> bool:
        return attempt.world.end_life(task_id)


@dataclass(eq=False)
class Excuse(Verb):
    """The clock stands still while it writes, so what it decides at first holds at its commit."""

    def call(self, stage: Stage) -> Coroutine[Any, Any, Millis]:
        return stage.sweeping.excuse_outage(longest=LONGEST, gap=GAP)

    def executed(self, attempt: Attempt, statement: Statement, rows: Rows) -> None:
        if statement.query.name == "store_sweep_due":
            attempt.notes["moved"] = attempt.world.outage(LONGEST, GAP)

    def committed(self, attempt: Attempt, result: Any) -> None:
        attempt.world.excuse(attempt.notes["moved"])
        attempt.expected = attempt.notes["moved"]

    def check(self, attempt: Attempt, result: Millis) -> None:
        near = abs(result - attempt.expected) < HOUR // 4
        require(near, f"{self} said {result}", attempt.expected)
