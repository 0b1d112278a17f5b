"""ListTasks: pages of a caller's tasks, the last to change their status first."""

from __future__ import annotations

import re
from typing import Any

from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict

from outlast.gateway.config import MIB, GatewayConfig
from outlast.gateway.limits import check_id
from outlast.gateway.page_tokens import bound_to, pack, unpack
from outlast.gateway.patience import persist
from outlast.model.errors import InvalidParams
from outlast.model.ids import ContextId, Millis, TaskId
from outlast.model.task import Scope, State
from outlast.store.protocols import Place, Snapshot, TaskStore, Wanted
from outlast.wire.events import state_of_proto
from outlast.wire.extension import View
from outlast.wire.fold import check_history_length
from outlast.wire.folds import fold_log

DEFAULT_PAGE = 50
LARGEST_PAGE = 100
MOST_BYTES = 8 * MIB
"""Of the logs and folds on a page. In memory, as tasks and as JSON, they take several times that;
a hundred tasks may have histories of as many gigabytes."""
_LAST_MILLIS = 1 << 62
_NUMBER = re.compile(r"-?\d{1,9}", re.ASCII)


class Listing:
    """Answers ListTasks."""

    def __init__(self, tasks: TaskStore, config: GatewayConfig) -> None:
        self._tasks = tasks
        self._config = config

    async def page(
        self, params: pb.ListTasksRequest, scope: Scope, view: View
    ) -> pb.ListTasksResponse:
        """One page. Raises InvalidParams, with the path, for what no list has."""
        size = page_size(params)
        history = params.history_length if params.HasField("history_length") else None
        check_history_length(history)
        wanted = _wanted(params)
        after = read_token(params.page_token, scope, wanted) if params.page_token else None
        page = await persist(
            lambda: self._tasks.page(
                scope,
                wanted,
                limit=size,
                most_bytes=MOST_BYTES,
                after=after,
                artifacts=params.include_artifacts,
            ),
            self._config.store_patience_s,
        )
        return pb.ListTasksResponse(
            tasks=[
                _shown(snapshot, view, history, artifacts=params.include_artifacts)
                for snapshot in page.snapshots
            ],
            next_page_token="" if page.next is None else make_token(page.next, scope, wanted),
            page_size=size,
            total_size=page.total,
        )


def page_size(params: pb.ListTasksRequest) -> int:
    """How many tasks a page may hold. Raises InvalidParams out of 1 to 100."""
    if not params.HasField("page_size"):
        return DEFAULT_PAGE
    if not 1 <= params.page_size <= LARGEST_PAGE:
        raise InvalidParams(
            f"must be 1 to {LARGEST_PAGE}, not {params.page_size}; leave it out for {DEFAULT_PAGE}",
            path="pageSize",
        )
    return params.page_size


def check_status_name(said: Any) -> None:
    """Raise InvalidParams for a status that no task has: parsers take an unknown name for none,
    and the caller would get every task."""
    states = pb.TaskState.items()
    number = int(said) if _NUMBER.fullmatch(str(said)) else None
    if any(said == name or number == value for name, value in states):
        return
    known = ", ".join(name for name, value in states if value)
    raise InvalidParams(f"{str(said)[:64]!r} is none of {known}", path="status")


def listing_to_json(response: pb.ListTasksResponse, *, artifacts: bool) -> dict[str, Any]:
    """The answer as JSON. Its own four fields are always there; a task's artifacts only, and then
    always, where they were asked for (§3.1.4)."""
    body: dict[str, Any] = {"tasks": [], "nextPageToken": "", "pageSize": 0, "totalSize": 0}
    body |= MessageToDict(response)
    for task in body["tasks"] if artifacts else ():
        task.setdefault("artifacts", [])
    return body


# --- page tokens --------------------------------------------------------------------------------


def make_token(place: Place, scope: Scope, wanted: Wanted) -> str:
    """The place as callers carry it to their next call."""
    return pack(place.status_at, place.task_id, _bound_to(scope, wanted))


def read_token(token: str, scope: Scope, wanted: Wanted) -> Place:
    """The place that a token stands for. Raises InvalidParams for a token of another caller's or
    of other filters, in the same words as for one that was never made."""
    held = unpack(token)
    status_at, task_id, list_ = held if isinstance(held, list) and len(held) == 3 else [None] * 3
    if (
        not isinstance(status_at, int)
        or not isinstance(task_id, str)
        or not 0 <= status_at < _LAST_MILLIS
        or "\0" in task_id
        or list_ != _bound_to(scope, wanted)
    ):
        raise InvalidParams(
            "is no token of this list; take it from the last page's nextPageToken, with the same"
            " filters, or leave it out to begin",
            path="pageToken",
        )
    return Place(status_at=Millis(status_at), task_id=TaskId(task_id))


def _bound_to(scope: Scope, wanted: Wanted) -> str:
    return bound_to(
        scope.agent,
        scope.tenant,
        scope.owner,
        wanted.context_id,
        wanted.state,
        wanted.changed_since,
    )


# --- what is asked for, and what is shown ---------------------------------------------------------


def _wanted(params: pb.ListTasksRequest) -> Wanted:
    check_id(params.context_id, path="contextId")
    since = None
    if params.HasField("status_timestamp_after"):
        # Times are kept in milliseconds: of a finer one, the first that is not before it.
        since = Millis(-(-params.status_timestamp_after.ToNanoseconds() // 1_000_000))
    return Wanted(
        context_id=ContextId(params.context_id) if params.context_id else None,
        state=_state(params.status),
        changed_since=since,
    )


def _state(said: int) -> State | None:
    if said == pb.TASK_STATE_UNSPECIFIED:
        return None
    state = state_of_proto(said)
    if state is None:
        check_status_name(said)
    return state


def _shown(
    snapshot: Snapshot, view: View, history_length: int | None, *, artifacts: bool
) -> pb.Task:
    folded = fold_log(
        snapshot.task,
        snapshot.events,
        fold=snapshot.fold,
        view=view,
        history_length=history_length,
        generation=snapshot.seq,
    )
    if not artifacts:
        folded.task.ClearField("artifacts")  # a fold has them, whoever asked
    return folded.task
