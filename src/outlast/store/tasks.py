"""What a gateway does to tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from outlast.model.commit import EventKind, LoggedEvent, status_event, status_of
from outlast.model.errors import (
    GenerationMismatch,
    InvalidParams,
    KeyReused,
    TaskNotCancelable,
    TooMany,
    UnsupportedOperation,
)
from outlast.model.ids import Millis, Seq, TaskId
from outlast.model.pause import Ask, authorization
from outlast.model.task import Fold, Scope, State, Task
from outlast.store import endings
from outlast.store.codec import from_text, to_text, to_text_or_none
from outlast.store.database import Database, Row, Script, StatementRefused, catalog
from outlast.store.folded import folded_log
from outlast.store.protocols import (
    TOTAL_BOUND,
    AnswerTo,
    NewTask,
    Page,
    Place,
    Sent,
    Settings,
    Snapshot,
    ToInbox,
    Wanted,
)
from outlast.store.rows import event_of, fold_of, task_of
from outlast.store.scoped import found, missing, taken, within
from outlast.store.webhooks import put

T = TypeVar("T")

_RETRY_OPEN_S = 10  # tasks last: sooner there is little to hope for
_ROOM = 500
"""So far below the limit, creates of one owner need not take turns: each that counts one too few
holds a connection from its count to its commit, and no database has so many."""
_BEFORE_ALL = Place(status_at=Millis(1 << 62), task_id=TaskId(""))


class Tasks:
    """`TaskStore` on any database."""

    def __init__(self, database: Database, settings: Settings | None = None) -> None:
        self._database = database
        self._queries = catalog(database.dialect)
        self._settings = settings or Settings()

    # --- sends --------------------------------------------------------------------------------

    async def create(self, new: NewTask) -> Sent:
        def script() -> Script[Sent]:
            first = yield from self._claim_key(new.scope, new.send_key, new.digest, new.task_id)
            if first is not None:
                return first
            yield from self._check_open(new)
            event = endings.message_event(EventKind.TASK, new.message, new.caller)
            yield self._queries(
                "tasks_create",
                task_id=new.task_id,
                agent=new.scope.agent,
                tenant=new.scope.tenant,
                owner=new.scope.owner,
                context_id=new.context_id,
                workflow=new.workflow,
                version=new.version,
                status=to_text({"state": State.SUBMITTED.value}),
                step=new.first_step,
                max_age=new.max_age,
                metadata=to_text(new.metadata),
                priority=new.priority,
            )
            yield endings.append(self._queries, {"next_seq": 2, "fence": 0}, new.task_id, event)
            if new.webhook is not None:
                yield from put(self._queries, new.task_id, new.webhook, pinned=None)
            return Sent(task_id=new.task_id, reply=None, is_repeat=False)

        return await self._write(script)

    def _check_open(self, new: NewTask) -> Script[None]:
        """After the key: a repeat of what was started is answered however much is open."""
        if new.max_open is None:
            return
        if new.max_open > _ROOM:
            rows = yield self._queries("tasks_count_open", **within(new.scope), n=new.max_open)
            if rows[0]["open"] < new.max_open - _ROOM:
                return
        yield self._queries("tasks_lock_owner", **within(new.scope))
        rows = yield self._queries("tasks_count_open", **within(new.scope), n=new.max_open)
        if rows[0]["open"] >= new.max_open:
            raise TooMany(
                f"{new.max_open} of your tasks are unfinished, and that is the limit; finish or"
                " cancel some",
                retry_after=_RETRY_OPEN_S,
            )

    async def reply(
        self, scope: Scope, send_key: str, digest: str, reply: Mapping[str, Any]
    ) -> Sent:
        def script() -> Script[Sent]:
            first = yield from self._claim_key(scope, send_key, digest, None, reply)
            return first or Sent(task_id=None, reply=reply, is_repeat=False)

        return await self._write(script)

    async def recall(self, scope: Scope, send_key: str, digest: str) -> Sent | None:
        def script() -> Script[Sent | None]:
            sent = yield from self._known_key(scope, send_key, digest)
            if sent is not None and sent.task_id is not None:
                yield from self._found(scope, sent.task_id)
            return sent

        return await self._read(script)

    async def answer(self, answer: AnswerTo) -> Sent:
        def script() -> Script[Sent]:
            row = yield from self._taken(answer.scope, answer.task_id)
            first = yield from self._claim_key(
                answer.scope, answer.send_key, answer.digest, answer.task_id
            )
            if first is not None:
                return first
            _check_generation(row, answer.if_generation)
            yield from self._answer(row, answer)
            return Sent(task_id=answer.task_id, reply=None, is_repeat=False)

        return await self._write(script)

    def _answer(self, row: Row, answer: AnswerTo) -> Script[None]:
        event = endings.message_event(
            EventKind.MESSAGE, answer.message, answer.caller, answers=answer.pause_id
        )
        rows = yield self._queries(
            "tasks_answer",
            task_id=answer.task_id,
            state=answer.state.value,
            pause_id=answer.pause_id,
            status=to_text(status_of(event)),
            events=1,
        )
        if not rows:
            raise UnsupportedOperation(_why_not(row, answer.pause_id))
        numbers = {"next_seq": rows[0]["next_seq"], "fence": row["fence"]}
        yield endings.append(self._queries, numbers, answer.task_id, event)
        yield endings.outcome_of_pause(self._queries, row, answer.ledger_key, answer.result)
        if answer.webhook is not None:
            pinned = Seq(rows[0]["next_seq"] - 1)
            yield from put(self._queries, answer.task_id, answer.webhook, pinned=pinned)

    async def receive(self, sent: ToInbox) -> Sent:
        def script() -> Script[Sent]:
            row = yield from self._taken(sent.scope, sent.task_id)
            first = yield from self._claim_key(sent.scope, sent.send_key, sent.digest, sent.task_id)
            if first is not None:
                return first
            _check_generation(row, sent.if_generation)
            rows = yield self._queries("tasks_receive", task_id=sent.task_id)
            if not rows:
                raise UnsupportedOperation(_why_not_received(row))
            event = endings.inbox_event(from_text(row["status"]), sent.message, sent.caller)
            numbers = {"next_seq": rows[0]["next_seq"], "fence": row["fence"]}
            yield endings.append(self._queries, numbers, sent.task_id, event)
            if sent.webhook is not None:
                pinned = Seq(rows[0]["next_seq"] - 1)
                yield from put(self._queries, sent.task_id, sent.webhook, pinned=pinned)
            return Sent(task_id=sent.task_id, reply=None, is_repeat=False)

        return await self._write(script)

    def _claim_key(
        self,
        scope: Scope,
        key: str,
        digest: str,
        task_id: TaskId | None,
        reply: Mapping[str, Any] | None = None,
    ) -> Script[Sent | None]:
        """None when the key was free and is now this send's; else what it stands for already."""
        while True:
            claimed = yield self._queries(
                "send_keys_claim",
                **within(scope),
                key=key,
                task_id=task_id,
                digest=digest,
                reply=to_text_or_none(reply),
            )
            if claimed:
                return None
            known = yield from self._known_key(scope, key, digest)
            if known is not None:  # else it has been forgotten in between
                return known

    def _known_key(self, scope: Scope, key: str, digest: str) -> Script[Sent | None]:
        rows = yield self._queries("send_keys_get", **within(scope), key=key)
        if not rows:
            return None
        row = rows[0]
        if row["digest"] != digest:
            raise KeyReused(
                f"the key {key!r} stands for another message already; a new message needs a new"
                " key, and a repeat the same content"
            )
        reply = None if row["reply"] is None else from_text(row["reply"])
        return Sent(task_id=row["task_id"], reply=reply, is_repeat=True)

    # --- authorize ----------------------------------------------------------------------------

    async def authorize(self, scope: Scope, task_id: TaskId, pause_id: Seq, value: Any) -> bool:
        def script() -> Script[bool]:
            row = yield from self._taken(scope, task_id)
            rows = yield self._queries("task_events_get", task_id=task_id, seq=pause_id)
            said = event_of(rows[0]).body if rows else {}
            if not rows and pause_id <= row["trimmed_seq"]:
                raise UnsupportedOperation(_why_not(row, pause_id))
            if said.get("state") != State.AUTH_REQUIRED.value or "ask" not in said:
                raise UnsupportedOperation(
                    f"the task has never waited for an authorization {pause_id}"
                )
            key = Ask.from_json(said["ask"]).ledger_key
            if row["pause_id"] == pause_id:
                yield from self._authorize(row, key, value)
                return True
            if (yield from self._is_authorized(row, key)):
                return False
            raise UnsupportedOperation(_why_not(row, pause_id))

        return await self._write(script)

    def _authorize(self, row: Row, key: str, value: Any) -> Script[None]:
        # The value is a secret as a rule: it lies in the ledger, and no event shows it.
        event = status_event(State.WORKING, authorized=row["pause_id"])
        rows = yield self._queries(
            "tasks_answer",
            task_id=row["task_id"],
            state=State.AUTH_REQUIRED.value,
            pause_id=row["pause_id"],
            status=to_text(status_of(event)),
            events=1,
        )
        numbers = {"next_seq": rows[0]["next_seq"], "fence": row["fence"]}
        yield endings.append(self._queries, numbers, TaskId(row["task_id"]), event)
        yield endings.outcome_of_pause(self._queries, row, key, authorization(value))

    def _is_authorized(self, row: Row, key: str) -> Script[bool]:
        rows = yield self._queries("task_ledger_get", ledger_id=row["ledger_id"], key=key)
        result = rows[0]["result"] if rows else None
        return result is not None and "authorized" in from_text(result)

    # --- cancel -------------------------------------------------------------------------------

    async def cancel(self, scope: Scope, task_id: TaskId) -> Task:
        def script() -> Script[Task]:
            row = yield from self._taken(scope, task_id)
            state = State(row["state"])
            if state.is_terminal and state is not State.CANCELED:
                raise TaskNotCancelable(f"the task has already ended: it is {state.value}")
            if state is State.CANCELED or row["cancel_requested_at"] is not None:
                return task_of(row)
            yield from endings.mark_or_end(
                self._queries, self._settings, row, State.CANCELED, None, "canceled"
            )
            return task_of((yield from self._found(scope, task_id)))

        return await self._write(script)

    # --- reading ------------------------------------------------------------------------------

    async def get(self, scope: Scope, task_id: TaskId) -> Task:
        def script() -> Script[Task]:
            return task_of((yield from self._found(scope, task_id)))

        return await self._read(script)

    async def status_of(self, scope: Scope, task_id: TaskId) -> tuple[State, Seq]:
        def script() -> Script[tuple[State, Seq]]:
            rows = yield self._queries("tasks_standing", **within(scope), task_id=task_id)
            if not rows:
                yield from missing(self._queries, scope, task_id)
            return State(rows[0]["state"]), Seq(rows[0]["next_seq"] - 1)

        return await self._read(script)

    async def snapshot(
        self, scope: Scope, task_id: TaskId, *, until: Seq | None = None
    ) -> Snapshot:
        def script() -> Script[Snapshot]:
            task = task_of((yield from self._found(scope, task_id)))
            is_there = until is not None and task.trimmed < until <= task.generation
            seq = until if is_there and until is not None else task.generation
            fold, events = yield from folded_log(self._queries, task_id, seq)
            return Snapshot(task=task, events=events, fold=fold, seq=seq)

        return await self._read(script)

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
        place = after or _BEFORE_ALL
        filters = {
            **within(scope),
            "context_id": wanted.context_id,
            "state": None if wanted.state is None else wanted.state.value,
            "changed_since": wanted.changed_since or 0,
        }

        def script() -> Script[Page]:
            rows = yield self._queries(
                "tasks_page",
                **filters,
                status_at=place.status_at,
                task_id=place.task_id,
                n=limit + 1,  # one more tells whether there is another page
            )
            counted = yield self._queries("tasks_count", **filters, n=TOTAL_BOUND)
            tasks = [task_of(row) for row in rows[:limit]]
            if most_bytes is not None:
                tasks = yield from self._light_enough(tasks, artifacts, most_bytes)
            logs = yield from self._shown([task.task_id for task in tasks], artifacts)
            # Without artifacts a log shows little, and its fold, which holds them, may be large.
            folds = yield from self._folds_of(
                [task.task_id for task in tasks if artifacts or task.trimmed]
            )
            more = len(rows) > len(tasks)
            return Page(
                snapshots=[
                    Snapshot(
                        task=task,
                        fold=(fold := folds.get(task.task_id)),
                        events=_after(fold, logs[task.task_id]),
                        seq=task.generation,
                    )
                    for task in tasks
                ],
                total=counted[0]["total"],
                next=_place_of(tasks[-1]) if more else None,
            )

        return await self._read(script)

    def _light_enough(
        self, tasks: Sequence[Task], artifacts: bool, most_bytes: int
    ) -> Script[list[Task]]:
        """The first of the tasks, as many as weigh no more than this together; one at least."""
        if len(tasks) < 2:
            return [*tasks]
        task_ids = to_text([task.task_id for task in tasks])
        rows = yield self._queries("task_events_weigh", task_ids=task_ids, artifacts=artifacts)
        weights = {row["task_id"]: row for row in rows}
        light: list[Task] = []
        for task in tasks:
            weight = weights[task.task_id]
            most_bytes -= weight["in_events"]
            if artifacts or task.trimmed:
                most_bytes -= weight["in_fold"]
            if light and most_bytes < 0:
                break
            light.append(task)
        return light

    def _shown(
        self, task_ids: Sequence[TaskId], artifacts: bool
    ) -> Script[Mapping[TaskId, Sequence[LoggedEvent]]]:
        logs: dict[TaskId, list[LoggedEvent]] = {task_id: [] for task_id in task_ids}
        if task_ids:
            shown = self._queries(
                "task_events_shown", task_ids=to_text(task_ids), artifacts=artifacts
            )
            for row in (yield shown):
                logs[row["task_id"]].append(event_of(row))
        return logs

    def _folds_of(self, task_ids: Sequence[TaskId]) -> Script[Mapping[TaskId, Fold]]:
        if not task_ids:
            return {}
        rows = yield self._queries("task_folds_newest_of", task_ids=to_text(task_ids))
        return {TaskId(row["task_id"]): fold_of(row) for row in rows}

    def _found(self, scope: Scope, task_id: TaskId) -> Script[Row]:
        return (yield from found(self._queries, scope, task_id))

    def _taken(self, scope: Scope, task_id: TaskId) -> Script[Row]:
        return (yield from taken(self._queries, scope, task_id))

    async def _read(self, script: Callable[[], Script[T]]) -> T:
        return await self._database.read(script)

    async def _write(self, script: Callable[[], Script[T]]) -> T:
        try:
            return await self._database.transact(script)
        except StatementRefused as refusal:
            raise InvalidParams(f"this cannot be stored: {refusal.reason}") from None


def _place_of(task: Task) -> Place:
    return Place(status_at=task.status_at, task_id=task.task_id)


def _check_generation(row: Row, insisted: Seq | None) -> None:
    """Of the locked row and after the key: what was accepted once stays so, whatever came since."""
    current = row["next_seq"] - 1
    if insisted is not None and insisted != current:
        raise GenerationMismatch(row["task_id"], expected=insisted, current=current)


def _after(fold: Fold | None, events: Sequence[LoggedEvent]) -> Sequence[LoggedEvent]:
    return events if fold is None else [event for event in events if event.seq > fold.seq]


def _why_not(row: Row, pause_id: Seq) -> str:
    state = State(row["state"])
    if state.is_terminal:
        return _has_ended(state)
    if state.is_paused and row["pause_id"] != pause_id:
        return "the question that this answers is over; the task asks another one now"
    return f"the task does not wait for an answer: it is {state.value}"


def _why_not_received(row: Row) -> str:
    state = State(row["state"])
    if state.is_terminal:
        return _has_ended(state)
    if state.is_paused:
        return "the task has just stopped to ask something: look at its question, and answer that"
    return "the task is about to end: it reads no message any more"


def _has_ended(state: State) -> str:
    return f"the task has ended: it is {state.value}; send a message without taskId to start anew"
