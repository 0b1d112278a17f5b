"""`run_workflow`: an author's first test meets what production does to a task.

The store, the attempt and the sweeps are the real ones, on a temporary SQLite file; only the clock
is moved from one due time to the next, and the run is dropped after every commit.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from outlast.model.artifacts import fold_artifacts
from outlast.model.commit import Committed, LoggedEvent, Lost, Verdict, Write
from outlast.model.content import Artifact, Data, Message, Text
from outlast.model.errors import AuthorError, OutlastError
from outlast.model.ids import (
    ContextId,
    Millis,
    Seq,
    StepName,
    TaskId,
    WorkerId,
    new_task_id,
)
from outlast.model.lease import Lease, awake_seconds
from outlast.model.ledger import Intent, LedgerKind
from outlast.model.pause import Ask
from outlast.model.task import Caller, Scope, State, Task
from outlast.store.admin import Admin
from outlast.store.beats import Beats
from outlast.store.inspect import Inspect
from outlast.store.log import Log
from outlast.store.protocols import AnswerTo, NewTask, NewWorker, ToInbox, VersionOf
from outlast.store.sqlite import SqliteDatabase
from outlast.store.sweeping import Sweeping
from outlast.store.tasks import Tasks
from outlast.store.work import Work
from outlast.sweeps.deadlines import Deadlines
from outlast.worker.attempt import Attempt
from outlast.worker.mailbox import Mailbox
from outlast.worker.run import Run as WorkerRun
from outlast.worker.run import Surroundings, edges
from outlast.worker.threads import Threads
from outlast.workflow.answers import AnswerRecord
from outlast.workflow.workflow import Workflow

C = TypeVar("C")

_MOST_RUNS = 20_000
_WORKER = WorkerId("rehearsal")
_SCOPE = Scope(agent="rehearsal")

Answers = Mapping[str, Any] | Sequence[Any]
Outside = Callable[[str], Awaitable[None]]


class Held(OutlastError):
    """The task is held for an operator; the text is what the author should read."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What became of a rehearsed task.

    checkpoint: the last committed one. events: the whole log. artifacts: as GetTask shows them, by
    id. questions: the texts that were asked, in order. calls: the keys of the effects, once for
    each time that one was called.
    """

    state: State
    text: str | None
    data: Any
    checkpoint: Any
    events: Sequence[LoggedEvent]
    artifacts: Mapping[str, Artifact]
    questions: Sequence[str]
    calls: Sequence[str]


async def run_workflow(
    workflow: Workflow[Any],
    message: Message | str,
    *,
    answers: Answers = (),
    inbox: Sequence[Any] = (),
    resources: Any = None,
    outside: Outside | None = None,
    crash_after_commits: bool = True,
) -> Run:
    """Run a task of `workflow` to its end and return what became of it.

    answers: by the text of the question (a list: one after the other), or in the order of asking.
        A value is a string, a Message, or anything that JSON holds. A question without an answer
        waits for its deadline, which then passes at once.
    inbox: what callers send while the task works, values as for answers. One comes after each
        commit, and what is left then comes at the worst moment: just before the task ends.
    resources: what `ctx.resources` is, or an async context manager that gives it.
    outside: called with each effect's key before the call; what it raises, the call raises.
    crash_after_commits: drop the run once after each commit, so that the next one starts from the
        checkpoint alone. Each wait ends the run in any case.

    Raises Held when the task is held: an AuthorError, or an effect of unknown outcome; and
    AuthorError for an inbox of a workflow that has none.
    """
    if inbox and not workflow.inbox:
        raise AuthorError(
            f"run_workflow got messages for the inbox of {workflow.name}, which has none.",
            "let it have one: Workflow(…, inbox=True).",
        )
    with tempfile.TemporaryDirectory(prefix="outlast-") as folder:
        database = SqliteDatabase(Path(folder) / "rehearsal.db")
        await database.open()
        try:
            async with _entered(resources) as entered:
                rehearsal = _Rehearsal(workflow, database, entered, answers, outside)
                rehearsal.work.drops = crash_after_commits
                rehearsal.coming = list(inbox)
                return await rehearsal.run(
                    Message.user(message) if isinstance(message, str) else message
                )
        finally:
            await database.close()


@contextlib.asynccontextmanager
async def _entered(resources: Any) -> AsyncIterator[Any]:
    if isinstance(resources, AbstractAsyncContextManager):
        async with resources as entered:
            yield entered
    else:
        yield resources


class _DroppingWork(Work):
    """The real store, whose reply to each commit of a checkpoint is lost for good: to the run it
    looks as if its process had died right after."""

    drops = True
    dropped = False

    def __init__(
        self, database: SqliteDatabase, deliver: Callable[[bool], Awaitable[None]]
    ) -> None:
        """deliver: brings what is to come for the inbox, one message or all of them."""
        super().__init__(database)
        self._deliver = deliver
        self._met: set[tuple[str, int, str | None]] = set()

    async def commit(self, batch: Sequence[Write], *, patient: bool = False) -> Sequence[Verdict]:
        if any(write.move is not None and write.move.closes for write in batch):
            await self._deliver(True)
        verdicts = await super().commit(batch, patient=patient)
        for write, verdict in zip(batch, verdicts, strict=True):
            if _is_commit(write, verdict):
                await self._deliver(False)
        return [self._drop(*pair) for pair in zip(batch, verdicts, strict=True)]

    def _drop(self, write: Write, verdict: Verdict) -> Verdict:
        """Once per commit: a run that starts over may meet a commit that changes nothing again."""
        if write.move is None or not _is_commit(write, verdict):
            return verdict
        commit = (write.move.step, write.move.visit, write.move.checkpoint)
        if not self.drops or commit in self._met:
            return verdict
        self._met.add(commit)
        self.dropped = True
        return Lost()


def _is_commit(write: Write, verdict: Verdict) -> bool:
    """A commit of a checkpoint, after which the task goes on."""
    return write.move is not None and write.ending is None and isinstance(verdict, Committed)


@dataclass(eq=False, kw_only=True)
class _RecordingRun(WorkerRun):
    """The real run; notes each effect on its way out."""

    calls: list[str]
    outside: Outside | None

    async def write(self, **what: Any) -> Any:
        written = await super().write(**what)
        for entry in what.get("ledger", ()):
            is_effect = isinstance(entry, Intent) and entry.kind is LedgerKind.EFFECT
            if is_effect and entry.key not in written.committed.settled:
                await self._leave(entry.key.removeprefix("effect:"))
        return written

    async def _leave(self, key: str) -> None:
        self.calls.append(key)
        if self.outside is not None:
            await self.outside(key)


@dataclass(eq=False)
class _Rehearsal:
    """One task, one worker, one clock."""

    workflow: Workflow[Any]
    database: SqliteDatabase
    resources: Any
    answers: Answers
    outside: Outside | None
    task_id: TaskId = field(default_factory=new_task_id)
    questions: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    coming: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.work = _DroppingWork(self.database, self._deliver)
        self.tasks = Tasks(self.database)
        self.log = Log(self.database)
        self.beats = Beats(self.database)
        self.admin = Admin(self.database)
        self.deadlines = Deadlines(Sweeping(self.database))
        self.inspect = Inspect(self.database)
        self._asked: Seq | None = None
        self._runs = 0
        self._given = {
            text: list(given) if isinstance(given, list) else [given]
            for text, given in (self.answers.items() if isinstance(self.answers, Mapping) else ())
        }
        self._in_order = [] if isinstance(self.answers, Mapping) else list(self.answers)

    async def run(self, message: Message) -> Run:
        await self.admin.migrate()
        await self._register()
        await self._create(message)
        threads = Threads(4)
        try:
            while not (task := await self.tasks.get(_SCOPE, self.task_id)).state.is_terminal:
                await self._advance(task, threads)
        finally:
            threads.close()
        return await self._result(task)

    async def _register(self) -> None:
        version = VersionOf(
            workflow=self.workflow.name,
            version=self.workflow.version,
            steps=[step.name for step in self.workflow.steps],
            fingerprint=self.workflow.fingerprint,
            on_cancel=self.workflow.cancel_step is not None,
            on_failure=self.workflow.failure_step is not None,
        )
        await self.work.register(
            NewWorker(
                worker_id=_WORKER,
                agent=_SCOPE.agent,
                host="here",
                beat_ms=1000,
                lease_ms=15_000,
                versions=[version],
                presence=None,
            )
        )

    async def _create(self, message: Message) -> None:
        self.workflow.check_input(message)
        await self.tasks.create(
            NewTask(
                task_id=self.task_id,
                scope=_SCOPE,
                context_id=ContextId("rehearsal"),
                workflow=self.workflow.name,
                version=self.workflow.version,
                first_step=StepName(self.workflow.steps[0].name),
                max_age=Millis(int(self.workflow.max_age.total_seconds() * 1000)),
                message=message.to_json(),
                caller={},
                metadata={},
                send_key=message.message_id,
                digest="",
            )
        )

    async def _advance(self, task: Task, threads: Threads) -> None:
        """Run, answer, or let time pass; whatever the task needs next."""
        if task.is_held:
            raise Held(task.held_reason)
        if task.pause_id is not None and await self._answer(task, task.pause_id):
            return
        leases = await self.work.claim(
            _WORKER, _SCOPE.agent, self.workflow.name, self.workflow.version, limit=1
        )
        if leases:
            self._runs += 1
            if self._runs > _MOST_RUNS:
                raise Held(_endless(task))
            await self._attempt(leases[0], threads)
        else:
            await self._let_time_pass()

    async def _attempt(self, lease: Lease, threads: Threads) -> None:
        async def submit(write: Write) -> Verdict:
            return (await self.work.commit([write]))[0]

        first, latest = await edges(self.log, lease)
        run = _RecordingRun(
            lease=lease,
            owner=_WORKER,
            mailbox=Mailbox(lease, submit),
            around=Surroundings(
                work=self.work,
                log=self.log,
                threads=threads,
                resources=self.resources,
                is_stopping=lambda: False,
                on_stuck=lambda text: None,
            ),
            holds=lambda: True,
            first=first,
            latest=latest,
            began=awake_seconds(),
            calls=self.calls,
            outside=self.outside,
        )
        await Attempt(run, self.workflow).execute()
        if self.work.dropped:
            self.work.dropped = False
            await self.beats.release(_WORKER, lease.task_id, lease.fence)

    async def _let_time_pass(self) -> None:
        due, now = await self.admin.next_due()
        if due is None:
            raise AssertionError("the task waits for nothing")
        if due > now:
            await self.admin.move_clock(Millis(due - now + 1))
        await self.deadlines.sweep()

    # --- questions ----------------------------------------------------------------------------

    async def _answer(self, task: Task, pause_id: Seq) -> bool:
        question = await self.log.event(task.task_id, pause_id)
        assert question is not None
        text = Message.from_json(question.body["message"]).text
        if self._asked != pause_id:
            self.questions.append(text)
            self._asked = pause_id
        answer = self._next_answer(text)
        if answer is None:
            return False
        if task.state is State.AUTH_REQUIRED:
            value = answer.text if answer.data is None else answer.data
            return await self.tasks.authorize(_SCOPE, task.task_id, pause_id, value)
        ask = Ask.from_json(question.body["ask"])
        record = AnswerRecord.read(ask.schema, answer, Caller())
        await self.tasks.answer(
            AnswerTo(
                task_id=task.task_id,
                scope=_SCOPE,
                pause_id=pause_id,
                ledger_key=ask.ledger_key,
                result=record.to_json(),
                message=answer.to_json(),
                caller={},
                send_key=answer.message_id,
                digest="",
            )
        )
        return True

    async def _deliver(self, all_of_it: bool) -> None:
        count = len(self.coming) if all_of_it else 1
        now, self.coming = self.coming[:count], self.coming[count:]
        for message in map(_as_message, now):
            await self.tasks.receive(
                ToInbox(
                    task_id=self.task_id,
                    scope=_SCOPE,
                    message=message.to_json(),
                    caller={},
                    send_key=message.message_id,
                    digest="",
                )
            )

    def _next_answer(self, question: str) -> Message | None:
        waiting = self._given.get(question) or self._in_order
        return _as_message(waiting.pop(0)) if waiting else None

    # --- the result ---------------------------------------------------------------------------

    async def _result(self, task: Task) -> Run:
        snapshot = await self.tasks.snapshot(_SCOPE, self.task_id)
        said = task.status.get("message")
        message = None if said is None else Message.from_json(said)
        checkpoint = await self.inspect.checkpoint(self.task_id)
        return Run(
            state=task.state,
            text=None if message is None else message.text or None,
            data=None if message is None else message.data,
            checkpoint=None if checkpoint is None else self.workflow.checkpoint.decode(checkpoint),
            events=snapshot.events,
            artifacts={
                key: Artifact.from_json(body)
                for key, body in fold_artifacts(snapshot.events).items()
            },
            questions=self.questions,
            calls=self.calls,
        )


def _endless(task: Task) -> str:
    return (
        f"step {task.step} has not ended after {_MOST_RUNS} runs of the task. A run starts from"
        " the last committed checkpoint and is dropped after each commit: let a loop go on from"
        " what the checkpoint says is done, instead of starting from the beginning."
    )


def _as_message(answer: Any) -> Message:
    if isinstance(answer, Message):
        return answer
    if isinstance(answer, str):
        return Message.user(Text(answer))
    if isinstance(answer, BaseModel):
        answer = answer.model_dump(mode="json")
    return Message.user(Data(answer))
