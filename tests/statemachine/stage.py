"""The store on a scripted database, and the words that its tests are written in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from outlast.model.artifacts import artifact_event
from outlast.model.commit import (
    Committed,
    Ending,
    Event,
    Finish,
    LoggedEvent,
    Move,
    Pause,
    Verdict,
    Write,
    status_event,
)
from outlast.model.content import Artifact, Message, Text
from outlast.model.ids import (
    ContextId,
    LedgerId,
    Millis,
    Seq,
    StepName,
    TaskId,
    Visit,
    WorkerId,
    WriteNo,
)
from outlast.model.lease import Death, Lease
from outlast.model.ledger import Intent, LedgerEntry, LedgerKind, LedgerWrite
from outlast.model.pause import Ask, DueBy, OnDeadline
from outlast.model.task import Scope, State, Task
from outlast.store.admin import Admin
from outlast.store.beats import Beats
from outlast.store.inspect import Inspect
from outlast.store.log import Log
from outlast.store.protocols import (
    AnswerTo,
    NewTask,
    NewWorker,
    Settings,
    ToInbox,
    VersionOf,
)
from outlast.store.sweeping import Sweeping
from outlast.store.tasks import Tasks
from outlast.store.work import Work
from outlast.testing.scripted import ScriptedDatabase

HOUR = 3_600_000
AGENT, FLOW = "reviews", "review"
PLAIN, HOOKED = 1, 2
"""Versions of the workflow: without hooks, and with a cancel and a failure step."""

SCOPE = Scope(agent=AGENT, tenant="acme", owner="ann")
SETTINGS = Settings(
    retention_ms=1000 * HOUR, crash_limit=3, crash_backoff_ms=HOUR, hook_grace_ms=2 * HOUR
)
LONG = DueBy(after=Millis(8 * HOUR))
CALLER = {"subject": "ann", "tenant": "acme", "scopes": [], "claims": {}}

_EMPTIED = (
    "tasks",
    "task_events",
    "task_runs",
    "task_ledger",
    "task_folds",
    "webhooks",
    "send_keys",
    "workers",
    "versions",
    "tombstones",
)


@contextmanager
def opened(url: str) -> Iterator[Stage]:
    """A stage on the empty database at `url`."""
    with ScriptedDatabase.at(url) as database:
        stage = Stage(database)
        stage.run(stage.admin.migrate())
        yield stage


class Stage:
    """Every protocol of the store on one scripted database. What a test does here by `run` is
    done at once; what it wants to interleave it starts as a call."""

    def __init__(self, database: ScriptedDatabase) -> None:
        self.database = database
        self.tasks = Tasks(database, SETTINGS)
        self.log = Log(database)
        self.work = Work(database, SETTINGS)
        self.beats = Beats(database)
        self.sweeping = Sweeping(database, SETTINGS)
        self.admin = Admin(database)
        self.inspect = Inspect(database)
        self.run = database.run
        self.start = database.start

    def reset(self) -> None:
        """An empty store, as after its migration."""
        self.database.abandon_all()
        for table in _EMPTIED:
            self.database.sql(f"delete from {table}")
        self.database.sql("update store set clock_offset = 0, swept_at = null")

    # --- workers ------------------------------------------------------------------------------

    def hire(self, name: str = "w1") -> WorkerId:
        worker_id = WorkerId(name)
        self.run(self.work.register(new_worker(worker_id)))
        return worker_id

    def claim(self, worker_id: WorkerId, version: int = PLAIN) -> Lease:
        """The one task that is ready."""
        (lease,) = self.run(self.work.claim(worker_id, AGENT, FLOW, version, limit=10))
        return lease

    def begin(self, worker_id: WorkerId, name: str = "t1", version: int = PLAIN) -> Lease:
        """A new task, claimed. With hooks its first commit, write 0, is made, so that they run."""
        self.create(name, version)
        lease = self.claim(worker_id, version)
        if version == HOOKED:
            self.commit(write(lease, move=move("{}")))
        return lease

    def commit(self, write: Write) -> Verdict:
        (verdict,) = self.run(self.work.commit([write]))
        return verdict

    def bury(self, worker_id: WorkerId, *, is_gone: bool = False) -> None:
        """A watcher declares the worker dead, rightly or not, and takes its tasks. Unless it knows
        that the process is gone, the worker may only be frozen."""
        assert self.run(self.sweeping.take_over(self.death_of(worker_id, is_gone=is_gone)))

    def death_of(self, worker_id: WorkerId, *, is_gone: bool = False) -> Death:
        rows = self.database.sql("select beat from workers where worker_id = :w", w=worker_id)
        return Death(worker_id=worker_id, beat=rows[0]["beat"], early=is_gone)

    # --- callers ------------------------------------------------------------------------------

    def create(self, name: str = "t1", version: int = PLAIN) -> TaskId:
        self.run(self.tasks.create(new_task(name, version=version)))
        return TaskId(name)

    def cancel(self, task_id: TaskId) -> Task:
        return self.run(self.tasks.cancel(SCOPE, task_id))

    # --- looking ------------------------------------------------------------------------------

    def task(self, task_id: TaskId) -> Task:
        return self.run(self.tasks.get(SCOPE, task_id))

    def events(self, task_id: TaskId) -> list[LoggedEvent]:
        return list(self.run(self.log.events_since(task_id, Seq(0))))

    def words(self, task_id: TaskId) -> list[str]:
        """What the log says, one word for each event."""
        return [word_of(event.body) for event in self.events(task_id)]

    def entry(self, task_id: TaskId, key: str) -> LedgerEntry | None:
        return self.run(self.work.entry(LedgerId(task_id), key))

    def result_of(self, task_id: TaskId, key: str) -> str | None:
        entry = self.entry(task_id, key)
        return None if entry is None else entry.result

    def pass_time(self, hours: float) -> None:
        self.run(self.admin.move_clock(Millis(int(hours * HOUR))))

    def check_laws(self) -> None:
        broken = self.run(self.inspect.broken_laws())
        assert not broken, broken


# --- what is written ----------------------------------------------------------------------------


def new_worker(worker_id: WorkerId) -> NewWorker:
    return NewWorker(
        worker_id=worker_id,
        agent=AGENT,
        host="here",
        beat_ms=1000,
        lease_ms=15_000,
        versions=[
            VersionOf(workflow=FLOW, version=PLAIN, steps=["plan"], fingerprint="plain"),
            VersionOf(
                workflow=FLOW,
                version=HOOKED,
                steps=["plan"],
                fingerprint="hooked",
                on_cancel=True,
                on_failure=True,
            ),
        ],
        presence=None,
    )


def new_task(
    name: str,
    *,
    version: int = PLAIN,
    key: str | None = None,
    digest: str = "d",
    max_age: int = 1000 * HOUR,
    priority: int = 0,
    scope: Scope = SCOPE,
) -> NewTask:
    return NewTask(
        task_id=TaskId(name),
        scope=scope,
        context_id=ContextId(f"context of {name}"),
        workflow=FLOW,
        version=version,
        first_step=StepName("plan"),
        max_age=Millis(max_age),
        message=Message.user(f"begin {name}").to_json(),
        caller=CALLER,
        metadata={},
        send_key=key or f"create {name}",
        digest=digest,
        priority=priority,
    )


def write(
    lease: Lease,
    write_no: int = 0,
    *,
    events: Sequence[Event] = (),
    ledger: Sequence[LedgerWrite] = (),
    move: Move | None = None,
    ending: Ending | None = None,
    in_hook: bool = False,
) -> Write:
    return Write(
        task_id=lease.task_id,
        ledger_id=lease.ledger_id,
        fence=lease.fence,
        write_no=WriteNo(write_no),
        events=tuple(events),
        ledger=tuple(ledger),
        move=move,
        ending=ending,
        in_hook=in_hook,
    )


def move(
    checkpoint: str, *, step: str = "plan", visit: int = 1, read: int = 0, closes: bool = False
) -> Move:
    return Move(
        checkpoint=checkpoint,
        step=StepName(step),
        visit=Visit(visit),
        read=Seq(read),
        closes=closes,
    )


def said(word: str, state: State = State.WORKING, **more: Any) -> Event:
    return status_event(state, Message.agent(word).to_json(), **more)


def chunk(word: str, *, append: bool = True) -> Event:
    artifact = Artifact(id="report", parts=(Text(word),)).to_json()
    return artifact_event(artifact, append=append, last_chunk=False)


def question(
    lease: Lease,
    write_no: int,
    *,
    key: str = "1:ask",
    on_deadline: OnDeadline = OnDeadline.FAIL,
    deadline: DueBy = LONG,
    word: str = "may I?",
    in_hook: bool = False,
) -> Write:
    """A pause, as a step's `ask` writes it: the question, its open ledger entry, the deadline."""
    ask = Ask(ledger_key=key, on_deadline=on_deadline)
    return write(
        lease,
        write_no,
        events=[said(word, State.INPUT_REQUIRED, ask=ask.to_json())],
        ledger=[Intent(key=key, kind=LedgerKind.ANSWER)],
        ending=Pause(state=State.INPUT_REQUIRED, deadline=deadline),
        in_hook=in_hook,
    )


def finish(
    lease: Lease, write_no: int, state: State = State.COMPLETED, *, move: Move | None = None
) -> Write:
    return write(
        lease, write_no, events=[said("done", state)], ending=Finish(state=state), move=move
    )


def answer_to(
    task_id: TaskId,
    pause_id: int,
    word: str = "yes",
    *,
    key: str = "1:ask",
    send_key: str | None = None,
    digest: str = "d",
    scope: Scope = SCOPE,
) -> AnswerTo:
    return AnswerTo(
        task_id=task_id,
        scope=scope,
        pause_id=Seq(pause_id),
        ledger_key=key,
        result={"text": word},
        message=Message.user(word).to_json(),
        caller=CALLER,
        send_key=send_key or f"answer {word}",
        digest=digest,
    )


def to_inbox(task_id: TaskId, word: str = "and this") -> ToInbox:
    return ToInbox(
        task_id=task_id,
        scope=SCOPE,
        message=Message.user(word).to_json(),
        caller=CALLER,
        send_key=f"inbox {word}",
        digest="d",
    )


def word_of(body: Any) -> str:
    """The text of an event, else its state."""
    said = body.get("message") or body.get("artifact")
    if said:
        return "".join(part["text"] for part in said["parts"])
    return str(body["state"])


def committed(verdict: Verdict) -> Committed:
    assert isinstance(verdict, Committed), verdict
    return verdict
