"""Leases: what a claim grants, and how a watcher proves that a worker is dead without a clock
that both would have to agree on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.model.ids import (
    BEFORE_ALL,
    ContextId,
    Fence,
    LedgerId,
    Millis,
    Seq,
    StepName,
    TaskId,
    Visit,
    WorkerId,
)
from outlast.model.task import Scope, State


def awake_seconds() -> float:
    """A clock for leases: monotonic, and it runs on while the machine sleeps.

    CLOCK_BOOTTIME is Linux's; elsewhere the monotonic clock has to do.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to run one task, with all that a run starts from.

    claimed_at is the store's time of the grant: a timer that was due then has passed.
    ending_as is set while a hook runs: how the task ends afterwards. read_seq is up to where
    commits have read the inbox.
    """

    task_id: TaskId
    scope: Scope
    context_id: ContextId
    ledger_id: LedgerId
    workflow: str
    version: int
    state: State
    step: StepName
    visit: Visit
    checkpoint: str | None
    fence: Fence
    attempt: int
    crashes: int
    last_seq: Seq
    commit_seq: Seq
    cancel_requested: bool
    ending_as: Mapping[str, Any] | None
    metadata: Mapping[str, Any]
    claimed_at: Millis
    give_up_at: Millis
    read_seq: Seq = BEFORE_ALL


@dataclass(frozen=True, kw_only=True)
class Vitals:
    """A worker's row as one look found it. `present` is None where presence is not known."""

    worker_id: WorkerId
    beat: int
    lease_s: float
    beat_s: float
    present: bool | None


@dataclass(frozen=True, kw_only=True)
class Death:
    """A worker is dead: take over *where its beat is still the one seen*.

    early: its presence was free, so the process is gone. Otherwise a whole lease has passed without
    a beat, and the process may only be frozen.
    """

    worker_id: WorkerId
    beat: int
    early: bool


@dataclass
class _Sighting:
    beat: int
    first_seen: float
    absent_since: float | None = None


@dataclass
class Watch:
    """Proves deaths from successive looks at the beats.

    Dead is who shows the same beat for a whole lease of the watcher's own clock, over a
    connection that worked all the while; or, sooner, whose presence was seen free twice, at
    least a second apart, with the beat unmoved for longer than two beats. A look that failed
    (`forget`) starts everything over: a database that was away kills nobody.
    """

    _seen: dict[WorkerId, _Sighting] = field(default_factory=dict)

    def forget(self) -> None:
        self._seen.clear()

    def look(self, began: float, ended: float, vitals: Iterable[Vitals]) -> list[Death]:
        """What this look proves. `began` and `ended` are `awake_seconds` around the reading.

        A beat was seen at the latest when its first look ended, and is still the same at the
        earliest when this one began: only the time between these two counts.
        """
        found: dict[WorkerId, _Sighting] = {}
        deaths: list[Death] = []
        for worker in vitals:
            sighting = self._seen.get(worker.worker_id)
            if sighting is None or sighting.beat != worker.beat:
                sighting = _Sighting(beat=worker.beat, first_seen=ended)
            if worker.present is not False:
                sighting.absent_since = None
            elif sighting.absent_since is None:
                sighting.absent_since = ended
            found[worker.worker_id] = sighting
            still = began - sighting.first_seen
            absent = sighting.absent_since is not None and began - sighting.absent_since >= 1.0
            if still >= worker.lease_s:
                deaths.append(Death(worker_id=worker.worker_id, beat=worker.beat, early=False))
            elif absent and still > 2 * worker.beat_s:
                deaths.append(Death(worker_id=worker.worker_id, beat=worker.beat, early=True))
        self._seen = found
        return deaths
