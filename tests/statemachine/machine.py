"""The state machine: callers, workers, sweeps and operators at work on the store at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from outlast.model.commit import (
    Backoff,
    Committed,
    Ending,
    Event,
    Finish,
    Hold,
    Lost,
    Marked,
    Pause,
    Release,
    Wait,
    Write,
)
from outlast.model.ids import Fence, Millis, TaskId, WorkerId, WriteNo
from outlast.model.lease import Death, Lease
from outlast.model.ledger import Clear, Intent, Kept, LedgerKind, LedgerWrite, Result
from outlast.model.pause import Ask, DueBy, OnDeadline
from outlast.model.task import Scope, State
from outlast.testing.scripted import WouldWait
from tests.statemachine import verbs
from tests.statemachine.play import Play, Verb
from tests.statemachine.stage import (
    HOOKED,
    HOUR,
    PLAIN,
    SCOPE,
    Stage,
    answer_to,
    chunk,
    move,
    new_task,
    said,
    write,
)
from tests.statemachine.world import Crew

T = TypeVar("T")

MOST_OPEN, MOST_TASKS, MOST_WORKERS = 3, 6, 9
HALF = HOUR // 2

pick = st.integers(0, 11)
rarely = st.integers(0, 3).map(lambda number: number == 3)
manner = st.sampled_from([*["done"] * 6, "begun", "begun", "unheard", "dropped", "late"])
"""How a call goes: to its end; only begun; its reply or the whole call is lost; or the caller has
given up and tries again while it is still on its way."""

content = st.lists(
    st.sampled_from(["say", "chunk", "keep", "move", "intent", "result", "memo", "clear"]),
    max_size=3,
)
ending = st.sampled_from(
    ["pause", "pause", "pause", "wait", "backoff", "hold", "release", "finish"]
)


@dataclass(eq=False)
class Run:
    """What a worker knows of one of its leases. It hears of the end of one only by a verdict.

    pending: a write whose outcome it does not know, and so the only one that it may send.
    """

    lease: Lease
    write_no: int = 0
    visit: int = 1
    pending: verbs.CommitOf | None = None
    is_marked: bool = False
    in_hook: bool = False
    is_over: bool = False
    intents: dict[str, int] = field(default_factory=dict)


class StoreMachine(RuleBasedStateMachine):
    """A few tasks and workers, and at most three calls at once, on one database."""

    stage: Stage

    def __init__(self) -> None:
        super().__init__()
        self.play = Play(self.stage)
        self.runs: list[Run] = []
        self.sends: list[str] = []
        self.answers: list[verbs.Answer] = []
        self.calls: list[tuple[str, str, Fence, WriteNo]] = []
        self.serial = 0

    @initialize()
    def begin(self) -> None:
        """Two workers; a plain task that runs, and one with hooks that has its first checkpoint."""
        for version in (PLAIN, HOOKED):
            self._hire()
            self.play.send(self._new(version))
            self._claim(version)
        run = self.runs[-1]
        self.play.send(self._commit_of([run], [self._draft(run, ["keep"], None, 0)]))

    # --- callers ------------------------------------------------------------------------------

    @precondition(lambda self: self._may_create())
    @rule(version=st.sampled_from([PLAIN, HOOKED]), manner=manner, steps=pick)
    def create(self, version: int, manner: str, steps: int) -> None:
        self._send(self._new(version), manner, steps)

    @rule(which=pick, other=st.booleans(), does=rarely, manner=manner, steps=pick)
    def create_under_a_used_key(
        self, which: int, other: bool, does: bool, manner: str, steps: int
    ) -> None:
        """Another gateway got the same message again, and would give it another task; or another
        message came under the same key."""
        if not does:
            return
        new = new_task(
            self._word("t"),
            key=_at(self.sends, which),
            digest="other" if other else "d",
            priority=self.serial + 100,
        )
        self._send(verbs.Create(new), manner, steps)

    def _may_create(self) -> bool:
        jobs = self.play.world.jobs.values()
        open_ones = [job for job in jobs if not job.is_over]
        return len(open_ones) < MOST_OPEN and len(jobs) < MOST_TASKS

    def _new(self, version: int) -> verbs.Create:
        number = len(self.sends) + 1
        self.sends.append(f"send {number}")
        return verbs.Create(
            new_task(
                f"t{number}",
                version=version,
                key=self.sends[-1],
                priority=number,
                max_age=30 * HOUR + HALF + number * 60_000,
            )
        )

    @precondition(lambda self: self._asked())
    @rule(which=pick, asked=pick, manner=manner, steps=pick)
    def answer(self, which: int, asked: int, manner: str, steps: int) -> None:
        """Mostly the question that is open; now and then one that is over: an old view has it."""
        task_id = _at(self._asked(), which)
        job = self.play.world.jobs[task_id]
        is_open = job.pause is not None and asked < 9
        pause_id = job.pause if is_open else _at(list(job.asks), asked)
        assert pause_id is not None
        word = self._word("answer")
        answer = answer_to(TaskId(task_id), pause_id, word, key=job.asks[pause_id].ledger_key)
        verb = verbs.Answer(answer, lambda result: self._hear_sent(result, word))
        self.answers.append(verb)
        self._send(verb, manner, steps)

    def _asked(self) -> list[str]:
        """Tasks that have asked something; those that wait for an answer, if there are any."""
        asked = [task_id for task_id, job in self.play.world.jobs.items() if job.asks]
        waiting = [task_id for task_id in asked if self.play.world.jobs[task_id].pause is not None]
        return waiting or asked

    @precondition(lambda self: self.answers)
    @rule(which=pick, manner=manner, steps=pick)
    def answer_once_more(self, which: int, manner: str, steps: int) -> None:
        self._send(_at(self.answers, which), manner, steps)

    def _hear_sent(self, result: Any, word: str) -> None:
        if not isinstance(result, Exception):
            self.play.told.add(word)

    @rule(which=pick, often=pick, manner=manner, steps=pick)
    def cancel(self, which: int, often: int, manner: str, steps: int) -> None:
        """Less often where it is the end at once. Now and then by somebody whose task it is not."""
        task_id = self._task(which)
        job = self.play.world.jobs[task_id]
        if often == 11:
            stranger = Scope(agent=SCOPE.agent, tenant=SCOPE.tenant, owner="eve")
            self._send(verbs.Cancel(stranger, task_id), manner, steps)
        elif often < (3 if job.version == PLAIN or job.checkpoint is None else 8):
            self._send(verbs.Cancel(SCOPE, task_id), manner, steps)

    # --- workers ------------------------------------------------------------------------------

    @precondition(lambda self: len(self.play.world.crews) < MOST_WORKERS)
    @rule()
    def hire(self) -> None:
        self._hire()

    def _hire(self) -> None:
        name = f"w{len(self.play.world.crews) + 1}"
        try:
            self.stage.hire(name)
        except WouldWait:
            return
        self.play.world.crews[name] = Crew()
        self.play.compare()

    @rule(
        which=pick,
        version=st.sampled_from([PLAIN, HOOKED]),
        limit=st.integers(1, 3),
        manner=manner,
        steps=pick,
    )
    def claim(self, which: int, version: int, limit: int, manner: str, steps: int) -> None:
        claim = verbs.Claim(self._worker(which), version, limit, self._hear_claimed)
        self._send(claim, manner, steps)

    def _hear_claimed(self, leases: Sequence[Lease]) -> None:
        for lease in sorted(leases, key=lambda lease: lease.task_id):
            run = Run(lease, visit=lease.visit, is_marked=lease.cancel_requested)
            self.runs.append(run)

    @rule(which=pick, content=content, also=pick, variant=pick, manner=manner, steps=pick)
    def commit(
        self, which: int, content: list[str], also: int, variant: int, manner: str, steps: int
    ) -> None:
        self._commit(which, content, None, also, variant, manner, steps)

    @rule(which=pick, also=pick, variant=pick, manner=manner, steps=pick)
    def call_outside(self, which: int, also: int, variant: int, manner: str, steps: int) -> None:
        """The intent of an effect, or what becomes of it."""
        kinds = ["intent", "intent", "result", "clear"]
        self._commit(which, [_at(kinds, variant // 2)], None, also, variant, manner, steps)

    @rule(
        which=pick,
        content=content,
        ending=ending,
        also=pick,
        variant=pick,
        manner=manner,
        steps=pick,
    )
    def commit_and_end(
        self,
        which: int,
        content: list[str],
        ending: str,
        also: int,
        variant: int,
        manner: str,
        steps: int,
    ) -> None:
        self._commit(which, content, ending, also, variant, manner, steps)

    def _commit(
        self,
        which: int,
        content: list[str],
        ending: str | None,
        also: int,
        variant: int,
        manner: str,
        steps: int,
    ) -> None:
        """A write of one run, or of two runs of different tasks at once."""
        if not any(not run.is_over for run in self.runs):
            self._find_work(which)
        writers = self._writers()
        if not writers:
            return
        runs = [_at(writers, which)]
        second = _at(writers, also)
        if second.lease.task_id != runs[0].lease.task_id:
            runs.append(second)
        writes = [self._draft(run, content, ending, variant) for run in runs]
        verb = self._commit_of(runs, writes, patient=len(runs) == 1 and variant > 8)
        self._send(verb, manner, steps)

    def _find_work(self, which: int) -> None:
        """Somebody has a task again, if there is one to be had."""
        world = self.play.world
        if not any(map(world.is_alive, world.crews)) and len(world.crews) < MOST_WORKERS:
            self._hire()
        ready = [version for version in (PLAIN, HOOKED) if world.ready(version)]
        if not ready and self._may_create():
            ready = [_at((HOOKED, PLAIN), which)]
            self.play.send(self._new(ready[0]))
        if ready:
            self._claim(_at(ready, which))

    def _claim(self, version: int) -> None:
        alive = [name for name in self.play.world.crews if self.play.world.is_alive(name)]
        if alive:
            self.play.send(verbs.Claim(WorkerId(alive[-1]), version, 2, self._hear_claimed))

    def _writers(self) -> list[Run]:
        """Runs that may send a new write; of those that are over, the newest two try it too."""
        runs = [run for run in self.runs if run.pending is None]
        over = [run for run in runs if run.is_over][-2:]
        return [run for run in runs if not run.is_over] + over

    def _hear_verdicts(self, verb: verbs.CommitOf, runs: list[Run], verdicts: Any) -> None:
        for run, sent, verdict in zip(runs, verb.writes, verdicts, strict=True):
            if run.pending is not verb:
                continue
            run.pending = None
            if isinstance(verdict, Committed):
                self._hear_committed(run, sent, verdict)
            elif isinstance(verdict, Lost):
                run.is_over = True
                run.write_no += 1  # it may have been written, so other content has other numbers
            elif isinstance(verdict, Marked):
                run.is_marked = True
            else:  # busy: the same again, alone, and it waits for the lock
                self.play.uncertain.append(self._commit_of([run], [sent], patient=True))

    def _commit_of(
        self, runs: list[Run], writes: list[Write], *, patient: bool = False
    ) -> verbs.CommitOf:
        verb = verbs.CommitOf(writes, patient)
        verb.heard = lambda told: self._hear_verdicts(verb, runs, told)
        for run in runs:
            run.pending = verb
        return verb

    def _hear_committed(self, run: Run, write: Write, verdict: Committed) -> None:
        run.write_no += 1
        run.is_marked |= verdict.marked
        run.is_over |= write.ending is not None
        for entry in write.ledger:
            if isinstance(entry, Intent) and entry.kind is LedgerKind.EFFECT:
                run.intents[entry.key] = run.write_no
                call = (write.ledger_id, entry.key, write.fence, WriteNo(run.write_no))
                self.calls.append(call)
        self.play.told |= {word for word in self.play.sent if _says(write, word)}

    def _draft(self, run: Run, content: list[str], ending: str | None, variant: int) -> Write:
        events: list[Event] = []
        ledger: list[LedgerWrite] = []
        run.in_hook |= run.is_marked and variant % 3 > 0
        moved = None
        for kind in content:
            match kind:
                case "say":
                    events.append(said(self._word("event")))
                case "chunk":
                    events.append(chunk(self._word("chunk"), append=variant % 2 == 0))
                case "keep":
                    moved = move(self._word("checkpoint"), visit=run.visit)
                case "move":
                    run.visit += 1
                    moved = move(self._word("checkpoint"), step=f"s{run.visit}", visit=run.visit)
                case _:
                    ledger += self._entry(run, kind, variant, {entry.key for entry in ledger})
        end = None if ending is None else self._ending(run, ending, variant, events, ledger)
        if not (events or ledger or moved or end):
            events.append(said(self._word("event")))
        return write(
            run.lease,
            run.write_no,
            events=events,
            ledger=ledger,
            move=moved,
            ending=end,
            in_hook=run.in_hook,
        )

    def _entry(self, run: Run, kind: str, variant: int, used: set[str]) -> list[LedgerWrite]:
        effect = f"effect:{'ab'[variant % 2]}"
        memo = f"memo:{variant % 2}"
        if effect in used or memo in used:
            return []
        match kind:
            case "intent":
                return [Intent(key=effect, kind=LedgerKind.EFFECT, digest="d")]
            case "result" if effect in run.intents:
                return [Result(key=effect, result=f'"{self._word("result")}"')]
            case "clear" if effect in run.intents:
                return [Clear(key=effect, write_no=WriteNo(run.intents[effect]))]
            case "memo":
                return [Kept(key=memo, kind=LedgerKind.MEMO, result=f'"{self._word("memo")}"')]
        return []

    def _ending(
        self, run: Run, kind: str, variant: int, events: list[Event], ledger: list[LedgerWrite]
    ) -> Ending:
        soon = Millis((variant % 3) * HOUR + HALF + len(self.sends) * 1000)
        match kind:
            case "pause":
                ask = Ask(
                    ledger_key=self._word("ask"),
                    on_deadline=list(OnDeadline)[variant % 3],
                )
                event = said(self._word("question"), State.INPUT_REQUIRED, ask=ask.to_json())
                events.append(event)
                ledger.append(Intent(key=ask.ledger_key, kind=LedgerKind.ANSWER))
                return Pause(state=State.INPUT_REQUIRED, deadline=DueBy(after=soon))
            case "wait":
                timer = self._word("timer") if variant % 2 else None
                return Wait(until=DueBy(after=soon), timer_key=timer)
            case "backoff":
                return Backoff(delay=soon, error={"text": "no"})
            case "hold":
                return Hold(reason="look at this")
            case "finish":
                ends = [State.COMPLETED, State.FAILED, State.CANCELED, State.REJECTED]
                state = ends[variant % 4]
                events.append(said(self._word("end"), state))
                return Finish(state=state)
        return Release()

    @precondition(lambda self: self.calls)
    @rule(which=pick, manner=manner, steps=pick)
    def settle(self, which: int, manner: str, steps: int) -> None:
        """A call of whatever run has been answered by the outside."""
        ledger_id, key, _, _ = _at(self.calls, which)
        result = f'"{self._word("settled")}"'
        self._send(verbs.Settle(ledger_id, key, result), manner, steps)  # type: ignore[arg-type]

    @rule(which=pick, manner=manner, steps=pick)
    def beat(self, which: int, manner: str, steps: int) -> None:
        self._send(verbs.Beat(self._worker(which)), manner, steps)

    @rule(which=pick, worker=pick, back=st.integers(0, 2), does=rarely, manner=manner, steps=pick)
    def release(
        self, which: int, worker: int, back: int, does: bool, manner: str, steps: int
    ) -> None:
        """By the beat, when it knows no run of it; also with what it read some beats ago."""
        if not does:
            return
        task_id = self._task(which)
        job = self.play.world.jobs[task_id]
        owner = WorkerId(job.owner) if job.owner and worker < 9 else self._worker(worker)
        fence = Fence(max(job.fence - (0 if worker < 7 else back), 0))
        self._send(verbs.Release(owner, task_id, fence), manner, steps)

    @rule(which=pick, does=rarely, manner=manner, steps=pick)
    def sign_off(self, which: int, does: bool, manner: str, steps: int) -> None:
        if does:
            self._send(verbs.SignOff(self._worker(which)), manner, steps)

    # --- sweeps and operators -----------------------------------------------------------------

    @rule(which=pick, back=st.integers(0, 3), does=rarely, manner=manner, steps=pick)
    def take_over(self, which: int, back: int, does: bool, manner: str, steps: int) -> None:
        """Right or wrong; also with a beat that is no longer the one seen."""
        if not does:
            return
        worker_id = self._worker(which)
        beat = self.play.world.crews[worker_id].beat - max(back - 1, 0)
        death = Death(worker_id=worker_id, beat=beat, early=False)
        self._send(verbs.TakeOver(death), manner, steps)

    @rule(
        kind=st.sampled_from(
            [verbs.FreeOrphans, verbs.EndPauses, verbs.EndPauses, verbs.EndLives, verbs.Excuse]
        ),
        manner=manner,
        steps=pick,
    )
    def sweep(self, kind: Callable[[], Verb], manner: str, steps: int) -> None:
        self._send(kind(), manner, steps)

    @precondition(lambda self: any(job.pause for job in self.play.world.jobs.values()))
    @rule(which=pick, meets=st.booleans(), manner=manner, steps=pick)
    def let_a_deadline_pass(self, which: int, meets: bool, manner: str, steps: int) -> None:
        """The clock moves past a question's deadline, and a sweep comes; an answer may be there
        already, or under way."""
        if meets:
            self.answer(which, 0, "begun", steps)
        jobs = [job for job in self.play.world.jobs.values() if job.deadline is not None]
        if jobs:
            left = _at(jobs, which).deadline - self.play.world.now  # type: ignore[operator]
            self.pass_time(max(-(-left // HOUR), 0), 0)
        self._send(verbs.EndPauses(), manner, steps)

    @precondition(lambda self: any(self.play.world.leased()))
    @rule(which=pick, manner=manner, steps=pick)
    def crash(self, which: int, manner: str, steps: int) -> None:
        """A worker dies over one of its tasks, and another one takes it on."""
        world = self.play.world
        _, job = _at(list(world.leased()), which)
        owner = WorkerId(job.owner or "")
        beat = world.crews[owner].beat
        self._send(verbs.TakeOver(Death(worker_id=owner, beat=beat, early=True)), manner, steps)
        if job.ready is not None and job.ready > world.now:
            self.pass_time(1 + (job.ready - world.now) // HOUR, 0)
        self._find_work(which)

    @precondition(lambda self: any(job.held for job in self.play.world.jobs.values()))
    @rule(which=pick, manner=manner, steps=pick)
    def unhold(self, which: int, manner: str, steps: int) -> None:
        self._send(verbs.Unhold(self._task(which)), manner, steps)

    @precondition(lambda self: self.calls)
    @rule(which=pick, is_done=st.booleans(), manner=manner, steps=pick)
    def resolve(self, which: int, is_done: bool, manner: str, steps: int) -> None:
        task_id, key, fence, write_no = _at(self.calls, which)
        result = f'"{self._word("resolved")}"' if is_done else None
        verb = verbs.Resolve(TaskId(task_id), key, fence, write_no, result)
        self._send(verb, manner, steps)

    @rule(hours=st.sampled_from([1, 1, 2, 3, 10, 30]), unswept=pick)
    def pass_time(self, hours: int, unswept: int) -> None:
        try:
            self.play.pass_time(hours, unswept=unswept > 9)
        except WouldWait:
            return

    # --- what the network does ----------------------------------------------------------------

    @precondition(lambda self: self.play.under_way)
    @rule(which=pick, steps=st.integers(1, 3))
    def step(self, which: int, steps: int) -> None:
        self.play.step(_at(self.play.under_way, which), steps)

    @precondition(lambda self: self.play.under_way)
    @rule(which=pick)
    def arrive(self, which: int) -> None:
        self.play.finish(_at(self.play.under_way, which))

    @precondition(lambda self: self.play.under_way)
    @rule(which=pick, commits=st.booleans())
    def lose_connection(self, which: int, commits: bool) -> None:
        attempt = _at(self.play.under_way, which)
        if commits:
            self.play.lose_reply(attempt)
        else:
            self.play.drop(attempt)

    @precondition(lambda self: self.play.uncertain)
    @rule(which=pick, manner=manner, steps=pick)
    def try_again(self, which: int, manner: str, steps: int) -> None:
        self._send(_at(self.play.uncertain, which), manner, steps)

    @invariant()
    def laws(self) -> None:
        self.play.check()

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self.play.end()
        finally:
            self.stage.database.abandon_all()

    # --- in every rule ------------------------------------------------------------------------

    def _send(self, verb: Verb, manner: str, steps: int) -> None:
        moving = [one for one in self.play.under_way if not one.call.is_waiting]
        if moving and steps > 3:
            self.play.finish(moving[0])
        send = self.play.repeat if self._is_known(verb) else self.play.send
        if manner == "done":
            send(verb)
        else:
            attempt = send(verb, steps=steps % 5)
            if attempt in self.play.under_way:
                if manner == "unheard":
                    self.play.lose_reply(attempt)
                elif manner == "dropped":
                    self.play.drop(attempt)
                elif manner == "late":
                    self.play.repeat(verb)

    def _is_known(self, verb: Verb) -> bool:
        return verb in self.play.uncertain or any(a.verb is verb for a in self.play.under_way)

    def _word(self, kind: str) -> str:
        """A word that nobody has said."""
        self.serial += 1
        word = f"«{kind} {self.serial}»"
        self.play.sent.append(word)
        return word

    def _task(self, which: int) -> TaskId:
        return TaskId(_at(list(self.play.world.jobs), which))

    def _worker(self, which: int) -> WorkerId:
        return WorkerId(_at(list(self.play.world.crews), which))


def _at(items: Sequence[T], which: int) -> T:
    return items[which % len(items)]


def _says(write: Write, word: str) -> bool:
    return any(word in str(event.body) for event in write.events)
