"""ListTasks: filters, page tokens, and what each task of a page shows."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.server.context import ServerCallContext
from a2a.types import a2a_pb2 as pb

from outlast.gateway.scopes import Identity
from outlast.model.task import Caller, Scope, State
from outlast.wire.extension import EXTENSION_URI
from tests.integration.test_gateway_fold_law import shown
from tests.integration.test_gateway_support import (
    BINDINGS,
    EVERY_BINDING,
    Gateway,
    message,
    running_gateway,
)

both = pytest.mark.parametrize("binding", BINDINGS)
every_binding = pytest.mark.parametrize("binding", EVERY_BINDING)


def by_tenant(context: ServerCallContext, tenant: str) -> Identity:
    """Who names a tenant is its owner: as good as a credential, for what is tested here."""
    return Identity(
        scope=Scope(agent="tester", tenant=tenant, owner=tenant), caller=Caller(tenant=tenant)
    )


async def conversation(gateway: Gateway, *, turns: int = 2) -> pb.Task:
    """A task that has asked, was answered, has shown something and waits again."""
    task_id = await gateway.started()
    for turn in range(turns):
        await gateway.hand.ask(task_id, f"question {turn}")
        await gateway.send(message(f"answer {turn}", task_id=task_id), immediately=True)
        await gateway.hand.chunk(task_id, "a", "b", name=f"out {turn}", append=False)
    await gateway.hand.report(task_id, "nearly there")
    await gateway.hand.ask(task_id, "the last question")
    return await gateway.task(task_id)


@every_binding
async def test_a_page_of_large_tasks_ends_early(
    sqlite_url: str, binding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.gateway.listing.MOST_BYTES", 3 * 1000)
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
        tasks = [await gateway.started("x" * 1000) for _ in range(5)]
        sizes: list[int] = []
        found: list[str] = []
        token = ""
        while not sizes or token:
            page = await gateway.page(binding=binding, page_size=4, page_token=token)
            assert (page.total_size, page.page_size) == (5, 4)
            sizes.append(len(page.tasks))
            found += [task.id for task in page.tasks]
            token = page.next_page_token

        assert (sorted(found), sizes) == (sorted(tasks), [2, 2, 1])


@every_binding
async def test_a_listed_task_is_what_get_task_shows(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
        task = await conversation(gateway)
        await gateway.hand.finish(await gateway.started("another"))

        page = await gateway.page(binding=binding, include_artifacts=True)
        assert (page.total_size, page.page_size, page.next_page_token) == (2, 50, "")
        assert page.tasks[1] == task
        assert len(task.artifacts) == 2

        without = (await gateway.page(binding=binding)).tasks[1]
        assert not without.artifacts
        del task.artifacts[:]
        assert without == task


async def test_fields_are_there_or_not_as_the_specification_says(sqlite_url: str) -> None:
    """§3.1.4: the token always is, a task's artifacts only where they were asked for."""
    async with running_gateway(sqlite_url) as gateway:
        empty = {"tasks": [], "nextPageToken": "", "pageSize": 50, "totalSize": 0}
        assert (await gateway.get("/tasks")).json() == empty
        assert (await gateway.rpc("ListTasks", {}))["result"] == empty

        await gateway.started()
        for asked, artifacts in ((False, None), (True, [])):
            path = f"/tasks?includeArtifacts={str(asked).lower()}"
            rest = (await gateway.get(path)).json()
            rpc = (await gateway.rpc("ListTasks", {"includeArtifacts": asked}))["result"]
            assert rest == rpc
            assert rest["tasks"][0].get("artifacts") == artifacts
            assert rest["nextPageToken"] == ""


@every_binding
async def test_filters_are_applied_together(sqlite_url: str, binding: str) -> None:
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
        first = await gateway.started()
        asking = (await conversation(gateway)).id
        done = await gateway.started("end")
        await gateway.hand.finish(done)
        context = (await gateway.task(done)).context_id

        async def ids(**filters: Any) -> set[str]:
            page = await gateway.page(binding=binding, **filters)
            assert page.total_size == len(page.tasks)
            return {task.id for task in page.tasks}

        assert await ids() == {first, asking, done}
        assert await ids(context_id=context) == {done}
        assert await ids(status=pb.TASK_STATE_COMPLETED) == {done}
        assert await ids(status=pb.TASK_STATE_INPUT_REQUIRED) == {asking}
        assert await ids(status=pb.TASK_STATE_INPUT_REQUIRED, context_id=context) == set()
        changed = (await gateway.task(done)).status.timestamp
        assert done in await ids(status_timestamp_after=changed)
        changed.seconds += 3600
        assert await ids(status_timestamp_after=changed) == set()


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({"pageSize": 0}, "pageSize"),
        ({"pageSize": -1}, "pageSize"),
        ({"pageSize": 101}, "pageSize"),
        ({"historyLength": -1}, "historyLength"),
        ({"pageToken": "nonsense"}, "pageToken"),
        ({"pageToken": "W10"}, "pageToken"),
        ({"status": "TASK_STATE_BUSY"}, "status"),
        ({"status": 99}, "status"),
        ({"contextId": "x" * 300}, "contextId"),
    ],
)
async def test_what_no_list_has_is_refused_by_name(
    sqlite_url: str, params: dict[str, Any], path: str
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        await gateway.started()
        error = (await gateway.rpc("ListTasks", params))["error"]
        assert error["code"] == -32602
        assert path in error["message"]
        query = "&".join(f"{name}={value}" for name, value in params.items())
        rest = await gateway.get(f"/tasks?{query}")
        assert rest.status_code == 400
        assert rest.json()["error"]["details"][1]["fieldViolations"][0]["field"] == path


@every_binding
async def test_case_111_a_list_and_its_tokens_stay_within_the_scope(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, identify=by_tenant, on_grpc=True) as gateway:

        async def list_of(tenant: str, **params: Any) -> pb.ListTasksResponse:
            return await gateway.page(binding=binding, tenant=tenant, **params)

        for tenant, count in (("acme", 3), ("other", 1)):
            for _ in range(count):
                sent = pb.SendMessageRequest(message=message(), tenant=tenant)
                sent.configuration.return_immediately = True
                _ = [item async for item in gateway.client(binding).send_message(sent)]

        acme = await list_of("acme", page_size=2)
        assert (acme.total_size, len(acme.tasks)) == (3, 2)
        other = await list_of("other", page_size=2)
        assert (other.total_size, len(other.tasks), other.next_page_token) == (1, 1, "")
        assert other.tasks[0].id not in {task.id for task in acme.tasks}
        assert (await list_of("nobody")).total_size == 0

        token = acme.next_page_token
        assert len((await list_of("acme", page_size=1, page_token=token)).tasks) == 1
        for stranger, filters in (("other", {}), ("acme", {"context_id": "c"})):
            with pytest.raises(Exception, match="no token of this list"):
                await list_of(stranger, page_token=token, **filters)


async def test_a_listed_task_has_its_generation_with_the_extension(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        seq = await gateway.hand.chunk(task_id, "a", "b")
        extended = {"A2A-Extensions": EXTENSION_URI}
        body = (await gateway.get("/tasks", **extended)).json()
        assert body["tasks"][0]["metadata"][EXTENSION_URI]["generation"] == seq
        assert "metadata" not in (await gateway.get("/tasks")).json()["tasks"][0]


async def test_tasks_of_a_path_are_its_tenants(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, identify=by_tenant) as gateway:
        await gateway.post("/acme/message:send", _send())
        assert (await gateway.get("/acme/tasks")).json()["totalSize"] == 1
        assert (await gateway.get("/tasks")).json()["totalSize"] == 0
        refused = await gateway.get("/acme/tasks?tenant=other")
        assert refused.status_code == 400


def _send() -> dict[str, Any]:
    parts = [{"text": "begin"}]
    sent = {"messageId": "m", "role": "ROLE_USER", "parts": parts}
    return {"message": sent, "configuration": {"returnImmediately": True}}


async def test_ended_and_running_tasks_are_listed_alike(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        ended = {}
        for state in (State.COMPLETED, State.FAILED, State.REJECTED):
            task_id = await gateway.started(state.value)
            await gateway.hand.finish(task_id, state)
            ended[task_id] = shown(await gateway.task(task_id))
        listed = await gateway.pages(page_size=1, include_artifacts=True)
        assert {task.id: shown(task) for task in listed} == ended
