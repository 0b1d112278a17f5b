"""Where streams end, and how cancels reach them."""

from __future__ import annotations

import asyncio

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a

from outlast.model.ids import TaskId
from outlast.model.task import State
from tests.integration.test_gateway_support import (
    BINDINGS,
    EVERY_BINDING,
    message,
    rest_of,
    running_gateway,
    state_of,
)

both = pytest.mark.parametrize("binding", BINDINGS)
every_binding = pytest.mark.parametrize("binding", EVERY_BINDING)


@every_binding
async def test_case_023_a_send_stream_ends_at_a_question_and_a_subscription_goes_on(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
        sending = gateway.stream(message(), binding=binding)
        first = await anext(sending)
        task_id = TaskId(first.task.id)
        subscription = gateway.subscribe(task_id, binding=binding)
        await anext(subscription)
        await gateway.hand.ask(task_id, "sure?")
        assert [state_of(item) for item in await rest_of(sending)] == ["INPUT_REQUIRED"]

        answering = gateway.stream(message("yes", task_id=task_id), binding=binding)
        assert state_of(await anext(answering)) == "WORKING", "a follow-up's stream has a Task too"
        await gateway.hand.finish(task_id)

        assert [state_of(item) for item in await rest_of(answering)] == ["COMPLETED"]
        assert [state_of(item) for item in await rest_of(subscription)] == [
            "INPUT_REQUIRED",
            "WORKING",
            "COMPLETED",
        ]


async def test_a_send_stream_waits_out_an_authorization(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sending = gateway.stream(message())
        task_id = TaskId((await anext(sending)).task.id)
        await gateway.hand.ask(task_id, "log in", state=State.AUTH_REQUIRED)
        assert state_of(await anext(sending)) == "AUTH_REQUIRED"
        await gateway.cancel(task_id)

        assert [state_of(item) for item in await rest_of(sending)] == ["CANCELED"]


@both
async def test_case_019_cancel_through_another_gateway_reaches_every_stream(
    database_url: str, binding: str
) -> None:
    async with (
        running_gateway(database_url) as one,
        running_gateway(database_url) as other,
    ):
        task_id = await one.started()
        await one.hand.report(task_id, "busy")
        streams = [one.subscribe(task_id), other.subscribe(task_id)]
        for stream in streams:
            await anext(stream)
        canceled = await other.cancel(task_id, binding=binding)

        assert canceled.status.state == pb.TASK_STATE_CANCELED
        for stream in streams:
            assert [state_of(item) for item in await rest_of(stream)] == ["CANCELED"]


async def test_case_050_a_paused_task_is_canceled_at_once(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "sure?")
    async with running_gateway(sqlite_url) as gateway:
        stream = gateway.subscribe(task_id)
        assert state_of(await anext(stream)) == "INPUT_REQUIRED"
        canceled = await gateway.cancel(task_id)

        assert canceled.status.state == pb.TASK_STATE_CANCELED
        assert [state_of(item) for item in await rest_of(stream)] == ["CANCELED"]
        with pytest.raises(a2a.UnsupportedOperationError, match="has ended"):
            await gateway.send(message("yes", task_id=task_id))
        assert await gateway.cancel(task_id) == canceled


async def test_case_047_of_cancel_and_completion_one_wins_and_all_agree(database_url: str) -> None:
    async with running_gateway(database_url) as gateway:
        for _ in range(10):
            task_id = await gateway.started()
            await gateway.hand.lease(task_id)
            stream = gateway.subscribe(task_id)
            await anext(stream)
            canceled, finished = await asyncio.gather(
                gateway.cancel(task_id), gateway.hand.finish(task_id), return_exceptions=True
            )
            gateway.hand.leases.clear()
            ends = [state_of(item) for item in await rest_of(stream)]

            assert len(ends) == 1
            if isinstance(canceled, BaseException):
                assert isinstance(canceled, a2a.TaskNotCancelableError)
                assert ends == ["COMPLETED"]
            else:
                assert isinstance(finished, BaseException)
                assert ends == ["CANCELED"]
                assert canceled == await gateway.task(task_id)


@every_binding
async def test_a_task_that_has_ended_cannot_be_canceled(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
        task_id = await gateway.started()
        await gateway.hand.finish(task_id)
        with pytest.raises(a2a.TaskNotCancelableError, match="completed"):
            await gateway.cancel(task_id, binding=binding)
        with pytest.raises(a2a.TaskNotFoundError):
            await gateway.cancel("no-such-task", binding=binding)


@every_binding
async def test_errors_before_the_first_event_are_plain_errors(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
        task_id = await gateway.started()
        await gateway.hand.finish(task_id)
        with pytest.raises(a2a.UnsupportedOperationError, match="has ended"):
            await rest_of(gateway.subscribe(task_id, binding=binding))
        with pytest.raises(a2a.TaskNotFoundError):
            await rest_of(gateway.subscribe("no-such-task", binding=binding))

        refused = await gateway.post(f"/tasks/{task_id}:subscribe", None)
        assert (refused.status_code, refused.headers["content-type"]) == (400, "application/json")
        rpc = await gateway.rpc("SubscribeToTask", {"id": task_id})
        assert rpc["error"]["code"] == -32004


async def test_case_127_a_reader_that_stopped_reading_does_not_keep_the_server(
    sqlite_url: str,
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        host, port = gateway.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1)
        asked = f"GET /tasks/{task_id}:subscribe?A2A-Version=1.0 HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(asked.encode())
        for index in range(60):
            await gateway.hand.chunk(task_id, "x" * 200_000, append=index > 0)
        gateway.server.config.timeout_graceful_shutdown = 1
        gateway.server.stop()
        async with asyncio.timeout(3):
            while not gateway.serving.done():
                await asyncio.sleep(0.05)
        writer.close()
