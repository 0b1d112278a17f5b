"""Tasks as their scope sees them: what another scope has does not exist, by the same statements.

Called inside a transaction, or on the snapshot of a read.
"""

from __future__ import annotations

from outlast.model.errors import TaskNotFound
from outlast.model.ids import TaskId
from outlast.model.task import Scope
from outlast.store.database import Catalog, Row, Script


def within(scope: Scope) -> dict[str, str]:
    """The scope as parameters."""
    return {"agent": scope.agent, "tenant": scope.tenant, "owner": scope.owner}


def found(queries: Catalog, scope: Scope, task_id: TaskId) -> Script[Row]:
    """The task's row. Raises TaskNotFound."""
    rows = yield queries("tasks_find", **within(scope), task_id=task_id)
    if not rows:
        yield from missing(queries, scope, task_id)
    return rows[0]


def taken(queries: Catalog, scope: Scope, task_id: TaskId) -> Script[Row]:
    """The task's row, locked, if it is this scope's. Raises TaskNotFound."""
    rows = yield queries("tasks_take", task_id=task_id)
    if not rows or any(rows[0][name] != value for name, value in within(scope).items()):
        yield from missing(queries, scope, task_id)
    return rows[0]


def missing(queries: Catalog, scope: Scope, task_id: TaskId) -> Script[None]:
    """Raise TaskNotFound, which tells its owner of a task that has expired."""
    expired = yield queries("tombstones_find", **within(scope), task_id=task_id)
    raise TaskNotFound(task_id, expired=bool(expired))
