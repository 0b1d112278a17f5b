"""What is deleted when its time is over, and in which pieces.

Called inside a transaction each. A log may be of any length, and a statement that deletes it all
would hold up whoever writes beside it.
"""

from __future__ import annotations

from outlast.model.ids import Millis, TaskId
from outlast.store.database import Catalog, Script

_CHILDREN = ("task_runs_delete", "task_folds_delete", "webhooks_delete")
_ALL = 1 << 62


def expire(queries: Catalog, task_id: TaskId, ledger_id: str, *, piece: int) -> Script[bool]:
    """Delete an expired task and all that is its own, of its log the oldest `piece` events. False:
    another sweep was first, or a webhook was registered meanwhile."""
    sharing = yield queries("tasks_take_sharing", ledger_id=ledger_id)
    scopes = yield queries("tasks_expire", task_id=task_id)
    if not scopes:
        return False
    for table in _CHILDREN:
        yield queries(table, task_id=task_id)
    gone = yield queries("task_events_delete", task_id=task_id, until=_ALL, n=piece)
    if all(row["task_id"] == task_id for row in sharing):
        yield queries("task_ledger_delete", ledger_id=ledger_id)
    left = len(gone) == piece
    yield queries("tombstones_put", task_id=task_id, log_left=left, **scopes[0])
    return True


def delete_piece(queries: Catalog, task_id: TaskId, *, piece: int) -> Script[bool]:
    """Delete a piece of the log that an expired task has left. False: that was the last, or
    somebody else is at it."""
    if not (yield queries("tombstones_take", task_id=task_id)):
        return False
    gone = yield queries("task_events_delete", task_id=task_id, until=_ALL, n=piece)
    if len(gone) < piece:
        yield queries("tombstones_without_log", task_id=task_id)
    return len(gone) == piece


def forget(queries: Catalog, task_id: TaskId, *, age: Millis) -> Script[int]:
    """Drop an old tombstone, and the keys of its task's sends."""
    gone = yield queries("tombstones_forget", task_id=task_id, age=age)
    if gone:
        yield queries("send_keys_delete", task_id=task_id)
    return len(gone)


def trim(queries: Catalog, task_id: TaskId, *, piece: int) -> Script[int]:
    """Trim a piece of a finished task's log. Returns how many events went: fewer than `piece` when
    that was the last, 0 also when it may not be trimmed."""
    rows = yield queries("tasks_take_free", task_id=task_id)
    if not rows or rows[0]["trim_at"] is None:
        return 0
    # From here on readers take the log as trimmed; how far the deleting is, is no matter of theirs.
    marked = yield queries("tasks_trim", task_id=task_id)
    if not marked:
        end = rows[0]["next_seq"] - 1
        folds = yield queries("task_folds_newest", task_id=task_id, until=end)
        if not folds or folds[0]["seq"] < end:
            yield queries("tasks_fold_again", task_id=task_id)
        return 0
    until = marked[0]["trimmed_seq"]
    gone = yield queries("task_events_delete", task_id=task_id, until=until, n=piece)
    if len(gone) < piece:
        yield queries("tasks_trimmed", task_id=task_id)
        # Older folds say what the task was at events that are gone.
        yield queries("task_folds_prune", task_id=task_id, n=1)
    return len(gone)
