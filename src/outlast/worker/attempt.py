"""One attempt after another under one lease: load → call step → classify → commit → report."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, assert_never

import structlog

from outlast.model.commit import (
    Backoff,
    Ending,
    Event,
    Finish,
    Hold,
    Move,
    Release,
    status_event,
)
from outlast.model.content import Data, Message, Part, Text
from outlast.model.errors import (
    AuthorError,
    CancelRequested,
    LeaseLost,
    ShuttingDown,
    Stopped,
)
from outlast.model.ids import Millis, StepName, Visit
from outlast.model.ledger import LedgerWrite
from outlast.model.points import point
from outlast.model.retry import Retry
from outlast.model.task import State
from outlast.worker.mailbox import UnreadMessages, WriteRefused
from outlast.worker.outcome import (
    Broke,
    Cancels,
    Erred,
    Gone,
    Ignores,
    Outcome,
    Returned,
    Shuts,
    StepTimedOut,
    Unknown,
    Waits,
    classify,
    report_of,
)
from outlast.worker.run import Run
from outlast.workflow.context import Context
from outlast.workflow.next import Complete, Fail, Goto, Next, Reject
from outlast.workflow.steps import ON_CANCEL, ON_FAILURE, START, Step, call_step
from outlast.workflow.workflow import Workflow

log = structlog.get_logger("outlast.attempt")

HOOKS = (ON_CANCEL, ON_FAILURE)
_HOOK_RETRY = Retry(attempts=3, first=timedelta(seconds=1), longest=timedelta(seconds=10))


@dataclass(eq=False)
class Attempt:
    """Runs the steps of a task for as long as the lease lasts."""

    run: Run
    workflow: Workflow[Any]

    async def execute(self) -> None:
        """Returns when the lease has ended, by a write of this run or by somebody else's."""
        try:
            goes_on = await self._begin()
            while goes_on:
                goes_on = await self._one_step()
                self.run.forgive()
        except LeaseLost:
            log.warning("run.lease_lost", **self._names())
        except WriteRefused as refusal:
            await self._hold_refused(refusal)
        except Exception as error:  # a fault of ours, or code that cannot read its checkpoint
            log.exception("run.broke", **self._names())
            await self._hold_refused(error)

    async def _begin(self) -> bool:
        """False: the worker stops, and the lease was given back already."""
        lease = self.run.lease
        if lease.cancel_requested:
            return await self._enter_hook(lease.ending_as or {})
        if lease.state is State.SUBMITTED:
            await self.run.mailbox.post(events=[status_event(State.WORKING)])
        return True

    # --- call ---------------------------------------------------------------------------------

    async def _one_step(self) -> bool:
        """One call of the current step and what follows from it; False: the lease has ended.

        A cancel or a shutdown may also come while no step runs: before the first, or in between.
        """
        act = self._step
        while True:
            try:
                return await act()
            except CancelRequested:
                self.run.forgive()
                act = self._go_to_hook
            except ShuttingDown:
                act = self._release

    async def _step(self) -> bool:
        run = self.run
        run.check()
        run.in_hook = run.lease.step in HOOKS
        step = self._step_named(run.lease.step)
        if step is None:
            return await self._without_step()
        try:
            context: Context[Any, Any] = Context.build(run, self.workflow, step)
        except AuthorError as broken:  # the checkpoint that was stored fits its type no more
            return await self._hold(str(broken), broken)
        outcome = await self._call(context, step)
        if not await run.drain(None if step.timeout is None else step.timeout.total_seconds()):
            return await self._hold_stuck(step)
        return await self._conclude(context, step, outcome)

    def _step_named(self, name: StepName) -> Step | None:
        try:
            return self.workflow.step_named(name)
        except AuthorError:
            return None

    async def _call(self, context: Context[Any, Any], step: Step) -> Outcome:
        run = self.run
        point(f"before:step:{step.name}")
        task = asyncio.create_task(call_step(context, step), name=f"step {step.name}")
        run.begin(task)
        timer = _Timer(step.timeout, lambda: self._time_out(step))
        run.on_commit = timer.restart
        try:
            if not await run.ended(task):
                run.around.on_stuck(f"step {step.name} goes on although it was stopped")
                return Ignores()
        finally:
            timer.cancel()
            run.on_commit = _no_timer  # a commit of unknown outcome may still be on its way
            if not task.done():  # the worker is torn down around us, or the step ignores it
                task.cancel()
        error = None if not task.cancelled() else asyncio.CancelledError()
        if error is None:
            error = task.exception()  # type: ignore[assignment]
        value = None if error is not None else task.result()
        outcome = classify(value, error, run.reason, is_heard=run.is_heard)
        point(f"after:step:{step.name}")
        return outcome

    def _time_out(self, step: Step) -> None:
        assert step.timeout is not None
        seconds = step.timeout.total_seconds()
        self.run.interrupt(StepTimedOut(f"step {step.name} took longer than {seconds:g} s"))

    # --- conclude -----------------------------------------------------------------------------

    async def _conclude(self, context: Context[Any, Any], step: Step, outcome: Outcome) -> bool:
        """Write what the outcome means; True: the run goes on with another step."""
        match outcome:
            case Returned(next=next_):
                return await self._returned(context, next_)
            case Waits(waiting=waiting):
                return await self._end(waiting.ending, events=waiting.events, ledger=waiting.ledger)
            case Erred(error=error):
                return await self._erred(step, error)
            case Broke(error=broken):
                return await self._hold(str(broken), broken)
            case Unknown(error=unknown):
                return await self._hold(str(unknown), unknown)
            case Cancels():
                return await self._go_to_hook()
            case Shuts():
                return await self._release()
            case Ignores():
                return await self._abandon(step)
            case Gone():
                raise LeaseLost("the lease is over")
            case _ as unreachable:
                assert_never(unreachable)

    async def _returned(self, context: Context[Any, Any], next_: Next | None) -> bool:
        """The step's return commits, in one write with what it leads to."""
        self.run.forgive()  # what came when the step had returned waits for the commit
        try:
            events, checkpoint = await context.take_commit()
        except Stopped as reason:
            return await self._conclude_stopped(context, reason)
        lease = self.run.lease
        here = Move(checkpoint=checkpoint, step=lease.step, visit=lease.visit, read=context.read)
        if self.run.in_hook:
            return await self._finish_hook(events, here)
        next_ = next_ or self._following()
        if isinstance(next_, Goto):
            visit = Visit(lease.visit + 1)
            return await self._go(events, replace(here, step=next_.step, visit=visit))
        # The start has no inbox to read: a message must not keep it from refusing its task.
        closes = self.workflow.inbox and lease.step != START
        try:
            return await self._ended(next_, events, replace(here, closes=closes))
        except UnreadMessages:
            return await self._read_first(context)

    async def _ended(
        self, end: Complete | Fail | Reject, events: Sequence[Event], here: Move
    ) -> bool:
        """The end that the step wants for its task. Raises UnreadMessages."""
        match end:
            case Complete(text=text, data=data):
                said = status_event(State.COMPLETED, self._said(text, data))
                ending = Finish(state=State.COMPLETED)
                return await self._end(ending, events=[*events, said], move=here)
            case Reject(text=text):
                said = status_event(State.REJECTED, self._said(text))
                ending = Finish(state=State.REJECTED)
                return await self._end(ending, events=[*events, said], move=here)
            case Fail(text=text):
                return await self._fail(text, None, events=events, here=here)
            case _ as unreachable:
                assert_never(unreachable)

    async def _read_first(self, context: Context[Any, Any]) -> bool:
        """A message came that the step has not read. It starts over, under another lease, whose
        run knows what this one has left in the log; one that never reads would do so for ever."""
        log.info("inbox.unread", **self._names(), reads=context.reads_inbox)
        if context.reads_inbox:
            return await self._release()
        broken = AuthorError(
            f"A message is unread, and step {context.step.name} ends the task without looking.",
            "read ctx.inbox() in every step that ends the task: it may come at any time.",
        )
        return await self._hold(str(broken), broken)

    async def _conclude_stopped(self, context: Context[Any, Any], reason: Stopped) -> bool:
        """The return itself broke a rule (a checkpoint that is too large, say)."""
        outcome = classify(None, reason, self.run.reason or reason)
        return await self._conclude(context, context.step, outcome)

    def _following(self) -> Next:
        following = self.workflow.step_after(self.run.lease.step)
        return Complete() if following is None else Goto(following)

    async def _go(self, events: Sequence[Event], move: Move) -> bool:
        """On to another step, under the same lease unless the worker stops."""
        if self.run.around.is_stopping():
            return await self._end(Release(), events=events, move=move)
        written = await self.run.mailbox.post(events=events, move=move, in_hook=move.step in HOOKS)
        self.run.moved(move, written)
        if written.committed.marked and move.step not in HOOKS:
            return await self._go_to_hook()
        return True

    async def _erred(self, step: Step, error: BaseException) -> bool:
        report = report_of(error)
        lease = self.run.lease
        retry = _HOOK_RETRY if self.run.in_hook else step.retry
        log.warning(
            "step.failed", **self._names(), attempt=lease.attempt, **report.error, exc_info=False
        )
        if isinstance(error, WriteRefused):
            return await self._hold(str(error), error)
        if retry.allows(error, lease.attempt):
            delay = Millis(int(retry.delay(error, lease.attempt).total_seconds() * 1000))
            return await self._end(Backoff(delay=delay, error=report.error))
        if self.run.in_hook:
            here = Move(checkpoint=None, step=lease.step, visit=lease.visit)
            return await self._finish_hook((), here, report.error)
        if retry.exhausted == "hold":
            return await self._end(
                Hold(reason=f"step {step.name} failed: {error}", error=report.error)
            )
        text = f"step {step.name} failed (reference {report.reference})"
        return await self._fail(text, report.error)

    # --- ends ---------------------------------------------------------------------------------

    async def _fail(
        self,
        text: str,
        error: dict[str, Any] | None,
        *,
        events: Sequence[Event] = (),
        here: Move | None = None,
    ) -> bool:
        """FAILED, by way of the failure step where the workflow has one; with `here`, the commit
        of the step that wanted it."""
        lease = self.run.lease
        if self.workflow.failure_step is not None and lease.checkpoint is not None:
            ending_as = {
                "state": State.FAILED.value,
                "text": text,
                "hook": ON_FAILURE,
                "error": error,
            }
            here = here or Move(checkpoint=None, step=lease.step, visit=lease.visit)
            visit = Visit(lease.visit + 1)
            hook = replace(here, step=ON_FAILURE, visit=visit, ending_as=ending_as)
            return await self._go(events, hook)
        end = status_event(State.FAILED, self._said(text))
        return await self._end(
            Finish(state=State.FAILED, error=error), events=[*events, end], move=here
        )

    async def _go_to_hook(self) -> bool:
        """The task was marked while it ran here: ask how it must end, and run the hook."""
        standing = await self.run.standing()
        if standing is None or not standing.is_marked:
            raise LeaseLost("the task was ended while it was marked")
        return await self._enter_hook(standing.ending_as or {})

    async def _enter_hook(self, ending_as: Mapping[str, Any]) -> bool:
        """The hook is a step like any other: a commit takes the task there, so that a crash in it
        is followed by another attempt at it."""
        run = self.run
        run.in_hook = True
        if run.lease.step in HOOKS:
            return True
        hook = StepName(ending_as.get("hook", ON_CANCEL))
        move = Move(
            checkpoint=None, step=hook, visit=Visit(run.lease.visit + 1), ending_as=ending_as
        )
        return await self._go((), move)

    async def _without_step(self) -> bool:
        lease = self.run.lease
        if lease.step in HOOKS:  # the hook is gone from the code: the task ends without it
            here = Move(checkpoint=None, step=lease.step, visit=lease.visit)
            return await self._finish_hook((), here)
        names = ", ".join(step.name for step in self.workflow.steps)
        return await self._end(
            Hold(reason=f"there is no step {lease.step!r} in {self.workflow.name!r}: {names}")
        )

    async def _finish_hook(
        self, events: Sequence[Event], here: Move, error: dict[str, Any] | None = None
    ) -> bool:
        ending_as = self.run.lease.ending_as or {"state": State.CANCELED.value, "text": None}
        state = State(ending_as["state"])
        end = status_event(state, self._said(ending_as.get("text")))
        error = error or ending_as.get("error")
        return await self._end(Finish(state=state, error=error), events=[*events, end], move=here)

    async def _release(self) -> bool:
        return await self._end(Release())

    async def _hold(self, reason: str, error: BaseException) -> bool:
        log.error("task.held", **self._names(), reason=reason)
        return await self._end(Hold(reason=reason, error=report_of(error).error))

    async def _end(
        self,
        ending: Ending,
        *,
        events: Sequence[Event] = (),
        ledger: Sequence[LedgerWrite] = (),
        move: Move | None = None,
    ) -> bool:
        await self.run.mailbox.post(
            events=events, ledger=ledger, move=move, ending=ending, in_hook=self.run.in_hook
        )
        log.info("run.ended", **self._names(), ending=type(ending).__name__)
        return False

    async def _abandon(self, step: Step) -> bool:
        """The step runs on, but not for this task: its verbs raise, since the lease is over."""
        log.error("step.ignores_stop", **self._names())
        if isinstance(self.run.reason, LeaseLost):
            raise LeaseLost("the lease is over")
        if not isinstance(self.run.reason, StepTimedOut):
            return await self._release()
        return await self._end(
            Hold(
                reason=f"step {step.name} went on after its timeout: it must let cancellation pass"
            )
        )

    async def _hold_stuck(self, step: Step) -> bool:
        """A thread cannot be stopped from outside; an operator must restart the process."""
        self.run.around.on_stuck(f"a thread of step {step.name} still runs at twice its timeout")
        return await self._end(
            Hold(reason=f"a thread of step {step.name} runs on long after the step's timeout")
        )

    async def _hold_refused(self, error: Exception) -> None:
        """What the run wants to say cannot be written, or not be said; a plain reason can."""
        log.error("run.not_written", **self._names(), reason=str(error))
        try:
            await self._end(
                Hold(
                    reason=f"the run broke with {type(error).__name__}; see its runs",
                    error=report_of(error).error,
                )
            )
        except (LeaseLost, CancelRequested, WriteRefused) as refused:
            log.error("run.not_held", **self._names(), error=repr(refused))

    def _said(self, text: str | None, data: Any = None) -> dict[str, Any] | None:
        """A message of the agent in this task; None when there is nothing to say."""
        parts: list[Part] = []
        if text is not None:
            parts.append(Text(text))
        if data is not None:
            parts.append(Data(data))
        if not parts:
            return None
        lease = self.run.lease
        message = Message(
            role="agent", parts=tuple(parts), task_id=lease.task_id, context_id=lease.context_id
        )
        return message.to_json()

    def _names(self) -> dict[str, Any]:
        lease = self.run.lease
        return {
            "task_id": lease.task_id,
            "workflow": lease.workflow,
            "version": lease.version,
            "step": lease.step,
            "fence": lease.fence,
        }


def _no_timer() -> None:
    """No step runs whose timeout a commit would start over."""


class _Timer:
    """A step's timeout, counted since its last commit."""

    def __init__(self, timeout: timedelta | None, on_timeout: Any) -> None:
        self._seconds = None if timeout is None else timeout.total_seconds()
        self._on_timeout = on_timeout
        self._handle: asyncio.TimerHandle | None = None
        self.restart()

    def restart(self) -> None:
        self.cancel()
        if self._seconds is not None:
            loop = asyncio.get_running_loop()
            self._handle = loop.call_later(self._seconds, self._on_timeout)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
