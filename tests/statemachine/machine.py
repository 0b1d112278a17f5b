"""The state machine: callers, workers, sweeps and operators at work on the store at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from outlast.model.commit import (
    Backoff,
    Committed,
    Ending,
    Event,
    Finish,
    Hold,
    Lost,
    Marked,
    Move,
    Pause,
    Release,
    Unread,
    Wait,
    Write,
)
from outlast.model.ids import Fence, LedgerId, Millis, Seq, TaskId, WorkerId, WriteNo
from outlast.model.lease import Death, Lease
from outlast.model.ledger import Clear, Intent, Kept, LedgerKind, LedgerWrite, Result
from outlast.model.pause import Ask, DueBy, OnDeadline
from outlast.model.task import Scope, State
from outlast.testing.scripted import WouldWait
from tests.statemachine import verbs
from tests.statemachine.play import Attempt, Play, Verb
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
    to_inbox,
    write,
)
from tests.statemachine.world import Crew, Job

T = TypeVar("T")

MOST_OPEN, MOST_TASKS, MOST_WORKERS = 3, 8, 10
HALF = HOUR // 2

COMMON = {
    "create": 2,
    "create_under_a_used_key": 1,
    "answer": 3,
    "answer_once_more": 1,
    "receive": 1,
    "cancel": 1,
    "hire": 1,
    "claim": 4,
    "commit": 8,
    "call_outside": 4,
    "pause": 3,
    "wait": 1,
    "back_off": 1,
    "hold": 1,
    "give_back": 1,
    "finish": 1,
    "finish_past_a_message": 1,
    "settle": 1,
    "resolve": 1,
    "unhold": 1,
    "beat": 2,
    "release": 1,
    "sign_off": 1,
    "take_over": 2,
    "free_orphans": 2,
    "end_pauses": 1,
    "end_lives": 1,
    "excuse": 1,
    "let_a_deadline_pass": 1,
    "pass_time": 1,
    "step": 4,
    "arrive": 3,
    "lose_connection": 1,
    "try_again": 3,
}
MOODS: Mapping[str, Mapping[str, int]] = {
    "busy": COMMON,
    "talkative": COMMON | {"pause": 12, "answer": 10, "answer_once_more": 4, "end_pauses": 3}
    | {"let_a_deadline_pass": 5, "take_over": 1, "cancel": 2},
    "deadly": COMMON | {"crash": 10, "take_over": 6, "release": 4, "beat": 5, "sign_off": 3}
    | {"claim": 8, "free_orphans": 5, "hire": 3},
    "impatient": COMMON | {"cancel": 8, "end_lives": 4, "pass_time": 4, "hold": 4, "unhold": 4}
    | {"wait": 3, "pause": 6},
    "outside": COMMON | {"call_outside": 16, "settle": 6, "resolve": 6, "take_over": 4},
}  # fmt: skip
"""What happens how often in an example: each one has its mood."""

WAYS = [*["done"] * 7, "begun", "begun", "unheard", "dropped", "late"]
"""How a call goes: to its end; only begun; its reply or the whole call is lost; or the caller has
given up and tries again while it is still on its way."""

_CONTENT = ["say", "chunk", "keep", "move", "intent", "result", "memo", "clear"]


@dataclass(frozen=True)
class Lot:
    """What chance says about one action: numbers that choose among what there is."""

    which: int
    other: int
    way: str
    steps: int
    content: Sequence[str] = ()

    @property
    def is_even(self) -> bool:
        return self.other % 2 == 0


lots = st.builds(
    Lot,
    which=st.integers(0, 11),
    other=st.integers(0, 11),
    way=st.sampled_from(WAYS),
    steps=st.integers(0, 4),
    content=st.lists(st.sampled_from(_CONTENT), max_size=3),
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
        self.world = self.play.world
        self.actions: list[str] = []
        self.runs: list[Run] = []
        self.sends: list[str] = []
        self.answers: list[verbs.Answer] = []
        self.received: list[verbs.Receive] = []
        self.calls: list[tuple[str, str, Fence, WriteNo]] = []
        self.serial = 0

    @initialize(mood=st.sampled_from(sorted(MOODS)))
    def begin(self, mood: str) -> None:
        """Two workers; a plain task that runs, and one with hooks that has its first checkpoint."""
        self.actions = [name for name, weight in MOODS[mood].items() for _ in range(weight)]
        for version in (PLAIN, HOOKED):
            self._hire()
            self.play.send(self._new(version))
            self._claim(version)
        run = self.runs[-1]
        lot = Lot(0, 0, "done", 0, ["keep"])
        self.play.send(self._commit_of([run], [self._draft(run, None, lot)]))

    @rule(number=st.integers(0, 2**16), lot=lots)
    def act(self, number: int, lot: Lot) -> None:
        """One action; where there is nothing for it to act on, somebody works."""
        action = getattr(self, f"act_{_at(self.actions, number)}")
        if action(lot) is False:
            self.act_commit(lot)

    @invariant()
    def laws(self) -> None:
        self.play.check()

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self.play.end()
        finally:
            self.stage.database.abandon_all()

    # --- callers ------------------------------------------------------------------------------

    def act_create(self, lot: Lot) -> bool:
        if not self._may_create():
            return False
        return self._send(self._new(PLAIN if lot.is_even else HOOKED), lot)

    def act_create_under_a_used_key(self, lot: Lot) -> bool:
        """Another gateway got the same message again, and would give it another task; or another
        message came under the same key."""
        new = new_task(
            self._word("t"),
            key=_at(self.sends, lot.which),
            digest="d" if lot.is_even else "other",
            priority=self.serial + 100,
        )
        return self._send(verbs.Create(new), lot)

    def act_answer(self, lot: Lot) -> bool:
        """Mostly the question that is open; now and then one that is over: an old view has it."""
        asked = self._jobs(lambda job: job.pause is not None)
        if not asked and lot.other > 7:
            asked = self._jobs(lambda job: bool(job.asks))
        if not asked:
            return False
        task_id, job = _at(asked, lot.which)
        is_open = job.pause is not None and lot.other < 7
        pause_id = job.pause if is_open else _at(list(job.asks), lot.other)
        assert pause_id is not None
        word = self._word("answer")
        answer = answer_to(TaskId(task_id), pause_id, word, key=job.asks[pause_id].ledger_key)
        verb = verbs.Answer(answer, lambda result: self._hear_sent(result, word))
        self.answers.append(verb)
        return self._send(verb, lot)

    def act_answer_once_more(self, lot: Lot) -> bool:
        return bool(self.answers) and self._send(_at(self.answers, lot.which), lot)

    def act_receive(self, lot: Lot) -> bool:
        """A message for the inbox, mostly of a task that somebody runs; now and then one that was
        sent before."""
        if self.received and lot.other > 8:
            return self._send(_at(self.received, lot.which), lot)
        leased = [TaskId(task_id) for task_id, _ in self.world.leased()]
        word = self._word("message")
        sent = to_inbox(_at(leased, lot.which) if leased and lot.is_even else self._task(lot), word)
        verb = verbs.Receive(sent, lambda result: self._hear_sent(result, word))
        self.received.append(verb)
        return self._send(verb, lot)

    def act_cancel(self, lot: Lot) -> bool:
        """Now and then by somebody whose task it is not."""
        stranger = Scope(agent=SCOPE.agent, tenant=SCOPE.tenant, owner="eve")
        by = stranger if lot.other == 11 else SCOPE
        return self._send(verbs.Cancel(by, self._task(lot)), lot)

    def _may_create(self) -> bool:
        return (
            len(self._jobs(lambda job: not job.is_over)) < MOST_OPEN
            and len(self.world.jobs) < MOST_TASKS
        )

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

    def _hear_sent(self, result: Any, word: str) -> None:
        if not isinstance(result, Exception):
            self.play.told.add(word)

    # --- workers ------------------------------------------------------------------------------

    def act_hire(self, lot: Lot) -> bool:
        return self._hire()

    def act_claim(self, lot: Lot) -> bool:
        """Of a living worker, mostly."""
        alive = [WorkerId(name) for name in self.world.crews if self.world.is_alive(name)]
        worker = _at(alive, lot.which) if alive and lot.other < 10 else self._worker(lot)
        ready = [version for version in (PLAIN, HOOKED) if self.world.ready(version)]
        version = _at(ready or [PLAIN, HOOKED], lot.other)
        return self._send(verbs.Claim(worker, version, 1 + lot.steps % 3, self._hear_claimed), lot)

    def act_commit(self, lot: Lot) -> bool:
        return self._commit(None, lot)

    def act_call_outside(self, lot: Lot) -> bool:
        """The intent of an effect, or what becomes of it."""
        kind = _at(["intent", "intent", "result", "clear"], lot.steps)
        return self._commit(None, Lot(lot.which, lot.other, lot.way, lot.steps, [kind]))

    def act_pause(self, lot: Lot) -> bool:
        return self._commit("pause", lot)

    def act_wait(self, lot: Lot) -> bool:
        return self._commit("wait", lot)

    def act_back_off(self, lot: Lot) -> bool:
        return self._commit("backoff", lot)

    def act_hold(self, lot: Lot) -> bool:
        return self._commit("hold", lot)

    def act_give_back(self, lot: Lot) -> bool:
        return self._commit("release", lot)

    def act_finish(self, lot: Lot) -> bool:
        return self._commit("finish", lot)

    def act_finish_past_a_message(self, lot: Lot) -> bool:
        """A message comes just before the end. The run has looked into its inbox, or has not."""
        runs = [run for run in self.runs if run.pending is None and not run.is_over]
        if not runs:
            return False
        run = _at(runs, lot.which)
        word = self._word("message")
        message = to_inbox(run.lease.task_id, word)
        self.play.send(verbs.Receive(message, lambda result: self._hear_sent(result, word)))
        end = self._draft(run, "finish", replace(lot, other=0))
        return self._send(self._commit_of([run], [end]), lot)

    def act_settle(self, lot: Lot) -> bool:
        """A call of whatever run has been answered by the outside."""
        if not self.calls:
            return False
        ledger_id, key, _, _ = _at(self.calls, lot.which)
        result = f'"{self._word("settled")}"'
        return self._send(verbs.Settle(LedgerId(ledger_id), key, result), lot)

    def act_beat(self, lot: Lot) -> bool:
        return self._send(verbs.Beat(self._worker(lot)), lot)

    def act_release(self, lot: Lot) -> bool:
        """By the beat, when it knows no run of it; also with what it read some beats ago."""
        leased = list(self.world.leased())
        if not leased:
            return False
        task_id, job = _at(leased, lot.which)
        owner = WorkerId(job.owner or "") if lot.other < 9 else self._worker(lot)
        fence = Fence(max(job.fence - (lot.steps if lot.other > 7 else 0), 0))
        return self._send(verbs.Release(owner, TaskId(task_id), fence), lot)

    def act_sign_off(self, lot: Lot) -> bool:
        return self._send(verbs.SignOff(self._worker(lot)), lot)

    def _hire(self) -> bool:
        name = f"w{len(self.world.crews) + 1}"
        if len(self.world.crews) >= MOST_WORKERS:
            return False
        try:
            self.stage.hire(name)
        except WouldWait:
            return False
        self.world.crews[name] = Crew()
        self.play.compare()
        return True

    def _claim(self, version: int) -> None:
        alive = [name for name in self.world.crews if self.world.is_alive(name)]
        if alive:
            self.play.send(verbs.Claim(WorkerId(alive[-1]), version, 2, self._hear_claimed))

    def _find_work(self, lot: Lot) -> None:
        """Somebody has a task again, if there is one to be had."""
        if not any(map(self.world.is_alive, self.world.crews)):
            self._hire()
        ready = [version for version in (PLAIN, HOOKED) if self.world.ready(version)]
        if not ready and self._may_create():
            ready = [_at((HOOKED, PLAIN), lot.which)]
            self.play.send(self._new(ready[0]))
        if ready:
            self._claim(_at(ready, lot.which))

    def _let_go_on(self, lot: Lot) -> bool:
        """All tasks wait for something: let it happen to one of them."""
        open_ones = self._jobs(lambda job: not job.is_over)
        if not open_ones:
            return False
        task_id, job = _at(open_ones, lot.which)
        if job.pause is not None:
            return self.act_answer(lot)
        if job.held is not None:
            return self._send(verbs.Unhold(TaskId(task_id)), lot)
        if job.owner is not None:  # the reply to its claim was lost
            return self.act_release(lot) if lot.is_even else self.act_crash(lot)
        return self._pass_time(3)

    def _hear_claimed(self, leases: Sequence[Lease]) -> None:
        for lease in sorted(leases, key=lambda lease: lease.task_id):
            run = Run(lease, visit=lease.visit, is_marked=lease.cancel_requested)
            self.runs.append(run)

    # --- what a worker writes -----------------------------------------------------------------

    def _commit(self, ending: str | None, lot: Lot) -> bool:
        """A write of one run, or of two runs of different tasks at once."""
        if not any(run.pending is None and not run.is_over for run in self.runs):
            if self.act_try_again(lot) or self.act_arrive(lot):
                return True
            self._find_work(lot)
            if all(run.is_over for run in self.runs) and lot.steps > 0:
                return self._let_go_on(lot)
        writers = self._writers()
        if not writers:
            return True
        runs = [_at(writers, lot.which)]
        second = _at(writers, lot.other)
        if second.lease.task_id != runs[0].lease.task_id:
            runs.append(second)
        writes = [self._draft(run, ending, lot) for run in runs]
        verb = self._commit_of(runs, writes, patient=len(runs) == 1 and lot.other > 8)
        return self._send(verb, lot)

    def _writers(self) -> list[Run]:
        """Runs that may send a new write; of those that are over, the newest tries it too."""
        runs = [run for run in self.runs if run.pending is None]
        over = [run for run in runs if run.is_over][-1:]
        return [run for run in runs if not run.is_over] * 3 + over

    def _commit_of(
        self, runs: list[Run], writes: list[Write], *, patient: bool = False
    ) -> verbs.CommitOf:
        verb = verbs.CommitOf(writes, patient)
        verb.heard = lambda told: self._hear_verdicts(verb, runs, told)
        for run in runs:
            run.pending = verb
        return verb

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
            elif isinstance(verdict, Unread):
                pass  # nothing was changed: it may write what it likes
            else:  # busy: the same again, alone, and it waits for the lock
                self.play.uncertain.append(self._commit_of([run], [sent], patient=True))

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

    def _draft(self, run: Run, ending: str | None, lot: Lot) -> Write:
        events: list[Event] = []
        ledger: list[LedgerWrite] = []
        run.in_hook |= run.is_marked and lot.other % 3 > 0
        moved = None
        for kind in lot.content:
            match kind:
                case "say":
                    events.append(said(self._word("event")))
                case "chunk":
                    events.append(chunk(self._word("chunk"), append=lot.is_even))
                case "keep":
                    moved = move(self._word("checkpoint"), visit=run.visit)
                case "move":
                    run.visit += 1
                    moved = move(self._word("checkpoint"), step=f"s{run.visit}", visit=run.visit)
                case _:
                    ledger += self._entry(run, kind, lot, {entry.key for entry in ledger})
        end = None if ending is None else self._ending(ending, lot, events, ledger)
        moved = self._reading(run, moved, end, lot)
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

    def _reading(self, run: Run, moved: Move | None, end: Ending | None, lot: Lot) -> Move | None:
        """The commit, when the run has looked into the inbox just now, or has not. What ends the
        task by the step's own word closes the inbox."""
        closes = isinstance(end, Finish) and end.state in (State.COMPLETED, State.REJECTED)
        if closes and moved is None:
            moved = move(self._word("checkpoint"), visit=run.visit)
        if moved is None:
            return None
        looked = lot.which % 3 > 0
        inbox = self.world.jobs[run.lease.task_id].inbox
        return replace(moved, read=Seq(inbox if looked else 0), closes=closes)

    def _entry(self, run: Run, kind: str, lot: Lot, used: set[str]) -> list[LedgerWrite]:
        effect, memo = self._effect(run, kind, lot), "1:memo"
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

    def _effect(self, run: Run, kind: str, lot: Lot) -> str:
        """One that this run has called; for an intent, often one whose outcome is unknown."""
        keys = ["effect:a", "effect:b"]
        unknown = [key for key in keys if self.world.is_open(run.lease.ledger_id, key)]
        mine = list(run.intents) if kind != "intent" else unknown if lot.which < 8 else []
        return _at(mine or keys, lot.other)

    def _ending(
        self, kind: str, lot: Lot, events: list[Event], ledger: list[LedgerWrite]
    ) -> Ending:
        soon = Millis((lot.which % 3) * HOUR + HALF + len(self.sends) * 1000)
        match kind:
            case "pause":
                on_deadline = list(OnDeadline)[lot.other % 3]
                ask = Ask(ledger_key=self._word("ask"), on_deadline=on_deadline)
                said_so = said(self._word("question"), State.INPUT_REQUIRED, ask=ask.to_json())
                events.append(said_so)
                ledger.append(Intent(key=ask.ledger_key, kind=LedgerKind.ANSWER))
                return Pause(state=State.INPUT_REQUIRED, deadline=DueBy(after=soon))
            case "wait":
                timer = self._word("timer") if lot.is_even else None
                return Wait(until=DueBy(after=soon), timer_key=timer)
            case "backoff":
                return Backoff(delay=soon, error={"text": "no"})
            case "hold":
                return Hold(reason="look at this")
            case "finish":
                ends = [State.COMPLETED, State.FAILED, State.CANCELED, State.REJECTED]
                state = ends[lot.other % 4]
                events.append(said(self._word("end"), state))
                return Finish(state=state)
        return Release()

    # --- sweeps, operators and time -----------------------------------------------------------

    def act_take_over(self, lot: Lot) -> bool:
        """Right or wrong, mostly of a worker that has tasks; or with a beat of some time ago."""
        owners = sorted({job.owner for _, job in self.world.leased() if job.owner})
        worker = WorkerId(_at(owners, lot.which)) if owners and lot.is_even else self._worker(lot)
        beat = self.world.crews[worker].beat - max(lot.steps - 2, 0)
        death = Death(worker_id=worker, beat=beat, early=lot.which > 8)
        return self._send(verbs.TakeOver(death), lot)

    def act_crash(self, lot: Lot) -> bool:
        """A worker dies over one of its tasks, and another one takes it on."""
        leased = list(self.world.leased())
        if not leased:
            return False
        _, job = _at(leased, lot.which)
        owner = WorkerId(job.owner or "")
        beat = self.world.crews[owner].beat
        self._send(verbs.TakeOver(Death(worker_id=owner, beat=beat, early=True)), lot)
        if job.ready is not None and job.ready > self.world.now:
            self._pass_time(1 + (job.ready - self.world.now) // HOUR)
        self._find_work(lot)
        return True

    def act_free_orphans(self, lot: Lot) -> bool:
        return self._send(verbs.FreeOrphans(), lot)

    def act_end_pauses(self, lot: Lot) -> bool:
        return self._send(verbs.EndPauses(), lot)

    def act_end_lives(self, lot: Lot) -> bool:
        return self._send(verbs.EndLives(), lot)

    def act_excuse(self, lot: Lot) -> bool:
        return self._send(verbs.Excuse(), lot)

    def act_let_a_deadline_pass(self, lot: Lot) -> bool:
        """The clock moves past a question's deadline and a sweep comes; an answer may have come,
        or be under way."""
        if not self._jobs(lambda job: job.pause is not None):
            return False
        if lot.is_even:
            self.act_answer(Lot(lot.which, 0, "begun", lot.steps))
        due = [job.deadline for job in self.world.jobs.values() if job.deadline is not None]
        if due:
            self._pass_time(max(-(-(_at(due, lot.which) - self.world.now) // HOUR), 0))
        return self._send(verbs.EndPauses(), lot)

    def act_unhold(self, lot: Lot) -> bool:
        held = self._jobs(lambda job: job.held is not None)
        task_id = TaskId(_at(held, lot.which)[0]) if held else self._task(lot)
        return self._send(verbs.Unhold(task_id), lot)

    def act_resolve(self, lot: Lot) -> bool:
        """About a call whose outcome is unknown, or one that was made before it."""
        calls = [call for call in self.calls if self.world.is_open(*call[:2])] or self.calls
        if not calls:
            return False
        task_id, key, fence, write_no = _at(calls, lot.which)
        result = f'"{self._word("resolved")}"' if lot.is_even else None
        return self._send(verbs.Resolve(TaskId(task_id), key, fence, write_no, result), lot)

    def act_pass_time(self, lot: Lot) -> bool:
        return self._pass_time(_at([1, 1, 2, 3, 10, 30], lot.which), unswept=lot.other > 8)

    def _pass_time(self, hours: int, *, unswept: bool = False) -> bool:
        try:
            self.play.pass_time(hours, unswept=unswept)
        except WouldWait:
            return False
        return True

    # --- what the network does ----------------------------------------------------------------

    def act_step(self, lot: Lot) -> bool:
        if not self.play.under_way:
            return False
        self.play.step(_at(self.play.under_way, lot.which), 1 + lot.steps % 3)
        return True

    def act_arrive(self, lot: Lot) -> bool:
        if not self.play.under_way:
            return False
        self.play.finish(_at(self.play.under_way, lot.which))
        return True

    def act_lose_connection(self, lot: Lot) -> bool:
        if not self.play.under_way:
            return False
        self._lose(_at(self.play.under_way, lot.which), commits=lot.is_even)
        return True

    def act_try_again(self, lot: Lot) -> bool:
        return bool(self.play.uncertain) and self._send(_at(self.play.uncertain, lot.which), lot)

    # --- in every action ----------------------------------------------------------------------

    def _send(self, verb: Verb, lot: Lot) -> bool:
        moving = [one for one in self.play.under_way if not one.call.is_waiting]
        if moving and lot.steps > 1:
            self.play.finish(moving[0])
        send = self.play.repeat if self._is_known(verb) else self.play.send
        if lot.way == "done":
            send(verb)
            return True
        attempt = send(verb, steps=lot.steps)
        if attempt in self.play.under_way and lot.way == "late":
            self.play.repeat(verb)
        elif attempt in self.play.under_way and lot.way != "begun":
            self._lose(attempt, commits=lot.way == "unheard")
        return True

    def _lose(self, attempt: Attempt, *, commits: bool) -> None:
        if commits:
            self.play.lose_reply(attempt)
        else:
            self.play.drop(attempt)

    def _is_known(self, verb: Verb) -> bool:
        return verb in self.play.uncertain or any(a.verb is verb for a in self.play.under_way)

    def _word(self, kind: str) -> str:
        """A word that nobody has said."""
        self.serial += 1
        word = f"«{kind} {self.serial}»"
        self.play.sent.append(word)
        return word

    def _jobs(self, are: Callable[[Job], bool]) -> list[tuple[str, Job]]:
        return [(task_id, job) for task_id, job in self.world.jobs.items() if are(job)]

    def _task(self, lot: Lot) -> TaskId:
        return TaskId(_at(list(self.world.jobs), lot.which))

    def _worker(self, lot: Lot) -> WorkerId:
        return WorkerId(_at(list(self.world.crews), lot.which))


def _at(items: Sequence[T], which: int) -> T:
    return items[which % len(items)]


def _says(write: Write, word: str) -> bool:
    return any(word in str(event.body) for event in write.events)
