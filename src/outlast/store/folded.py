"""A log as a fold and the events after it."""

from __future__ import annotations

from outlast.model.commit import LoggedEvent
from outlast.model.ids import Seq, TaskId
from outlast.model.task import Fold
from outlast.store.database import Catalog, Script
from outlast.store.rows import event_of, fold_of

_PAGE = 1000


def folded_log(
    queries: Catalog, task_id: TaskId, until: Seq
) -> Script[tuple[Fold | None, list[LoggedEvent]]]:
    """The log up to `until`, where it has this event: its newest fold that is not past it, and
    the events after that."""
    rows = yield queries("task_folds_newest", task_id=task_id, until=until)
    fold = fold_of(rows[0]) if rows else None
    after = 0 if fold is None else fold.seq
    events: list[LoggedEvent] = []
    while after < until:
        # There is no gap: so many events are not past `until`.
        n = min(until - after, _PAGE)
        page = yield queries("task_events_since", task_id=task_id, seq=after, n=n)
        if not page:
            break
        events.extend(map(event_of, page))
        after = events[-1].seq
    return fold, events
