"""The checker: reads the store, and what the outside counted, after every run that hurts.

Nothing lost, nothing doubled: what it finds is a list of broken promises, empty when all hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outlast.model.ids import TaskId
from outlast.store.protocols import InspectStore

_EFFECT = "effect:"


@dataclass(frozen=True)
class Finding:
    """A broken promise: which one, and the row or key that breaks it."""

    law: str
    detail: str

    def __str__(self) -> str:
        return f"{self.law}: {self.detail}"


async def check_store(store: InspectStore) -> list[Finding]:
    """The laws of the log, the leases and the answers, by the queries in `laws.sql`."""
    broken = await store.broken_laws()
    return [
        Finding(law.removeprefix("laws_"), str(dict(row)))
        for law, rows in broken.items()
        for row in rows
    ]


async def check_effects(store: InspectStore, applied: Mapping[str, int]) -> list[Finding]:
    """Each effect has one result, and the outside applied it once.

    applied: how often the outside did what was asked under each downstream key
    (`<ledger>:<key>`), by its own count.
    """
    findings: list[Finding] = []
    known: dict[str, bool] = {}
    for effect in await store.effects():
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
