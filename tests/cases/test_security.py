"""Security: nobody gets in without a credential, or at what is another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.types import a2a_pb2 as pb

from outlast.gateway.auth.api_keys import new_key
from outlast.gateway.scopes import with_principal
from outlast.model.ids import Millis, TaskId
from outlast.store.admin import Admin
from tests.cases.doors import BINDINGS, OPERATIONS, all_of, guarded
from tests.contract.stores import statements
from tests.integration.test_gateway_hand import Hand
from tests.integration.test_gateway_support import count_tasks, running_gateway

each_binding = pytest.mark.parametrize("binding", BINDINGS)


async def bring(hand: Hand, task_id: str, state: str) -> None:
    """Bring a task of the worker's hand so far."""
    if state == "paused":
        await hand.ask(TaskId(task_id), "which?")
    elif state == "finished":
        await hand.finish(TaskId(task_id))
    else:
        await hand.report(TaskId(task_id), "under way")


@pytest.mark.parametrize("state", ["live", "paused", "finished"])
async def test_case_110_a_foreign_task_is_as_unknown_as_one_that_never_was(
    sqlite_url: str, state: str
) -> None:
    tenants = {"ann": "acme", "bob": "acme", "eve": "evil"}
    async with guarded(sqlite_url, tenants, push_notifications=True) as door:
        task_id = await door.begun("ann")
        await bring(door.gateway.hand, task_id, state)
        unknown = "0" * len(task_id)
        before = await door.gateway.log.ends_of([TaskId(task_id)])
        for other in ("bob", "eve"):
            await all_of(door, other, unknown)  # its key has been looked up by now
            with statements() as asked:
                foreign = await all_of(door, other, task_id)
            with statements() as asked_of_none:
                never = await all_of(door, other, unknown)
            assert sorted(asked) == sorted(asked_of_none)
            assert len(foreign) == 27
            for (binding, method, got), (_, _, none) in zip(foreign, never, strict=True):
                assert got.reason == none.reason == "TASK_NOT_FOUND", (binding, method)
                assert str(got).replace(task_id, unknown) == str(none), (binding, method)
            given = {"pause": "1", "value": "s3cret"}
            url, headers = door.gateway.url, door.headers(other)
            texts = []
            for one in (task_id, unknown):
                answer = await door.gateway.http.post(
                    f"{url}/tasks/{one}:authorize", json=given, headers=headers
                )
                assert answer.status_code == 404
                texts.append(answer.text.replace(one, unknown))
            assert texts[0] == texts[1]
        assert await door.gateway.log.ends_of([TaskId(task_id)]) == before


CREDENTIALS = ("nothing", "malformed", "unknown", "expired", "twice")


@each_binding
@pytest.mark.parametrize("sent", CREDENTIALS)
async def test_case_113_every_operation_wants_a_credential(
    sqlite_url: str, binding: str, sent: str
) -> None:
    async with guarded(sqlite_url, {"ann": "acme"}, push_notifications=True) as door:
        task_id = await door.begun("ann")
        key = await door.give_key("old", lasts=1000)
        del door.keys["old"]
        await Admin(door.gateway.database).move_clock(Millis(2000))
        door.more += {
            "nothing": [],
            "malformed": [("authorization", "Bearer outlast_x")],
            "unknown": [("x-api-key", new_key())],
            "expired": [("x-api-key", key)],
            "twice": [("x-api-key", door.keys["ann"])] * 2,
        }[sent]
        with statements() as asked:
            answers = [
                await door.ask("nobody", binding, operation, task_id) for operation in OPERATIONS
            ]
        assert [answer.reason for answer in answers] == ["UNAUTHENTICATED"] * 11
        assert "acme" not in str(answers)
        # Whatever has the form of a key is looked up, and nothing else is.
        looked_up = any("api_keys_valid" in name for name in asked)
        assert looked_up is (sent in ("unknown", "expired"))
        assert not any("tasks_" in name for name in asked)


async def test_case_113_no_grpc_method_of_either_version_is_left_out(sqlite_url: str) -> None:
    async with guarded(sqlite_url, {"ann": "acme"}, serves_0_3=True) as door:
        channel = door.called.channel
        services = [
            service
            for file in (pb.DESCRIPTOR, a2a_v0_3_pb2.DESCRIPTOR)
            for service in file.services_by_name.values()
        ]
        paths = {
            f"/{service.full_name}/{method.name}": (
                channel.unary_stream if method.server_streaming else channel.unary_unary
            )
            for service in services
            for method in service.methods
        }
        assert len(paths) > 20
        known = door.headers("ann")
        for path, calling in paths.items():
            for body in (b"", b"\xff"):
                assert await code_of(calling(path)(body)) == "UNAUTHENTICATED", path
            assert await code_of(calling(path)(b"\xff", metadata=known)) == "INVALID_ARGUMENT", path


async def code_of(call: Any) -> str:
    """The code with which a call ends, whose first answer is read."""
    try:
        await (call.read() if hasattr(call, "read") else call)
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


async def test_case_113_the_card_is_public_and_says_what_is_enforced(sqlite_url: str) -> None:
    async with guarded(sqlite_url, {"ann": "acme"}) as door:
        http, url = door.gateway.http, door.gateway.url
        card = (await http.get(url + "/.well-known/agent-card.json")).json()
        assert len(card["securityRequirements"]) == len(card["securitySchemes"]) == 2
        for requirement in card["securityRequirements"]:
            (name,) = requirement["schemes"]
            said = card["securitySchemes"][name]
            if "apiKeySecurityScheme" in said:
                header = {said["apiKeySecurityScheme"]["name"]: door.keys["ann"]}
            else:
                scheme = said["httpAuthSecurityScheme"]["scheme"]
                header = {"Authorization": f"{scheme} {door.keys['ann']}"}
            known = await http.get(url + "/tasks", headers={"A2A-Version": "1.0", **header})
            assert known.status_code == 200, name
        unknown = await http.get(url + "/tasks", headers={"A2A-Version": "1.0"})
        assert unknown.status_code == 401
        assert unknown.headers["WWW-Authenticate"].startswith("Bearer")


# Where a request says its tenant, for a credential of `acme`: in its path, in its body or query.
MISMATCHED = [("evil", ""), ("", "evil"), ("acme", "evil"), ("evil", "acme"), ("evil", "evil")]


@each_binding
async def test_case_111_the_credential_wins_over_path_and_body(
    sqlite_url: str, binding: str
) -> None:
    async with guarded(sqlite_url, {"ann": "acme", "eve": "evil", "kim": None}) as door:
        task_id = await door.begun("ann")
        before = await door.gateway.log.ends_of([TaskId(task_id)])
        for operation in OPERATIONS:
            for in_path, in_body in MISMATCHED:
                if in_path and binding != "HTTP+JSON":
                    continue
                said = []
                for name in ("evil", "none") if operation.method == "GetTask" else ("evil",):
                    answer = await door.ask(
                        "ann",
                        binding,
                        operation,
                        task_id,
                        in_path=in_path.replace("evil", name),
                        in_body=in_body.replace("evil", name),
                    )
                    assert answer.reason == "INVALID_PARAMS", (operation.method, in_path, in_body)
                    assert "tenant" in answer.text
                    said.append(str(answer).replace(name, "another"))
                assert len({*said}) == 1, "whether a tenant exists cannot be told"
            own = {"in_body": "acme"} | ({"in_path": "acme"} if binding == "HTTP+JSON" else {})
            if operation.method in ("GetTask", "ListTasks"):
                assert (await door.ask("ann", binding, operation, task_id, **own)).reason == ""
            # Whose credential is of no tenant has none to name.
            answer = await door.ask("kim", binding, operation, task_id, in_body="acme")
            assert answer.reason == "INVALID_PARAMS", operation.method
        assert await door.gateway.log.ends_of([TaskId(task_id)]) == before


async def test_case_111_a_credential_without_a_tenant_may_be_allowed_to_name_one(
    sqlite_url: str,
) -> None:
    identify = with_principal("tester", tenant_from_request=True)
    async with guarded(sqlite_url, {"ann": "acme", "kim": None}, identify=identify) as door:
        get, listing = OPERATIONS[2], OPERATIONS[3]
        task_id = await door.begun("kim")
        for binding in BINDINGS:
            assert (await door.ask("kim", binding, get, task_id)).reason == ""
            answer = await door.ask("kim", binding, get, task_id, in_body="acme")
            assert answer.reason == "TASK_NOT_FOUND"
            assert (await door.ask("kim", binding, listing, "", in_body="acme")).reason == ""
            answer = await door.ask("ann", binding, get, task_id, in_body="evil")
            assert answer.reason == "INVALID_PARAMS"


@each_binding
async def test_case_111_lists_tokens_and_cursors_show_nothing_foreign(
    sqlite_url: str, binding: str
) -> None:
    listing, subscribe = OPERATIONS[3], OPERATIONS[5]
    owners = {"ann": "acme", "bob": "acme", "eve": "evil"}
    async with guarded(sqlite_url, owners, epoch="e1") as door:
        tasks = [await door.begun("ann") for _ in range(3)]
        own = await door.begun("bob")
        page = (await door.ask("ann", binding, listing, "", pageSize=2)).body
        page = page.get("result", page)
        assert page["totalSize"] == 3
        token = page["nextPageToken"]
        for other, count in (("bob", 1), ("eve", 0)):
            seen = (await door.ask(other, binding, listing, "")).body
            seen = seen.get("result", seen)
            assert seen.get("totalSize", 0) == len(seen.get("tasks", [])) == count
            answer = await door.ask(other, binding, listing, "", pageToken=token)
            assert answer.reason == "INVALID_PARAMS"
            assert not any(task_id in str(answer) for task_id in tasks)
        # A cursor is a place in a log that its bearer may read, or nothing.
        door.more.append(("last-event-id", "e1-1"))
        answer = await door.ask("bob", binding, subscribe, tasks[0])
        assert answer.reason == "TASK_NOT_FOUND"
        answer = await door.ask("bob", binding, subscribe, own)
        assert own in str(answer.body)


async def test_case_111_rows_without_an_owner_are_nobodys_once_callers_are_known(
    sqlite_url: str,
) -> None:
    async with running_gateway(sqlite_url) as open_to_all:
        ownerless = await open_to_all.started()
    owners = {"kim": None, "ann": "acme"}
    async with guarded(sqlite_url, owners, push_notifications=True) as door:
        for owner in ("kim", "ann"):
            for binding, method, answer in await all_of(door, owner, ownerless):
                assert answer.reason == "TASK_NOT_FOUND", (binding, method)
            for binding in BINDINGS:
                listed = await door.ask(owner, binding, OPERATIONS[3], "")
                assert ownerless not in str(listed)


# --- limits -------------------------------------------------------------------------------------

SEND = OPERATIONS[0]


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@each_binding
async def test_case_116_too_much_in_one_message_is_refused(sqlite_url: str, binding: str) -> None:
    async with guarded(sqlite_url, {"ann": "acme"}) as door:
        for parts in ([{"text": "x"}] * 10_000, [{"data": deep(28)}]):
            message = {"messageId": "m", "role": "ROLE_USER", "parts": parts}
            answer = await door.ask("ann", binding, SEND, "", message=message)
            assert answer.reason == "INVALID_PARAMS"
            assert "message.parts" in answer.text
        assert await count_tasks(door.gateway) == 0


@pytest.mark.parametrize("path", ["/", "/message:send"])
async def test_case_116_a_body_of_50_mb_is_refused_and_not_kept(sqlite_url: str, path: str) -> None:
    chunk = b"x" * 1_000_000

    async def body() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield chunk

    async with guarded(sqlite_url, {"ann": "acme"}) as door:
        headers = [*door.headers("ann"), ("content-type", "application/json")]
        response = await door.gateway.http.post(
            door.gateway.url + path, content=body(), headers=headers
        )
        assert response.status_code == 413


@each_binding
async def test_case_116_streams_of_one_owner_are_bounded(sqlite_url: str, binding: str) -> None:
    subscribe = OPERATIONS[5]
    async with guarded(sqlite_url, {"ann": "acme", "bob": "acme"}, max_open_calls=5) as door:
        task_id, others = await door.begun("ann"), await door.begun("bob")
        url = f"{door.gateway.url}/tasks/{task_id}:subscribe"
        async with AsyncExitStack() as opened:
            for _ in range(5):
                stream = door.gateway.http.stream("POST", url, headers=door.headers("ann"))
                assert (await opened.enter_async_context(stream)).status_code == 200
            for operation in (subscribe, OPERATIONS[1], OPERATIONS[3]):
                answer = await door.ask("ann", binding, operation, task_id)
                assert answer.reason == "RESOURCE_EXHAUSTED"
                assert "5 of your streams, lists and waiting calls" in answer.text
            assert (await door.ask("bob", binding, subscribe, others)).reason == ""
            assert (await door.ask("ann", binding, OPERATIONS[2], task_id)).reason == ""
        async with asyncio.timeout(20):
            while (await door.ask("ann", binding, subscribe, task_id)).reason:
                await asyncio.sleep(0.02)


@each_binding
async def test_case_116_sends_of_one_owner_are_bounded(sqlite_url: str, binding: str) -> None:
    async with guarded(sqlite_url, {"ann": "acme", "bob": "acme"}, max_sends=10) as door:
        answers = await asyncio.gather(*(door.ask("ann", binding, SEND, "") for _ in range(40)))
        refused = [answer for answer in answers if answer.reason]
        assert len(refused) == 30
        assert {answer.reason for answer in refused} == {"RESOURCE_EXHAUSTED"}
        assert (await door.ask("bob", binding, SEND, "")).reason == ""
        assert await count_tasks(door.gateway) == 11


@each_binding
async def test_case_116_open_tasks_of_one_owner_are_bounded(sqlite_url: str, binding: str) -> None:
    async with guarded(sqlite_url, {"ann": "acme", "bob": "acme"}, max_open_tasks=3) as door:
        answers = await asyncio.gather(*(door.ask("ann", binding, SEND, "") for _ in range(8)))
        assert sorted(answer.reason for answer in answers) == [""] * 3 + ["RESOURCE_EXHAUSTED"] * 5
        assert (await door.ask("bob", binding, SEND, "")).reason == ""
        mine = (await door.ask("ann", "HTTP+JSON", OPERATIONS[3], "")).body["tasks"]
        await door.gateway.hand.finish(TaskId(mine[0]["id"]))
        assert (await door.ask("ann", binding, SEND, "")).reason == ""
