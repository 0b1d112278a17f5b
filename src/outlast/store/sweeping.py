"""What sweeps read and write: recovery, deadlines, outages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from outlast.model.commit import Event, EventKind, status_event, status_of
from outlast.model.ids import Fence, Millis, Seq, TaskId, WorkerId
from outlast.model.lease import Death, Vitals
from outlast.model.pause import DEADLINE_PASSED, Ask, OnDeadline
from outlast.model.task import Fold, State
from outlast.store import endings, retention
from outlast.store.codec import to_text
from outlast.store.database import Database, Row, Rows, Script, catalog
from outlast.store.protocols import Settings, Snapshot, TakenOver
from outlast.store.rows import event_of, fold_of, task_of

T = TypeVar("T")

_FOLDS_KEPT = 3


class Sweeping:
    """`SweepStore` on any database."""

    def __init__(self, database: Database, settings: Settings | None = None) -> None:
        self._database = database
        self._queries = catalog(database.dialect)
        self._settings = settings or Settings()

    # --- dead workers -------------------------------------------------------------------------

    async def vitals(self, *, limit: int = 10_000) -> Sequence[Vitals]:
        rows = await self._read("workers_alive", n=limit)
        incarnation = await self._database.incarnation()
        shown = [row["worker_id"] for row in rows if row["presence"] == incarnation]
        present = await self._database.is_present(shown) if shown else {}
        return [
            Vitals(
                worker_id=WorkerId(row["worker_id"]),
                beat=row["beat"],
                lease_s=row["lease_ms"] / 1000,
                beat_s=row["beat_ms"] / 1000,
                present=present.get(row["worker_id"]),
            )
            for row in rows
        ]

    async def take_over(self, death: Death, *, limit: int = 100) -> TakenOver | None:
        def script() -> Script[TakenOver | None]:
            buried = yield self._queries(
                "workers_bury",
                worker_id=death.worker_id,
                beat=death.beat,
                is_gone=death.early,
            )
            if not buried:
                return None
            return (yield from self._free_orphans(limit))

        taken = await self._database.transact(script)
        if taken is not None:
            await self._database.drop_presence(death.worker_id)
        return taken

    async def free_orphans(self, *, limit: int = 100) -> TakenOver:
        if not await self._read("tasks_orphaned", n=1):
            return TakenOver(freed=(), failed=())
        return await self._database.transact(lambda: self._free_orphans(limit))

    def _free_orphans(self, limit: int) -> Script[TakenOver]:
        freed: list[TaskId] = []
        failed: list[TaskId] = []
        suspects = 0
        for orphan in (yield self._queries("tasks_orphaned", n=limit)):
            rows = yield self._queries("tasks_take_free", task_id=orphan["task_id"])
            # Not by owner: a claim of the dead worker that slipped in is another lease of its own.
            if not rows or rows[0]["fence"] != orphan["fence"]:
                continue
            row = rows[0]
            crashes = row["crashes"] + (1 if orphan["crashed"] else 0)
            if crashes >= self._settings.crash_limit:
                yield from self._fail_killer(row, crashes)
                failed.append(TaskId(row["task_id"]))
            else:
                suspects += 1 if orphan["crashed"] and row["crashes"] > 0 else 0
                yield from self._free(row, crashed=bool(orphan["crashed"]), place=suspects)
                freed.append(TaskId(row["task_id"]))
        return TakenOver(freed=freed, failed=failed)

    def _free(self, row: Row, *, crashed: bool, place: int) -> Script[None]:
        """The first death costs no delay; each further one doubles it. Tasks that died together
        more than once come back one after the other, so that the killer among them stands out."""
        delay = 0
        if crashed and row["crashes"] > 0:
            delay = (self._settings.crash_backoff_ms << min(row["crashes"] - 1, 10)) * place
        yield self._queries(
            "tasks_take_over",
            task_id=row["task_id"],
            fence=row["fence"],
            delay=delay,
            crashes=1 if crashed else 0,
        )
        yield endings.close_run(self._queries, row, "lost")

    def _fail_killer(self, row: Row, crashes: int) -> Script[None]:
        text = f"the process died {crashes} times in step {row['step']}"
        yield endings.close_run(self._queries, row, "lost", to_text({"text": text}))
        known = yield self._queries(
            "versions_get",
            agent=row["agent"],
            workflow=row["workflow"],
            version=row["version"],
        )
        if known and known[0]["on_failure"] and not row["ending_as"] and row["checkpoint"]:
            yield self._queries(
                "tasks_begin_hook",
                task_id=row["task_id"],
                step="on_failure",
                ending_as=to_text(endings.ending_as(State.FAILED, text)),
            )
            return
        yield from endings.end(self._queries, self._settings, row, State.FAILED, text, "failed")

    async def forget_workers(self, *, older_than: Millis, limit: int = 100) -> None:
        await self._write(lambda: self._just("workers_forget", age=older_than, n=limit))

    # --- deadlines ----------------------------------------------------------------------------

    async def end_overdue_pauses(self, *, limit: int = 100) -> Sequence[TaskId]:
        ended: list[TaskId] = []
        for due in await self._read("tasks_overdue_pauses", n=limit):
            task_id, pause_id = TaskId(due["task_id"]), Seq(due["pause_id"])
            if await self._write(lambda t=task_id, p=pause_id: self._end_pause(t, p)):  # type: ignore[misc]
                ended.append(task_id)
        return ended

    def _end_pause(self, task_id: TaskId, pause_id: Seq) -> Script[bool]:
        rows = yield self._queries("tasks_take_free", task_id=task_id)
        if not rows or rows[0]["pause_id"] != pause_id:
            return False
        row = rows[0]
        if row["pause_deadline_at"] > row["now"]:
            return False
        question = yield self._queries("task_events_get", task_id=task_id, seq=pause_id)
        ask = _ask_of(question)
        match ask.on_deadline:
            case OnDeadline.FAIL:
                yield from self._mark_or_end(row, State.FAILED, _unanswered(State(row["state"])))
            case OnDeadline.CANCEL:
                yield from self._mark_or_end(row, State.CANCELED, None)
            case OnDeadline.RESUME:
                yield from self._resume(row, ask)
        return True

    def _resume(self, row: Row, ask: Ask) -> Script[None]:
        event = status_event(State.WORKING)
        rows = yield self._queries(
            "tasks_answer",
            task_id=row["task_id"],
            state=row["state"],
            pause_id=row["pause_id"],
            status=to_text(status_of(event)),
            events=1,
        )
        numbers = {"next_seq": rows[0]["next_seq"], "fence": row["fence"]}
        yield endings.append(self._queries, numbers, row["task_id"], event)
        yield endings.outcome_of_pause(self._queries, row, ask.ledger_key, DEADLINE_PASSED)

    async def remind_of_pauses(self, *, limit: int = 100) -> Sequence[TaskId]:
        reminded: list[TaskId] = []
        for due in await self._read("tasks_overdue_reminders", n=limit):
            task_id, pause_id = TaskId(due["task_id"]), Seq(due["pause_id"])
            if await self._write(lambda t=task_id, p=pause_id: self._remind(t, p)):  # type: ignore[misc]
                reminded.append(task_id)
        return reminded

    def _remind(self, task_id: TaskId, pause_id: Seq) -> Script[bool]:
        rows = yield self._queries("tasks_take_free", task_id=task_id)
        if not rows or rows[0]["remind_at"] is None or rows[0]["remind_at"] > rows[0]["now"]:
            return False
        room = yield self._queries("tasks_remind", task_id=task_id, pause_id=pause_id)
        if not room:
            return False
        question = event_of(
            (yield self._queries("task_events_get", task_id=task_id, seq=pause_id))[0]
        )
        body = {name: said for name, said in question.body.items() if name != "ask"}
        if "ask" in question.body:
            asked = {"pause": pause_id, "asked_at": question.created_at}
            body["again"] = {**question.body["ask"], **asked}
        # No message of the history: the question stands there already.
        reminder = Event(kind=EventKind.STATUS, body=body)
        yield endings.append(self._queries, room[0], task_id, reminder)
        return True

    async def end_overdue_lives(self, *, limit: int = 100) -> Sequence[TaskId]:
        grace = self._settings.hook_grace_ms
        ended: list[TaskId] = []
        for due in await self._read("tasks_overdue_lives", n=limit, hook_grace=grace):
            task_id = TaskId(due["task_id"])
            if await self._write(lambda t=task_id: self._end_life(t)):  # type: ignore[misc]
                ended.append(task_id)
        return ended

    def _end_life(self, task_id: TaskId) -> Script[bool]:
        rows = yield self._queries("tasks_take_free", task_id=task_id)
        if not rows:
            return False
        row = rows[0]
        if State(row["state"]).is_terminal or row["give_up_at"] > row["now"]:
            return False
        marked_at = row["cancel_requested_at"]
        grace = self._settings.hook_grace_ms
        if marked_at is not None and max(marked_at, row["give_up_at"]) > row["now"] - grace:
            return False  # its hook has the grace; another sweep may have marked it just now
        text = "the task reached the end of its longest life"
        if row["cancel_requested_at"] is None:
            yield from self._mark_or_end(row, State.FAILED, text)
        else:
            yield from endings.end(
                self._queries, self._settings, row, State.FAILED, text, "gave up"
            )
        return True

    def _mark_or_end(self, row: Row, state: State, text: str | None) -> Script[None]:
        return endings.mark_or_end(self._queries, self._settings, row, state, text, "deadline")

    # --- retention ----------------------------------------------------------------------------

    async def expire_tasks(self, *, limit: int = 100, piece: int = 5000) -> Sequence[TaskId]:
        expire = partial(retention.expire, self._queries, piece=piece)
        expired: list[TaskId] = []
        for due in await self._read("tasks_expired", n=limit):
            task_id = TaskId(due["task_id"])
            if await self._write(partial(expire, task_id, due["ledger_id"])):
                expired.append(task_id)
        delete = partial(retention.delete_piece, self._queries, piece=piece)
        for left in await self._read("tombstones_with_log", n=limit):
            while await self._write(partial(delete, TaskId(left["task_id"]))):
                pass  # each piece is a transaction of its own, so that nobody waits long
        return expired

    async def forget_expired(self, *, older_than: Millis, limit: int = 100) -> int:
        forget = partial(retention.forget, self._queries, age=older_than)
        forgotten = 0
        for aged in await self._read("tombstones_aged", age=older_than, n=limit):
            forgotten += await self._write(partial(forget, TaskId(aged["task_id"])))
        return forgotten

    async def forget_replies(self, *, older_than: Millis, limit: int = 1000) -> None:
        await self._write(lambda: self._just("send_keys_forget", age=older_than, n=limit))

    # --- folds --------------------------------------------------------------------------------

    async def unfolded(self, *, limit: int = 100) -> Sequence[TaskId]:
        return [TaskId(row["task_id"]) for row in await self._read("tasks_unfolded", n=limit)]

    async def to_fold(self, task_id: TaskId, *, limit: int = 2000) -> Snapshot | None:
        def script() -> Script[Snapshot | None]:
            rows = yield self._queries("tasks_peek", task_id=task_id)
            if not rows:
                return None
            task = task_of(rows[0])
            newest = {"task_id": task_id, "until": task.generation}
            folds = yield self._queries("task_folds_newest", **newest)
            fold = fold_of(folds[0]) if folds else None
            after = Seq(0) if fold is None else fold.seq
            until = Seq(min(after + limit, task.generation))
            page = yield self._queries("task_events_since", task_id=task_id, seq=after, n=limit)
            return Snapshot(task=task, events=[*map(event_of, page)], fold=fold, seq=until)

        return await self._database.read(script)

    async def keep_fold(self, task_id: TaskId, fold: Fold, *, fence: Fence, next_at: int) -> bool:
        def script() -> Script[bool]:
            at = {"task_id": task_id, "seq": fold.seq}
            if not (yield self._queries("tasks_take_free", task_id=task_id)):
                return False
            last = yield self._queries("task_events_get", **at)
            if not last or last[0]["fence"] != fence:
                return False
            yield self._queries("task_folds_keep", **at, task=fold.packed)
            yield self._queries("task_folds_prune", task_id=task_id, n=_FOLDS_KEPT)
            window = self._settings.resume_window_ms
            yield self._queries("tasks_folded", **at, fold_at=next_at, window=window)
            return True

        return await self._database.transact(script)

    async def trim_logs(self, *, limit: int = 100, piece: int = 5000) -> Sequence[TaskId]:
        trim = partial(retention.trim, self._queries, piece=piece)
        trimmed: list[TaskId] = []
        for due in await self._read("tasks_trimmable", n=limit):
            task_id = TaskId(due["task_id"])
            gone = deleted = await self._write(partial(trim, task_id))
            while gone == piece:
                gone = await self._write(partial(trim, task_id))
            if deleted:
                trimmed.append(task_id)
        return trimmed

    async def put_off_fold(self, task_id: TaskId, *, events: int) -> None:
        def script() -> Script[None]:
            if (yield self._queries("tasks_take_free", task_id=task_id)):
                yield self._queries("tasks_put_off_fold", task_id=task_id, n=events)

        await self._database.transact(script)

    # --- outages ------------------------------------------------------------------------------

    async def excuse_outage(self, *, longest: Millis, gap: Millis, limit: int = 1000) -> Millis:
        def script() -> Script[Millis]:
            moved = Millis(0)
            for row in (yield self._queries("store_sweep_due", gap=gap)):
                moved = Millis(min(row["now"] - row["swept_at"], longest))
                yield from self._spare(row["swept_at"], row["now"], moved, limit)
            yield self._queries("store_sweep")
            return moved

        return await self._database.transact(script)

    def _spare(self, since: int, until: int, gap: Millis, limit: int) -> Script[None]:
        """In order of task_id, and never back: what was moved by less than the outage lasted is
        still due in it."""
        span = {"since": since, "until": until, "gap": gap, "n": limit}
        after = ""
        while moved := (yield self._queries("tasks_spare", after_id=after, **span)):
            after = max(row["task_id"] for row in moved)

    # --- running ------------------------------------------------------------------------------

    def _just(self, name: str, **params: object) -> Script[Rows]:
        return (yield self._queries(name, **params))

    async def _read(self, name: str, **params: object) -> Rows:
        return await self._database.read(lambda: self._just(name, **params))

    async def _write(self, script: Callable[[], Script[T]]) -> T:
        return await self._database.transact(script)


def _unanswered(state: State) -> str:
    if state is State.AUTH_REQUIRED:
        return "nobody gave the authorization before its deadline"
    return "nobody answered the question before its deadline"


def _ask_of(question: Rows) -> Ask:
    """What the question says about its deadline; one that says nothing fails its task, and must
    not stop the sweep of all others."""
    body = event_of(question[0]).body if question else {}
    return Ask.from_json(body["ask"]) if "ask" in body else Ask(ledger_key="")
