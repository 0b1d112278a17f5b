"""Where callers want events of their tasks sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from outlast.model.delivery import Webhook
from outlast.model.errors import InvalidParams, UnsupportedOperation, WebhookNotFound
from outlast.model.ids import Seq, TaskId
from outlast.model.task import Scope
from outlast.store.codec import from_text, to_text
from outlast.store.database import (
    Catalog,
    Database,
    Row,
    Rows,
    Script,
    StatementRefused,
    catalog,
)
from outlast.store.protocols import MOST_WEBHOOKS
from outlast.store.scoped import found, taken

T = TypeVar("T")


class Webhooks:
    """`WebhookStore` on any database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = catalog(database.dialect)

    async def add_webhook(self, scope: Scope, task_id: TaskId, webhook: Webhook) -> None:
        def script() -> Script[None]:
            row = yield from taken(self._queries, scope, task_id)
            yield from put(self._queries, task_id, webhook, pinned=Seq(row["next_seq"] - 1))

        await self._write(script)

    async def webhook(self, scope: Scope, task_id: TaskId, config_id: str) -> Webhook:
        def script() -> Script[Rows]:
            yield from found(self._queries, scope, task_id)
            return (yield self._queries("webhooks_get", task_id=task_id, config_id=config_id))

        rows = await self._database.read(script)
        if not rows:
            raise WebhookNotFound(task_id, config_id)
        return webhook_of(rows[0])

    async def webhooks(
        self, scope: Scope, task_id: TaskId, *, limit: int, after: str = ""
    ) -> Sequence[Webhook]:
        def script() -> Script[Rows]:
            yield from found(self._queries, scope, task_id)
            return (yield self._queries("webhooks_page", task_id=task_id, after_id=after, n=limit))

        return [webhook_of(row) for row in await self._database.read(script)]

    async def remove_webhook(self, scope: Scope, task_id: TaskId, config_id: str) -> None:
        def script() -> Script[None]:
            yield from taken(self._queries, scope, task_id)
            yield self._queries("webhooks_remove", task_id=task_id, config_id=config_id)

        await self._write(script)

    async def _write(self, script: Callable[[], Script[T]]) -> T:
        try:
            return await self._database.transact(script)
        except StatementRefused as refusal:
            raise InvalidParams(f"this cannot be stored: {refusal.reason}") from None


def put(queries: Catalog, task_id: TaskId, webhook: Webhook, *, pinned: Seq | None) -> Script[None]:
    """Keep the webhook of a task whose row this transaction has taken.

    pinned: the seq as of which its first delivery shows the task; None for a task that begins,
    of which every event is sent. Raises UnsupportedOperation for one too many.
    """
    rows = yield queries("webhooks_page", task_id=task_id, after_id="", n=MOST_WEBHOOKS)
    known = {row["config_id"]: row for row in rows}
    same = known.get(webhook.config_id)
    if same is None and len(known) >= MOST_WEBHOOKS:
        raise UnsupportedOperation(
            f"the task has {MOST_WEBHOOKS} push notification configs, and that is the limit;"
            " delete one first"
        )
    if same is not None and webhook_of(same) == webhook and same["exhausted_at"] is None:
        return
    yield queries(
        "webhooks_put",
        task_id=task_id,
        config_id=webhook.config_id,
        url=webhook.url,
        secrets=_secrets_of(webhook),
        pinned_seq=pinned,
    )


def webhook_of(row: Row) -> Webhook:
    """The webhook that a row holds."""
    secrets = {} if row["secrets"] is None else from_text(row["secrets"])
    return Webhook(config_id=row["config_id"], url=row["url"], **secrets)


def _secrets_of(webhook: Webhook) -> str | None:
    kept = {
        "token": webhook.token,
        "scheme": webhook.scheme,
        "credentials": webhook.credentials,
    }
    said = {name: value for name, value in kept.items() if value is not None}
    return to_text(said) if said else None
