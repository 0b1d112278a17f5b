"""GetTask that waits for a newer generation, and sends that insist on one, on all bindings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from a2a.client.client import ClientCallContext
from a2a.server.context import ServerCallContext
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a
from a2a.utils.grpc_status import status_from_call
from google.protobuf.json_format import MessageToDict
from google.rpc import error_details_pb2

from outlast.gateway.scopes import Identity
from outlast.model.ids import TaskId
from outlast.model.task import Caller
from outlast.wire.extension import EXTENSION_URI
from outlast.wire.mismatch import TaskGenerationMismatchError
from outlast.wire.updates import generation_of
from tests.integration.test_gateway_grpc import SPOKEN, Called, called
from tests.integration.test_gateway_support import (
    BINDINGS,
    SCOPE,
    Gateway,
    agent_with_inbox,
    history,
    message,
    running_gateway,
)

ALL = (*BINDINGS, "GRPC")
every = pytest.mark.parametrize("binding", ALL)
EXTENDED = {"A2A-Extensions": EXTENSION_URI}


async def newer(there: Called, binding: str, task_id: str, **headers: str) -> pb.Task:
    """GetTask with these headers, or metadata of these names."""
    client = there.client if binding == "GRPC" else there.gateway.client(binding)
    context = ClientCallContext(service_parameters=headers, timeout=20)
    return await client.get_task(pb.GetTaskRequest(id=task_id), context=context)


def than(generation: int | str, wait: str | None = None) -> dict[str, str]:
    headers = {**EXTENDED, "Outlast-Newer-Than": str(generation)}
    return headers if wait is None else {**headers, "Outlast-Wait": wait}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def readers(gateway: Gateway, task_id: TaskId) -> int:
    """How many wait for the task in this gateway."""
    tail = gateway.handler._waiting._tails._tails.get(task_id)
    return 0 if tail is None else tail.readers


# --- waiting ------------------------------------------------------------------------------------


@every
async def test_a_get_waits_for_what_is_newer(sqlite_url: str, binding: str) -> None:
    async with called(sqlite_url) as there, running_gateway(sqlite_url) as other:
        hand = there.gateway.hand
        task_id = await there.gateway.started()
        waiting = asyncio.create_task(newer(there, binding, task_id, **than(1)))
        await until(lambda: readers(there.gateway, task_id) == 1)
        assert not waiting.done()
        await hand.chunk(task_id, "a", append=False)
        task = await waiting

        assert generation_of(task) == 2
        assert task.artifacts[0].parts[0].text == "a"
        assert generation_of(await newer(there, binding, task_id, **than(0))) == 2, "at once"
        assert readers(other, task_id) == readers(there.gateway, task_id) == 0
        await hand.finish(task_id)
        ended = await newer(there, binding, task_id, **than(3))
        assert ended.status.state == pb.TASK_STATE_COMPLETED, "there can be nothing newer"


async def test_a_wait_ends_with_its_time(sqlite_url: str) -> None:
    async with called(sqlite_url) as there:
        task_id = await there.gateway.started()
        for binding in ALL:
            for wait in ("0", "0.05"):
                task = await newer(there, binding, task_id, **than(1, wait))
                assert generation_of(task) == 1


async def test_a_wait_ends_with_the_blocking_cap(sqlite_url: str) -> None:
    async with called(sqlite_url, blocking_cap_s=0.05) as there:
        task_id = await there.gateway.started()
        for binding in ALL:
            for wait in (None, "999999999"):
                task = await newer(there, binding, task_id, **than(1, wait))
                assert generation_of(task) == 1


async def test_a_wait_ends_with_the_credential(sqlite_url: str) -> None:
    """As streams do: nothing that happens after it is told under it."""

    def identify(context: ServerCallContext, tenant: str) -> Identity:
        return Identity(scope=SCOPE, caller=Caller(), expires_at=time.time() + 0.1)

    async with called(sqlite_url, identify=identify) as there:
        sent = message()
        task = await there.gateway.send(sent)
        assert task.status.state == pb.TASK_STATE_SUBMITTED
        for binding in ALL:
            assert generation_of(await newer(there, binding, task.id, **than(1))) == 1


async def test_without_the_extension_a_get_is_plain(sqlite_url: str) -> None:
    async with called(sqlite_url) as there:
        task_id = await there.gateway.started()
        for binding in ALL:
            headers = than("no number")
            del headers["A2A-Extensions"]
            task = await newer(there, binding, task_id, **headers)
            assert generation_of(task) is None


BAD_HEADERS = [
    (than("e1-7"), "Outlast-Newer-Than"),
    (than("-1"), "Outlast-Newer-Than"),
    (than("9" * 19), "Outlast-Newer-Than"),
    (than(1, "soon"), "Outlast-Wait"),
    (than(1, "-5"), "Outlast-Wait"),
    (than(1, "nan"), "Outlast-Wait"),
    ({**EXTENDED, "Outlast-Wait": "5"}, "Outlast-Wait"),
]


@every
async def test_a_wait_for_nothing_is_refused(sqlite_url: str, binding: str) -> None:
    async with called(sqlite_url) as there:
        task_id = await there.gateway.started()
        for headers, named in BAD_HEADERS:
            with pytest.raises(a2a.InvalidParamsError, match=f"^{named}: "):
                await newer(there, binding, task_id, **headers)
        with pytest.raises(a2a.TaskNotFoundError):
            await newer(there, binding, "no-such-task", **than(1))


@every
async def test_a_caller_that_leaves_ends_its_wait(sqlite_url: str, binding: str) -> None:
    async with called(sqlite_url) as there:
        task_id = await there.gateway.started()
        waiting = asyncio.create_task(newer(there, binding, task_id, **than(1)))
        await until(lambda: readers(there.gateway, task_id) == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until(lambda: readers(there.gateway, task_id) == 0)


@every
async def test_a_gateway_that_stops_answers_with_what_there_is(
    sqlite_url: str, binding: str
) -> None:
    async with called(sqlite_url) as there:
        task_id = await there.gateway.started()
        waiting = asyncio.create_task(newer(there, binding, task_id, **than(1)))
        await until(lambda: readers(there.gateway, task_id) == 1)
        there.gateway.handler.close()
        assert generation_of(await waiting) == 1


# --- insisting ----------------------------------------------------------------------------------


def insisting(
    generation: Any, task_id: str, text: str = "yes", message_id: str | None = None
) -> pb.Message:
    said = {"ifGeneration": generation}
    return message(text, task_id=task_id, said=said, message_id=message_id)


async def asked(gateway: Gateway) -> TaskId:
    """A task at generation 2, which asks."""
    task_id = await gateway.started()
    assert await gateway.hand.ask(task_id, "sure?") == 2
    return task_id


@every
async def test_a_send_that_insists_is_taken_where_its_caller_saw_the_task(
    sqlite_url: str, binding: str
) -> None:
    async with called(sqlite_url) as there:
        task_id = await asked(there.gateway)
        send: Any = there.send if binding == "GRPC" else there.gateway.send
        how = {} if binding == "GRPC" else {"binding": binding}
        task = await send(insisting(2, task_id), immediately=True, **how)
        assert task.status.state == pb.TASK_STATE_WORKING
        assert history(task) == ["begin", "sure?", "yes"]


@pytest.mark.parametrize("method", ["send", "stream"])
@every
async def test_a_send_that_insists_on_another_generation_is_refused_in_the_words_of_1_1(
    sqlite_url: str, binding: str, method: str
) -> None:
    async with called(sqlite_url) as there:
        task_id = await asked(there.gateway)
        before = await there.gateway.task(task_id)
        refuse: Callable[..., Awaitable[Any]] = _over_grpc if binding == "GRPC" else _over_http
        said = await refuse(there, binding, method, insisting(3, task_id))

        code = {"JSONRPC": -32010, "HTTP+JSON": 409, "GRPC": "ABORTED"}[binding]
        assert said["code"] == code
        assert "insists on generation 3" in said["message"]
        assert said["info"] == {
            "reason": "TASK_GENERATION_MISMATCH",
            "domain": "a2a-protocol.org",
            "metadata": {
                "taskId": task_id,
                "expectedGeneration": "3",
                "currentGeneration": "2",
            },
        }
        assert await there.gateway.task(task_id) == before


async def _over_http(there: Called, binding: str, method: str, sent: pb.Message) -> Any:
    body = {"message": MessageToDict(sent)}
    if binding == "JSONRPC":
        name = {"send": "SendMessage", "stream": "SendStreamingMessage"}[method]
        error = (await there.gateway.rpc(name, body))["error"]
        (info,) = error["data"]
    else:
        response = await there.gateway.post(f"/message:{method}", body)
        error = response.json()["error"]
        assert (response.status_code, error["status"]) == (409, "ABORTED")
        (info,) = error["details"]
    assert info.pop("@type") == "type.googleapis.com/google.rpc.ErrorInfo"
    return {"code": error["code"], "message": error["message"], "info": info}


async def _over_grpc(there: Called, _: str, method: str, sent: pb.Message) -> Any:
    request = pb.SendMessageRequest(message=sent)
    verb = there.stub.SendMessage if method == "send" else there.stub.SendStreamingMessage
    call = verb(request, metadata=SPOKEN)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await (call if method == "send" else anext(aiter(call)))
    status = status_from_call(raised.value)
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    code, text = raised.value.code().name, raised.value.details()
    return {"code": code, "message": text, "info": MessageToDict(info)}


async def test_of_two_sends_that_insist_on_one_generation_one_wins(database_url: str) -> None:
    """Each gateway looks before it writes, and sees nothing of the other's: the store decides."""
    async with running_gateway(database_url) as one, running_gateway(database_url) as other:
        for _ in range(5):
            task_id = await asked(one)
            sent = await asyncio.gather(
                *(
                    gateway.send(insisting(2, task_id, text), immediately=True, binding="HTTP+JSON")
                    for gateway, text in ((one, "approve"), (other, "reject"))
                ),
                return_exceptions=True,
            )
            (refused,) = [result for result in sent if isinstance(result, BaseException)]
            assert isinstance(refused, TaskGenerationMismatchError)
            task = await one.task(task_id)
            assert history(task)[2:] in (["approve"], ["reject"])


async def test_a_generation_that_moved_after_the_look_is_seen_by_the_write(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(sqlite_url) as one, running_gateway(sqlite_url) as other:
        task_id = await asked(one)
        written = one.tasks.answer

        async def answer(given: Any) -> Any:
            monkeypatch.setattr(one.tasks, "answer", written)
            await other.send(message("first", task_id=task_id), immediately=True)
            return await written(given)

        monkeypatch.setattr(one.tasks, "answer", answer)
        with pytest.raises(TaskGenerationMismatchError, match="which is at 3"):
            await one.send(insisting(2, task_id), immediately=True, binding="HTTP+JSON")
        assert history(await one.task(task_id)) == ["begin", "sure?", "first"]


async def test_a_send_that_was_taken_stays_taken_when_it_is_repeated(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await asked(gateway)
        sent = insisting(2, task_id)
        await gateway.send(sent, immediately=True)
        assert await gateway.hand.ask(task_id, "really?") == 4
        # Whoever lost the reply may have looked again before the repeat.
        for generation in (2, 4):
            again = insisting(generation, task_id, message_id=sent.message_id)
            task = await gateway.send(again, immediately=True)
            assert history(task) == ["begin", "sure?", "yes"], "and the new question is open"
            assert task.status.state == pb.TASK_STATE_INPUT_REQUIRED


async def test_a_send_that_was_refused_can_be_sent_again_with_what_is_right(
    sqlite_url: str,
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await asked(gateway)
        sent = insisting(1, task_id)
        with pytest.raises(TaskGenerationMismatchError):
            await gateway.send(sent, binding="HTTP+JSON")
        again = insisting(2, task_id, message_id=sent.message_id)
        assert history(await gateway.send(again, immediately=True)) == ["begin", "sure?", "yes"]


async def test_a_mismatch_is_said_before_what_the_state_would_refuse(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.finish(task_id)
        with pytest.raises(TaskGenerationMismatchError):
            await gateway.send(insisting(1, task_id), binding="HTTP+JSON")
        with pytest.raises(a2a.UnsupportedOperationError, match="has ended"):
            await gateway.send(insisting(2, task_id), binding="HTTP+JSON")


async def test_what_is_no_generation_is_refused(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await asked(gateway)
        bad: list[Any] = ["2", 0, -1, 2.5, True, {}, []]
        for generation, to in ((one, to) for one in bad for to in (task_id, "")):
            with pytest.raises(a2a.InvalidParamsError, match=r"\.ifGeneration: must be"):
                await gateway.send(insisting(generation, to), immediately=True)
        assert (await gateway.task(task_id)).status.state == pb.TASK_STATE_INPUT_REQUIRED


async def test_a_message_that_starts_a_task_has_no_generation_to_insist_on(
    sqlite_url: str,
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task = await gateway.send(insisting(7, ""), immediately=True)
        assert task.status.state == pb.TASK_STATE_SUBMITTED


async def test_a_message_to_a_task_that_works_can_insist_too(sqlite_url: str) -> None:
    """A worker's event comes in between: the inbox would take the message, its caller would not
    have sent it."""
    async with running_gateway(sqlite_url, agent=agent_with_inbox()) as gateway:
        task_id = await gateway.started()
        await gateway.send(insisting(1, task_id, "first"), immediately=True)
        await gateway.hand.report(task_id, "busy")
        with pytest.raises(TaskGenerationMismatchError, match="which is at 3"):
            await gateway.send(insisting(2, task_id), immediately=True, binding="HTTP+JSON")
        await gateway.send(insisting(3, task_id, "second"), immediately=True)
        assert history(await gateway.task(task_id)) == ["begin", "first", "second"]
