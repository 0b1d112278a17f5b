"""A `Session` in memory, for unit tests of what the verbs do. Never a second store: it knows no
leases, no fences that move, and no other process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from outlast.model.artifacts import fold_artifacts
from outlast.model.commit import Committed, Event, EventKind, LoggedEvent, Move
from outlast.model.content import Message
from outlast.model.errors import Stopped
from outlast.model.ids import (
    ContextId,
    Fence,
    LedgerId,
    Millis,
    Seq,
    StepName,
    TaskId,
    Visit,
    WriteNo,
)
from outlast.model.ids import WriteNo as Number
from outlast.model.lease import Lease
from outlast.model.ledger import Clear, Intent, Kept, LedgerEntry, LedgerKind, LedgerWrite, Result
from outlast.model.pause import DEADLINE_PASSED
from outlast.model.task import Caller, Scope, State
from outlast.workflow.answers import AnswerRecord
from outlast.workflow.context import Context
from outlast.workflow.session import Written
from outlast.workflow.suspend import Suspended
from outlast.workflow.workflow import Workflow

T = TypeVar("T")

NOW = Millis(1_800_000_000_000)
FENCE = Fence(3)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One write, as the verbs asked for it."""

    events: tuple[Event, ...]
    ledger: tuple[LedgerWrite, ...]
    move: Move | None
    urgent: bool


@dataclass(eq=False)
class FakeSession:
    """One task, over several runs: `again` starts the next one over from the last commit."""

    lease: Lease
    first: LoggedEvent
    resources: Any = None
    in_hook: bool = False
    ledger: dict[str, LedgerEntry] = field(default_factory=dict)
    log: list[LoggedEvent] = field(default_factory=list)
    writes: list[Seen] = field(default_factory=list)
    settled_by_others: dict[str, str] = field(default_factory=dict)
    reason: Stopped | None = None
    before_write: Callable[[], Awaitable[None]] | None = None
    began_at: int = 1
    _outside: set[asyncio.Future[Any]] = field(default_factory=set)

    @property
    def latest(self) -> LoggedEvent:
        said = [event for event in self.log if event.kind in (EventKind.TASK, EventKind.MESSAGE)]
        return said[-1]

    def check(self) -> None:
        if self.reason is not None:
            raise self.reason

    def stop(self, reason: Stopped) -> Stopped:
        self.reason = self.reason or reason
        return self.reason

    async def write(
        self,
        *,
        events: Sequence[Event] = (),
        ledger: Sequence[LedgerWrite] = (),
        move: Move | None = None,
        urgent: bool = True,
    ) -> Written:
        self.check()
        number = Number(len(self.writes) + 1)
        self.writes.append(
            Seen(events=tuple(events), ledger=tuple(ledger), move=move, urgent=urgent)
        )
        if self.before_write is not None:
            await self.before_write()
        settled: dict[str, str] = {}
        for entry in ledger:
            self._apply(entry, number, settled)
        for event in events:
            self.add(event, number)
        if move is not None:
            end = Seq(len(self.log))
            self.lease = replace(
                self.lease,
                checkpoint=move.checkpoint,
                commit_seq=end,
                read_seq=max(self.lease.read_seq, move.read),
                attempt=1,
            )
        await asyncio.sleep(0)
        committed = Committed(last_seq=Seq(len(self.log)), settled=settled)
        return Written(committed=committed, write_no=number)

    def add(self, event: Event, number: Number | None = None) -> None:
        """An event in the log, of this run or (without a number) of somebody else."""
        self.log.append(
            LoggedEvent(
                seq=Seq(len(self.log) + 1),
                kind=event.kind,
                body=json.loads(json.dumps(event.body)),
                is_message=event.is_message,
                fence=self.lease.fence,
                write_no=number,
                created_at=NOW,
            )
        )

    def _apply(self, write: LedgerWrite, number: Number, settled: dict[str, str]) -> None:
        match write:
            case Intent(key=key, kind=kind, digest=digest, request=request):
                if key in self.settled_by_others:
                    settled[key] = self.settled_by_others[key]
                    return
                self.ledger[key] = LedgerEntry(
                    key=key,
                    kind=kind,
                    request=request,
                    digest=digest,
                    fence=self.lease.fence,
                    write_no=number,
                    intent_at=NOW,
                    result=None,
                    done_at=None,
                )
            case Kept(key=key, kind=kind, digest=digest, result=result):
                self.ledger[key] = LedgerEntry(
                    key=key,
                    kind=kind,
                    request=None,
                    digest=digest,
                    fence=self.lease.fence,
                    write_no=number,
                    intent_at=NOW,
                    result=result,
                    done_at=NOW,
                )
            case Clear(key=key, write_no=cleared):
                if self.ledger[key].write_no == cleared:
                    del self.ledger[key]
            case Result(key=key, result=result):
                self.finish(key, result)

    def finish(self, key: str, result: str) -> None:
        """Record a result where an intent is open."""
        entry = self.ledger[key]
        if entry.result is None:
            self.ledger[key] = replace(entry, result=result, done_at=NOW)

    async def entry(self, key: str) -> LedgerEntry | None:
        self.check()
        return self.ledger.get(key)

    async def entries(self, first: str, last: str) -> Sequence[LedgerEntry]:
        self.check()
        return [self.ledger[key] for key in sorted(self.ledger) if first <= key < last]

    async def open_intents(self, kind: LedgerKind) -> Sequence[LedgerEntry]:
        self.check()
        return [e for _, e in sorted(self.ledger.items()) if e.kind is kind and not e.is_done]

    async def settle(self, key: str, result: str) -> str:
        self.finish(key, result)
        return self.ledger[key].result or result

    async def clear(self, key: str, write_no: WriteNo) -> None:
        await self.write(ledger=[Clear(key=key, write_no=write_no)])

    async def shielded(self, call: Awaitable[T]) -> T:
        task = asyncio.ensure_future(call)
        self._outside.add(task)
        task.add_done_callback(self._returned)
        return await asyncio.shield(task)

    def _returned(self, task: asyncio.Future[Any]) -> None:
        self._outside.discard(task)
        if not task.cancelled():
            task.exception()

    async def drain(self) -> None:
        """What an attempt does before it writes the end of the lease."""
        while self._outside:
            await asyncio.wait(set(self._outside))

    async def committed_artifacts(self) -> dict[str, dict[str, Any]]:
        return fold_artifacts(self.log[: self.lease.commit_seq])

    async def provisional_artifacts(self) -> Sequence[str]:
        await asyncio.sleep(0)
        left = self.log[self.lease.commit_seq : self.began_at]
        return list(fold_artifacts(left))

    async def messages(self, *, before: Seq | None, limit: int) -> Sequence[LoggedEvent]:
        known = [event for event in self.log if event.is_message]
        return [event for event in known if before is None or event.seq < before][-limit:]

    async def inbox(self) -> Sequence[LoggedEvent]:
        await asyncio.sleep(0)
        said = [event for event in self.log if event.kind is EventKind.MESSAGE]
        return [
            event
            for event in said
            if event.seq > self.lease.read_seq and event.body["answers"] is None
        ]

    async def thread(self, fn: Callable[..., T], *args: Any) -> T:
        return await asyncio.to_thread(fn, *args)

    # --- what a test does between runs ----------------------------------------------------------

    def again(self, *, at: Millis = NOW) -> None:
        """The next run: nothing of the last but what it wrote."""
        self.reason = None
        self.began_at = len(self.log)
        self.lease = replace(self.lease, claimed_at=at, fence=Fence(self.lease.fence + 1))

    def suspend(self) -> Suspended:
        """Write what the run was suspended with, as an attempt does, and return it."""
        assert isinstance(self.reason, Suspended)
        for entry in self.reason.waiting.ledger:
            self._apply(entry, Number(len(self.writes) + 1), {})
        for event in self.reason.waiting.events:
            self.add(event, Number(len(self.writes) + 1))
        return self.reason

    def answer(self, message: Message, *, subject: str = "alice") -> None:
        """Answer the open question, as a gateway does, and begin the next run."""
        question = self.log[-1]
        ask = question.body["ask"]
        caller = Caller(subject=subject)
        record = AnswerRecord.read(ask["schema"], message, caller)
        self.finish(ask["key"], json.dumps(record.to_json()))
        body: Mapping[str, Any] = {
            "state": "working",
            "message": message.to_json(),
            "answers": question.seq,
            "caller": caller.to_json(),
        }
        self.add(Event(kind=EventKind.MESSAGE, body=body, is_message=True))
        self.again()

    def receive(self, text: str) -> None:
        """A caller's message while the task works, as a gateway writes it."""
        body: Mapping[str, Any] = {
            "state": "working",
            "answers": None,
            "message": Message.user(text).to_json(),
            "caller": Caller(subject="bob").to_json(),
        }
        self.add(Event(kind=EventKind.MESSAGE, body=body, is_message=True))

    def pass_deadline(self) -> None:
        self.finish(self.log[-1].body["ask"]["key"], json.dumps(DEADLINE_PASSED))
        self.again()

    def artifacts(self) -> dict[str, list[dict[str, Any]]]:
        """What readers hold."""
        return {name: body["parts"] for name, body in fold_artifacts(self.log).items()}


def fake_session(
    checkpoint: str | None,
    *,
    message: Message | None = None,
    step: str = "work",
    in_hook: bool = False,
) -> FakeSession:
    """A task that has arrived at a step, with visit 2."""
    body = {
        "message": (message or Message.user("hello")).to_json(),
        "caller": Caller(subject="alice").to_json(),
    }
    first = LoggedEvent(
        seq=Seq(1),
        kind=EventKind.TASK,
        body=body,
        is_message=True,
        fence=Fence(0),
        write_no=None,
        created_at=NOW,
    )
    lease = Lease(
        task_id=TaskId("task-1"),
        scope=Scope(agent="compliance"),
        context_id=ContextId("context-1"),
        ledger_id=LedgerId("ledger-1"),
        workflow="review",
        version=1,
        state=State.WORKING,
        step=StepName(step),
        visit=Visit(2),
        checkpoint=checkpoint,
        fence=FENCE,
        attempt=1,
        crashes=0,
        last_seq=Seq(1),
        commit_seq=Seq(1),
        cancel_requested=False,
        ending_as=None,
        metadata={"priority": "high"},
        claimed_at=NOW,
        give_up_at=Millis(NOW + 86_400_000),
    )
    return FakeSession(lease=lease, first=first, in_hook=in_hook, log=[first], began_at=1)


def context_of(session: FakeSession, workflow: Workflow[Any]) -> Context[Any, Any]:
    """The context of the session's run of the workflow's step."""
    step = workflow.step_named(session.lease.step)
    return Context.build(session, workflow, step)
