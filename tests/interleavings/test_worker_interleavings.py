"""The schedules of the design's list of interleavings that a worker has a part in, by their
numbers, each on both databases. What a network does to a call is done by a wire between the real
worker and the real store (`tests.worker.wire`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import pytest

from outlast import AuthorError, DeadlinePassed, Next, NotDone, Retry, Workflow
from outlast.model.artifacts import fold_artifacts
from outlast.model.commit import Lost, Pause, Verdict, Wait, Write
from outlast.model.errors import UnsupportedOperation
from outlast.model.ids import TaskId, WorkerId
from outlast.model.lease import Lease, awake_seconds
from outlast.model.ledger import Clear, Intent, Kept, Result
from outlast.model.task import State
from outlast.store.protocols import VersionOf, WorkStore
from outlast.sweeps.deadlines import Deadlines
from outlast.testing import Held, run_workflow
from outlast.worker.attempt import Attempt
from outlast.worker.mailbox import Mailbox
from outlast.worker.run import Run, Surroundings, edges
from outlast.worker.threads import Threads
from tests.contract.stores import HOUR, SCOPE, new_worker
from tests.worker.flows import Ctx, Gate, Notes, Outside, flow
from tests.worker.house import House, text_of
from tests.worker.wire import When, Wire, carries, ends_with, says

pytest_plugins = ["tests.worker.fixtures"]

LATER = Retry(attempts=3, first=timedelta(hours=1), longest=timedelta(hours=1))
"""Nothing is tried again before the test moves the clock."""


def mailing(outside: Outside, **options: Any) -> Workflow[Notes]:
    """One step with one effect."""
    workflow = flow()

    @workflow.step(**options)
    async def work(ctx: Ctx) -> Next:
        return ctx.complete(await ctx.once("mail", outside.send, "mail"))

    return workflow


# --- 2: an open intent, and a cancel --------------------------------------------------------------


async def test_interleaving_02_an_open_intent_is_called_by_nobody_after_a_cancel(
    house: House,
) -> None:
    outside = Outside()
    workflow = mailing(outside)
    task_id = await house.send(workflow)
    wire = Wire()
    recorded = wire.hold_reply("commit", carries(Intent))
    first = await house.hire(workflow, wire=wire)
    await recorded.happened.wait()
    await house.bury(first)

    wire = Wire()
    met = wire.hold_call("commit", carries(Intent))
    await house.hire(workflow, wire=wire)
    await met.happened.wait()
    assert (await house.cancel(task_id)).state is State.CANCELED
    met.release()
    await house.logs("run.lease_lost", task_id=task_id, fence=3)
    first.wire.mend()
    await house.logs("worker.declared_dead")
    recorded.release()
    await house.logs("run.lease_lost", task_id=task_id, fence=1)
    assert outside.calls == []


# --- 3: an effect that outlives its run -----------------------------------------------------------


async def test_interleaving_03_a_step_that_times_out_waits_for_the_effect_that_it_is_in(
    house: House,
) -> None:
    outside, gate, left = Outside(), Gate(), asyncio.Event()
    outside.before_reply = gate
    workflow = flow()

    @workflow.step(timeout=timedelta(seconds=0.1), retry=LATER)
    async def work(ctx: Ctx) -> Next:
        try:
            return ctx.complete(await ctx.once("mail", outside.send, "mail"))
        finally:
            left.set()

    task_id = await house.send(workflow)
    hired = await house.hire(workflow)
    await _has_left(left)
    await house.keeps(task_id, hired)
    gate.open()
    await house.backs_off(task_id, 1)
    await house.store.later(2 * HOUR)
    assert text_of(await house.ended(task_id)) == "mail #1"
    assert outside.calls == ["mail"]
    assert await house.outcomes(task_id) == ["retried", "completed"]


async def _has_left(left: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        await left.wait()


async def test_interleaving_03_a_sibling_that_failed_in_a_map_waits_for_the_others(
    house: House,
) -> None:
    gate, calls = Gate(), list[str]()
    workflow = flow()

    async def send(item: str, *, idempotency_key: str) -> str:
        calls.append(item)
        if item == "bad" and calls.count("bad") == 1:
            raise ConnectionError("away")
        if item == "slow":
            await gate()
        return item

    @workflow.step(retry=LATER)
    async def work(ctx: Ctx) -> Next:
        sent = await ctx.map(["slow", "bad"], send, key=str, effect=True)
        return ctx.complete(", ".join(sent))

    task_id = await house.send(workflow)
    hired = await house.hire(workflow)
    await gate.reached()
    while "bad" not in calls:
        await asyncio.sleep(0)
    await house.keeps(task_id, hired)
    gate.open()
    await house.backs_off(task_id, 1)
    await house.store.later(2 * HOUR)
    assert text_of(await house.ended(task_id)) == "slow, bad"
    assert calls == ["slow", "bad", "bad"]


async def test_interleaving_03_a_worker_that_stops_waits_for_the_effect_that_it_is_in(
    house: House,
) -> None:
    outside, gate, left = Outside(), Gate(), asyncio.Event()
    outside.before_reply = gate
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        try:
            return ctx.complete(await ctx.once("mail", outside.send, "mail"))
        finally:
            left.set()

    task_id = await house.send(workflow)
    first = await house.hire(workflow, grace_s=0)
    await gate.reached()
    second = await house.hire(workflow)
    stopping = asyncio.create_task(first.stop())
    await _has_left(left)
    await house.keeps(task_id, first)
    gate.open()
    await stopping
    assert text_of(await house.ended(task_id)) == "mail #1"
    assert outside.calls == ["mail"]
    owners = [run["worker_id"] for run in await house.runs(task_id)]
    assert owners == [first.worker_id, second.worker_id]


# --- 4: one key twice in one run ------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gather", "map"])
async def test_interleaving_04_two_sub_steps_with_one_key_make_one_call(
    house: House, how: str
) -> None:
    outside, gate = Outside(), Gate()
    outside.before_reply = gate
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        async def mail(number: int) -> str:
            return await ctx.once("mail", outside.send, "mail")

        if how == "map":
            sent = await ctx.map([1, 2], mail, key="part")
        else:
            sent = list(await asyncio.gather(mail(1), mail(2)))
        return ctx.complete(", ".join(sent))

    task_id = await house.send(workflow)
    await house.hire(workflow)
    await gate.reached()
    gate.open()
    assert text_of(await house.ended(task_id)) == "mail #1, mail #1"
    assert outside.calls == ["mail"]


# --- 5: a late "it was not done" ------------------------------------------------------------------


async def test_interleaving_05_not_done_of_a_frozen_worker_clears_nothing_of_its_successor(
    house: House,
) -> None:
    gate, calls = Gate(), list[str]()
    workflow = flow()

    async def send(*, idempotency_key: str) -> str:
        calls.append(idempotency_key)
        if len(calls) == 1:
            raise NotDone("the service was in maintenance")
        await gate()
        return "sent"

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        return ctx.complete(await ctx.once("mail", send))

    task_id = await house.send(workflow)
    wire = Wire()
    late = wire.hold_call("commit", carries(Clear))
    frozen = await house.hire(workflow, wire=wire)
    await late.happened.wait()
    await house.bury(frozen)
    await house.hire(workflow)
    await gate.reached()
    frozen.wire.mend()
    late.release()
    await house.logs("run.lease_lost", task_id=task_id, fence=1)
    entry = await house.store.work.entry((await house.store.task(task_id)).ledger_id, "effect:mail")
    assert entry is not None
    assert (entry.fence, entry.result) == (3, None)
    gate.open()
    assert text_of(await house.ended(task_id)) == "sent"
    assert len(calls) == 2
    assert len(set(calls)) == 1


# --- 7: a lost reply to a write without events ----------------------------------------------------


@pytest.mark.parametrize(
    "lost",
    [carries(Intent), carries(Result), carries(Clear), carries(Kept), ends_with(Wait)],
    ids=["an intent", "a result", "a clearing", "a memo", "a timer"],
)
async def test_interleaving_07_a_repeated_write_without_events_learns_that_it_is_there(
    house: House, lost: When
) -> None:
    outside, failed = Outside(), list[str]()
    workflow = flow()

    async def refused(*, idempotency_key: str) -> str:
        if not failed:
            failed.append("once")
            raise NotDone
        return "done"

    @workflow.step(retry=Retry(first=timedelta(0)))
    async def work(ctx: Ctx) -> Next:
        await ctx.memo("draft", str, "x")
        await ctx.once("mail", outside.send, "mail")
        await ctx.once("order", refused)
        await ctx.sleep(timedelta(0))
        return ctx.complete()

    task_id = await house.send(workflow)
    wire = Wire()
    fault = wire.lose_reply("commit", lost)
    await house.hire(workflow, wire=wire)
    await house.ended(task_id)
    assert fault.happened.is_set
    assert outside.calls == ["mail"]
    assert await house.outcomes(task_id) == ["retried", "waiting", "completed"]
    assert not [line for line in house.logged if line["event"] == "run.lease_lost"]


# --- 8: a lost reply to a commit, and a timeout ---------------------------------------------------


async def test_interleaving_08_a_commit_is_repeated_until_it_is_known_then_comes_the_timeout(
    house: House,
) -> None:
    left, began = asyncio.Event(), list[tuple[int, list[str]]]()
    workflow = flow()

    @workflow.step(
        timeout=timedelta(seconds=0.2),
        retry=Retry(attempts=2, first=timedelta(hours=1), longest=timedelta(hours=1)),
    )
    async def work(ctx: Ctx) -> None:
        began.append((ctx.attempt, list(ctx.checkpoint.done)))
        match began:
            case [_]:
                raise ConnectionError("the first attempt")
            case [_, _]:
                ctx.checkpoint.done.append("one")
                try:
                    await ctx.commit("one")
                finally:
                    left.set()

    task_id = await house.send(workflow)
    wire = Wire()
    lost = wire.lose_reply("commit", says("'one'"))
    await house.hire(workflow, wire=wire)
    await house.backs_off(task_id, 1)
    repeat = wire.hold_call("commit", lambda batch: lost.happened.is_set and says("'one'")(batch))
    await house.store.later(2 * HOUR)
    await repeat.happened.wait()
    await _has_left(left)
    repeat.release()
    # The commit has set the attempts back, so the timeout is the first failure since, not the last.
    await house.until(task_id, lambda task: task.fence == 4 and task.attempt == 2)
    assert await house.store.inspect.checkpoint(task_id) == '{"done":["one"]}'
    await house.store.later(2 * HOUR)
    await house.ended(task_id)
    assert began == [(1, []), (2, []), (2, ["one"])]
    assert (await house.said(task_id)).count("working: one") == 1
    assert await house.outcomes(task_id) == ["retried", "retried", "completed"]
    error = json.loads((await house.runs(task_id))[1]["error"])
    assert error["type"] == "TimeoutError"


# --- 9: cancel, and what it must not let begin ----------------------------------------------------


def cancelable(act: Callable[[Ctx], Awaitable[object]], outside: Outside) -> Workflow[Notes]:
    workflow = flow()

    @workflow.step(retry=Retry(attempts=1, exhausted="hold"))
    async def work(ctx: Ctx) -> None:
        ctx.checkpoint.done.append("grant")
        await ctx.commit()
        await act(ctx)
        await ctx.once("next", outside.send, "never")

    @workflow.on_cancel
    async def undo(ctx: Ctx) -> None:
        await ctx.once("undo", outside.send, f"undo {ctx.checkpoint.done}")

    return workflow


async def _asks(ctx: Ctx) -> None:
    await ctx.ask("Go on?")


async def _sleeps(ctx: Ctx) -> None:
    await ctx.sleep(timedelta(hours=1))


async def _breaks_a_rule(ctx: Ctx) -> None:
    raise AuthorError("A rule.", "a fix.")


async def _does_nothing(ctx: Ctx) -> None: ...


@pytest.mark.parametrize(
    ("act", "outcome"),
    [(_asks, "paused"), (_sleeps, "waiting"), (_breaks_a_rule, "held")],
    ids=["paused", "sleeping", "held"],
)
async def test_interleaving_09_the_cancel_step_of_a_task_that_waits_runs_and_nothing_else(
    house: House, act: Callable[[Ctx], Awaitable[object]], outcome: str
) -> None:
    outside = Outside()
    workflow = cancelable(act, outside)
    task_id = await house.send(workflow)
    await house.hire(workflow)
    pause_id = (await house.until(task_id, lambda task: task.fence == 2)).pause_id
    marked = await house.cancel(task_id)
    assert (marked.state, marked.pause_id, marked.held_reason) == (State.WORKING, None, None)
    await house.ended(task_id, State.CANCELED)
    assert outside.calls == ["undo ['grant']"]
    assert await house.outcomes(task_id) == [outcome, "canceled"]
    if pause_id is not None:
        with pytest.raises(UnsupportedOperation):
            await house.answer(task_id, pause_id=pause_id)


@pytest.mark.parametrize(
    ("act", "held"),
    [(_asks, ends_with(Pause)), (_sleeps, ends_with(Wait)), (_does_nothing, carries(Intent))],
    ids=["it asks", "it sleeps", "an intent"],
)
async def test_interleaving_09_a_cancel_just_before_the_write_is_in_time(
    house: House, act: Callable[[Ctx], Awaitable[object]], held: When
) -> None:
    outside = Outside()
    workflow = cancelable(act, outside)
    task_id = await house.send(workflow)
    wire = Wire()
    write = wire.hold_call("commit", held)
    await house.hire(workflow, wire=wire)
    await write.happened.wait()
    await house.cancel(task_id)
    write.release()
    await house.ended(task_id, State.CANCELED)
    assert outside.calls == ["undo ['grant']"]
    assert "input-required" not in str(await house.said(task_id))
    assert await house.outcomes(task_id) == ["canceled"]


# --- 10: what a beat reads, and when --------------------------------------------------------------


async def test_interleaving_10_a_read_back_from_before_the_claim_does_not_stop_the_run(
    house: House,
) -> None:
    gate = Gate()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await gate()

    hired = await house.hire(workflow)
    read = hired.wire.hold_reply("beat")
    await read.happened.wait()
    task_id = await house.send(workflow)
    await gate.reached()
    read.release()
    await house.beats(hired, 3)
    gate.open()
    await house.ended(task_id)
    assert gate.arrivals == 1
    assert await house.outcomes(task_id) == ["completed"]


async def test_interleaving_10_while_a_claim_is_under_way_nothing_is_given_back(
    house: House,
) -> None:
    gate = Gate()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await gate()

    task_id = await house.send(workflow)
    wire = Wire()
    claim = wire.hold_reply("claim")
    hired = await house.hire(workflow, wire=wire)
    await claim.happened.wait()
    await house.beats(hired, 4)
    claim.release()
    await gate.reached()
    gate.open()
    await house.ended(task_id)
    assert await house.outcomes(task_id) == ["completed"]


async def test_interleaving_10_a_claims_reply_that_comes_after_its_lease_has_ended_runs_nothing(
    house: House,
) -> None:
    fences = list[int]()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        fences.append((await house.store.task(ctx.task_id)).fence)

    task_id = await house.send(workflow)
    wire = Wire()
    claim = wire.hold_reply("claim")
    hired = await house.hire(workflow, wire=wire)
    await claim.happened.wait()
    (task,) = await house.store.work.leased_to(hired.worker_id)
    assert await house.store.beats.release(hired.worker_id, task, (await house.leased(task)).fence)
    claim.release()
    await house.ended(task_id)
    assert fences == [3]
    assert await house.outcomes(task_id) == ["released", "completed"]


# --- 12: questions in a loop, and a crash at every point ------------------------------------------


def interview() -> tuple[Workflow[Notes], list[str]]:
    """Three questions of one text in a loop with commits, each after a memo."""
    workflow, thought = flow(), list[str]()

    async def think(number: int) -> str:
        thought.append(f"thought {number}.{thought.count(str(number))}")
        return thought[-1]

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        for number in range(len(ctx.checkpoint.done), 3):
            note = await ctx.memo(f"note {number}", think, number)
            answer = await ctx.ask("And now?", key=str(number))
            ctx.checkpoint.done.append(f"{note}: {answer.text}")
            await ctx.commit()
        return ctx.complete()

    return workflow, thought


@pytest.mark.parametrize("crash_after_commits", [True, False])
async def test_interleaving_12_each_question_of_a_loop_gets_its_own_answer(
    crash_after_commits: bool,
) -> None:
    workflow, thought = interview()
    run = await run_workflow(
        workflow, "hello", answers=["a", "b", "c"], crash_after_commits=crash_after_commits
    )
    assert run.checkpoint.done == ["thought 0.0: a", "thought 1.0: b", "thought 2.0: c"]
    assert run.questions == ["And now?"] * 3
    assert thought == ["thought 0.0", "thought 1.0", "thought 2.0"]


@pytest.mark.parametrize("executed", [True, False], ids=["after it", "before it"])
async def test_interleaving_12_also_with_a_crash_at_every_write(
    house: House, executed: bool
) -> None:
    workflow, _ = interview()
    writes = await _interviewed(house, workflow, crash_at=None, executed=executed)
    assert writes >= 10
    for crash_at in range(1, writes + 1):
        await _interviewed(house, workflow, crash_at=crash_at, executed=executed)


async def _interviewed(
    house: House, workflow: Workflow[Notes], *, crash_at: int | None, executed: bool
) -> int:
    """One task, run to its end; its process dies once, at that write. Returns how many it had."""
    hand = await Hand.of(house, workflow)
    hand.work.crash_at, hand.work.executed = crash_at, executed
    task_id = await house.send(workflow)
    answers = iter("abc")
    while not (task := await house.store.task(task_id)).state.is_terminal:
        assert not task.is_held, task.held_reason
        if task.pause_id is None:
            await hand.run_once()
        else:
            await house.answer(task_id, next(answers))
    checkpoint = await house.store.inspect.checkpoint(task_id)
    answered = [note.partition(": ")[2] for note in json.loads(checkpoint or "")["done"]]
    assert answered == ["a", "b", "c"], crash_at
    asked = [line for line in await house.said(task_id) if line == "input-required: And now?"]
    assert len(asked) == 3, crash_at
    return hand.work.seen


@pytest.mark.parametrize("crash_after_commits", [True, False])
async def test_interleaving_12_without_a_key_the_first_run_already_breaks_the_rule(
    crash_after_commits: bool,
) -> None:
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        for _ in range(len(ctx.checkpoint.done), 3):
            answer = await ctx.ask("And now?")
            ctx.checkpoint.done.append(answer.text)
            await ctx.commit()

    with pytest.raises(Held, match="stands in a loop"):
        await run_workflow(
            workflow, "hello", answers="abc", crash_after_commits=crash_after_commits
        )


class CrashingWork:
    """The real store, at whose n-th write the process dies: before it, or right after it."""

    def __init__(self, work: WorkStore) -> None:
        self._work = work
        self.seen = 0
        self.crash_at: int | None = None
        self.executed = True
        self.has_crashed = False

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._work, verb)

    async def commit(self, batch: list[Write], *, patient: bool = False) -> list[Verdict]:
        self.seen += 1
        if self.seen != self.crash_at:
            return list(await self._work.commit(batch, patient=patient))
        self.has_crashed = True
        if self.executed:
            await self._work.commit(batch, patient=patient)
        return [Lost() for _ in batch]


@dataclass
class Hand:
    """A worker's hand: one claim and one run when the test says so."""

    house: House
    workflow: Workflow[Notes]
    work: CrashingWork
    worker_id: WorkerId

    @classmethod
    async def of(cls, house: House, workflow: Workflow[Notes]) -> Hand:
        steps = [step.name for step in workflow.steps]
        version = VersionOf(
            workflow=workflow.name, version=1, steps=steps, fingerprint=workflow.fingerprint
        )
        await house.store.work.register(new_worker("hand", versions=[version]))
        return cls(house, workflow, CrashingWork(house.store.work), WorkerId("hand"))

    async def run_once(self) -> None:
        """A run, to the end of its lease. A process that died is proved dead at once."""
        (lease,) = await self.work.claim(
            self.worker_id, SCOPE.agent, self.workflow.name, 1, limit=1
        )
        await self._attempt(lease)
        if self.work.has_crashed:
            self.work.has_crashed = False
            await self.house.store.beats.release(self.worker_id, lease.task_id, lease.fence)

    async def _attempt(self, lease: Lease) -> None:
        async def submit(write: Write) -> Verdict:
            return (await self.work.commit([write]))[0]

        threads = Threads(1)
        first, latest = await edges(self.house.store.log, lease)
        run = Run(
            lease=lease,
            owner=self.worker_id,
            mailbox=Mailbox(lease, submit),
            around=Surroundings(
                work=cast(WorkStore, self.work),
                log=self.house.store.log,
                threads=threads,
                resources=None,
                is_stopping=lambda: False,
                on_stuck=lambda text: None,
            ),
            holds=lambda: True,
            first=first,
            latest=latest,
            began=awake_seconds(),
        )
        await Attempt(run, self.workflow).execute()
        threads.close()


# --- 16: deaths in a step -------------------------------------------------------------------------


async def _dies_in(house: House, workflow: Workflow[Notes], gate: Gate, times: int) -> None:
    """Worker after worker dies in the step."""
    for _ in range(times):
        seen = gate.arrivals
        hired = await house.hire(workflow)
        await gate.reached(seen + 1)
        await house.bury(hired)


async def test_interleaving_16_a_step_in_which_workers_die_three_times_fails_its_task_alone(
    house: House,
) -> None:
    gate, healthy = Gate(), Gate()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        if ctx.message.text == "killer":
            await gate()
        else:
            await healthy()

    killer = await house.send(workflow, "killer")
    await _dies_in(house, workflow, gate, 2)
    assert (await house.store.task(killer)).crashes == 2
    beside = await house.send(workflow, "beside it")
    await _dies_in(house, workflow, gate, 1)
    task = await house.ended(killer, State.FAILED)
    assert text_of(task) == "the process died 3 times in step work"
    assert await house.outcomes(killer) == ["lost"] * 3
    healthy.open()
    await house.hire(workflow)
    await house.ended(beside)


async def test_interleaving_16_a_commit_clears_the_count_and_a_release_adds_nothing(
    house: House,
) -> None:
    gate = Gate()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        if gate.arrivals == 2:
            await ctx.commit("it can be done")
        await gate()

    task_id = await house.send(workflow)
    await _dies_in(house, workflow, gate, 2)
    assert (await house.store.task(task_id)).crashes == 2
    hired = await house.hire(workflow, grace_s=0)
    await gate.reached(3)
    assert (await house.store.task(task_id)).crashes == 0
    await hired.stop()
    assert (await house.store.task(task_id)).crashes == 0
    await _dies_in(house, workflow, gate, 2)
    gate.open()
    await house.hire(workflow)
    await house.ended(task_id)


async def test_interleaving_16_a_killer_goes_by_way_of_its_failure_step(house: House) -> None:
    gate, outside = Gate(), Outside()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await gate()

    @workflow.on_failure
    async def report(ctx: Ctx) -> None:
        await ctx.once("report", outside.send, "report")

    task_id = await house.send(workflow)
    await _dies_in(house, workflow, gate, 3)
    await house.hire(workflow)
    task = await house.ended(task_id, State.FAILED)
    assert text_of(task) == "the process died 3 times in step work"
    assert outside.calls == ["report"]


# --- 19: chunks of a run that died ----------------------------------------------------------------


async def test_interleaving_19_chunks_that_no_commit_followed_are_not_in_the_completed_task(
    house: House,
) -> None:
    gate = Gate()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        if not ctx.checkpoint.done:
            ctx.checkpoint.done.append("written")
            async with ctx.open_stream("kept.txt") as out:
                await out.write("kept, ")
            await ctx.commit()
            for name in ("kept.txt", "gone.txt"):
                async with ctx.open_stream(name) as out:
                    await out.write("gone")
            await gate()

    task_id = await house.send(workflow)
    first = await house.hire(workflow)
    await gate.reached()
    await house.hears(task_id, "artifact gone.txt")
    await house.bury(first)
    await house.hire(workflow)
    await house.ended(task_id)
    artifacts = fold_artifacts(await house.events(task_id))
    texts = {
        name: "".join(part["text"] for part in body["parts"]) for name, body in artifacts.items()
    }
    assert texts == {"kept.txt": "kept, ", "gone.txt": ""}


# --- 22: the deadline and the answer --------------------------------------------------------------


def deciding() -> Workflow[Notes]:
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        try:
            answer = await ctx.ask("Now?", deadline=timedelta(hours=1), on_deadline="resume")
        except DeadlinePassed:
            return ctx.complete("nobody")
        return ctx.complete(answer.text)

    return workflow


@pytest.mark.parametrize("first", ["the sweep", "the answer", "both at once"])
async def test_interleaving_22_of_a_deadline_and_an_answer_one_wins_and_the_other_is_told(
    house: House, first: str
) -> None:
    workflow = deciding()
    tasks = [await house.send(workflow) for _ in range(5 if first == "both at once" else 1)]
    hired = await house.hire(workflow)
    pauses = {task_id: (await house.paused(task_id)).pause_id for task_id in tasks}
    await house.store.later(HOUR)
    deadlines = Deadlines(house.store.sweeping)
    told = dict[TaskId, bool]()

    async def answer(task_id: TaskId) -> None:
        """Through a gateway that has seen the task paused."""
        try:
            await house.answer(task_id, "ann", pauses[task_id])
        except UnsupportedOperation:
            told[task_id] = True

    acts: list[Callable[[], Awaitable[object]]] = [
        deadlines.sweep,
        *((lambda task_id=task_id: answer(task_id)) for task_id in tasks),
    ]
    if first == "both at once":
        await asyncio.gather(*(act() for act in acts))
    else:
        for act in acts if first == "the sweep" else reversed(acts):
            await act()
    for task_id in tasks:
        task = await house.ended(task_id)
        assert text_of(task) == ("nobody" if told.get(task_id) else "ann")
        answers = [line for line in await house.said(task_id) if line == "working: ann"]
        assert len(answers) == (0 if told.get(task_id) else 1)
        entries = await house.store.work.entries(task.ledger_id, "", "~")
        assert len(entries) == 1
    if first != "both at once":
        assert bool(told) == (first == "the sweep")
    assert hired.worker.problems() == []
