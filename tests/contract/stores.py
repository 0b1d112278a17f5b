"""An open store with all its verbs, and short builders for the states that tasks get into."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import psycopg

from outlast.model import points
from outlast.model.artifacts import artifact_event
from outlast.model.commit import (
    Backoff,
    Committed,
    Ending,
    Event,
    EventKind,
    Finish,
    Hold,
    LoggedEvent,
    Move,
    Pause,
    Release,
    Verdict,
    Wait,
    Write,
    status_event,
)
from outlast.model.content import Message
from outlast.model.delivery import Webhook
from outlast.model.ids import (
    ContextId,
    Fence,
    LedgerId,
    Millis,
    Seq,
    StepName,
    TaskId,
    Visit,
    WorkerId,
    WriteNo,
    new_task_id,
)
from outlast.model.lease import Death, Lease
from outlast.model.ledger import Intent, LedgerKind, LedgerWrite
from outlast.model.pause import Ask, DueBy, OnDeadline
from outlast.model.task import Fold, Scope, State, Task
from outlast.store.access import Access
from outlast.store.admin import Admin
from outlast.store.beats import Beats
from outlast.store.database import Database, Query, Rows, Script, Statement
from outlast.store.inspect import Inspect
from outlast.store.log import Log
from outlast.store.postgres import PostgresDatabase
from outlast.store.protocols import (
    AnswerTo,
    AuditEntry,
    NewKey,
    NewTask,
    NewWorker,
    Sent,
    Settings,
    ToInbox,
    VersionOf,
)
from outlast.store.sqlite import SqliteDatabase
from outlast.store.sweeping import Sweeping
from outlast.store.tasks import Tasks
from outlast.store.webhooks import Webhooks
from outlast.store.work import Work

T = TypeVar("T")

SCOPE = Scope(agent="agent", tenant="acme", owner="ann")
HOUR = 3_600_000
DAY = 24 * HOUR
TABLES = (
    "store",
    "tasks",
    "api_keys",
    "audit",
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


def database_at(
    url: str, *, timeout: float = 10.0, size: int = 4, listens: bool = False
) -> SqliteDatabase | PostgresDatabase:
    """A database that is not open yet."""
    if url.startswith("sqlite:///"):
        return SqliteDatabase(url.removeprefix("sqlite:///"), timeout=timeout)
    return PostgresDatabase(url, timeout=timeout, size=size, listens=listens)


# --- events -------------------------------------------------------------------------------------


def said(text: str = "so far so good", state: State = State.WORKING) -> Event:
    return status_event(state, Message.agent(text).to_json())


def asked(
    text: str = "Go on?",
    *,
    key: str = "1:ask",
    on_deadline: OnDeadline = OnDeadline.FAIL,
    state: State = State.INPUT_REQUIRED,
) -> Event:
    ask = Ask(ledger_key=key, on_deadline=on_deadline)
    return status_event(state, Message.agent(text).to_json(), ask=ask.to_json())


def chunk(artifact: str = "report", text: str = "x", *, append: bool = True) -> Event:
    body = {"artifactId": artifact, "parts": [{"text": text}]}
    return artifact_event(body, append=append, last_chunk=False)


def ended(state: State = State.COMPLETED) -> Event:
    return status_event(state)


def intent(key: str = "effect:mail", kind: LedgerKind = LedgerKind.EFFECT) -> Intent:
    return Intent(key=key, kind=kind, digest="d", request='{"to":"ann"}')


def moved(
    checkpoint: str = '{"n":1}',
    step: str = "second",
    visit: int = 2,
    *,
    read: int = 0,
    closes: bool = False,
) -> Move:
    return Move(
        checkpoint=checkpoint,
        step=StepName(step),
        visit=Visit(visit),
        read=Seq(read),
        closes=closes,
    )


# --- a run --------------------------------------------------------------------------------------


@dataclass
class Run:
    """What a worker does under one lease, with its count of writes."""

    store: Store
    lease: Lease
    worker_id: WorkerId
    write_no: WriteNo = field(default=WriteNo(0))

    @property
    def task_id(self) -> TaskId:
        return self.lease.task_id

    @property
    def ledger_id(self) -> LedgerId:
        return self.lease.ledger_id

    def write(
        self,
        *events: Event,
        ledger: Sequence[LedgerWrite] = (),
        move: Move | None = None,
        ending: Ending | None = None,
        in_hook: bool = False,
        write_no: int | None = None,
    ) -> Write:
        """The next write of this run; it is not sent."""
        return Write(
            task_id=self.lease.task_id,
            ledger_id=self.lease.ledger_id,
            fence=self.lease.fence,
            write_no=self.write_no if write_no is None else WriteNo(write_no),
            events=events,
            ledger=tuple(ledger),
            move=move,
            ending=ending,
            in_hook=in_hook,
        )

    async def commit(
        self,
        *events: Event,
        ledger: Sequence[LedgerWrite] = (),
        move: Move | None = None,
        ending: Ending | None = None,
        in_hook: bool = False,
    ) -> Committed:
        """Send the next write and see it committed."""
        write = self.write(*events, ledger=ledger, move=move, ending=ending, in_hook=in_hook)
        verdict = await self.store.commit(write)
        assert isinstance(verdict, Committed), verdict
        self.write_no = WriteNo(self.write_no + 1)
        return verdict

    async def pause(
        self,
        *,
        key: str = "1:ask",
        after: int = HOUR,
        on_deadline: OnDeadline = OnDeadline.FAIL,
        state: State = State.INPUT_REQUIRED,
        remind: int | None = None,
    ) -> Seq:
        """Ask, and give up the lease. Returns the id of the pause."""
        committed = await self.commit(
            asked(key=key, on_deadline=on_deadline, state=state),
            ledger=[intent(key, LedgerKind.ANSWER)],
            ending=Pause(
                state=state,
                deadline=DueBy(after=Millis(after)),
                remind=None if remind is None else DueBy(after=Millis(remind)),
            ),
        )
        return committed.last_seq

    async def finish(self, state: State = State.COMPLETED) -> Committed:
        return await self.commit(ended(state), ending=Finish(state=state))

    async def dies(self) -> None:
        """A watcher has proved that the worker of this run is dead, and takes over."""
        await self.store.bury(self.worker_id, early=True)


@dataclass(frozen=True)
class Paused:
    """A question that waits for its answer."""

    task_id: TaskId
    ledger_id: LedgerId
    pause_id: Seq
    key: str


# --- the store ----------------------------------------------------------------------------------


@dataclass
class Store:
    """One open database and everything that can be asked of it."""

    url: str
    database: Database
    settings: Settings
    laws_are_broken_on_purpose: bool = False
    others: list[Store] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tasks = Tasks(self.database, self.settings)
        self.work = Work(self.database, self.settings)
        self.beats = Beats(self.database)
        self.log = Log(self.database)
        self.sweeping = Sweeping(self.database, self.settings)
        self.admin = Admin(self.database)
        self.inspect = Inspect(self.database)
        self.access = Access(self.database)
        self.webhooks = Webhooks(self.database)

    @property
    def is_sqlite(self) -> bool:
        return self.database.dialect == "sqlite"

    async def another(self, *, timeout: float = 10.0, size: int = 4, **settings: int) -> Store:
        """An independent database object on the same database: what another process has."""
        database = database_at(self.url, timeout=timeout, size=size)
        await database.open()
        other = Store(self.url, database, Settings(**settings) if settings else self.settings)
        self.others.append(other)
        return other

    def interrupted(self) -> tuple[Store, Interruption]:
        """This store, and a say in what others do just before its next transaction."""
        interruption = Interruption(self.database)
        return Store(self.url, cast(Database, interruption), self.settings), interruption

    async def close(self) -> None:
        for other in self.others:
            await other.database.close()
        await self.database.close()

    # --- workers ------------------------------------------------------------------------------

    async def worker(
        self,
        name: str = "w1",
        *,
        workflow: str = "review",
        version: int = 1,
        steps: Sequence[str] = ("first", "second"),
        on_cancel: bool = False,
        on_failure: bool = False,
        presence: str | None = None,
        lease_ms: int = 15_000,
    ) -> WorkerId:
        """A living worker that runs one version."""
        known = VersionOf(
            workflow=workflow,
            version=version,
            steps=steps,
            fingerprint="/".join(steps),
            on_cancel=on_cancel,
            on_failure=on_failure,
        )
        await self.work.register(
            new_worker(name, versions=[known], presence=presence, lease_ms=lease_ms)
        )
        return WorkerId(name)

    async def beat_of(self, name: str) -> int:
        rows = await self.sql("select beat from workers where worker_id = :name", name=name)
        return int(rows[0]["beat"])

    async def bury(self, name: str, *, early: bool = False) -> None:
        """A watcher has seen the same beat of this worker for too long, or with `early` its
        presence free, and takes over."""
        beat = await self.beat_of(name)
        death = Death(worker_id=WorkerId(name), beat=beat, early=early)
        assert await self.sweeping.take_over(death) is not None

    async def is_known(self, name: str) -> bool:
        return bool(await self.sql("select beat from workers where worker_id = :name", name=name))

    # --- tasks --------------------------------------------------------------------------------

    async def new_task(self, **changes: Any) -> TaskId:
        new = new_task(**changes)
        await self.tasks.create(new)
        return new.task_id

    async def claim(
        self, name: str = "w1", *, workflow: str = "review", version: int = 1, limit: int = 100
    ) -> Sequence[Lease]:
        return await self.work.claim(WorkerId(name), SCOPE.agent, workflow, version, limit=limit)

    async def claimed(
        self,
        name: str = "w1",
        *,
        workflow: str = "review",
        on_cancel: bool = False,
        on_failure: bool = False,
        **task: Any,
    ) -> Run:
        """A task that this worker has just claimed; nothing else of its workflow is ready."""
        if not await self.is_known(name):
            await self.worker(name, workflow=workflow, on_cancel=on_cancel, on_failure=on_failure)
        task_id = await self.new_task(workflow=workflow, **task)
        return await self.claim_again(task_id, name)

    async def claim_again(self, task_id: TaskId, name: str = "w1") -> Run:
        """The next lease of this task, which is the only one ready of its version."""
        task = await self.task(task_id)
        leases = await self.claim(name, workflow=task.workflow, version=task.version)
        assert [lease.task_id for lease in leases] == [task_id]
        return Run(self, leases[0], WorkerId(name))

    async def paused(
        self,
        name: str = "w1",
        *,
        after: int = HOUR,
        on_deadline: OnDeadline = OnDeadline.FAIL,
        state: State = State.INPUT_REQUIRED,
        remind: int | None = None,
        commits: bool = False,
        **task: Any,
    ) -> Paused:
        """A paused task; with `commits` it has committed a checkpoint before."""
        run = await self.claimed(name, **task)
        if commits:
            await run.commit(move=moved())
        pause_id = await run.pause(after=after, on_deadline=on_deadline, state=state, remind=remind)
        return Paused(run.task_id, run.ledger_id, pause_id, "1:ask")

    async def task_that_is(self, condition: str, **task: Any) -> TaskId:
        """A task in this condition, in a workflow of its own name."""
        task = {"workflow": condition, **task}
        name = task.pop("name", f"worker of {condition}")
        if condition == "submitted":
            return await self.new_task(**task)
        run = await self.claimed(name, **task)
        match condition:
            case "leased":
                pass
            case "paused":
                await run.pause()
            case "waiting for authorisation":
                await run.pause(state=State.AUTH_REQUIRED)
            case "waiting":
                await run.commit(ending=Wait(until=DueBy(after=Millis(HOUR))))
            case "backing off":
                error = {"type": "OSError", "text": "away"}
                await run.commit(said(), ending=Backoff(delay=Millis(HOUR), error=error))
            case "held":
                await run.commit(said(), ending=Hold(reason="look at this"))
            case "released":
                await run.commit(ending=Release())
            case "completed" | "failed" | "rejected" | "canceled":
                await run.finish(State(condition))
            case _:
                raise ValueError(condition)
        return run.task_id

    async def task(self, task_id: TaskId) -> Task:
        found = await self.inspect.find(task_id)
        assert found is not None
        return found

    async def events(self, task_id: TaskId) -> Sequence[LoggedEvent]:
        return await self.log.events_since(task_id, Seq(0), limit=100_000)

    async def last_event(self, task_id: TaskId) -> LoggedEvent:
        return (await self.events(task_id))[-1]

    async def last_run(self, task_id: TaskId) -> Mapping[str, Any]:
        return (await self.inspect.runs(task_id))[-1]

    async def answer(self, paused: Paused, text: str = "yes", **changes: Any) -> Sent:
        return await self.tasks.answer(answer_to(paused, text, **changes))

    async def receive(self, task_id: TaskId, text: str = "and this", **changes: Any) -> Seq:
        """A message for the task's inbox. Returns its place in the log."""
        await self.tasks.receive(to_inbox(task_id, text, **changes))
        return (await self.last_event(task_id)).seq

    async def commit(self, write: Write, *, patient: bool = False) -> Verdict:
        (verdict,) = await self.work.commit([write], patient=patient)
        return verdict

    # --- time ---------------------------------------------------------------------------------

    async def later(self, by: int) -> None:
        await self.admin.move_clock(Millis(by))

    async def now(self) -> Millis:
        return (await self.admin.check()).now

    # --- looking and meddling -----------------------------------------------------------------

    async def keep_fold(self, task_id: TaskId, fold: Fold, *, next_at: int) -> bool:
        """As a sweep that has just made this fold does."""
        last = await self.log.event(task_id, fold.seq)
        fence = Fence(0) if last is None else last.fence
        return await self.sweeping.keep_fold(task_id, fold, fence=fence, next_at=next_at)

    async def sql(self, text: str, **params: Any) -> Rows:
        """A statement of the test's own, in both dialects, with `:name` parameters."""
        query = Query(name="test_own", promise="", text=text)

        def script() -> Script[Rows]:
            return (yield Statement(query, params))

        return await self.database.transact(script)

    async def everything(self) -> dict[str, Rows]:
        """All rows of all tables."""

        def script() -> Script[dict[str, Rows]]:
            found: dict[str, Rows] = {}
            for table in TABLES:
                query = Query(name="test_own", promise="", text=f"select * from {table}")
                found[table] = sorted((yield Statement(query, {})), key=repr)
            return found

        return await self.database.read(script)

    @contextlib.asynccontextmanager
    async def unchanged(self, *, but: Sequence[str] = ()) -> AsyncIterator[None]:
        """What happens inside must not change a row, except in the tables named."""
        before = await self.everything()
        yield
        after = await self.everything()
        for table in TABLES:
            if table not in but:
                assert after[table] == before[table], table

    @contextlib.asynccontextmanager
    async def locked(self, *task_ids: TaskId) -> AsyncIterator[None]:
        """Another session has these rows locked; on SQLite that is the whole file."""
        if self.is_sqlite:
            path = self.url.removeprefix("sqlite:///")
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("begin immediate")
                yield
                other.execute("rollback")
            return
        session = await psycopg.AsyncConnection.connect(self.url)
        async with contextlib.aclosing(_Closing(session)):
            await session.execute(
                "select 1 from tasks where task_id = any(%s) for update", (list(task_ids),)
            )
            yield
            await session.rollback()

    async def until_somebody_waits_for_a_lock(self) -> None:
        """PostgreSQL only: returns when a session of this database waits for a row."""
        query = (
            "select 1 from pg_stat_activity where datname = current_database()"
            " and wait_event_type = 'Lock'"
        )
        await until(lambda: self.sql(query))


class _Closing:
    def __init__(self, session: psycopg.AsyncConnection[Any]) -> None:
        self._session = session

    async def aclose(self) -> None:
        await self._session.close()


class Interruption:
    """A database before whose next transaction somebody else does something."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._acts: list[Callable[[], Awaitable[object]]] = []

    def before_next_transaction(self, act: Callable[[], Awaitable[object]]) -> None:
        self._acts.append(act)

    async def transact(self, script: Callable[[], Script[T]], *, timeout: float | None = None) -> T:
        acts, self._acts = self._acts, []
        for act in acts:
            await act()
        return await self._database.transact(script, timeout=timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


# --- values -------------------------------------------------------------------------------------


def new_worker(
    name: str = "w1",
    *,
    versions: Sequence[VersionOf] = (),
    presence: str | None = None,
    lease_ms: int = 15_000,
) -> NewWorker:
    return NewWorker(
        worker_id=WorkerId(name),
        agent=SCOPE.agent,
        host="host",
        beat_ms=1_000,
        lease_ms=lease_ms,
        versions=versions,
        presence=presence,
    )


def new_task(**changes: Any) -> NewTask:
    task_id = changes.pop("task_id", None) or new_task_id()
    values: dict[str, Any] = {
        "scope": SCOPE,
        "context_id": ContextId("context"),
        "workflow": "review",
        "version": 1,
        "first_step": StepName("first"),
        "max_age": Millis(30 * DAY),
        "message": Message.user("hello").to_json(),
        "caller": {"subject": "ann"},
        "metadata": {"source": "test"},
        "send_key": f"send {task_id}",
        "digest": "digest",
    }
    return NewTask(task_id=task_id, **(values | changes))


def answer_to(paused: Paused, text: str = "yes", **changes: Any) -> AnswerTo:
    values: dict[str, Any] = {
        "task_id": paused.task_id,
        "scope": SCOPE,
        "pause_id": paused.pause_id,
        "ledger_key": paused.key,
        "result": {"text": text},
        "message": Message.user(text).to_json(),
        "caller": {"subject": "ann"},
        "send_key": f"answer {text}",
        "digest": f"digest of {text}",
    }
    return AnswerTo(**(values | changes))


def new_webhook(config_id: str = "one", **changes: Any) -> Webhook:
    """A webhook with all its secrets."""
    return replace(
        Webhook(
            config_id=config_id,
            url="https://hooks.example.com/a2a",
            token="t0ken",
            scheme="Bearer",
            credentials="s3cret",
        ),
        **changes,
    )


def to_inbox(task_id: TaskId, text: str = "and this", **changes: Any) -> ToInbox:
    values: dict[str, Any] = {
        "task_id": task_id,
        "scope": SCOPE,
        "message": Message.user(text).to_json(),
        "caller": {"subject": "ann"},
        "send_key": f"inbox {text}",
        "digest": f"digest of {text}",
    }
    return ToInbox(**(values | changes))


def new_key(name: str = "ci", **changes: Any) -> NewKey:
    digest = hashlib.sha256(name.encode()).hexdigest()
    values: dict[str, Any] = {
        "key_id": digest[:12],
        "agent": "agent",
        "digest": digest,
        "name": name,
        "owner": "ann",
        "tenant": "acme",
        "scopes": ("run",),
        "lasts": None,
    }
    return NewKey(**(values | changes))


def entry(audit_id: str = "1", **changes: Any) -> AuditEntry:
    values: dict[str, Any] = {"agent": "agent", "kind": "refused", "source": "192.0.2.1"}
    return AuditEntry(audit_id=audit_id, **(values | changes))


def scope_with(**changes: str) -> Scope:
    return Scope(**({"agent": "agent", "tenant": "acme", "owner": "ann"} | changes))


def fence(number: int) -> Fence:
    return Fence(number)


# --- waiting ------------------------------------------------------------------------------------


async def until(holds: Callable[[], Awaitable[Any]], *, within: float = 10.0) -> Any:
    """Wait until this holds; return what it was."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not (found := await holds()):
        assert loop.time() < deadline, "it never came to hold"
        await asyncio.sleep(0.01)
    return found


@contextlib.contextmanager
def statements() -> Iterator[list[str]]:
    """The names of the statements that this process sends meanwhile, and its commits."""
    seen: list[str] = []

    def note(name: str) -> None:
        if name.startswith("before:"):
            seen.append(name.removeprefix("before:"))

    points.listen(note)
    try:
        yield seen
    finally:
        points.listen(None)


def kinds(events: Sequence[LoggedEvent]) -> list[EventKind]:
    return [event.kind for event in events]


def file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))
