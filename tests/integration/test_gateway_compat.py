"""A2A 0.3, where it is switched on: the SDK's client of that version, and requests by hand."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import httpx
import pytest
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a

from outlast.model.ids import TaskId
from tests.cases.doors import guarded
from tests.integration.test_gateway_support import (
    EVERY_BINDING,
    Gateway,
    count_tasks,
    message,
    only_task,
    rest_of,
    running_gateway,
    state_of,
)

every_binding = pytest.mark.parametrize("binding", EVERY_BINDING)

JSON = {"Content-Type": "application/json"}
PARTS = [{"kind": "text", "text": "begin"}]
SAID = {"kind": "message", "messageId": "m", "role": "user", "parts": PARTS}


@asynccontextmanager
async def older_client(
    gateway: Gateway, binding: str, *, streaming: bool = False
) -> AsyncIterator[Client]:
    """The SDK's client, which is told of the interface of 0.3 alone."""
    card = pb.AgentCard()
    card.CopyFrom(gateway.card)
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(
        each for each in gateway.card.supported_interfaces if each.protocol_version == "0.3"
    )
    async with httpx.AsyncClient(timeout=20) as http:
        config = ClientConfig(
            streaming=streaming,
            httpx_client=http,
            grpc_channel_factory=grpc.aio.insecure_channel,
            supported_protocol_bindings=[binding],
        )
        client = ClientFactory(config).create(card)
        try:
            yield client
        finally:
            await client.close()


async def rpc(gateway: Gateway, method: str, params: Any, **headers: str) -> httpx.Response:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    async with httpx.AsyncClient() as outside:  # without what the SDK adds to its own
        return await outside.post(gateway.url + "/", json=body, headers=headers)


async def sent(client: Client, asked: pb.Message, *, immediately: bool = False) -> pb.Task:
    request = pb.SendMessageRequest(message=asked)
    request.configuration.return_immediately = immediately
    (answer,) = [item async for item in client.send_message(request)]
    return answer.task


# --- what clients of 0.3 do ---------------------------------------------------------------------


@every_binding
async def test_sends_reads_and_cancels(sqlite_url: str, binding: str) -> None:
    async with (
        running_gateway(sqlite_url, serves_0_3=True, on_grpc=True) as gateway,
        older_client(gateway, binding) as client,
    ):
        task = await sent(client, message("begin"), immediately=True)
        assert task.status.state == pb.TASK_STATE_SUBMITTED
        read = await client.get_task(pb.GetTaskRequest(id=task.id))
        assert [part.text for part in read.history[0].parts] == ["begin"]
        canceled = await client.cancel_task(pb.CancelTaskRequest(id=task.id))
        assert canceled.status.state == pb.TASK_STATE_CANCELED
        assert (await gateway.task(task.id)).status.state == pb.TASK_STATE_CANCELED


@every_binding
async def test_a_repeat_of_a_send_is_the_same_task(sqlite_url: str, binding: str) -> None:
    async with (
        running_gateway(sqlite_url, serves_0_3=True, on_grpc=True) as gateway,
        older_client(gateway, binding) as client,
    ):
        asked = message("begin")
        first = await sent(client, asked, immediately=True)
        assert (await sent(client, asked, immediately=True)).id == first.id
        # The same message in 1.0, from a client that was updated between two tries.
        assert (await gateway.send(asked, immediately=True)).id == first.id
        assert await count_tasks(gateway) == 1


@every_binding
async def test_streams_to_the_question_and_answers_it(sqlite_url: str, binding: str) -> None:
    async with (
        running_gateway(sqlite_url, serves_0_3=True, on_grpc=True) as gateway,
        older_client(gateway, binding, streaming=True) as client,
    ):
        items: Any = client.send_message(pb.SendMessageRequest(message=message("begin")))
        assert state_of(await anext(items)) == "SUBMITTED"
        task_id = await only_task(gateway)
        await gateway.hand.report(task_id, "under way")
        await gateway.hand.chunk(task_id, "a piece", append=False)
        await gateway.hand.ask(task_id, "sure?")
        later = await rest_of(items)
        assert [state_of(item) for item in later] == ["WORKING", None, "INPUT_REQUIRED"]
        assert later[1].artifact_update.artifact.parts[0].text == "a piece"

        answer = pb.SendMessageRequest(message=message("yes", task_id=task_id))
        items = client.send_message(answer)
        assert state_of(await anext(items)) == "WORKING"
        await gateway.hand.finish(task_id)
        assert [state_of(item) for item in await rest_of(items)] == ["COMPLETED"]


@every_binding
async def test_follows_a_task_through_its_pause(sqlite_url: str, binding: str) -> None:
    async with (
        running_gateway(sqlite_url, serves_0_3=True, on_grpc=True) as gateway,
        older_client(gateway, binding, streaming=True) as client,
    ):
        task_id = await gateway.started()
        items: Any = client.subscribe(pb.SubscribeToTaskRequest(id=task_id))
        assert state_of(await anext(items)) == "SUBMITTED"
        await gateway.hand.ask(task_id, "sure?")
        assert state_of(await anext(items)) == "INPUT_REQUIRED"
        await gateway.send(message("yes", task_id=task_id), immediately=True)
        await gateway.hand.finish(task_id)
        assert state_of((await rest_of(items))[-1]) == "COMPLETED"


async def test_the_last_event_of_a_stream_says_that_it_is_the_last(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, serves_0_3=True) as gateway:
        for ends in ("asks", "finishes"):
            before = await count_tasks(gateway)
            params = {"message": {**SAID, "messageId": ends}}
            body = {"jsonrpc": "2.0", "id": 7, "method": "message/stream", "params": params}
            async with (
                httpx.AsyncClient(timeout=20) as outside,
                outside.stream("POST", gateway.url + "/", json=body) as stream,
            ):
                assert stream.headers["X-Accel-Buffering"] == "no"
                lines = (line async for line in stream.aiter_lines() if line.startswith("data:"))
                first = json.loads((await anext(lines)).removeprefix("data:"))["result"]
                assert (first["kind"], await count_tasks(gateway)) == ("task", before + 1)
                task_id = TaskId(first["id"])
                if ends == "asks":
                    await gateway.hand.ask(task_id, "sure?")
                else:
                    await gateway.hand.finish(task_id)
                last = json.loads((await anext(lines)).removeprefix("data:"))["result"]
                assert (last["kind"], last["final"]) == ("status-update", True)
                assert [line async for line in lines] == []


# --- errors -------------------------------------------------------------------------------------


@every_binding
async def test_errors_are_those_of_0_3(sqlite_url: str, binding: str) -> None:
    async with (
        running_gateway(sqlite_url, serves_0_3=True, on_grpc=True) as gateway,
        older_client(gateway, binding) as client,
        older_client(gateway, binding, streaming=True) as streaming,
    ):
        done = await gateway.started()
        await gateway.hand.finish(done)
        with pytest.raises(a2a.TaskNotFoundError):
            await client.get_task(pb.GetTaskRequest(id="never"))
        with pytest.raises(a2a.TaskNotCancelableError):
            await client.cancel_task(pb.CancelTaskRequest(id=done))
        with pytest.raises(a2a.TaskNotFoundError):
            await sent(streaming, message("yes", task_id="never"))


@pytest.mark.parametrize("method", ["message/stream", "tasks/resubscribe"])
async def test_what_is_refused_before_a_stream_begins_is_no_stream(
    sqlite_url: str, method: str
) -> None:
    async with running_gateway(sqlite_url, serves_0_3=True) as gateway:
        params = {"id": "never", "message": {**SAID, "taskId": "never"}}
        answer = await rpc(gateway, method, params)
        assert answer.headers["content-type"] == "application/json"
        assert (answer.json()["id"], answer.json()["error"]["code"]) == (7, -32001)


async def test_a_request_that_does_not_fit_is_told_where_and_logged_nowhere(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running_gateway(sqlite_url, serves_0_3=True, push_notifications=True) as gateway:
        config = {"token": "t0ken", "authentication": {"credentials": "s3cret"}}
        wrong = {"taskId": "t", "pushNotificationConfig": config}
        answer = await rpc(gateway, "tasks/pushNotificationConfig/set", wrong)
        error = answer.json()["error"]
        assert error["code"] == -32602
        assert "params.pushNotificationConfig.url: Field required" in error["message"]
        for text in (answer.text, caplog.text, "".join(capfd.readouterr())):
            assert "t0ken" not in text
            assert "s3cret" not in text


async def test_bad_requests_over_http_json(sqlite_url: str) -> None:
    async with (
        running_gateway(sqlite_url, serves_0_3=True) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as outside,
    ):
        task_id = await gateway.started()
        for answer, status in [
            (await outside.get(f"/v1/tasks/{task_id}?historyLength=x"), 400),
            (await outside.post("/v1/message:send", content="{", headers=JSON), 400),
            (await outside.post("/v1/message:stream", content="{", headers=JSON), 400),
            (await outside.post("/v1/message:send", content="{}"), 415),
            (await outside.get("/v1/tasks/never"), 404),
            (await outside.get("/v1/tasks/never:subscribe"), 404),
        ]:
            assert answer.status_code == status, answer.text
            assert answer.json()["error"]["message"]


async def test_webhooks_are_registered_as_ever(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, serves_0_3=True, push_notifications=True) as gateway:
        task_id = await gateway.started()
        config = {"url": "https://hooks.example.com/", "token": "t0ken", "id": "one"}
        for url in ("https://127.0.0.1/", config["url"]):
            asked = {"taskId": task_id, "pushNotificationConfig": {**config, "url": url}}
            answer = (await rpc(gateway, "tasks/pushNotificationConfig/set", asked)).json()
            assert ("error" in answer) == ("127" in url)
        listed = (await rpc(gateway, "tasks/pushNotificationConfig/list", {"id": task_id})).json()
        (shown,) = listed["result"]
        assert shown["pushNotificationConfig"]["token"] == "********"


# --- which version is spoken --------------------------------------------------------------------


@pytest.mark.parametrize("by", ["header", "query"])
async def test_case_133_each_request_is_of_the_version_that_it_says(
    sqlite_url: str, by: str
) -> None:
    async with (
        running_gateway(sqlite_url, serves_0_3=True) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as outside,
    ):
        task_id = await gateway.started()
        versions = {each.protocol_version for each in gateway.card.supported_interfaces}
        assert versions == {"0.3", "1.0"}
        for version, served in [
            ("", "0.3"),
            ("0.3", "0.3"),
            ("0.3.1", "0.3"),
            ("1.0", "1.0"),
            ("1.0.1", "1.0"),
            ("0.2", None),
            ("9.9", None),
        ]:
            headers = {"A2A-Version": version} if by == "header" and version else {}
            query = f"?A2A-Version={version}" if by == "query" and version else ""
            for method, of in [("tasks/get", "0.3"), ("GetTask", "1.0")]:
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": task_id}}
                answer = (await outside.post("/" + query, json=body, headers=headers)).json()
                if served == of:
                    state = answer["result"]["status"]["state"]
                    assert state == ("submitted" if of == "0.3" else "TASK_STATE_SUBMITTED")
                elif served is None and of == "1.0":
                    assert answer["error"]["code"] == -32009
                else:
                    assert answer["error"]["code"] == -32601
            for path, of in [(f"/v1/tasks/{task_id}", "0.3"), (f"/tasks/{task_id}", "1.0")]:
                got = await outside.get(path + query, headers=headers)
                if served == of:
                    assert got.status_code == 200, (version, path)
                else:
                    (info,) = got.json()["error"]["details"]
                    assert info["reason"] == "VERSION_NOT_SUPPORTED", (version, path)


async def test_the_card_is_readable_for_both_and_says_no_more_than_is_there(
    sqlite_url: str,
) -> None:
    for switched_on in (True, False):
        async with running_gateway(sqlite_url, serves_0_3=switched_on) as gateway:
            card = (await gateway.get("/.well-known/agent-card.json")).json()
            assert card["supportedInterfaces"][0]["protocolVersion"] == "1.0"
            assert card.get("protocolVersion") == ("0.3" if switched_on else None)
            assert card.get("url") == (f"{gateway.url}/" if switched_on else None)


async def test_without_the_switch_nothing_of_0_3_is_there(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        answer = await rpc(gateway, "message/send", {"message": SAID})
        assert answer.json()["error"]["code"] == -32601
        async with httpx.AsyncClient(base_url=gateway.url) as outside:
            refused = await outside.post("/v1/message:send", json={})
        assert refused.status_code == 400
        assert await count_tasks(gateway) == 0


# --- who calls ----------------------------------------------------------------------------------


async def test_owners_are_kept_apart_in_every_version(sqlite_url: str) -> None:
    tenants = {"ann": "acme", "bob": "acme"}
    async with (
        guarded(sqlite_url, tenants, serves_0_3=True) as door,
        httpx.AsyncClient(base_url=door.gateway.url) as outside,
    ):
        task_id = await door.begun("ann")
        stub: Any = a2a_v0_3_pb2_grpc.A2AServiceStub(door.called.channel)  # type: ignore[no-untyped-call]
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": task_id}}
        for owner, status, code, grpc_code in [
            ("ann", 200, None, None),
            ("bob", 404, -32001, grpc.StatusCode.NOT_FOUND),
            ("nobody", 401, -32000, grpc.StatusCode.UNAUTHENTICATED),
        ]:
            key = door.keys.get(owner)
            headers = {} if key is None else {"X-API-Key": key}
            got = await outside.get(f"/v1/tasks/{task_id}", headers=headers)
            assert got.status_code == status, got.text
            answer = (await outside.post("/", json=body, headers=headers)).json()
            assert answer.get("error", {}).get("code") == code, answer
            call = stub.GetTask(
                a2a_v0_3_pb2.GetTaskRequest(name=f"tasks/{task_id}"),
                metadata=[("x-api-key", key)] if key else [],
            )
            if grpc_code is None:
                assert (await call).id == task_id
            else:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call
                assert refused.value.code() is grpc_code
