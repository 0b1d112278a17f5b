"""The proof of death: a whole lease of silence by the watcher's own clock, or a presence that was
seen free twice. Nothing else."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.ids import WorkerId
from outlast.model.lease import Death, Vitals, Watch, awake_seconds

LEASE = 15.0
BEAT = 1.0


def vitals(beat: int = 7, *, present: bool | None = None, name: str = "w") -> Vitals:
    return Vitals(worker_id=WorkerId(name), beat=beat, lease_s=LEASE, beat_s=BEAT, present=present)


@dataclass
class Watcher:
    """A watch with a clock that the test moves. A look takes `takes` seconds."""

    watch: Watch = field(default_factory=Watch)
    now: float = 100.0

    def look(self, *workers: Vitals, after: float = 0.0, takes: float = 0.0) -> list[Death]:
        began = self.now + after
        self.now = began + takes
        return self.watch.look(began, self.now, workers)


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


DEAD = Death(worker_id=WorkerId("w"), beat=7, early=False)
DEAD_EARLY = Death(worker_id=WorkerId("w"), beat=7, early=True)

# --- by the lease ---------------------------------------------------------------------------------


def test_the_same_beat_for_a_whole_lease_is_death(watcher: Watcher) -> None:
    assert watcher.look(vitals()) == []
    assert watcher.look(vitals(), after=LEASE - 0.01) == []
    assert watcher.look(vitals(), after=0.01) == [DEAD]


def test_one_look_proves_nothing_however_old_the_beat_is(watcher: Watcher) -> None:
    watcher.now = 1e9
    assert watcher.look(vitals()) == []


def test_a_beat_that_moved_starts_over(watcher: Watcher) -> None:
    watcher.look(vitals(7))
    assert watcher.look(vitals(8), after=LEASE) == []
    assert watcher.look(vitals(8), after=LEASE - 0.01) == []
    assert watcher.look(vitals(8), after=0.01)[0].beat == 8


def test_the_time_that_a_look_takes_does_not_count(watcher: Watcher) -> None:
    """A beat may have been read at the end of the first look, and at the begin of the last."""
    watcher.look(vitals(), takes=5)
    assert watcher.look(vitals(), after=LEASE - 1, takes=60) == []
    assert watcher.look(vitals(), after=0) == [DEAD]


def test_the_death_names_the_beat_that_was_seen(watcher: Watcher) -> None:
    """Take-over happens only where it still is: a beat in between saves the worker."""
    watcher.look(vitals(41))
    (death,) = watcher.look(vitals(41), after=LEASE)
    assert (death.worker_id, death.beat) == ("w", 41)


def test_a_look_that_failed_starts_everything_over(watcher: Watcher) -> None:
    """A database that was away kills nobody."""
    watcher.look(vitals(), vitals(name="other"))
    watcher.watch.forget()
    assert watcher.look(vitals(), vitals(name="other"), after=10 * LEASE) == []
    assert len(watcher.look(vitals(), vitals(name="other"), after=LEASE)) == 2


def test_a_worker_that_was_gone_starts_over(watcher: Watcher) -> None:
    watcher.look(vitals())
    watcher.look(after=LEASE)
    assert watcher.look(vitals(), after=LEASE) == []


def test_each_worker_is_judged_by_its_own_lease(watcher: Watcher) -> None:
    hasty = Vitals(worker_id=WorkerId("hasty"), beat=1, lease_s=3, beat_s=1, present=None)
    watcher.look(vitals(), hasty)
    assert [death.worker_id for death in watcher.look(vitals(), hasty, after=3)] == ["hasty"]


# --- early, by presence ---------------------------------------------------------------------------


def test_a_presence_that_is_free_twice_a_second_apart_is_death(watcher: Watcher) -> None:
    watcher.look(vitals(present=True))
    assert watcher.look(vitals(present=False), after=2.5) == []
    assert watcher.look(vitals(present=False), after=0.99) == []
    assert watcher.look(vitals(present=False), after=0.01) == [DEAD_EARLY]


def test_a_free_presence_is_no_death_while_the_beat_has_just_moved(watcher: Watcher) -> None:
    """A worker that lost its session beats again, before it has the lock or after."""
    watcher.look(vitals(present=False))
    assert watcher.look(vitals(present=False), after=2 * BEAT) == []
    assert watcher.look(vitals(present=False), after=0.01) == [DEAD_EARLY]


def test_a_beat_in_between_makes_the_first_absence_void(watcher: Watcher) -> None:
    watcher.look(vitals(7, present=False))
    watcher.look(vitals(8, present=False), after=5)
    assert watcher.look(vitals(8, present=False), after=0.99) == []
    assert watcher.look(vitals(8, present=False), after=1.5)[0].early


@pytest.mark.parametrize("seen", [True, None], ids=["taken", "unknown"])
def test_a_presence_that_comes_back_or_is_unknown_makes_it_void(
    watcher: Watcher, seen: bool | None
) -> None:
    watcher.look(vitals(present=False))
    watcher.look(vitals(present=seen), after=3)
    assert watcher.look(vitals(present=False), after=3) == []


def test_an_unknown_presence_leaves_it_to_the_lease(watcher: Watcher) -> None:
    watcher.look(vitals(present=None))
    assert watcher.look(vitals(present=None), after=LEASE - 0.01) == []
    assert watcher.look(vitals(present=None), after=0.01) == [DEAD]


def test_a_failed_look_makes_an_absence_void(watcher: Watcher) -> None:
    watcher.look(vitals(present=False))
    watcher.watch.forget()
    assert watcher.look(vitals(present=False), after=LEASE) == []


# --- whatever happens -----------------------------------------------------------------------------

seconds = st.integers(0, 80).map(lambda quarters: quarters / 4)
"""In quarters: exact as floating point, so that the bounds are met exactly too."""


@dataclass(frozen=True)
class Look:
    after: float
    takes: float
    moved: bool
    present: bool | None
    failed: bool


looks = st.lists(
    st.builds(
        Look,
        after=seconds,
        takes=seconds,
        moved=st.booleans(),
        present=st.sampled_from([None, True, False]),
        failed=st.sampled_from([False, False, False, True]),
    ),
    max_size=12,
)


@given(looks)
def test_a_death_is_proved_by_the_looks_since_the_beat_moved_and_by_no_other(
    seen: list[Look],
) -> None:
    watcher, beat = Watcher(), 0
    same: list[float] = []
    absent: list[float] = []
    for look in seen:
        if look.failed:
            watcher.watch.forget()
            same, absent = [], []
            continue
        if look.moved:
            beat, same, absent = beat + 1, [], []
        deaths = watcher.look(
            vitals(beat, present=look.present), after=look.after, takes=look.takes
        )
        began = watcher.now - look.takes
        if look.present is not False:
            absent = []
        still = began - same[0] if same else 0.0
        free = began - absent[0] if absent else 0.0
        if still >= LEASE:
            assert deaths == [Death(worker_id=WorkerId("w"), beat=beat, early=False)]
        elif still > 2 * BEAT and free >= 1.0 and look.present is False:
            assert deaths == [Death(worker_id=WorkerId("w"), beat=beat, early=True)]
        else:
            assert deaths == []
        same.append(watcher.now)
        if look.present is False:
            absent.append(watcher.now)


@given(
    gaps=st.lists(st.floats(0.1, 40), min_size=1, max_size=8),
    reads=st.lists(
        st.tuples(st.floats(0, 20), st.floats(0, 10), st.floats(0, 1)), min_size=1, max_size=20
    ),
)
def test_when_a_worker_is_proved_dead_its_lease_is_over_by_its_own_clock(
    gaps: list[float], reads: list[tuple[float, float, float]]
) -> None:
    """The holder counts from before its last beat was sent, and so stops first."""
    sent = [0.0]
    for gap in gaps:
        sent.append(sent[-1] + gap)
    watch, now = Watch(), 0.0
    for after, takes, where in reads:
        began, ended = now + after, now + after + takes
        now = ended
        beat = bisect_right(sent, began + takes * where) - 1
        for death in watch.look(began, ended, [vitals(beat)]):
            assert death.beat == beat
            assert began >= sent[beat] + LEASE - 1e-6


def test_the_clock_of_leases_never_goes_back() -> None:
    readings = [awake_seconds() for _ in range(100)]
    assert readings == sorted(readings)
