"""What the roles ask of the store, split by who calls. These docstrings are the specification:
the contract suite holds one test for each of their sentences, run on every database.

Every verb may raise StoreUnavailable; when its `happened` is not False the outcome is unknown and
the call may be repeated with the same arguments: no verb does its work twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from outlast.model.commit import LoggedEvent, Verdict, Write
from outlast.model.delivery import Webhook
from outlast.model.ids import (
    ContextId,
    Fence,
    LedgerId,
    Millis,
    Seq,
    StepName,
    TaskId,
    WorkerId,
    WriteNo,
)
from outlast.model.lease import Death, Lease, Vitals
from outlast.model.ledger import LedgerEntry, LedgerKind
from outlast.model.task import Fold, Scope, State, Task

# --- gateways ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NewTask:
    """What a gateway knows of a task to create. `digest` covers the message's content; `max_open`
    bounds the unfinished tasks of its owner, None does not; `webhook` came with the message."""

    task_id: TaskId
    scope: Scope
    context_id: ContextId
    workflow: str
    version: int
    first_step: StepName
    max_age: Millis
    message: Mapping[str, Any]
    caller: Mapping[str, Any]
    metadata: Mapping[str, Any]
    send_key: str
    digest: str
    priority: int = 0
    max_open: int | None = None
    webhook: Webhook | None = None


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What a send under a key stands for: a task, or the direct Message that was the reply.

    is_repeat: the key was known, and nothing was written by this call.
    """

    task_id: TaskId | None
    reply: Mapping[str, Any] | None
    is_repeat: bool


@dataclass(frozen=True, kw_only=True)
class AnswerTo:
    """An answer to a pause in `state`. `result` goes into the ledger under the question's key;
    `webhook` came with the message.

    if_generation: the generation at which the caller insists that the task is; None does not.
    """

    task_id: TaskId
    scope: Scope
    pause_id: Seq
    ledger_key: str
    result: Mapping[str, Any]
    message: Mapping[str, Any]
    caller: Mapping[str, Any]
    send_key: str
    digest: str
    state: State = State.INPUT_REQUIRED
    if_generation: Seq | None = None
    webhook: Webhook | None = None


@dataclass(frozen=True, kw_only=True)
class ToInbox:
    """A message to a task that works: it answers nothing, and its steps read it. `webhook` and
    `if_generation` as with an answer."""

    task_id: TaskId
    scope: Scope
    message: Mapping[str, Any]
    caller: Mapping[str, Any]
    send_key: str
    digest: str
    if_generation: Seq | None = None
    webhook: Webhook | None = None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A task, and its log up to `seq` from the same read: a fold, and the events after it.

    fold: None where there is none; the events are the log from its beginning then.
    """

    task: Task
    fold: Fold | None
    events: Sequence[LoggedEvent]
    seq: Seq


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which tasks to list; None asks for any. Times are inclusive."""

    context_id: ContextId | None = None
    state: State | None = None
    changed_since: Millis | None = None


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place in the order of a list: the last task before it."""

    status_at: Millis
    task_id: TaskId


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of a list. Logs hold what shows state and history, and artifacts where asked for.

    total: how many tasks the whole list has, at most `TOTAL_BOUND`. next: where the next page
    begins; None after the last one.
    """

    snapshots: Sequence[Snapshot]
    total: int
    next: Place | None


TOTAL_BOUND = 10_000
"""Up to here the total of a list is counted."""


class TaskStore(Protocol):
    """What a gateway does to tasks. Every verb is bound to a scope: another scope's task does not
    exist, by the same statements."""

    async def create(self, new: NewTask) -> Sent:
        """Create the task, its event 1 (kind TASK) and the send key in one transaction.

        A webhook that comes with it is kept in the same transaction.

        The task is SUBMITTED and claimable at once. A send under a known key writes nothing and
        returns what the first one got. The same key with another digest raises KeyReused. While
        the scope has `max_open` unfinished tasks, however many creates run at once, nothing is
        written: TooMany.
        """
        ...

    async def reply(
        self, scope: Scope, send_key: str, digest: str, reply: Mapping[str, Any]
    ) -> Sent:
        """Keep the direct Message that answers a send without a task, under its key.

        A send under a known key writes nothing and returns what the first one got. The same key
        with another digest raises KeyReused.
        """
        ...

    async def recall(self, scope: Scope, send_key: str, digest: str) -> Sent | None:
        """What a key already stands for, or None. Another digest raises KeyReused. A key whose
        task has expired raises TaskNotFound with `expired`."""
        ...

    async def answer(self, answer: AnswerTo) -> Sent:
        """Answer the pause in one transaction: the answer's event (kind MESSAGE), the ledger's
        result, WORKING, claimable at once, no lease.

        A webhook that comes with it is kept in the same transaction, as `add_webhook` does.

        A send under a known key writes nothing and returns what the first one got. When the task
        is at another generation than `if_generation`, nothing is written: GenerationMismatch, with
        both. When the task is not paused at `pause_id` any more, nothing is written:
        UnsupportedOperation. A task that does not exist in the scope raises TaskNotFound.
        """
        ...

    async def receive(self, sent: ToInbox) -> Sent:
        """Put the message into the task's inbox: an event (kind MESSAGE) that answers nothing and
        leaves the status as it is, whoever runs the task.

        A webhook that comes with it is kept in the same transaction, as `add_webhook` does.

        A send under a known key writes nothing and returns what the first one got. When the task
        is at another generation than `if_generation`, nothing is written: GenerationMismatch, with
        both. When the task is paused or has ended, or its cancel or failure step is all that will
        still run, nothing is written: UnsupportedOperation. A task that does not exist in the scope
        raises TaskNotFound.
        """
        ...

    async def authorize(self, scope: Scope, task_id: TaskId, pause_id: Seq, value: Any) -> bool:
        """Give a pause in AUTH_REQUIRED what it waits for, in one transaction: the ledger's result
        under the pause's key, WORKING, claimable at once, no lease, and a status event that says
        so without the value.

        False: this pause was authorized before; nothing is written, and the first value stays.
        When the task does not wait for this authorization, nothing is written:
        UnsupportedOperation. A task that does not exist in the scope raises TaskNotFound.
        """
        ...

    async def cancel(self, scope: Scope, task_id: TaskId) -> Task:
        """Cancel the task, whoever runs it, and return it as it then is.

        A workflow version without a cancel step, or a task that has not committed a checkpoint
        yet: CANCELED in one transaction, the fence raised, the lease cleared. With one: the task
        is marked, a pause or hold ends, and a task without a lease becomes claimable in the same
        transaction; it is returned WORKING. A marked or CANCELED task is returned as it is.
        Another terminal state raises TaskNotCancelable. A task that does not exist in the scope
        raises TaskNotFound.
        """
        ...

    async def get(self, scope: Scope, task_id: TaskId) -> Task:
        """The task without its log. A task that expired in this scope raises TaskNotFound with
        `expired`; one that does not exist in it raises TaskNotFound."""
        ...

    async def snapshot(
        self, scope: Scope, task_id: TaskId, *, until: Seq | None = None
    ) -> Snapshot:
        """The task and its log up to `until`, from one read: the newest fold that is not past it,
        and the events after that. Where the log has no such event, or it has been trimmed, up to
        its end. With all folds deleted the events are the whole log, or what is left of it. Errors
        as for `get`."""
        ...

    async def status_of(self, scope: Scope, task_id: TaskId) -> tuple[State, Seq]:
        """The state and generation of the task: the cheap look of those who wait for it."""
        ...

    async def page(
        self,
        scope: Scope,
        wanted: Wanted,
        *,
        limit: int,
        most_bytes: int | None = None,
        after: Place | None = None,
        artifacts: bool = False,
    ) -> Page:
        """The next `limit` tasks of the scope that are wanted, after a place in their order: the
        last to change their status first, then by task id, the latest first.

        All of a page is one read. A task that does not change its status while pages are read is
        on exactly one of them. One that does is found by `changed_since`, with the time at which
        the reading began. The total does not depend on the place, and is exact up to
        `TOTAL_BOUND`. A page ends before the task whose logs and folds would bring it past
        `most_bytes`, but holds one task at least; what it leaves out is not read. Each task comes
        with its messages, its questions and its last status event,
        and with its artifact events where `artifacts` asks for them. One whose log is trimmed
        comes with its newest fold in their place; and where artifacts are asked for, each with its
        newest fold and what came after it.
        """
        ...


MOST_WEBHOOKS = 20
"""How many webhooks a task can have."""


class WebhookStore(Protocol):
    """Where callers want the events of their tasks sent. Every verb is bound to a scope, as those
    of `TaskStore` are."""

    async def add_webhook(self, scope: Scope, task_id: TaskId, webhook: Webhook) -> None:
        """Keep a webhook of the task under its config id. Its first delivery will show the task as
        of the event that was then the last.

        The same again writes nothing, unless the webhook is exhausted. Another one under the same
        id takes the place of the first: it is served anew, and a delivery of the first under way
        finds the fence raised. While the task has `MOST_WEBHOOKS`, however many are added at once,
        one more is not kept: UnsupportedOperation. A task that does not exist in the scope raises
        TaskNotFound.
        """
        ...

    async def webhook(self, scope: Scope, task_id: TaskId, config_id: str) -> Webhook:
        """The task's webhook of this id. One that this task does not have raises WebhookNotFound.
        A task that does not exist in the scope raises TaskNotFound."""
        ...

    async def webhooks(
        self, scope: Scope, task_id: TaskId, *, limit: int, after: str = ""
    ) -> Sequence[Webhook]:
        """The task's webhooks whose ids come after `after`, in the order of their bytes, at most
        `limit`. A task that does not exist in the scope raises TaskNotFound."""
        ...

    async def remove_webhook(self, scope: Scope, task_id: TaskId, config_id: str) -> None:
        """Forget the webhook, with its secrets, whoever is delivering to it. One that the task does
        not have is as good as forgotten. A task that does not exist in the scope raises
        TaskNotFound."""
        ...


class LogStore(Protocol):
    """Reading the log."""

    async def events_since(
        self, task_id: TaskId, seq: Seq, *, limit: int = 256
    ) -> Sequence[LoggedEvent]:
        """The next events after `seq`, in order, without a gap, at most `limit`. Where the next
        one has been trimmed or has expired, while later ones are still there: LogTrimmed."""
        ...

    async def event(self, task_id: TaskId, seq: Seq) -> LoggedEvent | None:
        """One event."""
        ...

    async def ends_of(self, task_ids: Sequence[TaskId]) -> Mapping[TaskId, Seq]:
        """The last seq of each of these logs, from one statement. A task that does not exist is
        left out."""
        ...

    async def messages(
        self, task_id: TaskId, *, before: Seq | None = None, limit: int = 100
    ) -> Sequence[LoggedEvent]:
        """The newest events that history is made of (callers' messages and questions) below
        `before`, in order, at most `limit`."""
        ...

    async def received(
        self, task_id: TaskId, *, after: Seq, limit: int = 100
    ) -> Sequence[LoggedEvent]:
        """The next messages of callers after `after`, in order, at most `limit`; answers are among
        them, and the one that created the task is not."""
        ...

    async def artifact_events(
        self, task_id: TaskId, *, after: Seq, until: Seq
    ) -> Sequence[LoggedEvent]:
        """The artifact events with after < seq <= until, in order."""
        ...


# --- workers ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the store writes by itself. The log of a task that has ended is folded if it is at least
    `fold_from` long: a shorter one is read as fast as its fold would be. What is folded to its end
    may be trimmed `resume_window_ms` after that end."""

    retention_ms: int = 30 * 86_400_000
    crash_limit: int = 3
    crash_backoff_ms: int = 2_000
    hook_grace_ms: int = 120_000
    fold_from: int = 64
    resume_window_ms: int = 7 * 86_400_000


@dataclass(frozen=True, kw_only=True)
class VersionOf:
    """A version of a workflow as a worker knows it. The fingerprint covers `steps`."""

    workflow: str
    version: int
    steps: Sequence[str]
    fingerprint: str
    on_cancel: bool = False
    on_failure: bool = False


@dataclass(frozen=True, kw_only=True)
class NewWorker:
    """A worker that wants to register."""

    worker_id: WorkerId
    agent: str
    host: str
    beat_ms: int
    lease_ms: int
    versions: Sequence[VersionOf]
    presence: str | None


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A lease as the store sees it. `ending_as` is set when the task is marked: how it must end."""

    fence: Fence
    is_marked: bool
    ending_as: Mapping[str, Any] | None


class WorkStore(Protocol):
    """What a worker does. Its one verb of writing is `commit`."""

    async def register(self, worker: NewWorker) -> None:
        """Put the worker among the living, with its first beat, and its versions among the known.

        A version whose steps differ from what the store knows under its number is refused with an
        AuthorError that names the version while tasks are in flight on it, and replaces the known
        one when none are.
        """
        ...

    async def claim(
        self, worker_id: WorkerId, agent: str, workflow: str, version: int, *, limit: int
    ) -> Sequence[Lease]:
        """Lease up to `limit` ready tasks of one version to the worker, in turn between tenants,
        then by priority (lower first), then by age. One statement on PostgreSQL.

        Only tasks without a lease whose `ready_at` has come are claimed: never paused, held,
        waiting, leased or finished ones. Each grant raises the fence, sets write_no to 0 and opens
        a run. A worker that is dead or has no row gets nothing. Two claims at once never get the
        same task.
        """
        ...

    async def commit(self, batch: Sequence[Write], *, patient: bool = False) -> Sequence[Verdict]:
        """Apply each write by the one predicate `task_id and fence and write_no`, all in one
        transaction, and say per write, in the order of the batch, what became of it.

        Committed: its events are in the log with the next seqs, its ledger entries, checkpoint and
        ending in their tables, and write_no is one higher; or an earlier call with the same
        numbers did this. An ending raises the fence, clears the lease and closes the run.
        Lost: the lease is over; nothing changed. Marked: the task is marked for cancel and the
        write pauses, waits, backs off, holds or records an intent, and is not the hook's own;
        nothing changed. Unread: the write closes the inbox, which holds a message that neither an
        earlier commit has read nor this one; nothing changed. Busy: somebody else has the row
        locked; nothing changed (never when `patient`, which waits for the lock). Refused: the
        database refuses this write for its content; the others of the batch are committed without
        it.

        `Committed.settled` holds what the ledger already had for keys whose intents or results
        the write carried: those calls must not be made, and those results stand.

        A batch holds at most one write per task (ValueError).
        """
        ...

    async def settle(self, ledger_id: LedgerId, key: str, result: str) -> bool:
        """Record the result of a call that was already made, without a fence: whatever became of
        the lease, the outside has done it. Where a result is recorded already, that one stays and
        False is returned."""
        ...

    async def entry(self, ledger_id: LedgerId, key: str) -> LedgerEntry | None:
        """The ledger's entry under the key."""
        ...

    async def entries(
        self, ledger_id: LedgerId, first: str, last: str, *, limit: int = 500
    ) -> Sequence[LedgerEntry]:
        """Entries with first <= key < last, in key order, at most `limit`: one page of a map."""
        ...

    async def open_intents(self, ledger_id: LedgerId, kind: LedgerKind) -> Sequence[LedgerEntry]:
        """Entries of this kind whose outcome is unknown."""
        ...

    async def leased_to(self, worker_id: WorkerId) -> Mapping[TaskId, Standing]:
        """What the worker runs as the store sees it."""
        ...

    async def sign_off(self, worker_id: WorkerId) -> None:
        """The worker leaves: from now on nothing can be claimed for it."""
        ...


class BeatStore(Protocol):
    """What the beat thread does, over its own connection."""

    async def beat(
        self, worker_id: WorkerId, *, presence: str | None
    ) -> Mapping[TaskId, Standing] | None:
        """One beat, and what the store holds leased to the worker by then.

        None: the worker has been declared dead (or has no row); nothing changed.
        """
        ...

    async def release(self, worker_id: WorkerId, task_id: TaskId, fence: Fence) -> bool:
        """Give back a lease whose claim the worker never heard of; False if it is not leased to
        this worker under this fence. The fence rises, the run is closed as released, and the task
        is claimable at once."""
        ...


# --- sweeps -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TakenOver:
    """What one recovery did: tasks freed, and those failed because their step kills workers."""

    freed: Sequence[TaskId]
    failed: Sequence[TaskId]


class SweepStore(Protocol):
    """The duties of every worker. Each is harmless when two run at once, and bounded by `limit`."""

    async def vitals(self, *, limit: int = 10_000) -> Sequence[Vitals]:
        """The beats of all living workers, with their presence where it can be known: a presence
        taken under another server incarnation is not known."""
        ...

    async def take_over(self, death: Death, *, limit: int = 100) -> TakenOver | None:
        """In one transaction: the worker is marked dead where its beat is still the one seen, and
        the leases it held end: fences rise, runs close as lost, tasks are claimable again.

        None: the beat has moved or somebody else was first; nothing changed. Each freed task whose
        run began before the death counts a crash; at the store's crash limit it has failed instead
        ("the process died N times in step S"). Repeated crashes delay the next run, each task of
        one worker longer than the one before.
        """
        ...

    async def free_orphans(self, *, limit: int = 100) -> TakenOver:
        """Free whatever is leased to a worker that is dead or has no row, as `take_over` does:
        what a claim slipped in beside a take-over, and what its limit left."""
        ...

    async def end_overdue_pauses(self, *, limit: int = 100) -> Sequence[TaskId]:
        """End the pauses whose deadline has passed, as their questions said: FAILED, CANCELED
        (by the cancel step where there is one), or resumed with the deadline as the outcome in
        the ledger. A pause that was answered meanwhile is left alone."""
        ...

    async def remind_of_pauses(self, *, limit: int = 100) -> Sequence[TaskId]:
        """Say the questions again whose reminder has come, each once: the question's status as a
        new event. The pause, its id and its deadline stay. A pause that was answered meanwhile is
        left alone."""
        ...

    async def end_overdue_lives(self, *, limit: int = 100) -> Sequence[TaskId]:
        """Fail the tasks that have reached the end of their longest life, whoever runs them; by
        way of the failure step where there is one."""
        ...

    async def excuse_outage(self, *, longest: Millis, gap: Millis, limit: int = 1000) -> Millis:
        """Note that a sweep runs. If the last one was more than `gap` ago, move the deadlines of
        pauses and lives that passed meanwhile by that gap, at most `longest`, once; return by how
        much (0: no outage). Timers do not move. All of them move together, `limit` with each
        statement."""
        ...

    async def expire_tasks(self, *, limit: int = 100, piece: int = 5000) -> Sequence[TaskId]:
        """Delete the finished tasks whose retention is over, each in a transaction of its own, and
        leave a tombstone of each: log, runs, folds and webhooks go, and the ledger with the last
        task that names it. Of a long log the first transaction deletes `piece` events, and others
        after it the rest, also those that an earlier call has left. A task with a webhook that is
        neither finished nor exhausted stays. Returns the tasks that this call deleted."""
        ...

    async def forget_expired(self, *, older_than: Millis, limit: int = 100) -> int:
        """Drop the tombstones of tasks that expired longer ago than this, and the keys of their
        sends with them. Returns how many."""
        ...

    async def forget_replies(self, *, older_than: Millis, limit: int = 1000) -> None:
        """Drop the keys of direct Messages that are older than this; the keys of tasks stay."""
        ...

    async def unfolded(self, *, limit: int = 100) -> Sequence[TaskId]:
        """Tasks whose next fold is due: their logs have grown by 256 events since the last one, or
        as far as that one said; or they have ended, with logs of at least `Settings.fold_from`."""
        ...

    async def to_fold(self, task_id: TaskId, *, limit: int = 2000) -> Snapshot | None:
        """The task, its newest fold and the next `limit` events after it, from one read. None: the
        task is gone."""
        ...

    async def keep_fold(self, task_id: TaskId, fold: Fold, *, fence: Fence, next_at: int) -> bool:
        """Keep the fold, and of this task's the newest three. The next one is due when the log is
        `next_at` long, or at once if the task has ended with more than this fold holds. False: the
        task is gone or locked by somebody else, or its last event in the fold is not of this fence
        but of another log, before a restore; and nothing was written."""
        ...

    async def trim_logs(self, *, limit: int = 100, piece: int = 5000) -> Sequence[TaskId]:
        """Trim the logs of tasks that ended `Settings.resume_window_ms` ago and whose last fold is
        kept: all events but the last are deleted, `piece` in a transaction, also those that an
        earlier call has left. From the first on they are out of the log. A task with a webhook that
        is neither finished nor exhausted keeps its log. One that has lost its last fold keeps its
        log too, and the fold is due again. Returns the tasks whose logs this call trimmed."""
        ...

    async def put_off_fold(self, task_id: TaskId, *, events: int) -> None:
        """The fold cannot be made: it is due again when the log has grown by so many events. A
        task that is locked by somebody else is left as it is."""
        ...

    async def forget_workers(self, *, older_than: Millis, limit: int = 100) -> None:
        """Drop the rows of workers that died long ago and lease nothing."""
        ...


# --- operators --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """The one row of `store`, and the time by its clock."""

    epoch: str
    schema_version: int
    readable_from: int
    now: Millis


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What began with a new epoch: how many leases ended, and how many workers are dead to it."""

    epoch: str
    leases: int
    workers: int


class AdminStore(Protocol):
    """What operators, tests and demos do to a store."""

    async def migrate(self) -> Sequence[int]:
        """Bring the schema up to this binary's version; returns the numbers that were applied.

        Safe when several processes start at once on an empty database: each migration is applied
        once. A store whose `readable_from` is newer than this binary raises SchemaMismatch.
        """
        ...

    async def check(self) -> StoreFacts:
        """Make sure that this binary can use the store. An older or missing schema raises
        SchemaMismatch with the command to run; one from the future, too, unless it says that this
        binary may still use it."""
        ...

    async def restored(self) -> Restored:
        """Begin a new epoch, after an older copy of the database was put in its place or a server
        took over that may lack commits.

        In one transaction every lease ends and its task is claimable at once, every worker is
        dead, and every fence is past any that the lost future can have given: nothing that comes
        from there changes anything. It counts as nobody's crash. A second time does the same
        again.
        """
        ...

    async def move_clock(self, by: Millis) -> None:
        """Move the clock of timers and deadlines. Not an outage: the last sweep moves with it."""
        ...

    async def next_due(self) -> tuple[Millis | None, Millis]:
        """When the next timer, retry, pause or life comes due, and the time now."""
        ...

    async def unhold(self, task_id: TaskId) -> bool:
        """Let a held task run again, with its attempts back at one; False if it is not held."""
        ...

    async def resolve(
        self,
        task_id: TaskId,
        key: str,
        *,
        fence: Fence,
        write_no: WriteNo,
        result: str | None,
        force: bool = False,
    ) -> bool:
        """An operator's word about the effect of unknown outcome that the call (fence, write_no)
        left: its result, or None for "not done".

        A result is recorded where none is and the intent is still that call's. "Not done" clears
        that call's own intent and nothing newer, and is refused (ConfigError) while the worker of
        that fence is not proven dead, unless `force`; one that is only frozen is not.
        False: there was nothing of that call to resolve.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class NewKey:
    """An API key to keep. `digest` is the SHA-256 of its text, in hex: the text itself never gets
    here. `lasts` is how long it is good for; None: until it is revoked."""

    key_id: str
    agent: str
    digest: str
    name: str
    owner: str
    tenant: str | None
    scopes: tuple[str, ...]
    lasts: Millis | None


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """An API key as the store knows it."""

    key_id: str
    name: str
    owner: str
    tenant: str | None
    scopes: tuple[str, ...]
    created_at: Millis
    expires_at: Millis | None
    revoked_at: Millis | None


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """Something that happened at the door. `source` is where it came from: an address, or who ran
    the command. No field may hold a secret. `audit_id` makes a repeat one entry."""

    audit_id: str
    agent: str
    kind: str
    subject: str = ""
    tenant: str = ""
    source: str = ""
    detail: str = ""


class AccessStore(Protocol):
    """Who may call an agent, and what happened at its door."""

    async def create_key(self, key: NewKey, *, source: str) -> ApiKey:
        """Keep the key, with an audit entry in the same transaction. One that is kept already is
        returned as it is."""
        ...

    async def valid_key(self, agent: str, digest: str) -> ApiKey | None:
        """The agent's key of this hash; None for one that is unknown, has expired by the store's
        clock, or is revoked."""
        ...

    async def keys(self, agent: str) -> Sequence[ApiKey]:
        """Every key of the agent, the newest first, also those that are no longer valid."""
        ...

    async def revoke_key(self, agent: str, key_id: str, *, source: str) -> bool:
        """Revoke the key, with an audit entry in the same transaction. False: the agent has no
        such key that is not revoked yet, and nothing was written."""
        ...

    async def note(self, entry: AuditEntry) -> None:
        """Write the entry, once however often it is repeated. Some of those that are older than
        `AUDIT_KEPT` are forgotten."""
        ...

    async def audit(self, agent: str, *, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        """The agent's latest entries with their times, the newest first."""
        ...


AUDIT_KEPT = Millis(90 * 86_400_000)
"""How long an audit entry is kept at least."""


class InspectStore(Protocol):
    """What people and checkers read."""

    async def find(self, task_id: TaskId) -> Task | None:
        """The task, whatever its scope."""
        ...

    async def checkpoint(self, task_id: TaskId) -> str | None:
        """The task's committed checkpoint, as JSON."""
        ...

    async def runs(self, task_id: TaskId) -> Sequence[Mapping[str, Any]]:
        """Every run of the task, in order."""
        ...

    async def held(self, agent: str, *, limit: int = 100) -> Sequence[Task]:
        """What waits for an operator, the longest first."""
        ...

    async def in_flight(self, agent: str) -> Sequence[Mapping[str, Any]]:
        """Unfinished tasks per workflow and version, and how many of them are held."""
        ...

    async def versions(self, agent: str) -> Sequence[Mapping[str, Any]]:
        """Every known version with its unfinished tasks, how many of them are held, and how many
        living workers can run it."""
        ...

    async def workers(self) -> Sequence[Mapping[str, Any]]:
        """The living workers."""
        ...

    async def effects(self) -> Sequence[Mapping[str, Any]]:
        """Every effect of every task, with its result, in the order of ledger and key."""
        ...

    async def broken_laws(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Every law of the log that some rows break, with those rows; empty when all hold."""
        ...
