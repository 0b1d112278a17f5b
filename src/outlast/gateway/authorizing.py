"""Authorizations: what a pause in AUTH_REQUIRED waits for comes out of band (§7.6.1).

The value is a secret as a rule. It goes into the ledger and nowhere else: no error and no log here
may hold it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlast.gateway.config import GatewayConfig
from outlast.gateway.limits import check_value
from outlast.gateway.patience import persist
from outlast.gateway.pauses import pause_named
from outlast.model.errors import InvalidParams
from outlast.model.ids import TaskId
from outlast.model.task import Scope
from outlast.model.topics import task_topic, work_topic
from outlast.store.database import Wakeups
from outlast.store.protocols import TaskStore
from outlast.wire.extension import View

_FIELDS = frozenset({"pause", "value", "tenant"})


@dataclass(frozen=True, kw_only=True)
class AuthorizeRequest:
    """The body of a request to authorize, as it came; `tenant` is the path's or the body's."""

    pause: Any
    value: Any
    tenant: str = ""

    @classmethod
    def from_json(cls, text: bytes) -> AuthorizeRequest:
        """Raises InvalidParams for what is no object with a pause and a value."""
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, Mapping):
            raise InvalidParams('must be an object: {"pause": "<name>", "value": …}', path="body")
        for field in ("pause", "value"):
            if field not in body:
                raise InvalidParams("is required", path=field)
        for field in body:
            if field not in _FIELDS:
                raise InvalidParams("is not known here", path=ascii(field[:64])[1:-1])
        tenant = body.get("tenant", "")
        if not isinstance(tenant, str):
            raise InvalidParams("must be a text", path="tenant")
        return cls(pause=body["pause"], value=body["value"], tenant=tenant)


class Authorizing:
    """Takes authorizations to the tasks that wait for them."""

    def __init__(self, tasks: TaskStore, wakeups: Wakeups, config: GatewayConfig) -> None:
        self._tasks = tasks
        self._wakeups = wakeups
        self._config = config

    async def accept(self, scope: Scope, task_id: TaskId, request: AuthorizeRequest) -> bool:
        """Give the pause its value; False when it was authorized before.

        Raises TaskNotFound, InvalidParams, and UnsupportedOperation when the task does not wait for
        this authorization.
        """
        pause_id = pause_named(request.pause, View(epoch=self._config.epoch), path="pause")
        check_value(request.value, self._config, path="value")
        first = await persist(
            lambda: self._tasks.authorize(scope, task_id, pause_id, request.value),
            self._config.store_patience_s,
        )
        # After the commit; also for a repeat, whose first may have died before it rang.
        self._wakeups.send([work_topic(scope.agent), task_topic(task_id)])
        return first
