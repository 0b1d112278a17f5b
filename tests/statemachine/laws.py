"""The laws of the store, checked on two looks at its tables: before and after one transaction.

They know nothing of what the verbs mean; the model (`world.py`) does. What they find is a fault
whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.store.codec import from_text, to_text
from outlast.store.database import Row
from outlast.testing.scripted import ScriptedDatabase

TERMINAL = ("completed", "failed", "canceled", "rejected")


class Violation(AssertionError):
    """A law of the store is broken, or the store is not what the model says."""


@dataclass(frozen=True)
class Sight:
    """What was committed at one moment, by key."""

    tasks: dict[str, Row]
    events: dict[str, list[Row]]
    ledger: dict[tuple[str, str], Row]
    runs: dict[tuple[str, int], Row]
    workers: dict[str, Row]
    keys: dict[str, Row]
    store: Row


_LOOKS = (
    "select * from tasks",
    "select * from task_events order by task_id, seq",
    "select * from task_ledger",
    "select * from task_runs",
    "select * from workers",
    "select * from send_keys",
    "select *, (select now from clock) as now from store",
)


def look(database: ScriptedDatabase) -> Sight:
    tasks, events, ledger, runs, workers, keys, store = database.look(_LOOKS)
    logs: dict[str, list[Row]] = {}
    for row in events:
        logs.setdefault(row["task_id"], []).append(row)
    return Sight(
        tasks={row["task_id"]: row for row in tasks},
        events=logs,
        ledger={(row["ledger_id"], row["key"]): row for row in ledger},
        runs={(row["task_id"], row["fence"]): row for row in runs},
        workers={row["worker_id"]: row for row in workers},
        keys={row["key"]: row for row in keys},
        store=store[0],
    )


def check_transaction(before: Sight, after: Sight) -> None:
    """Raise Violation for what one transaction may not have made of `before`."""
    for task_id, task in after.tasks.items():
        log = after.events.get(task_id, [])
        _check_log(task, log)
        if task_id in before.tasks:
            old = before.events.get(task_id, [])
            _require(log[: len(old)] == old, "the log is only ever appended to", task_id)
            _check_writer(before.tasks[task_id], task, log[len(old) :])
    _check_ledger(before, after)
    for name in ("tasks", "runs", "workers", "keys"):
        gone = getattr(before, name).keys() - getattr(after, name).keys()
        _require(not gone, f"no row of {name} vanishes", *gone)


def check_words(after: Sight, *, sent: Sequence[str], told: Collection[str]) -> None:
    """What was sent is in the logs at most once, and what its sender was told is in them: no lost
    or doubled answer, chunk or event."""
    logged = "\n".join(_news_in(row) for log in after.events.values() for row in log)
    for word in sent:
        times = logged.count(word)
        _require(times <= 1, "what was sent is in the log once", word, times)
        _require(times == 1 or word not in told, "what was told is in the log", word)


def _news_in(row: Row) -> str:
    """What the event says for the first time: a message for the inbox says the status again."""
    body = from_text(row["body"])
    return to_text({name: value for name, value in body.items() if name != "said"})


def _check_log(task: Row, log: Sequence[Row]) -> None:
    task_id = task["task_id"]
    seqs = [row["seq"] for row in log]
    _require(seqs == list(range(1, task["next_seq"])), "seq has no gap", task_id, seqs)
    fences = [row["fence"] for row in log]
    _require(fences == sorted(fences), "along seq, fence never falls", task_id, fences)
    ends = [row["seq"] for row in log if row["kind"] == "status" and _is_end(row)]
    expected = [task["next_seq"] - 1] if task["state"] in TERMINAL else []
    _require(ends == expected, "one terminal event, and it is the last", task_id, ends)


def _check_writer(before: Row, after: Row, new: Sequence[Row]) -> None:
    """The lease allows it: a worker writes under the fence that was granted, the next number."""
    task_id = before["task_id"]
    _require(after["fence"] >= before["fence"], "fence never falls", task_id)
    if before["state"] in TERMINAL:
        _require(after == before, "an ended task never changes", task_id)
    if after["lease_owner"] != before["lease_owner"]:
        _require(after["fence"] > before["fence"], "a lease ends or begins by a fence", task_id)
    if before["lease_owner"] is not None and after["fence"] == before["fence"]:
        step = after["write_no"] - before["write_no"]
        _require(step in (0, 1), "write_no rises by one", task_id, step)
    for row in new:
        if row["write_no"] is None:
            _require(row["fence"] == after["fence"], "others write under the task's fence", task_id)
            continue
        held = before["lease_owner"] is not None and row["fence"] == before["fence"]
        _require(held, "no write under an old fence", task_id, row["fence"])
        due = before["write_no"] + 1
        _require(row["write_no"] == due, "a write has the next number", task_id, row["write_no"])


def _check_ledger(before: Sight, after: Sight) -> None:
    for key, old in before.ledger.items():
        if old["result"] is not None:
            new = after.ledger.get(key)
            kept = new is not None and new["result"] == old["result"]
            _require(kept, "a result is never replaced", *key)


def _is_end(row: Row) -> bool:
    return any(f'"state":"{state}"' in row["body"] for state in TERMINAL)


def _require(holds: bool, law: str, *about: Any) -> None:
    if not holds:
        raise Violation(f"{law}: {', '.join(map(str, about))}")
