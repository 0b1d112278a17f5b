"""The checker: reads the store, and what the outside counted, after every run that hurts.

Nothing lost, nothing doubled: what it finds is a list of broken promises, empty when all hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from outlast.model.commit import EventKind, LoggedEvent
from outlast.model.errors import LogTrimmed
from outlast.model.ids import LedgerId, Seq, TaskId
from outlast.model.pause import Ask
from outlast.model.task import Task
from outlast.store.codec import from_text
from outlast.store.protocols import InspectStore, LogStore, WorkStore

_EFFECT = "effect:"
_PAGE = 1_000


@dataclass(frozen=True)
class Finding:
    """A broken promise: which one, and the row or key that breaks it."""

    law: str
    detail: str

    def __str__(self) -> str:
        return f"{self.law}: {self.detail}"


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """What one item of a caller's stream brought: an event, or a Task with all up to it inside."""

    generation: Seq
    is_task: bool


# --- the whole store ----------------------------------------------------------------------------


async def check_store(store: InspectStore) -> list[Finding]:
    """The laws of the log, the leases and the answers, by the queries in `laws.sql`."""
    broken = await store.broken_laws()
    return [
        Finding(law.removeprefix("laws_"), str(dict(row)))
        for law, rows in broken.items()
        for row in rows
    ]


async def check_effects(
    store: InspectStore,
    applied: Mapping[str, int],
    *,
    ledgers: Collection[LedgerId] | None = None,
) -> list[Finding]:
    """Each effect has one result, and the outside applied it once.

    applied: how often the outside did what was asked under each downstream key
    (`<ledger>:<key>`), by its own count. ledgers: those whose effects this outside was asked for,
    when the store has others; by default all.
    """
    findings: list[Finding] = []
    known: dict[str, bool] = {}
    for effect in await store.effects():
        if ledgers is None or effect["ledger_id"] in ledgers:
            key = effect["key"].removeprefix(_EFFECT)
            known[f"{effect['ledger_id']}:{key}"] = effect["done_at"] is not None
    for name, is_done in known.items():
        times = applied.get(name, 0)
        if times > 1 or (is_done and times != 1):
            findings.append(
                Finding("an_effect_is_applied_once", f"{name} was applied {times} times")
            )
    findings.extend(
        Finding(
            "every_effect_is_in_the_ledger", f"{name} was applied {times} times without a trace"
        )
        for name, times in applied.items()
        if name not in known
    )
    return findings


async def check_finished(store: InspectStore, *task_ids: TaskId) -> list[Finding]:
    """These tasks have ended, and no effect of theirs is of unknown outcome."""
    findings: list[Finding] = []
    for task_id in task_ids:
        task = await store.find(task_id)
        if task is None:
            findings.append(Finding("no_task_is_lost", task_id))
        elif not task.state.is_terminal:
            findings.append(Finding("every_task_ends", f"{task_id} is {task.state}"))
    findings.extend(
        Finding("every_effect_has_a_result", f"{effect['ledger_id']}:{effect['key']}")
        for effect in await store.effects()
        if effect["ledger_id"] in task_ids and effect["done_at"] is None
    )
    return findings


# --- one task -----------------------------------------------------------------------------------


async def read_log(log: LogStore, task_id: TaskId) -> list[LoggedEvent]:
    """All events of a task, in order. None of a log without its beginning: it has been trimmed,
    or the store's own laws find the gap."""
    events: list[LoggedEvent] = []
    try:
        while page := await log.events_since(
            task_id, events[-1].seq if events else Seq(0), limit=_PAGE
        ):
            events.extend(page)
    except LogTrimmed:
        return []
    return events


async def check_runs(store: InspectStore, log: LogStore, task_id: TaskId) -> list[Finding]:
    """No two runs of the task overlapped, and each event of a worker was written by one of them,
    in the order of its writes."""
    runs = await store.runs(task_id)
    events = [event for event in await read_log(log, task_id) if event.write_no is not None]
    known = {run["fence"] for run in runs}
    return [
        *_overlaps(runs),
        *(
            Finding("every_write_is_made_under_a_lease", f"{task_id}, event {event.seq}")
            for event in events
            if event.fence not in known
        ),
        *(
            Finding("a_runs_writes_are_in_order", f"{task_id}, event {later.seq}")
            for earlier, later in pairwise(events)
            if earlier.fence == later.fence and _write_no(later) < _write_no(earlier)
        ),
    ]


def _overlaps(runs: Sequence[Mapping[str, Any]]) -> list[Finding]:
    return [
        Finding("a_task_has_one_run_at_a_time", f"{run['task_id']}, run {after['fence']}")
        for run, after in pairwise(runs)
        if run["ended_at"] is None or run["ended_at"] > after["started_at"]
    ]


def _write_no(event: LoggedEvent) -> int:
    return event.write_no or 0


async def check_answers(log: LogStore, work: WorkStore, task: Task) -> list[Finding]:
    """Each answer in the task's log is the one that the ledger gives to its step."""
    events = {event.seq: event for event in await read_log(log, task.task_id)}
    findings: list[Finding] = []
    for event in events.values():
        if event.kind is not EventKind.MESSAGE or event.body.get("answers") is None:
            continue
        question = events.get(Seq(event.body["answers"]))
        asked = None if question is None else question.body.get("ask")
        entry = asked and await work.entry(task.ledger_id, Ask.from_json(asked).ledger_key)
        if not entry or _message_id(entry.result) != event.body["message"]["messageId"]:
            findings.append(Finding("no_answer_is_lost", f"{task.task_id}, event {event.seq}"))
    return findings


def _message_id(result: str | None) -> str | None:
    kept = None if result is None else from_text(result)
    return kept["message"]["messageId"] if isinstance(kept, dict) and "message" in kept else None


def check_seen(sightings: Iterable[Sighting], *, last: Seq) -> list[Finding]:
    """A caller has seen events 1 … last, each once and in its place.

    sightings: what all its streams brought, in order. A Task stands for every event up to its
    generation, those that came while the caller was away among them.
    """
    findings: list[Finding] = []
    seen = 0
    for sighting in sightings:
        number = sighting.generation
        if sighting.is_task and number >= seen:
            seen = number
        elif sighting.is_task:
            findings.append(Finding("a_stream_never_goes_back", f"to {number}, after {seen}"))
        elif number <= seen:
            findings.append(Finding("a_caller_sees_nothing_twice", f"event {number}"))
        else:
            missed = range(seen + 1, number)
            findings.extend(Finding("a_caller_misses_nothing", f"event {gap}") for gap in missed)
            seen = number
    if seen != last:
        findings.append(
            Finding("a_stream_goes_to_the_end", f"it ended with {seen}, the log with {last}")
        )
    return findings
