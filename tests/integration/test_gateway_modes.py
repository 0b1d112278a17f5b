"""Media types: what an agent reads and says, against what a message brings and takes."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a

from outlast import Agent, Workflow
from tests.integration.test_gateway_support import (
    EVERY_BINDING,
    Gateway,
    Nothing,
    count_tasks,
    message,
    of_one_step,
    running_gateway,
)

every_binding = pytest.mark.parametrize("binding", EVERY_BINDING)


def an_agent(**modes: Any) -> Agent:
    """One that the gateway of the tests can run, which reads and says other things."""
    only = of_one_step(Workflow("only", 1, checkpoint=Nothing))
    return Agent("tester", description="…", skills=[], workflows=[only], **modes)


async def send(
    gateway: Gateway, binding: str, *parts: pb.Part, accepted: tuple[str, ...] = ()
) -> pb.Task:
    sent = message()
    sent.parts.extend(parts)
    request = pb.SendMessageRequest(message=sent)
    request.configuration.return_immediately = True
    request.configuration.accepted_output_modes.extend(accepted)
    (answer,) = [item async for item in gateway.client(binding).send_message(request)]
    return answer.task


@every_binding
async def test_a_part_of_a_type_that_the_agent_does_not_read_is_refused(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
        assert list(gateway.card.default_input_modes) == ["text/plain", "application/json"]
        wrong = pb.Part(raw=b"x", media_type="application/x-unsupported-type-12345")
        with pytest.raises(a2a.ContentTypeNotSupportedError, match=r"message\.parts\[1\]") as told:
            await send(gateway, binding, wrong)
        assert "text/plain, application/json" in str(told.value)
        assert await count_tasks(gateway) == 0


@every_binding
async def test_what_the_agent_reads_and_what_says_no_type_is_taken(
    sqlite_url: str, binding: str
) -> None:
    agent = an_agent(input_modes=["text/plain", "image/*"])
    async with running_gateway(sqlite_url, agent=agent, on_grpc=True) as gateway:
        assert list(gateway.card.default_input_modes) == ["text/plain", "image/*"]
        task = await send(
            gateway,
            binding,
            pb.Part(raw=b"x", media_type="IMAGE/png"),
            pb.Part(text="x", media_type="text/plain; charset=utf-8"),
            pb.Part(raw=b"x"),
            pb.Part(url="https://example.com/x"),
        )
        assert len(task.history[0].parts) == 5
        with pytest.raises(a2a.ContentTypeNotSupportedError):
            await send(gateway, binding, pb.Part(text="{}", media_type="application/json"))


@every_binding
async def test_an_answer_of_a_type_that_the_agent_does_not_read_leaves_it_asking(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "sure?")
        answer = message("yes", task_id=task_id)
        answer.parts[0].media_type = "text/vnd.unknown"
        with pytest.raises(a2a.ContentTypeNotSupportedError):
            await gateway.send(answer, binding=binding)
        assert (await gateway.task(task_id)).status.state == pb.TASK_STATE_INPUT_REQUIRED


@every_binding
async def test_a_caller_who_accepts_nothing_that_the_agent_says_is_refused(
    sqlite_url: str, binding: str
) -> None:
    agent = an_agent(output_modes=["text/markdown", "text/csv"])
    async with running_gateway(sqlite_url, agent=agent, on_grpc=True) as gateway:
        assert list(gateway.card.default_output_modes) == ["text/markdown", "text/csv"]
        with pytest.raises(a2a.ContentTypeNotSupportedError, match="acceptedOutputModes") as told:
            await send(gateway, binding, accepted=("image/png", "text/plain"))
        assert "text/markdown, text/csv" in str(told.value)
        assert await count_tasks(gateway) == 0
        for accepted in ("text/csv", "text/*", "*/*", "text"):
            assert (await send(gateway, binding, accepted=("image/png", accepted))).id


async def test_the_error_has_its_code_and_reason(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        part = {"data": "x", "mediaType": "application/x-unsupported-type-12345"}
        params = {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [part]}}
        error = (await gateway.rpc("SendMessage", params))["error"]
        assert error["code"] == -32005
        assert error["data"][0]["reason"] == "CONTENT_TYPE_NOT_SUPPORTED"
        response = await gateway.post("/message:send", params)
        assert response.status_code == 400
        (details,) = response.json()["error"]["details"]
        assert details["reason"] == "CONTENT_TYPE_NOT_SUPPORTED"
        assert details["metadata"]["supported"] == "text/plain, application/json"
