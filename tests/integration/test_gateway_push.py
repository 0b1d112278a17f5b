"""Push notification configs, on every binding, with the SDK's client as the black box."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from a2a.client import Client
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a

from outlast.gateway.push import MASK
from outlast.model.ids import TaskId
from outlast.model.task import State
from outlast.store.database import Query, Rows, Script, Statement
from outlast.store.protocols import MOST_WEBHOOKS
from tests.integration.test_gateway_support import (
    BINDINGS,
    EVERY_BINDING,
    SCOPE,
    Gateway,
    agent_with_inbox,
    count_tasks,
    message,
    running_gateway,
)

every_binding = pytest.mark.parametrize("binding", EVERY_BINDING)
both = pytest.mark.parametrize("binding", BINDINGS)

URL = "https://hooks.example.com/a2a"


def config(task_id: str = "", **changes: Any) -> pb.TaskPushNotificationConfig:
    said: dict[str, Any] = {"url": URL, "token": "t0ken"}
    asked = pb.TaskPushNotificationConfig(task_id=task_id, **(said | changes))
    asked.authentication.scheme = "Bearer"
    asked.authentication.credentials = "s3cret"
    return asked


def get(task_id: str, name: str) -> pb.GetTaskPushNotificationConfigRequest:
    return pb.GetTaskPushNotificationConfigRequest(task_id=task_id, id=name)


def delete(task_id: str, name: str) -> pb.DeleteTaskPushNotificationConfigRequest:
    return pb.DeleteTaskPushNotificationConfigRequest(task_id=task_id, id=name)


def sending(config: pb.TaskPushNotificationConfig, **said: Any) -> pb.SendMessageRequest:
    request = pb.SendMessageRequest(message=message(**said))
    request.configuration.return_immediately = True
    request.configuration.task_push_notification_config.CopyFrom(config)
    return request


async def sent(client: Client, request: pb.SendMessageRequest) -> pb.Task:
    (answer,) = [item async for item in client.send_message(request)]
    return answer.task


async def listed(client: Client, task_id: str, **page: Any) -> list[str]:
    request = pb.ListTaskPushNotificationConfigsRequest(task_id=task_id, **page)
    found = await client.list_task_push_notification_configs(request)
    return [each.id for each in found.configs]


async def rows(gateway: Gateway) -> Rows:
    def script() -> Script[Rows]:
        return (yield Statement(Query("test_webhooks", "", "select * from webhooks"), {}))

    return await gateway.database.read(script)


# --- the four operations ------------------------------------------------------------------------


@every_binding
async def test_a_config_is_made_shown_listed_and_deleted(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url, push_notifications=True, on_grpc=True) as gateway:
        assert gateway.card.capabilities.push_notifications
        client = gateway.client(binding)
        task_id = await gateway.started()
        made = await client.create_task_push_notification_config(config(task_id))
        assert (made.task_id, made.url, made.authentication.scheme) == (task_id, URL, "Bearer")
        assert made.id
        assert await client.get_task_push_notification_config(get(task_id, made.id)) == made
        other = await client.create_task_push_notification_config(config(task_id, id="mine"))
        assert other.id == "mine"
        assert sorted(await listed(client, task_id)) == sorted([made.id, "mine"])
        for _ in range(2):
            await client.delete_task_push_notification_config(delete(task_id, made.id))
        assert await listed(client, task_id) == ["mine"]
        with pytest.raises(a2a.TaskNotFoundError, match="no push notification config"):
            await client.get_task_push_notification_config(get(task_id, made.id))


@every_binding
async def test_secrets_are_kept_and_never_shown(
    sqlite_url: str, binding: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running_gateway(sqlite_url, push_notifications=True, on_grpc=True) as gateway:
        client = gateway.client(binding)
        task_id = await gateway.started()
        made = await client.create_task_push_notification_config(config(task_id, id="one"))
        listing = pb.ListTaskPushNotificationConfigsRequest(task_id=task_id)
        (again,) = (await client.list_task_push_notification_configs(listing)).configs
        read = await client.get_task_push_notification_config(get(task_id, "one"))
        for shown in (made, read, again):
            assert (shown.token, shown.authentication.credentials) == (MASK, MASK)
        for wrong in (
            config(task_id, token="t0ken\r\nHost: other"),
            config(task_id, token="t0ken" * 1000),
            config(task_id, url="https://t0ken@hooks.example.com"),
            made,  # what was shown is no way to write it: the secret would be lost
        ):
            with pytest.raises(a2a.InvalidParamsError) as refused:
                await client.create_task_push_notification_config(wrong)
            assert "t0ken" not in str(refused.value)
        (kept,) = await rows(gateway)
        assert kept["secrets"] == '{"token":"t0ken","scheme":"Bearer","credentials":"s3cret"}'
    logged = "".join(capfd.readouterr())
    assert "t0ken" not in logged
    assert "s3cret" not in logged


async def test_a_repeat_of_a_create_is_one_config(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, push_notifications=True) as gateway:
        client = gateway.client()
        task_id = await gateway.started()
        first = await client.create_task_push_notification_config(config(task_id, id="one"))
        assert await client.create_task_push_notification_config(config(task_id, id="one")) == first
        moved = config(task_id, id="one", url=f"{URL}/other")
        assert (await client.create_task_push_notification_config(moved)).url == f"{URL}/other"
        assert await listed(client, task_id) == ["one"]


@every_binding
async def test_configs_come_in_pages(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url, push_notifications=True, on_grpc=True) as gateway:
        client = gateway.client(binding)
        task_id, other = await gateway.started(), await gateway.started()
        for number in range(5):
            await client.create_task_push_notification_config(config(task_id, id=f"c{number}"))
        pages: list[list[str]] = []
        tokens = [""]
        while len(pages) < len(tokens):
            request = pb.ListTaskPushNotificationConfigsRequest(
                task_id=task_id, page_size=2, page_token=tokens[-1]
            )
            page = await client.list_task_push_notification_configs(request)
            pages.append([each.id for each in page.configs])
            tokens += filter(None, [page.next_page_token])
        assert pages == [["c0", "c1"], ["c2", "c3"], ["c4"]]
        wrong: list[dict[str, Any]] = [{"page_token": "x"}, {"page_size": 101}, {"page_size": -1}]
        for said in wrong:
            with pytest.raises(a2a.InvalidParamsError):
                await listed(client, task_id, **said)
        with pytest.raises(a2a.InvalidParamsError):
            await listed(client, other, page_token=tokens[-1])


async def test_a_task_has_only_so_many(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, push_notifications=True) as gateway:
        client = gateway.client()
        task_id = await gateway.started()
        for number in range(MOST_WEBHOOKS):
            await client.create_task_push_notification_config(config(task_id, id=f"{number}"))
        with pytest.raises(a2a.UnsupportedOperationError, match="delete one first"):
            await client.create_task_push_notification_config(config(task_id))
        assert len(await listed(client, task_id)) == MOST_WEBHOOKS


async def test_a_finished_task_takes_configs_too(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, push_notifications=True) as gateway:
        task_id = await gateway.started()
        await gateway.hand.finish(task_id)
        client = gateway.client()
        await client.create_task_push_notification_config(config(task_id, id="late"))
        (kept,) = await rows(gateway)
        assert kept["pinned_seq"] == (await gateway.tasks.get(SCOPE, task_id)).generation


# --- whose they are -----------------------------------------------------------------------------


@every_binding
async def test_case_110_nobody_else_reaches_a_config(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url, push_notifications=True, on_grpc=True) as gateway:
        client = gateway.client(binding)
        task_id, other = await gateway.started(), await gateway.started()
        await client.create_task_push_notification_config(config(task_id, id="one"))
        with pytest.raises(a2a.TaskNotFoundError):
            await client.get_task_push_notification_config(get(other, "one"))
        await client.delete_task_push_notification_config(delete(other, "one"))

        page = pb.ListTaskPushNotificationConfigsRequest
        foreign: list[Callable[[str], Awaitable[Any]]] = [
            lambda task: client.create_task_push_notification_config(config(task, tenant="acme")),
            lambda task: client.get_task_push_notification_config(
                pb.GetTaskPushNotificationConfigRequest(task_id=task, id="one", tenant="acme")
            ),
            lambda task: client.list_task_push_notification_configs(
                page(task_id=task, tenant="acme")
            ),
            lambda task: client.delete_task_push_notification_config(
                pb.DeleteTaskPushNotificationConfigRequest(task_id=task, id="one", tenant="acme")
            ),
        ]
        for call in foreign:
            told = []
            for named in (task_id, "never-was"):
                with pytest.raises(a2a.TaskNotFoundError) as refused:
                    await call(named)
                told.append(str(refused.value).replace(named, "?"))
            assert told[0] == told[1]
        assert await listed(client, task_id) == ["one"]


# --- a config that comes with a message -----------------------------------------------------------


@every_binding
async def test_a_config_comes_with_the_message_that_begins_a_task(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, push_notifications=True, on_grpc=True) as gateway:
        client = gateway.client(binding)
        request = sending(config(id="one"))
        # The same message again, as after a lost reply: one task, and one config.
        first, again = await sent(client, request), await sent(client, request)
        assert first.id == again.id
        assert await listed(client, first.id) == ["one"]
        (kept,) = await rows(gateway)
        assert (kept["cursor"], kept["pinned_seq"]) == (0, None)


@every_binding
async def test_a_config_comes_with_a_stream_and_with_an_answer(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, push_notifications=True, on_grpc=True) as gateway:
        streaming = gateway.client(binding, streaming=True)
        items: Any = streaming.send_message(sending(config(id="streamed")))
        task_id = TaskId((await anext(items)).task.id)
        await items.aclose()
        await gateway.hand.ask(task_id, "sure?")
        answer = sending(config(task_id, id="answered"), text="yes", task_id=task_id)
        await sent(gateway.client(binding), answer)
        task = await gateway.tasks.get(SCOPE, task_id)
        assert task.state is State.WORKING
        pinned = {row["config_id"]: row["pinned_seq"] for row in await rows(gateway)}
        assert pinned == {"streamed": None, "answered": task.generation}


async def test_a_config_comes_with_a_message_to_a_task_that_works(sqlite_url: str) -> None:
    agent = agent_with_inbox()
    async with running_gateway(sqlite_url, agent=agent, push_notifications=True) as gateway:
        task_id = await gateway.started()
        await gateway.hand.report(task_id, "under way")
        await sent(gateway.client(), sending(config(id="noted"), text="also", task_id=task_id))
        (kept,) = await rows(gateway)
        generation = (await gateway.tasks.get(SCOPE, task_id)).generation
        assert (kept["config_id"], kept["pinned_seq"]) == ("noted", generation)


@both
async def test_a_message_with_a_config_that_cannot_be_starts_nothing(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, push_notifications=True) as gateway:
        for wrong, path in [
            (config(url=""), "url"),
            (config(url="http://hooks.example.com"), "url"),
            (config(task_id="other"), "taskId"),
            (config(tenant="acme"), "tenant"),
            (config(id="a/b"), "id"),
            (config(id="."), "id"),
            (config(id="x" * 256), "id"),
        ]:
            with pytest.raises(a2a.InvalidParamsError) as refused:
                await sent(gateway.client(binding), sending(wrong))
            assert f"configuration.taskPushNotificationConfig.{path}: " in str(refused.value)
        assert await count_tasks(gateway) == 0


async def test_a_scheme_is_the_name_of_one(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, push_notifications=True) as gateway:
        task_id = await gateway.started()
        for scheme in ("", "Bearer s3cret", "Bearer\r\n"):
            asked = config(task_id)
            asked.authentication.scheme = scheme
            with pytest.raises(a2a.InvalidParamsError, match=r"authentication\.scheme"):
                await gateway.client().create_task_push_notification_config(asked)
        assert await rows(gateway) == []


async def test_the_body_says_no_other_task_than_the_path(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, push_notifications=True) as gateway:
        task_id = await gateway.started()
        path = f"/tasks/{task_id}/pushNotificationConfigs"
        assert (await gateway.post(path, {"url": URL, "taskId": task_id})).status_code == 200
        refused = await gateway.post(path, {"url": URL, "taskId": "another"})
        assert refused.status_code == 400
        assert "taskId" in refused.json()["error"]["message"]
        assert len(await rows(gateway)) == 1


async def test_the_answer_to_a_delete_is_one_of_json_rpc(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, push_notifications=True) as gateway:
        params = {"taskId": await gateway.started(), "id": "one"}
        answer = await gateway.rpc("DeleteTaskPushNotificationConfig", params)
        assert answer == {"jsonrpc": "2.0", "id": 7, "result": None}


# --- where a config may point ---------------------------------------------------------------------

INSIDE = (
    "https://127.0.0.1:{port}/",
    "https://[::1]:{port}/",
    "https://0.0.0.0:{port}/",
    "https://169.254.169.254/latest/meta-data",
    "https://10.0.0.1/",
    "https://100.64.0.1/",
    "https://[fd00::1]/",
    "https://[::ffff:127.0.0.1]:{port}/",
    "https://2130706433:{port}/",
    "https://0177.0.0.1:{port}/",
    "https://localhost:{port}/",
    "file:///etc/passwd",
    "ftp://hooks.example.com/",
    "https://user:pass@hooks.example.com/",
)


@every_binding
async def test_case_093_neither_door_takes_a_webhook_that_points_inside(
    sqlite_url: str, binding: str
) -> None:
    met: list[Any] = []

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.append(writer.get_extra_info("peername"))
        writer.close()

    inner = await asyncio.start_server(meet, "127.0.0.1", 0)
    port = inner.sockets[0].getsockname()[1]
    async with (
        inner,
        running_gateway(sqlite_url, push_notifications=True, on_grpc=True) as gateway,
    ):
        client = gateway.client(binding)
        task_id = await gateway.started()
        for pattern in INSIDE:
            asked = config(task_id, url=pattern.format(port=port))
            with pytest.raises(a2a.InvalidParamsError, match="url"):
                await client.create_task_push_notification_config(asked)
            asked.task_id = ""
            with pytest.raises(a2a.InvalidParamsError, match="url"):
                await sent(client, sending(asked))
        assert await rows(gateway) == []
        assert await count_tasks(gateway) == 1
        await gateway.hand.finish(task_id)
        assert met == []


async def test_an_operator_may_allow_a_receiver_inside(sqlite_url: str) -> None:
    allowed = ("127.0.0.1", "hooks.internal")
    async with running_gateway(
        sqlite_url, push_notifications=True, webhook_targets=allowed
    ) as gateway:
        client = gateway.client()
        task_id = await gateway.started()
        for url in ("http://127.0.0.1:9000/", "http://hooks.internal/a2a"):
            await client.create_task_push_notification_config(config(task_id, url=url))
        asked = config(task_id, url="http://127.0.0.2:9000/")
        with pytest.raises(a2a.InvalidParamsError):
            await client.create_task_push_notification_config(asked)


# --- where there are none -------------------------------------------------------------------------


@every_binding
async def test_without_push_notifications_a_message_with_a_config_is_refused(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
        assert not gateway.card.capabilities.push_notifications
        with pytest.raises(a2a.PushNotificationNotSupportedError):
            await sent(gateway.client(binding), sending(config()))
        assert await count_tasks(gateway) == 0
