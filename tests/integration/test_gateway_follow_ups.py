"""Messages to tasks that exist: answers, and everything that is none."""

from __future__ import annotations

import asyncio
import json
import uuid

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
    Gateway,
    history,
    message,
    running_gateway,
    state_of,
)

both = pytest.mark.parametrize("binding", BINDINGS)
every_binding = pytest.mark.parametrize("binding", EVERY_BINDING)
YES_OR_NO = {"type": "boolean"}


@every_binding
async def test_an_answer_resumes_the_task_in_its_context(database_url: str, binding: str) -> None:
    async with running_gateway(database_url, on_grpc=True) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "sure?", YES_OR_NO)
        answer = message("yes", task_id=task_id)
        task = await gateway.send(answer, binding=binding, immediately=True)

        assert task.status.state == pb.TASK_STATE_WORKING
        assert history(task) == ["begin", "sure?", "yes"]
        assert task.history[2].context_id == task.context_id
        lease, _ = await gateway.hand.lease(task_id)
        entries = await gateway.hand.work.entries(lease.ledger_id, "ask", "ask~")
        assert json.loads(entries[0].result or "")["value"] is True


@every_binding
async def test_an_answer_that_does_not_fit_leaves_the_task_paused(
    sqlite_url: str, binding: str
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "how many?", schema)
        with pytest.raises(a2a.InvalidParamsError, match=r"message\.parts\[1\]\.data\.n"):
            await gateway.send(message("x", task_id=task_id, data={"n": "many"}), binding=binding)

        assert (await gateway.task(task_id)).status.state == pb.TASK_STATE_INPUT_REQUIRED
        fits = message("x", task_id=task_id, data={"n": 3})
        task = await gateway.send(fits, binding=binding, immediately=True)
        assert task.status.state == pb.TASK_STATE_WORKING


@pytest.mark.parametrize("text", ["NaN", "1" + "0" * 400, '"a\\u0000b"', "[" * 60 + "]" * 60])
async def test_an_answer_in_text_holds_nothing_that_cannot_be_kept(
    sqlite_url: str, text: str
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "what?", {"type": ["number", "array", "string"]})
        with pytest.raises(a2a.InvalidParamsError, match=r"message\.parts"):
            await gateway.send(message(text, task_id=task_id))

        assert (await gateway.task(task_id)).status.state == pb.TASK_STATE_INPUT_REQUIRED


async def test_a_wrong_context_is_refused(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "sure?")
        with pytest.raises(a2a.InvalidParamsError, match=r"message\.contextId"):
            await gateway.send(message("yes", task_id=task_id, context_id="another"))

        assert (await gateway.task(task_id)).status.state == pb.TASK_STATE_INPUT_REQUIRED


@every_binding
async def test_case_040_a_message_to_a_finished_task_is_refused(
    sqlite_url: str, binding: str
) -> None:
    finished: dict[TaskId, pb.Task] = {}
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
        for state in (State.COMPLETED, State.FAILED, State.REJECTED, State.CANCELED):
            task_id = await gateway.started()
            if state is State.CANCELED:
                await gateway.cancel(task_id)
            else:
                await gateway.hand.finish(task_id, state)
            finished[task_id] = await gateway.task(task_id)
            await _refuses_messages(gateway, task_id, binding)
    async with running_gateway(sqlite_url, on_grpc=True) as restarted:
        for task_id, before in finished.items():
            await _refuses_messages(restarted, task_id, binding)
            assert await restarted.task(task_id) == before


async def _refuses_messages(gateway: Gateway, task_id: str, binding: str) -> None:
    for streaming in (False, True):
        client = gateway.client(binding, streaming=streaming)
        request = pb.SendMessageRequest(message=message(task_id=task_id))
        request.configuration.return_immediately = not streaming
        with pytest.raises(a2a.UnsupportedOperationError, match="the task has ended"):
            _ = [item async for item in client.send_message(request)]


async def test_case_052_a_message_to_a_working_task_is_refused(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.report(task_id, "busy")
        for sent in await asyncio.gather(
            *(gateway.send(message(task_id=task_id)) for _ in range(4)), return_exceptions=True
        ):
            assert isinstance(sent, a2a.UnsupportedOperationError)

        assert history(await gateway.task(task_id)) == ["begin"]


async def test_a_message_to_a_task_that_does_not_exist_is_refused(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        with pytest.raises(a2a.TaskNotFoundError, match="there is no task"):
            await gateway.send(message(task_id=str(uuid.uuid4())))


async def test_a_message_is_no_authorization(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "log in", state=State.AUTH_REQUIRED)
        with pytest.raises(a2a.UnsupportedOperationError, match="authorization"):
            await gateway.send(message("s3cret", task_id=task_id))


@pytest.mark.parametrize("by_number", [False, True])
async def test_an_answer_to_a_question_that_is_over_is_refused(
    sqlite_url: str, by_number: bool
) -> None:
    async with running_gateway(sqlite_url, epoch="e7") as gateway:
        task_id = await gateway.started()
        old = await gateway.hand.ask(task_id, "first?")
        asked = await gateway.task(task_id)
        name = MessageToDict(asked.status.message.metadata)[EXTENSION_URI]["pause"]
        assert name == f"e7-{old}"
        said = {"pause": old if by_number else name}

        first = message("one", task_id=task_id, said=said)
        await gateway.send(first, immediately=True)
        new = await gateway.hand.ask(task_id, "second?")
        with pytest.raises(a2a.UnsupportedOperationError, match="is over"):
            await gateway.send(message("approve", task_id=task_id, said=said))
        lost = {"pause": f"another-{new}"}  # of a future that a restore has undone
        with pytest.raises(a2a.UnsupportedOperationError, match="is over"):
            await gateway.send(message("approve", task_id=task_id, said=lost))

        right = message("two", task_id=task_id, said={"pause": f"e7-{new}"})
        task = await gateway.send(right, immediately=True)
        assert history(task) == ["begin", "first?", "one", "second?", "two"]


async def test_case_080_of_two_answers_at_once_one_wins(database_url: str) -> None:
    async with (
        running_gateway(database_url) as one,
        running_gateway(database_url) as other,
    ):
        for _ in range(5):
            task_id = await one.started()
            await one.hand.ask(task_id, "approve?")
            sent = await asyncio.gather(
                one.send(message("approve", task_id=task_id), immediately=True),
                other.send(message("reject", task_id=task_id), immediately=True),
                return_exceptions=True,
            )
            refused = [result for result in sent if isinstance(result, BaseException)]

            assert [type(error) for error in refused] == [a2a.UnsupportedOperationError]
            assert history(await one.task(task_id))[:2] == ["begin", "approve?"]
            assert len(history(await one.task(task_id))) == 3


async def test_case_054_turns_that_alternate_between_gateways_lose_nothing(
    sqlite_url: str,
) -> None:
    async with (
        running_gateway(sqlite_url) as one,
        running_gateway(sqlite_url) as other,
    ):
        task_id = await one.started()
        for turn in range(6):
            gateway = (one, other)[turn % 2]
            await gateway.hand.chunk(task_id, str(turn), append=False, name=f"artifact-{turn}")
            await gateway.hand.ask(task_id, f"question {turn}")
            await gateway.send(message(f"answer {turn}", task_id=task_id), immediately=True)

        tasks = [await one.task(task_id), await other.task(task_id)]
        assert tasks[0] == tasks[1]
        assert [artifact.parts[0].text for artifact in tasks[0].artifacts] == list("012345")
        turns = [(f"question {turn}", f"answer {turn}") for turn in range(6)]
        assert history(tasks[0]) == ["begin", *(text for turn in turns for text in turn)]


async def test_case_082_an_answer_may_come_with_the_first_frame(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        for _ in range(10):
            task_id = await gateway.started()
            stream = gateway.subscribe(task_id)
            await anext(stream)
            await gateway.hand.ask(task_id, "sure?")
            async for item in stream:
                if state_of(item) == "INPUT_REQUIRED":
                    break
            await stream.aclose()
            task = await gateway.send(message("yes", task_id=task_id), immediately=True)

            assert task.status.state == pb.TASK_STATE_WORKING
