"""Listing: pages that miss nothing, and history of the length that was asked for."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError

from outlast.store.database import Query, Rows, Script, Statement
from tests.integration.test_gateway_support import (
    BINDINGS,
    Gateway,
    history,
    message,
    running_gateway,
)

both = pytest.mark.parametrize("binding", BINDINGS)


async def give_all_the_same_time(gateway: Gateway) -> None:
    def script() -> Script[Rows]:
        text = "update tasks set status_at = (select min(status_at) from tasks)"
        return (yield Statement(Query("test_same_time", "", text), {}))

    await gateway.database.transact(script)


@both
async def test_case_122_equal_time_stamps_are_on_one_page_each(
    database_url: str, binding: str
) -> None:
    async with running_gateway(database_url) as gateway:
        task_ids = {await gateway.started() for _ in range(60)}
        await give_all_the_same_time(gateway)

        seen: list[str] = []
        token = None
        while token != "":
            page = await gateway.page(binding=binding, page_size=7, page_token=token or "")
            seen += [task.id for task in page.tasks]
            assert page.total_size == 60
            token = page.next_page_token
        assert len(seen) == 60
        assert {*seen} == task_ids


@both
async def test_case_123_what_changes_between_pages_hides_nothing_else(
    database_url: str, binding: str
) -> None:
    async with running_gateway(database_url) as gateway:
        task_ids = [await gateway.started() for _ in range(40)]
        moving = {task_ids[3], task_ids[20], task_ids[37]}
        began = (await gateway.task(task_ids[-1])).status.timestamp

        seen: list[str] = []
        token = None
        while token != "":
            page = await gateway.page(binding=binding, page_size=6, page_token=token or "")
            seen += [task.id for task in page.tasks]
            token = page.next_page_token
            for task_id in moving:
                await gateway.hand.report(task_id, "moves")

        still = {*task_ids} - moving
        assert sorted(task_id for task_id in seen if task_id in still) == sorted(still)
        changed = await gateway.pages(status_timestamp_after=began, page_size=100)
        assert moving <= {task.id for task in changed}


@both
async def test_case_125_history_is_as_long_as_asked_for_everywhere(
    database_url: str, binding: str
) -> None:
    async with running_gateway(database_url) as first:
        task_id = await first.started("hello there")
        for turn in range(3):
            await first.hand.ask(task_id, f"question {turn}")
            await first.send(message(f"answer {turn}", task_id=task_id), immediately=True)
        turns = [text for turn in range(3) for text in (f"question {turn}", f"answer {turn}")]
    whole = ["hello there", *turns]

    # Another gateway on the same store: nothing of this was in the memory of the first.
    async with running_gateway(database_url) as gateway:

        async def by_every_door(length: int | None) -> list[pb.Task]:
            given: dict[str, Any] = {} if length is None else {"history_length": length}
            client = gateway.client(binding)
            got = await client.get_task(pb.GetTaskRequest(id=task_id, **given))
            (listed,) = (await gateway.page(binding=binding, **given)).tasks
            return [got, listed]

        assert [history(task) for task in await by_every_door(None)] == [whole, whole]
        for length in (0, 1, 2, 5, 7, 100):
            expected = whole[-length:] if length else []
            assert [history(task) for task in await by_every_door(length)] == [expected] * 2
        with pytest.raises(InvalidParamsError):
            await gateway.client(binding).get_task(pb.GetTaskRequest(id=task_id, history_length=-1))
        with pytest.raises(InvalidParamsError):
            await gateway.page(binding=binding, history_length=-1)
