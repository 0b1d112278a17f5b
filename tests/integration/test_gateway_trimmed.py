"""What callers see of a task whose log is trimmed: the same, but the way there."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict

from outlast.gateway.stream import until_terminal
from outlast.model.ids import TaskId
from outlast.store.protocols import Settings
from outlast.store.sweeping import Sweeping
from outlast.sweeps.folds import Folds
from outlast.wire.extension import EXTENSION_URI, View
from tests.integration.test_gateway_resume import EPOCH, after, both, resumed
from tests.integration.test_gateway_support import SCOPE, Gateway, running_gateway


async def trimmed(gateway: Gateway, chunks: int = 80) -> TaskId:
    """A task that has ended, and whose log is trimmed."""
    task_id = await gateway.started()
    await gateway.hand.chunk(task_id, *["x"] * chunks, append=False)
    await gateway.hand.finish(task_id)
    await trim(gateway)
    return task_id


async def trim(gateway: Gateway) -> None:
    sweeping = Sweeping(gateway.database, Settings(resume_window_ms=0))
    assert await Folds(sweeping).sweep() == 1
    assert len(await sweeping.trim_logs()) == 1


@both
async def test_case_117_a_resume_into_what_was_trimmed_is_a_reset(
    database_url: str, binding: str
) -> None:
    async with running_gateway(database_url, epoch=EPOCH) as gateway:
        task_id = await trimmed(gateway)
        for seen in (1, 40, 81):
            headers = after(seen, extended=True)
            ((event_id, got),) = await resumed(gateway, task_id, binding, headers=headers)

            assert event_id == f"{EPOCH}-82"
            assert got["task"]["metadata"][EXTENSION_URI] == {"generation": 82, "reset": True}
            assert len(got["task"]["artifacts"][0]["parts"]) == 80
            assert got["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        headers = after(82, extended=True)
        ((event_id, got),) = await resumed(gateway, task_id, binding, headers=headers)
        assert got["task"]["metadata"][EXTENSION_URI] == {"generation": 82}


async def test_case_117_what_is_trimmed_reads_and_lists_as_before(database_url: str) -> None:
    async with running_gateway(database_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.chunk(task_id, *["x"] * 80, append=False)
        await gateway.hand.finish(task_id)
        lists: list[dict[str, Any]] = [{}, {"include_artifacts": True}, {"history_length": 0}]

        async def shown() -> list[Any]:
            pages = [await gateway.page(**params) for params in lists]
            return [await gateway.task(task_id), *pages]

        before = await shown()
        await trim(gateway)

        assert await shown() == before


async def test_case_117_a_reader_slower_than_the_log_is_kept_gets_the_end(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        items = gateway.handler._streams.follow(
            SCOPE, task_id, View(extended=True), ends=until_terminal
        )
        async with aclosing(items):
            first = await anext(items)
            await gateway.hand.chunk(task_id, *["x"] * 80, append=False)
            await gateway.hand.finish(task_id)
            await trim(gateway)
            rest = [item async for item in items]

        assert first.seq == 1
        assert isinstance(rest[-1].event, pb.Task)
        assert rest[-1].seq == 82
        assert len(rest[-1].event.artifacts[0].parts) == 80
        assert MessageToDict(rest[-1].event.metadata)[EXTENSION_URI]["reset"] is True
