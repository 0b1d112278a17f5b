"""Calls under way on several connections, and the model that goes along with each commit."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from outlast.model.errors import CallerError, ConfigError, StoreUnavailable
from outlast.model.ids import Millis
from outlast.store.database import Rows, Statement
from outlast.testing.scripted import Call, Watcher
from tests.statemachine.laws import Violation, check_transaction, check_words, look
from tests.statemachine.stage import HOUR, Stage
from tests.statemachine.world import World

AT_ONCE = 3
"""How many calls are under way at most."""

_CLAIMS = "tasks_claim"
_DEATHS = ("workers_bury", "workers_sign_off")
_OF_ALL = ("tasks_spare",)


class Verb:
    """What a caller sends. It may be sent again, with the same arguments, by another attempt."""

    def call(self, stage: Stage) -> Coroutine[Any, Any, Any]:
        raise NotImplementedError

    def executed(self, attempt: Attempt, statement: Statement, rows: Rows) -> None:
        """A statement has run: the place to say what it should have found."""

    def committed(self, attempt: Attempt, result: Any) -> None:
        """A transaction has committed: the model does the same. Sets `attempt.expected`."""

    def refused(self, attempt: Attempt) -> None:
        """Raises what the model refuses the verb with."""

    def check(self, attempt: Attempt, result: Any) -> None:
        require(result == attempt.expected, f"{self} was told {result!r}", attempt.expected)

    def hear(self, result: Any) -> None:
        """The reply has reached the caller."""


@dataclass(eq=False)
class Attempt(Watcher):
    """One call of a verb. An abandoned one is stepped like any other, but nobody hears of it."""

    play: Play
    verb: Verb
    expected: Any = None
    is_abandoned: bool = False
    notes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.call: Call[Any] = self.play.stage.start(self.verb.call(self.play.stage), self)

    @property
    def world(self) -> World:
        return self.play.world

    def executed(self, call: Call[Any], statement: Statement, rows: Rows) -> None:
        self.play.tick += 1
        if statement.query.name == _CLAIMS:
            # PostgreSQL locks more rows than it grants; they stay locked until the commit.
            ready = self.world.ready(statement.params["version"])
            self.notes["locked"] = {*ready, *(row["task_id"] for row in rows)}
        if statement.query.name in _DEATHS:
            self.play.let_the_clock_tick()
        self.verb.executed(self, statement, rows)

    def committed(self, call: Call[Any], result: Any) -> None:
        try:
            self.verb.committed(self, result)
        except (CallerError, ConfigError) as error:
            raise Violation(f"{self.verb} has committed; the model refuses it: {error!r}") from None
        self.play.compare()

    def rows_held(self) -> set[str]:
        """Tasks that its open transaction may have locked."""
        held: set[str] = set()
        if not self.call.is_writing:
            return held
        for statement in self.call.transaction:
            if statement.query.name == _CLAIMS:
                held |= self.notes["locked"]
            if statement.query.name in _OF_ALL:
                held |= self.world.jobs.keys()
            held |= {statement.params["task_id"]} if "task_id" in statement.params else set()
            held |= set(json.loads(statement.params.get("task_ids", "[]")))
        return held

    def held_by_others(self) -> set[str]:
        held: set[str] = set()
        for other in self.play.under_way:
            held |= other.rows_held() if other is not self else set()
        return held


class Play:
    """The store, its model, and what is on its way between them.

    under_way: calls that have not ended. uncertain: verbs whose caller does not know the outcome.
    sent: every word that may come to stand in a log; told: those that a caller was told to.
    """

    def __init__(self, stage: Stage) -> None:
        stage.reset()
        self.stage = stage
        self.world = World()
        self.tick = 0
        self.sight = look(stage.database)
        self.began: int = self.sight.store["now"]
        self.under_way: list[Attempt] = []
        self.uncertain: list[Verb] = []
        self.sent: list[str] = []
        self.told: set[str] = set()
        self._is_checked = False

    # --- sending ------------------------------------------------------------------------------

    def send(self, verb: Verb, *, steps: int | None = None) -> Attempt:
        """A new call, taken as far as it goes, or `steps` statements far."""
        self._make_room()
        attempt = Attempt(self, verb)
        self.under_way.append(attempt)
        if steps is None:
            self.finish(attempt)
        else:
            self.step(attempt, steps)
        return attempt

    def _make_room(self) -> None:
        """Finish calls until there is room. Somebody is not waiting: locks form no circle."""
        while len(self.under_way) >= AT_ONCE:
            self.finish(next(a for a in self.under_way if not a.call.is_waiting))

    def step(self, attempt: Attempt, steps: int = 1) -> None:
        """Some statements further, or to where it waits for another call's lock."""
        moves = True
        while moves and steps > 0 and not attempt.call.is_over:
            moves = attempt.call.step()
            steps -= 1
            self.collect()

    def finish(self, attempt: Attempt) -> None:
        self.step(attempt, 1 << 30)

    def drop(self, attempt: Attempt) -> None:
        attempt.call.drop()
        self.collect()

    def lose_reply(self, attempt: Attempt) -> None:
        """Its commit arrives and what comes after does not. Else it only goes as far as it can."""
        moves = True
        while moves and not attempt.call.is_over and attempt.call.next != "commit":
            moves = attempt.call.step()
            self.collect()
        if attempt.call.next == "commit":
            attempt.call.lose_reply()
            self.collect()

    def repeat(self, verb: Verb, *, steps: int | None = None) -> Attempt:
        """The caller tries again. Whatever is still under way for it will arrive unheard."""
        if verb in self.uncertain:
            self.uncertain.remove(verb)
        for attempt in self.under_way:
            if attempt.verb is verb:
                attempt.is_abandoned = True
        return self.send(verb, steps=steps)

    def collect(self) -> None:
        """Take note of the calls that have ended, also of those that were let go on by others."""
        for attempt in [a for a in self.under_way if a.call.is_over]:
            self.under_way.remove(attempt)
            self._conclude(attempt)

    def _conclude(self, attempt: Attempt) -> None:
        verb = attempt.verb
        error = attempt.call.error
        if isinstance(error, StoreUnavailable):
            if not attempt.is_abandoned:
                self.uncertain.append(verb)
            return
        if error is not None:
            self._check_refusal(attempt, error)
        else:
            verb.check(attempt, attempt.call.result())
        if not attempt.is_abandoned:
            verb.hear(error or attempt.call.result())

    def _check_refusal(self, attempt: Attempt, error: BaseException) -> None:
        if not isinstance(error, CallerError | ConfigError):
            raise Violation(f"{attempt.verb} failed: {error!r}") from error
        refusal = refusal_of(lambda: attempt.verb.refused(attempt))
        require(refusal is type(error), f"{attempt.verb} was refused: {error!r}", refusal)

    # --- beside the model ---------------------------------------------------------------------

    def compare(self) -> None:
        self._is_checked = False
        after = look(self.stage.database)
        check_transaction(self.sight, after)
        self.world.compare(after, self.began)
        self.sight = after

    def check(self) -> None:
        """All laws, if anything has changed since the last time."""
        if not self._is_checked:
            self.check_laws()
        self._is_checked = True
        check_words(self.sight, sent=self.sent, told=self.told)

    def check_laws(self, *, after_sweep: bool = False) -> None:
        """No law is broken. What a dead worker still has is what the model says, and after a
        sweep it has nothing."""
        broken = dict(self.stage.run(self.stage.inspect.broken_laws()))
        lost = [row["task_id"] for row in broken.pop("laws_nothing_leased_to_the_dead", [])]
        require(not broken, f"laws are broken: {broken}", {})
        expected = [] if after_sweep else self.world.orphans()
        require(sorted(lost) == expected, f"the dead have leases: {lost}", expected)

    def let_the_clock_tick(self) -> None:
        """So that what begins after a death has a later time than the death."""
        now = "select now from clock"
        before = self.stage.database.sql(now)
        while self.stage.database.sql(now) == before:
            pass

    def pass_time(self, hours: int, *, unswept: bool = False) -> None:
        """Not within a transaction that writes: the model knows one time for each of them."""
        if any(attempt.call.is_writing for attempt in self.under_way):
            return
        by = hours * HOUR
        if unswept:
            self.stage.database.sql("update store set clock_offset = clock_offset + :by", by=by)
        else:
            self.stage.run(self.stage.admin.move_clock(Millis(by)))
            if self.world.swept is not None:
                self.world.swept += by
        self.world.now += by
        self.compare()

    def end(self) -> None:
        """Nothing is under way any more; a sweep; all laws hold."""
        for attempt in list(self.under_way):
            if attempt in self.under_way and not attempt.call.is_waiting:
                self.drop(attempt)
        while self.under_way:
            self.finish(next(a for a in self.under_way if not a.call.is_waiting))
        self.stage.run(self.stage.sweeping.free_orphans())
        self.world.free(self.world.orphans())
        self.compare()
        self.check_laws(after_sweep=True)
        check_words(self.sight, sent=self.sent, told=self.told)


def require(holds: bool, found: str, expected: Any) -> None:
    if not holds:
        raise Violation(f"{found}; the model says {expected!r}")


def refusal_of(model: Callable[[], Any]) -> type[BaseException] | None:
    """What the model refuses with, now."""
    try:
        model()
    except (CallerError, ConfigError) as error:
        return type(error)
    return None
