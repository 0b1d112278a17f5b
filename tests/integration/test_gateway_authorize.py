"""Authorizations: `POST /tasks/{id}:authorize`, and messages to a pause in AUTH_REQUIRED."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a
from google.protobuf.json_format import MessageToDict

from outlast.model.ids import TaskId
from outlast.model.task import State
from outlast.store.database import Query, Script, Statement
from outlast.wire.extension import EXTENSION_URI
from tests.integration.test_gateway_support import (
    Gateway,
    history,
    message,
    rest_of,
    running_gateway,
    state_of,
)

SECRET = "s3cret-token"


async def test_authorizes_once_and_says_so_ever_after(database_url: str) -> None:
    async with (
        running_gateway(database_url, epoch="e7") as one,
        running_gateway(database_url, epoch="e7") as other,
    ):
        task_id = await one.started()
        seq = await one.hand.ask(task_id, "log in", state=State.AUTH_REQUIRED)
        asked = await one.task(task_id)
        pause = MessageToDict(asked.status.message.metadata)[EXTENSION_URI]["pause"]
        assert pause == f"e7-{seq}"
        body = {"pause": pause, "value": {"token": SECRET}}
        replies = await asyncio.gather(
            *(gateway.post(f"/tasks/{task_id}:authorize", body) for gateway in (one, other) * 3)
        )
        assert [reply.status_code for reply in replies] == [200] * 6
        assert (
            sorted(reply.json()["alreadyAuthorized"] for reply in replies) == [False] + [True] * 5
        )
        assert {reply.json()["task"]["status"]["state"] for reply in replies} == {
            "TASK_STATE_WORKING"
        }
        assert await _ledger(one) == ['{"authorized":{"token":"s3cret-token"}}']
        await one.hand.finish(task_id)
        late = await other.post(f"/tasks/{task_id}:authorize", body)
        assert late.json()["alreadyAuthorized"] is True
        assert late.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_the_value_is_shown_to_nobody(sqlite_url: str, caplog: Any, capfd: Any) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        stream = gateway.subscribe(task_id, extended=True)
        await anext(stream)
        seq = await gateway.hand.ask(task_id, "log in", state=State.AUTH_REQUIRED)
        path = f"/tasks/{task_id}:authorize"
        replies = [
            await gateway.post(path, {"pause": 99, "value": SECRET}),
            await gateway.post(path, {"pause": seq, "value": f"{SECRET}\0"}),
            await gateway.post(path, {"pause": seq, "value": SECRET * 200_000}),
            await gateway.post(path, {"pause": seq, "value": SECRET}),
            await gateway.post(path, {"pause": seq, "value": SECRET}),
        ]
        assert [reply.status_code for reply in replies] == [400, 400, 400, 200, 200]
        await gateway.hand.finish(task_id)
        seen = [str(item) for item in await rest_of(stream)]
        task = await gateway.task(task_id)
        events = await gateway.log.events_since(task_id, type(seq)(0))
        told = [*(reply.text for reply in replies), *seen, str(task), str(events)]
        assert not [text for text in told if SECRET in text]
        assert SECRET not in caplog.text + "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "body"),
        ({"value": 1}, "pause"),
        ({"pause": 3}, "value"),
        ({"pause": "", "value": 1}, "pause"),
        ({"pause": True, "value": 1}, "pause"),
        ({"pause": "e-x", "value": 1}, "pause"),
        ({"pause": 3, "value": 1, "scope": "all"}, "scope"),
        ({"pause": 3, "value": 1, "tenant": 7}, "tenant"),
    ],
)
async def test_what_is_no_authorization_is_refused(sqlite_url: str, body: Any, field: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.ask(task_id, "log in", state=State.AUTH_REQUIRED)
        reply = await gateway.post(f"/tasks/{task_id}:authorize", body)
        assert reply.status_code == 400
        assert f"{field}: " in reply.json()["error"]["message"]
        assert (await gateway.task(task_id)).status.state == pb.TASK_STATE_AUTH_REQUIRED


async def test_a_body_that_is_too_deep_or_no_json_is_refused(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        seq = await gateway.hand.ask(task_id, "log in", state=State.AUTH_REQUIRED)
        for depth in (30, 400, 100_000):
            nested = "[" * depth + "]" * depth
            text = f'{{"pause": {seq}, "value": {nested}}}'
            reply = await gateway.http.post(
                f"{gateway.url}/tasks/{task_id}:authorize",
                content=text,
                headers={"A2A-Version": "1.0", "Content-Type": "application/json"},
            )
            assert reply.status_code == 400, reply.text
        assert (await gateway.task(task_id)).status.state == pb.TASK_STATE_AUTH_REQUIRED


async def test_only_the_tenants_own_task_is_there(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sent = {"message": MessageToDict(message()), "configuration": {"returnImmediately": True}}
        reply = await gateway.post("/acme/message:send", sent)
        task_id = TaskId(reply.json()["task"]["id"])
        seq = await gateway.hand.ask(task_id, "log in", state=State.AUTH_REQUIRED)
        body = {"pause": seq, "value": 1}
        for tenant in ("", "/other"):
            reply = await gateway.post(f"{tenant}/tasks/{task_id}:authorize", body)
            assert reply.status_code == 404
        mismatch = {**body, "tenant": "other"}
        assert (await gateway.post(f"/acme/tasks/{task_id}:authorize", mismatch)).status_code == 400
        reply = await gateway.post(f"/acme/tasks/{task_id}:authorize", body)
        assert reply.json()["alreadyAuthorized"] is False


async def test_a_pause_of_another_kind_or_epoch_is_refused(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, epoch="e7") as gateway:
        task_id = await gateway.started()
        path = f"/tasks/{task_id}:authorize"
        asked = await gateway.hand.ask(task_id, "sure?")
        assert _is_unsupported(await gateway.post(path, {"pause": asked, "value": 1}))
        await gateway.send(message("yes", task_id=task_id), immediately=True)
        seq = await gateway.hand.ask(task_id, "log in", state=State.AUTH_REQUIRED)
        assert _is_unsupported(await gateway.post(path, {"pause": f"e6-{seq}", "value": 1}))
        await gateway.cancel(task_id)
        assert _is_unsupported(await gateway.post(path, {"pause": seq, "value": 1}))
        assert await _ledger(gateway) != []


async def test_a_message_authorizes_only_in_band(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        stream = gateway.stream(message())
        task_id = TaskId((await anext(stream)).task.id)
        await gateway.hand.ask(task_id, "log in", state=State.AUTH_REQUIRED)
        assert state_of(await anext(stream)) == "AUTH_REQUIRED"
        with pytest.raises(a2a.UnsupportedOperationError, match=":authorize"):
            await gateway.send(message(SECRET, task_id=task_id))
        await gateway.cancel(task_id)
        assert [state_of(item) for item in await rest_of(stream)] == ["CANCELED"]

        stream = gateway.stream(message())
        task_id = TaskId((await anext(stream)).task.id)
        await gateway.hand.ask(task_id, "which card?", state=State.AUTH_REQUIRED, in_band=True)
        assert [state_of(item) for item in await rest_of(stream)] == ["AUTH_REQUIRED"]
        answer = message("this one", task_id=task_id, data={"card": 7})
        answering = gateway.stream(answer)
        assert state_of(await anext(answering)) == "WORKING"
        await gateway.hand.finish(task_id)
        assert [state_of(item) for item in await rest_of(answering)] == ["COMPLETED"]
        assert (await _ledger(gateway))[-1] == '{"authorized":{"card":7}}'
        assert history(await gateway.task(task_id))[:3] == ["begin", "which card?", "this one"]


def _is_unsupported(reply: Any) -> bool:
    reasons = [detail.get("reason") for detail in reply.json()["error"]["details"]]
    return reply.status_code == 400 and "UNSUPPORTED_OPERATION" in reasons


async def _ledger(gateway: Gateway) -> list[str]:
    """The results of the ledger."""

    def script() -> Script[list[str]]:
        text = "select result from task_ledger where result is not null order by done_at"
        rows = yield Statement(Query("test_ledger", "", text), {})
        return [row["result"] for row in rows]

    return await gateway.database.read(script)
