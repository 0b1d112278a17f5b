"""New tasks through the SDK's client: routing, direct answers, and what blocking sends wait for."""

from __future__ import annotations

import asyncio

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a
from google.protobuf.json_format import MessageToDict

from outlast.model.ids import TaskId
from outlast.model.task import State
from outlast.wire.extension import EXTENSION_URI
from tests.integration.test_gateway_support import (
    BINDINGS,
    EVERY_BINDING,
    SCOPE,
    history,
    message,
    only_task,
    running_gateway,
)

both = pytest.mark.parametrize("binding", BINDINGS)
every_binding = pytest.mark.parametrize("binding", EVERY_BINDING)
YES_OR_NO = {"type": "boolean"}


# --- new tasks ------------------------------------------------------------------------------------


@every_binding
async def test_case_007_a_send_that_returns_immediately_names_its_task(
    database_url: str, binding: str
) -> None:
    async with running_gateway(database_url, on_grpc=True) as gateway:
        task = await gateway.send(message("begin"), binding=binding, immediately=True)

        assert task.status.state == pb.TASK_STATE_SUBMITTED
        assert await gateway.task(task.id) == task
        assert history(task) == ["begin"]
        assert (task.history[0].task_id, task.history[0].context_id) == (task.id, task.context_id)
        row = await gateway.tasks.get(SCOPE, TaskId(task.id))
        assert (row.workflow, row.version, row.step) == ("chats", 2, "start")


async def test_a_new_task_joins_the_callers_context_and_keeps_the_requests_metadata(
    sqlite_url: str,
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        request = pb.SendMessageRequest(message=message(context_id="mine"))
        request.metadata.update({"project": {"id": 3}})
        request.configuration.return_immediately = True
        (response,) = [item async for item in gateway.client().send_message(request)]

        assert response.task.context_id == "mine"
        assert MessageToDict(response.task.metadata) == {"project": {"id": 3}}


async def test_a_caller_may_name_the_workflow_and_its_version(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        for version, expected in [({}, ("chats", 2)), ({"version": 1}, ("chats", 1))]:
            said = {"workflow": "chats", **version}
            task = await gateway.send(message(said=said), immediately=True)
            row = await gateway.tasks.get(SCOPE, TaskId(task.id))

            assert (row.workflow, row.version) == expected


async def test_an_input_is_checked_before_a_task_exists(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        said = {"workflow": "orders"}
        wrong = message(said=said, data={"item": "tea", "count": "many"})
        with pytest.raises(a2a.InvalidParamsError, match=r"message\.parts\[1\]\.data\.count"):
            await gateway.send(wrong, immediately=True)

        right = message(said=said, data={"item": "tea", "count": 3}, message_id=wrong.message_id)
        task = await gateway.send(right, immediately=True)

        assert task.status.state == pb.TASK_STATE_SUBMITTED


@every_binding
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_direct_message_answers_without_a_task(
    sqlite_url: str, binding: str, streaming: bool
) -> None:
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
        client = gateway.client(binding, streaming=streaming)
        request = pb.SendMessageRequest(message=message("hello", context_id="c"))

        first = [item async for item in client.send_message(request)]
        again = [item async for item in client.send_message(request)]

        assert len(first) == 1
        assert first[0].message.role == pb.ROLE_AGENT
        assert first[0].message.context_id == "c"
        assert not first[0].message.task_id
        assert again == first, "a repeat gets the stored answer; the router is not asked again"


# --- waiting --------------------------------------------------------------------------------------


@every_binding
async def test_case_008_a_blocking_send_returns_the_question(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
        sending = asyncio.create_task(gateway.send(message(), binding=binding))
        task_id = await only_task(gateway)
        await gateway.hand.ask(task_id, "which one?", YES_OR_NO)
        async with asyncio.timeout(1):
            task = await sending

        assert task.status.state == pb.TASK_STATE_INPUT_REQUIRED
        assert task.status.message.parts[0].text == "which one?"
        assert MessageToDict(task.status.message.metadata)[EXTENSION_URI]["schema"] == YES_OR_NO


async def test_case_008_a_blocking_send_returns_at_auth_required(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sending = asyncio.create_task(gateway.send(message()))
        await gateway.hand.ask(await only_task(gateway), "log in", state=State.AUTH_REQUIRED)

        assert (await sending).status.state == pb.TASK_STATE_AUTH_REQUIRED


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.REJECTED])
async def test_case_042_a_blocking_send_returns_the_end(sqlite_url: str, state: State) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sending = asyncio.create_task(gateway.send(message()))
        task_id = await only_task(gateway)
        await gateway.hand.chunk(task_id, "a", append=False)
        await gateway.hand.finish(task_id, state, "so it is")
        task = await sending

        assert task.status.state == pb.TaskState.Value(f"TASK_STATE_{state.name}")
        assert task.status.message.parts[0].text == "so it is"
        assert task.artifacts[0].parts[0].text == "a"


async def test_case_032_a_wait_ends_by_polling_when_wake_ups_are_lost(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, poll_s=0.05) as gateway:
        sending = asyncio.create_task(gateway.send(message()))
        task_id = await only_task(gateway)
        gateway.database.wakeups.send = lambda topics: None  # type: ignore[method-assign]
        await gateway.hand.finish(task_id)
        async with asyncio.timeout(2):
            assert (await sending).status.state == pb.TASK_STATE_COMPLETED


async def test_case_009_at_the_cap_the_task_is_returned_as_it_is(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, blocking_cap_s=0.1) as gateway:
        task = await gateway.send(message())

        assert task.status.state == pb.TASK_STATE_SUBMITTED


@both
async def test_case_009_a_caller_that_leaves_ends_its_request_and_nothing_else(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sending = asyncio.create_task(gateway.send(message(), binding=binding))
        task_id = await only_task(gateway)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        async with asyncio.timeout(1):  # its request is not among the server's any more
            while gateway.server.server_state.tasks:
                await asyncio.sleep(0.01)

        assert (await gateway.tasks.get(SCOPE, task_id)).state is State.SUBMITTED


async def test_case_127_a_closing_gateway_answers_with_the_task_as_it_is(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sending = asyncio.create_task(gateway.send(message()))
        await only_task(gateway)
        gateway.server.stop()
        async with asyncio.timeout(1):
            assert (await sending).status.state == pb.TASK_STATE_SUBMITTED
