"""Where callers want events of their tasks sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlast.model.errors import TaskNotFound, UnsupportedOperation, WebhookNotFound
from outlast.model.ids import TaskId
from outlast.model.task import Scope
from outlast.store.database import Row
from outlast.store.protocols import MOST_WEBHOOKS
from tests.contract.stores import SCOPE, Store, new_webhook, scope_with

OTHER_SCOPES = (
    scope_with(agent="another"),
    scope_with(tenant="another"),
    scope_with(owner="another"),
)


async def call(store: Store, verb: str, scope: Scope, task_id: TaskId) -> Any:
    match verb:
        case "add_webhook":
            return await store.webhooks.add_webhook(scope, task_id, new_webhook("two"))
        case "webhooks":
            return await store.webhooks.webhooks(scope, task_id, limit=9)
        case "webhook":
            return await store.webhooks.webhook(scope, task_id, "one")
        case _:
            return await store.webhooks.remove_webhook(scope, task_id, "one")


async def refuses_a_task_of_another_scope(store: Store, verb: str) -> None:
    task_id = await store.new_task()
    await store.webhooks.add_webhook(SCOPE, task_id, new_webhook())
    async with store.unchanged():
        for scope in OTHER_SCOPES:
            with pytest.raises(TaskNotFound) as foreign:
                await call(store, verb, scope, task_id)
            assert str(foreign.value) == f"there is no task {task_id}"
        with pytest.raises(TaskNotFound):
            await call(store, verb, SCOPE, TaskId("never"))


async def ids(store: Store, task_id: TaskId, *, limit: int = 99, after: str = "") -> list[str]:
    found = await store.webhooks.webhooks(SCOPE, task_id, limit=limit, after=after)
    return [webhook.config_id for webhook in found]


async def row_of(store: Store) -> Row:
    (row,) = await store.sql("select * from webhooks")
    return row


class TestAddWebhook:
    async def test_keeps_it_with_its_secrets(self, store: Store) -> None:
        """Keep a webhook of the task under its config id."""
        task_id = await store.new_task()
        plain = new_webhook("plain", token=None, scheme=None, credentials=None)
        await store.webhooks.add_webhook(SCOPE, task_id, new_webhook())
        await store.webhooks.add_webhook(SCOPE, task_id, plain)
        assert await store.webhooks.webhook(SCOPE, task_id, "one") == new_webhook()
        assert await store.webhooks.webhook(SCOPE, task_id, "plain") == plain

    async def test_begins_with_the_task_as_it_is(self, store: Store) -> None:
        """Its first delivery will show the task as of the event that was then the last."""
        paused = await store.paused()
        await store.webhooks.add_webhook(SCOPE, paused.task_id, new_webhook())
        row = await row_of(store)
        assert (row["pinned_seq"], row["cursor"]) == (paused.pause_id, 0)

    async def test_again_writes_nothing(self, store: Store) -> None:
        """The same again writes nothing, unless the webhook is exhausted."""
        paused = await store.paused()
        await store.webhooks.add_webhook(SCOPE, paused.task_id, new_webhook())
        await store.answer(paused)
        async with store.unchanged():
            await store.webhooks.add_webhook(SCOPE, paused.task_id, new_webhook())
        await store.sql("update webhooks set exhausted_at = 1, attempt = 9, last_error = 'x'")
        await store.webhooks.add_webhook(SCOPE, paused.task_id, new_webhook())
        row = await row_of(store)
        assert (row["exhausted_at"], row["attempt"], row["last_error"]) == (None, 0, None)

    @pytest.mark.parametrize("change", ["url", "token", "scheme", "credentials"])
    async def test_of_another_under_its_id_begins_anew(self, store: Store, change: str) -> None:
        """Another one under the same id takes the place of the first: it is served anew, and a
        delivery of the first under way finds the fence raised."""
        paused = await store.paused()
        await store.webhooks.add_webhook(SCOPE, paused.task_id, new_webhook())
        await store.answer(paused)
        await store.sql(
            "update webhooks set cursor = 2, pinned_seq = null, lease_owner = 'w', fence = 7"
        )
        other = new_webhook(**{change: "https://other.example.com"})
        await store.webhooks.add_webhook(SCOPE, paused.task_id, other)
        assert await store.webhooks.webhook(SCOPE, paused.task_id, "one") == other
        row = await row_of(store)
        assert (row["cursor"], row["fence"], row["lease_owner"]) == (0, 8, None)
        assert row["pinned_seq"] == (await store.task(paused.task_id)).generation

    async def test_stops_at_the_limit(self, store: Store) -> None:
        """While the task has `MOST_WEBHOOKS`, however many are added at once, one more is not kept:
        UnsupportedOperation."""
        task_id = await store.new_task()
        other = await store.another()
        results = await asyncio.gather(
            *(
                each.webhooks.add_webhook(SCOPE, task_id, new_webhook(f"{n:02}"))
                for n in range(MOST_WEBHOOKS + 3)
                for each in ((store, other)[n % 2],)
            ),
            return_exceptions=True,
        )
        refused = [result for result in results if result is not None]
        assert [type(error) for error in refused] == [UnsupportedOperation] * 3
        kept = await ids(store, task_id)
        assert len(kept) == MOST_WEBHOOKS
        await store.webhooks.add_webhook(SCOPE, task_id, new_webhook(kept[0], token="new"))
        await store.webhooks.remove_webhook(SCOPE, task_id, kept[0])
        await store.webhooks.add_webhook(SCOPE, task_id, new_webhook("one more"))

    async def test_of_a_task_of_another_scope(self, store: Store) -> None:
        """A task that does not exist in the scope raises TaskNotFound."""
        await refuses_a_task_of_another_scope(store, "add_webhook")


class TestWebhook:
    async def test_is_the_one_of_this_id(self, store: Store) -> None:
        """The task's webhook of this id."""
        task_id = await store.new_task()
        for name in ("one", "two"):
            await store.webhooks.add_webhook(SCOPE, task_id, new_webhook(name, token=name))
        assert (await store.webhooks.webhook(SCOPE, task_id, "two")).token == "two"

    async def test_of_another_task_is_not_found(self, store: Store) -> None:
        """One that this task does not have raises WebhookNotFound."""
        task_id, other = await store.new_task(), await store.new_task()
        await store.webhooks.add_webhook(SCOPE, other, new_webhook())
        for name in ("one", "never"):
            with pytest.raises(WebhookNotFound, match=f"no push notification config {name}"):
                await store.webhooks.webhook(SCOPE, task_id, name)

    async def test_of_a_task_of_another_scope(self, store: Store) -> None:
        """A task that does not exist in the scope raises TaskNotFound."""
        await refuses_a_task_of_another_scope(store, "webhook")


class TestWebhooks:
    async def test_come_in_the_order_of_their_ids(self, store: Store) -> None:
        """The task's webhooks whose ids come after `after`, in the order of their bytes, at most
        `limit`."""
        task_id, other = await store.new_task(), await store.new_task()
        for name in ("b", "B", "ä", "a"):
            await store.webhooks.add_webhook(SCOPE, task_id, new_webhook(name))
        await store.webhooks.add_webhook(SCOPE, other, new_webhook("foreign"))
        assert await ids(store, task_id) == ["B", "a", "b", "ä"]
        assert await ids(store, task_id, limit=2) == ["B", "a"]
        assert await ids(store, task_id, limit=2, after="a") == ["b", "ä"]
        assert await ids(store, await store.new_task()) == []

    async def test_of_a_task_of_another_scope(self, store: Store) -> None:
        """A task that does not exist in the scope raises TaskNotFound."""
        await refuses_a_task_of_another_scope(store, "webhooks")


class TestRemoveWebhook:
    async def test_forgets_it(self, store: Store) -> None:
        """Forget the webhook, with its secrets, whoever is delivering to it."""
        task_id = await store.new_task()
        for name in ("one", "two"):
            await store.webhooks.add_webhook(SCOPE, task_id, new_webhook(name))
        await store.sql("update webhooks set lease_owner = 'somebody', due_at = 1")
        await store.webhooks.remove_webhook(SCOPE, task_id, "one")
        assert await ids(store, task_id) == ["two"]

    async def test_of_nothing_does_nothing(self, store: Store) -> None:
        """One that the task does not have is as good as forgotten."""
        task_id, other = await store.new_task(), await store.new_task()
        await store.webhooks.add_webhook(SCOPE, other, new_webhook())
        async with store.unchanged():
            await store.webhooks.remove_webhook(SCOPE, task_id, "one")
        assert await ids(store, other) == ["one"]

    async def test_of_a_task_of_another_scope(self, store: Store) -> None:
        """A task that does not exist in the scope raises TaskNotFound."""
        await refuses_a_task_of_another_scope(store, "remove_webhook")
