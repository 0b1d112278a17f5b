"""A simple model of the store: one Python object, no concurrency, no SQL.

Each verb is a method that does to the model what the store's docstrings say and returns what the
caller must be told, or raises it. The state machine calls it at the moment when the store's
transaction commits, so the order of commits is the model's order. Times are milliseconds since the
example began; a real test runs for a few of them, so everything due is due by half hours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.model.commit import (
    Backoff,
    Committed,
    Event,
    EventKind,
    Finish,
    Hold,
    Lost,
    Marked,
    Pause,
    Release,
    Unread,
    Verdict,
    Wait,
    Write,
    status_of,
)
from outlast.model.errors import (
    ConfigError,
    KeyReused,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
)
from outlast.model.ids import Seq
from outlast.model.ledger import Clear, Intent, Kept, Result
from outlast.model.pause import DEADLINE_PASSED, Ask, DueBy, OnDeadline
from outlast.model.task import Scope, State
from outlast.store.codec import from_text, to_text
from outlast.store.protocols import AnswerTo, NewTask, Sent, ToInbox
from tests.statemachine.laws import Sight, Violation
from tests.statemachine.stage import HOOKED, HOUR, SETTINGS, word_of

SLACK = HOUR // 4
"""How far a time in the store may be from the model's: a test takes less."""


@dataclass
class Entry:
    fence: int
    write_no: int
    result: str | None = None


@dataclass
class Crew:
    """A worker. `died` is when, in ticks; it `is_gone` when more than its lease says so."""

    beat: int = 1
    died: int | None = None
    signed_off: bool = False
    is_gone: bool = False


@dataclass
class Span:
    """A run: what `task_runs` says."""

    worker: str
    began: int
    outcome: str | None = None
    write_no: int | None = None


@dataclass
class Line:
    """A row of the log."""

    kind: str
    word: str
    fence: int
    write_no: int | None
    is_message: bool


@dataclass
class Job:
    """A row of `tasks`."""

    scope: Scope
    version: int
    priority: int
    give_up: int
    ready: int | None
    log: list[Line]
    state: State = State.SUBMITTED
    owner: str | None = None
    fence: int = 0
    write_no: int = 0
    step: str = "plan"
    visit: int = 1
    checkpoint: str | None = None
    attempt: int = 1
    crashes: int = 0
    commit_seq: int = 0
    inbox: int = 0
    read: int = 0
    pause: int | None = None
    deadline: int | None = None
    marked_at: int | None = None
    ends_as: str | None = None
    held: str | None = None
    asks: dict[int, Ask] = field(default_factory=dict)
    spans: dict[int, Span] = field(default_factory=dict)
    applied: dict[tuple[int, int], Write] = field(default_factory=dict)

    @property
    def seq(self) -> int:
        return len(self.log)

    @property
    def marked(self) -> bool:
        return self.marked_at is not None

    @property
    def is_over(self) -> bool:
        return self.state.is_terminal


class World:
    """The whole store."""

    def __init__(self) -> None:
        self.now = 0
        self.swept: int | None = None
        self.jobs: dict[str, Job] = {}
        self.ledger: dict[tuple[str, str], Entry] = {}
        self.crews: dict[str, Crew] = {}
        self.keys: dict[str, tuple[str, str]] = {}
        self.suspects = 0

    # --- callers ------------------------------------------------------------------------------

    def create(self, new: NewTask) -> Sent:
        if (first := self._first(new.send_key, new.digest)) is not None:
            return first
        self.keys[new.send_key] = (new.task_id, new.digest)
        line = Line("task", word_of({"message": new.message}), 0, None, True)
        self.jobs[new.task_id] = Job(
            scope=new.scope,
            version=new.version,
            priority=new.priority,
            give_up=self.now + new.max_age,
            ready=self.now,
            log=[line],
        )
        return Sent(task_id=new.task_id, reply=None, is_repeat=False)

    def answer(self, answer: AnswerTo) -> Sent:
        job = self._within(answer.scope, answer.task_id)
        if (first := self._first(answer.send_key, answer.digest)) is not None:
            return first
        if job.state is not State.INPUT_REQUIRED or job.pause != answer.pause_id:
            raise UnsupportedOperation
        self.keys[answer.send_key] = (answer.task_id, answer.digest)
        self._resume(job)
        self._say(job, "message", word_of({"message": answer.message}), is_message=True)
        self._keep(job, answer.task_id, answer.ledger_key, to_text(answer.result))
        return Sent(task_id=answer.task_id, reply=None, is_repeat=False)

    def receive(self, sent: ToInbox) -> Sent:
        job = self._within(sent.scope, sent.task_id)
        if (first := self._first(sent.send_key, sent.digest)) is not None:
            return first
        works = job.state in (State.SUBMITTED, State.WORKING)
        if not works or job.marked or job.ends_as is not None:
            raise UnsupportedOperation
        self.keys[sent.send_key] = (sent.task_id, sent.digest)
        self._say(job, "message", word_of({"message": sent.message}), is_message=True)
        job.inbox = job.seq
        return Sent(task_id=sent.task_id, reply=None, is_repeat=False)

    def cancel(self, scope: Scope, task_id: str) -> State:
        job = self._within(scope, task_id)
        if job.is_over and job.state is not State.CANCELED:
            raise TaskNotCancelable
        if not job.is_over and not job.marked:
            self._mark_or_end(task_id, State.CANCELED, "canceled", "canceled")
        return job.state

    def _first(self, key: str, digest: str) -> Sent | None:
        if key not in self.keys:
            return None
        task_id, known = self.keys[key]
        if known != digest:
            raise KeyReused("")
        return Sent(task_id=task_id, reply=None, is_repeat=True)  # type: ignore[arg-type]

    def _within(self, scope: Scope, task_id: str) -> Job:
        job = self.jobs.get(task_id)
        if job is None or job.scope != scope:
            raise TaskNotFound(task_id)
        return job

    # --- workers ------------------------------------------------------------------------------

    def is_alive(self, worker: str) -> bool:
        return worker in self.crews and self.crews[worker].died is None

    def ready(self, version: int) -> list[str]:
        """What a claim may take, in its order."""
        found = [
            (job.priority, task_id)
            for task_id, job in self.jobs.items()
            if job.version == version and job.owner is None
            if job.ready is not None and job.ready <= self.now + SLACK
        ]
        return [task_id for _, task_id in sorted(found)]

    def grant(self, worker: str, task_id: str, began: int) -> None:
        job = self.jobs[task_id]
        job.owner, job.ready, job.write_no = worker, None, 0
        job.fence += 1
        job.spans[job.fence] = Span(worker, began)

    def verdict_on(self, write: Write) -> Verdict | None:
        """What the write is told now, or None when it is applied."""
        job = self.jobs[write.task_id]
        if (job.fence, job.write_no) == (write.fence, write.write_no):
            if job.marked and is_stopped_by_mark(write):
                return Marked()
            return Unread() if leaves_unread(write, job) else None
        if (applied := job.applied.get((write.fence, write.write_no))) is not None:
            # By its numbers: a write that was stopped may have given way to another.
            left_trace = bool(applied.events) or applied.ending is not None
            if job.fence == write.fence or left_trace:
                return Committed(last_seq=Seq(job.seq), marked=job.marked)
        return Lost()

    def apply(self, write: Write) -> Committed:
        job = self.jobs[write.task_id]
        number = write.write_no + 1
        job.applied[write.fence, write.write_no] = write
        for event in write.events:
            self._log(job, event, write.fence, number)
        settled: dict[str, str] = {}
        for entry in write.ledger:
            self._record(write, number, entry, settled)
        if write.move is not None:
            job.checkpoint = write.move.checkpoint or job.checkpoint
            job.step, job.visit = write.move.step, write.move.visit
            if write.move.ending_as is not None:
                job.ends_as = str(write.move.ending_as["state"])
            job.attempt, job.crashes, job.commit_seq = 1, 0, job.seq
            job.read = max(job.read, write.move.read)
        job.write_no = number
        if write.ending is not None:
            self._end_lease(job, write, number)
        return Committed(last_seq=Seq(job.seq), marked=job.marked, settled=settled)

    def _log(self, job: Job, event: Event, fence: int, number: int) -> None:
        job.log.append(Line(event.kind.value, word_of(event.body), fence, number, event.is_message))
        if "ask" in event.body:
            job.asks[job.seq] = Ask.from_json(event.body["ask"])
        if (status := status_of(event)) is not None:
            job.state = State(status["state"])

    def _record(self, write: Write, number: int, entry: Any, settled: dict[str, str]) -> None:
        place = (write.ledger_id, entry.key)
        known = self.ledger.get(place)
        done = None if known is None else known.result
        match entry:
            case Intent() | Kept():
                if done is None:
                    fresh = known is None or isinstance(entry, Intent)
                    by = (write.fence, number) if fresh else (known.fence, known.write_no)  # type: ignore[union-attr]
                    result = entry.result if isinstance(entry, Kept) else None
                    self.ledger[place] = Entry(*by, result)
                elif isinstance(entry, Intent):
                    settled[entry.key] = done
            case Result(result=result):
                if known is not None and done is None:
                    known.result = result
                elif done is not None:
                    settled[entry.key] = done
            case Clear(write_no=write_no):
                if known == Entry(write.fence, write_no):
                    del self.ledger[place]

    def _end_lease(self, job: Job, write: Write, number: int) -> None:
        span = job.spans[write.fence]
        span.write_no = number
        self._drop_lease(job)
        match write.ending:
            case Pause(deadline=deadline):
                span.outcome = "paused"
                job.pause, job.deadline = job.seq, self._due(deadline)
            case Wait(until=until, timer_key=timer_key):
                span.outcome = "waiting"
                job.ready = self._due(until)
                if timer_key is not None:
                    kept = Entry(write.fence, number, "(when)")
                    self.ledger.setdefault((write.ledger_id, timer_key), kept)
            case Backoff(delay=delay):
                span.outcome = "retried"
                job.ready = self.now + delay
                job.attempt += 1
            case Hold(reason=reason):
                span.outcome = "held"
                job.held = reason
            case Release():
                span.outcome = "released"
                job.ready = self.now
            case Finish(state=state):
                span.outcome = state.value

    def is_open(self, ledger_id: str, key: str) -> bool:
        """Whether an intent waits for its result."""
        entry = self.ledger.get((ledger_id, key))
        return entry is not None and entry.result is None

    def settle(self, ledger_id: str, key: str, result: str) -> None:
        if self.is_open(ledger_id, key):
            self.ledger[ledger_id, key].result = result

    def is_leased(self, worker: str, task_id: str, fence: int) -> bool:
        job = self.jobs[task_id]
        return (job.owner, job.fence) == (worker, fence)

    def release(self, task_id: str, fence: int) -> None:
        job = self.jobs[task_id]
        job.spans[fence].outcome = "released"
        self._drop_lease(job)
        job.ready = self.now

    def leased_to(self, worker: str) -> dict[str, int]:
        return {task_id: job.fence for task_id, job in self.leased() if job.owner == worker}

    def beat(self, worker: str) -> None:
        self.crews[worker].beat += 1

    def leased(self) -> Iterator[tuple[str, Job]]:
        return ((task_id, job) for task_id, job in self.jobs.items() if job.owner is not None)

    # --- sweeps -------------------------------------------------------------------------------

    def bury(self, worker: str, died: int, *, is_gone: bool) -> None:
        self.crews[worker].died = died
        self.crews[worker].is_gone = is_gone

    def sign_off(self, worker: str, died: int) -> None:
        self.crews[worker].died = died
        self.crews[worker].signed_off = True

    def orphans(self) -> list[str]:
        """What a sweep frees, in its order."""
        lost = [task_id for task_id, job in self.leased() if not self.is_alive(job.owner or "")]
        return sorted(lost)

    def free(self, task_ids: list[str]) -> tuple[list[str], list[str]]:
        """What a sweep does to orphans: which it frees, and which have failed as killers."""
        freed: list[str] = []
        failed: list[str] = []
        self.suspects = 0
        for task_id in task_ids:
            (failed if self._free(task_id) else freed).append(task_id)
        return freed, failed

    def _free(self, task_id: str) -> bool:
        job = self.jobs[task_id]
        crew, span = self.crews[job.owner or ""], job.spans[job.fence]
        crashed = not crew.signed_off and crew.died is not None and span.began <= crew.died
        crashes = job.crashes + (1 if crashed else 0)
        span.outcome = "lost"
        if crashes >= SETTINGS.crash_limit:
            word = f"the process died {crashes} times in step {job.step}"
            if job.version == HOOKED and job.ends_as is None and job.checkpoint:
                job.ends_as, job.step, job.visit = "failed", "on_failure", job.visit + 1
                job.attempt, job.crashes, job.ready = 1, 0, self.now
                self._drop_lease(job)
            else:
                self._end(job, State.FAILED, word)
            return True
        job.ready = self.now
        if crashed and job.crashes > 0:  # they come back one after the other
            self.suspects += 1
            job.ready += (SETTINGS.crash_backoff_ms << (job.crashes - 1)) * self.suspects
        job.crashes = crashes
        self._drop_lease(job)
        return False

    def end_pause(self, task_id: str, pause: int) -> bool:
        job = self.jobs[task_id]
        if job.pause != pause or job.deadline is None or job.deadline > self.now + SLACK:
            return False
        ask = job.asks[pause]
        match ask.on_deadline:
            case OnDeadline.RESUME:
                self._resume(job)
                self._say(job, "status", "working")
                self._keep(job, task_id, ask.ledger_key, to_text(DEADLINE_PASSED))
            case OnDeadline.CANCEL:
                self._mark_or_end(task_id, State.CANCELED, "canceled", "deadline")
            case OnDeadline.FAIL:
                word = "nobody answered the question before its deadline"
                self._mark_or_end(task_id, State.FAILED, word, "deadline")
        return True

    def overdue_lives(self) -> set[str]:
        """Whose longest life has ended; of those that are marked, whose hook has had its time."""
        return {
            task_id
            for task_id, job in self.jobs.items()
            if not job.is_over and self._last_moment(job) <= self.now + SLACK
        }

    def _last_moment(self, job: Job) -> int:
        if job.marked_at is None:
            return job.give_up
        return max(job.give_up, job.marked_at) + SETTINGS.hook_grace_ms

    def end_life(self, task_id: str) -> bool:
        if task_id not in self.overdue_lives():
            return False
        job = self.jobs[task_id]
        word = "the task reached the end of its longest life"
        if job.marked:
            self._end(job, State.FAILED, word, "gave up")
        else:
            self._mark_or_end(task_id, State.FAILED, word, "deadline")
        return True

    def outage(self, longest: int, gap: int) -> int:
        """By how much a sweep that comes now would move deadlines."""
        if self.swept is None or self.now - self.swept <= gap:
            return 0
        return min(self.now - self.swept, longest)

    def excuse(self, moved: int) -> None:
        if moved and self.swept is not None:
            until = self.now + SLACK
            for job in self.jobs.values():
                if job.deadline is not None and self.swept < job.deadline <= until:
                    job.deadline += moved
                if not job.is_over and self.swept < job.give_up <= until:
                    job.give_up += moved
        self.swept = self.now

    def overdue_pauses(self) -> dict[str, int]:
        """Which pauses a sweep would end: their ids, by task."""
        return {
            task_id: job.pause
            for task_id, job in self.jobs.items()
            if job.pause is not None
            and job.deadline is not None
            and job.deadline <= self.now + SLACK
        }

    # --- operators ----------------------------------------------------------------------------

    def unhold(self, task_id: str) -> None:
        job = self.jobs[task_id]
        job.held, job.attempt, job.crashes, job.ready = None, 1, 0, self.now

    def resolve(self, task_id: str, key: str, call: tuple[int, int], result: str | None) -> bool:
        """Without force. A call is proven over when its worker's process is gone, or when the
        run was ended by itself."""
        if result is not None:
            is_its_own = self.ledger.get((task_id, key)) == Entry(*call)
            if is_its_own:
                self.settle(task_id, key, result)
            return is_its_own
        span = self.jobs[task_id].spans.get(call[0])
        if span is not None and span.write_no is None and not self.crews[span.worker].is_gone:
            raise ConfigError
        if self.ledger.get((task_id, key)) != Entry(*call):
            return False
        del self.ledger[task_id, key]
        return True

    # --- what several of them do --------------------------------------------------------------

    def _keep(self, job: Job, ledger_id: str, key: str, result: str) -> None:
        entry = self.ledger.setdefault((ledger_id, key), Entry(job.fence, 0))
        entry.result = entry.result or result

    def _say(self, job: Job, kind: str, word: str, *, is_message: bool = False) -> None:
        job.log.append(Line(kind, word, job.fence, None, is_message))

    def _resume(self, job: Job) -> None:
        job.state, job.ready, job.pause, job.deadline = State.WORKING, self.now, None, None

    def _mark_or_end(self, task_id: str, state: State, word: str, outcome: str) -> None:
        job = self.jobs[task_id]
        if job.version != HOOKED or job.checkpoint is None or job.marked:
            self._end(job, state, word, outcome)
            return
        job.marked_at, job.ends_as, job.held = self.now, job.ends_as or state.value, None
        job.pause = job.deadline = None
        if job.owner is None:
            job.ready = self.now
        if job.state is not State.WORKING:
            job.state = State.WORKING
            self._say(job, "status", "working")

    def _end(self, job: Job, state: State, word: str, outcome: str | None = None) -> None:
        if job.owner is not None and outcome is not None:
            job.spans[job.fence].outcome = outcome
        self._drop_lease(job)
        job.state, job.ready, job.held, job.pause, job.deadline = state, None, None, None, None
        self._say(job, "status", word)

    def _drop_lease(self, job: Job) -> None:
        job.owner = None
        job.fence += 1

    def _due(self, due: DueBy) -> int:
        assert due.after is not None
        return self.now + due.after

    # --- beside the store ---------------------------------------------------------------------

    def compare(self, sight: Sight, began: int) -> None:
        """Raise Violation where the store is not what the model says. `began`: its clock then."""
        _same("tasks", set(self.jobs), set(sight.tasks))
        for task_id, job in self.jobs.items():
            _same_row(task_id, _columns(job), sight.tasks[task_id], began)
            log = [_line_of(row) for row in sight.events[task_id]]
            _same(f"log of {task_id}", job.log, log)
        _same("ledger", self.ledger, {k: _entry_of(row) for k, row in sight.ledger.items()})
        spans = {
            (task_id, f): s for task_id, job in self.jobs.items() for f, s in job.spans.items()
        }
        _same(
            "runs",
            {key: (span.worker, span.outcome, span.write_no) for key, span in spans.items()},
            {
                key: (row["worker_id"], row["outcome"], row["ended_write_no"])
                for key, row in sight.runs.items()
            },
        )
        _same(
            "workers",
            {
                name: (crew.beat, crew.died is not None, crew.signed_off, crew.is_gone)
                for name, crew in self.crews.items()
            },
            {
                name: (
                    row["beat"],
                    row["dead_at"] is not None,
                    bool(row["signed_off"]),
                    bool(row["is_gone"]),
                )
                for name, row in sight.workers.items()
            },
        )
        _same(
            "send keys",
            self.keys,
            {key: (row["task_id"], row["digest"]) for key, row in sight.keys.items()},
        )


def is_stopped_by_mark(write: Write) -> bool:
    """A write that waits, holds or records an intent, unless it is the hook's own."""
    waits = isinstance(write.ending, Pause | Wait | Backoff | Hold)
    return not write.in_hook and (waits or any(isinstance(e, Intent) for e in write.ledger))


def leaves_unread(write: Write, job: Job) -> bool:
    """A write that closes an inbox with a message that nobody has read."""
    move = write.move
    return move is not None and move.closes and job.inbox > max(job.read, move.read)


_TIMES = {"ready_at": "ready", "pause_deadline_at": "deadline", "give_up_at": "give_up"}


def _columns(job: Job) -> dict[str, Any]:
    return {
        "state": job.state.value,
        "lease_owner": job.owner,
        "fence": job.fence,
        "write_no": job.write_no,
        "next_seq": job.seq + 1,
        "step": job.step,
        "visit": job.visit,
        "checkpoint": job.checkpoint,
        "attempt": job.attempt,
        "crashes": job.crashes,
        "commit_seq": job.commit_seq,
        "inbox_seq": job.inbox,
        "read_seq": job.read,
        "pause_id": job.pause,
        "held_reason": job.held,
        **{column: getattr(job, name) for column, name in _TIMES.items()},
        "cancel_requested_at": job.marked,
        "ending_as": job.ends_as,
    }


def _same_row(name: str, expected: Mapping[str, Any], row: Mapping[str, Any], began: int) -> None:
    for column, value in expected.items():
        found = row[column]
        if column in _TIMES:
            same = (value is None) == (found is None) and (
                value is None or abs(found - began - value) < SLACK
            )
        elif column == "cancel_requested_at":
            same = value == (found is not None)
        elif column == "ending_as":
            same = found is None if value is None else f'"state":"{value}"' in (found or "")
        else:
            same = value == found
        if not same:
            raise Violation(f"{name}.{column} is {found!r}, the model says {value!r}")


def _same(what: str, expected: object, found: object) -> None:
    if expected != found:
        raise Violation(f"{what}:\n  the store has {found!r}\n  the model says {expected!r}")


def _line_of(row: Mapping[str, Any]) -> Line:
    return Line(
        kind=EventKind(row["kind"]).value,
        word=word_of(from_text(row["body"])),
        fence=row["fence"],
        write_no=row["write_no"],
        is_message=bool(row["is_message"]),
    )


def _entry_of(row: Mapping[str, Any]) -> Entry:
    result = "(when)" if row["kind"] == "timer" else row["result"]
    return Entry(row["fence"], row["write_no"], result)
