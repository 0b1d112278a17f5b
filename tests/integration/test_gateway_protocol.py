"""What is true of every call: versions, methods that this gateway lacks, the card, health."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.server.routes.common import create_event_source_response
from a2a.server.routes.rest_dispatcher import RestDispatcher
from a2a.server.routes.rest_routes import create_rest_routes
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a
from starlette.requests import Request

from outlast import Agent, Skill, Workflow
from outlast.gateway.cards import agent_card
from outlast.gateway.config import GatewayConfig
from outlast.gateway.context import CallContexts
from outlast.gateway.handler import OutlastRequestHandler
from outlast.gateway.server import listen
from outlast.model.errors import AuthorError, ConfigError
from outlast.model.task import State
from outlast.wire.extension import EXTENSION_URI
from tests.integration.test_gateway_support import (
    BINDINGS,
    EVERY_BINDING,
    Nothing,
    history,
    message,
    of_one_step,
    running_gateway,
)

both = pytest.mark.parametrize("binding", BINDINGS)
every_binding = pytest.mark.parametrize("binding", EVERY_BINDING)
ALL = ["begin", "sure?", "yes"]


# --- versions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["header", "query"])
async def test_case_133_only_the_version_that_the_card_names_is_served(
    sqlite_url: str, by: str
) -> None:
    # A client of its own: the SDK puts its version on every call of the one that it was given.
    async with running_gateway(sqlite_url) as gateway, httpx.AsyncClient() as outside:
        task_id = await gateway.started()
        call = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task_id}}
        for version in ("", "0.3", "1.0", "1.0.1", "1.1", "9.9"):
            headers = {"A2A-Version": version} if by == "header" and version else {}
            query = f"?A2A-Version={version}" if by == "query" and version else ""
            url = f"{gateway.url}/tasks/{task_id}"
            rpc = await outside.post(f"{gateway.url}/{query}", json=call, headers=headers)
            get = await outside.get(f"{url}{query}", headers=headers)
            subscribe = outside.stream("POST", f"{url}:subscribe{query}", headers=headers)
            async with subscribe as stream:
                streamed = stream.status_code

            if version in ("1.0", "1.0.1"):
                assert rpc.json()["result"]["status"]["state"] == "TASK_STATE_SUBMITTED"
                assert get.json()["status"]["state"] == "TASK_STATE_SUBMITTED"
                assert streamed == 200
            else:
                assert rpc.json()["error"]["code"] == -32009
                assert get.json()["error"]["details"][0]["reason"] == "VERSION_NOT_SUPPORTED"
                assert (get.status_code, streamed) == (400, 400)
        assert {interface.protocol_version for interface in gateway.card.supported_interfaces} == {
            "1.0"
        }


# --- methods ------------------------------------------------------------------------------------


def test_every_method_of_the_protocol_is_ours() -> None:
    methods = {name for name in vars(RequestHandler) if name.startswith("on_")}

    assert len(methods) == 11
    assert methods <= vars(OutlastRequestHandler).keys()


async def test_a_method_that_the_card_does_not_promise_has_its_error(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        for method, params, code in [
            ("CreateTaskPushNotificationConfig", {"taskId": "t", "url": "https://x"}, -32003),
            ("GetTaskPushNotificationConfig", {"taskId": "t", "id": "c"}, -32003),
            ("ListTaskPushNotificationConfigs", {"taskId": "t"}, -32003),
            ("DeleteTaskPushNotificationConfig", {"taskId": "t", "id": "c"}, -32003),
            ("GetExtendedAgentCard", {}, -32004),
        ]:
            assert (await gateway.rpc(method, params))["error"]["code"] == code


async def test_a_path_that_the_card_does_not_promise_has_its_error(sqlite_url: str) -> None:
    no_push = "PUSH_NOTIFICATION_NOT_SUPPORTED"
    async with running_gateway(sqlite_url) as gateway:
        for verb, path, reason in [
            ("POST", "/tasks/t/pushNotificationConfigs", no_push),
            ("GET", "/tasks/t/pushNotificationConfigs", no_push),
            ("GET", "/tasks/t/pushNotificationConfigs/c", no_push),
            ("DELETE", "/tasks/t/pushNotificationConfigs/c", no_push),
            ("GET", "/extendedAgentCard", "UNSUPPORTED_OPERATION"),
            ("GET", "/acme/extendedAgentCard", "UNSUPPORTED_OPERATION"),
        ]:
            sent: dict[str, Any] = {"json": {}} if verb == "POST" else {}
            response = await gateway.http.request(
                verb, gateway.url + path, headers={"A2A-Version": "1.0"}, **sent
            )

            assert response.status_code == 400
            assert response.json()["error"]["details"][0]["reason"] == reason


async def test_a_path_that_the_protocol_lacks_is_said_in_its_words(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        for path, status in [("/nowhere/at/all", 404), ("/acme", 404), ("/", 405)]:
            response = await gateway.http.get(gateway.url + path)
            error = response.json()["error"]

            assert (response.status_code, error["code"]) == (status, status)
            assert error["details"][0]["reason"] == "METHOD_NOT_FOUND"


@every_binding
async def test_case_125_history_length_means_the_same_everywhere(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
        for length, expected in [(None, ALL), (0, []), (2, ALL[1:]), (9, ALL)]:
            task_id = await gateway.started()
            await gateway.hand.ask(task_id, "sure?")
            request = pb.SendMessageRequest(message=message("yes", task_id=task_id))
            request.configuration.return_immediately = True
            get = pb.GetTaskRequest(id=task_id)
            if length is not None:
                request.configuration.history_length = length
                get.history_length = length
            client = gateway.client(binding)
            (sent,) = [item async for item in client.send_message(request)]
            streaming: Any = gateway.client(binding, streaming=True).send_message(request)
            streamed = await anext(streaming)
            await streaming.aclose()

            for task in (sent.task, streamed.task, await client.get_task(get)):
                assert history(task) == expected


@every_binding
async def test_case_125_a_negative_history_length_is_an_error(
    sqlite_url: str, binding: str
) -> None:
    async with running_gateway(sqlite_url, on_grpc=True) as gateway:
        task_id = await gateway.started()
        with pytest.raises(a2a.InvalidParamsError, match="historyLength"):
            await gateway.client(binding).get_task(pb.GetTaskRequest(id=task_id, history_length=-1))


async def test_errors_carry_their_details(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        error = (await gateway.rpc("GetTask", {"id": "no-such-task"}))["error"]
        assert error["code"] == -32001
        assert error["data"][0]["@type"].endswith("google.rpc.ErrorInfo")
        assert error["data"][0]["metadata"] == {"taskId": "no-such-task"}

        response = await gateway.post("/message:send", {"message": {"messageId": "m"}})
        details = response.json()["error"]["details"]
        assert details[1]["fieldViolations"] == [
            {"field": "message.role", "description": "must be ROLE_USER in what a caller sends"}
        ]


async def test_the_wire_is_camel_case_with_times_in_utc(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        task_id = await gateway.started()
        await gateway.hand.chunk(task_id, "a", append=False)
        await gateway.hand.finish(task_id, State.COMPLETED)
        response = await gateway.get(f"/tasks/{task_id}")
        task = response.json()

        assert response.headers["content-type"] == "application/a2a+json"
        assert task["contextId"]
        assert task["artifacts"][0]["artifactId"] == "out"
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert task["status"]["timestamp"].endswith("Z")
        assert not any("_" in name for name in _names(task) if name != EXTENSION_URI)


def test_the_sdk_still_lacks_the_hooks_that_our_bindings_make_up_for() -> None:
    """When this fails, the SDK may have grown what `gateway/bindings.py` overrides."""
    assert importlib.metadata.version("a2a-sdk").startswith("1.3.")
    assert [*inspect.signature(create_event_source_response).parameters] == [
        "content",
        "shutdown_grace_period",
    ]
    assert [*inspect.signature(create_rest_routes).parameters] == [
        "request_handler",
        "context_builder",
        "enable_v0_3_compat",
        "path_prefix",
        "shutdown_grace_period",
    ]
    handler = inspect.getsource(RestDispatcher.on_message_send)
    assert "Parse(body, params" in handler, "parsing has no place of its own yet"


# --- the card and health ------------------------------------------------------------------------


async def test_the_card_says_what_is_true(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, blocking_cap_s=77) as gateway:
        card = await A2ACardResolver(gateway.http, gateway.url).get_agent_card()
        assert card == gateway.card
        assert (card.name, card.skills[0].id, list(card.skills[0].tags)) == (
            "tester",
            "chat",
            ["chat"],
        )
        assert [
            (interface.protocol_binding, interface.url) for interface in card.supported_interfaces
        ] == [("JSONRPC", f"{gateway.url}/"), ("HTTP+JSON", gateway.url)]
        assert card.capabilities.streaming
        assert not card.capabilities.push_notifications
        assert not card.capabilities.extended_agent_card
        (extension,) = card.capabilities.extensions
        assert (extension.uri, extension.required) == (EXTENSION_URI, False)
        assert extension.params["blockingCapSeconds"] == 77

        response = await gateway.http.get(f"{gateway.url}/.well-known/agent-card.json")
        assert "max-age" in response.headers["cache-control"]
        assert response.headers["etag"]
        shown = response.json()
        assert shown["capabilities"]["pushNotifications"] is False
        assert "url" not in shown, "nothing is promised to clients of 0.3"


def test_an_agent_without_skills_is_one() -> None:
    workflow = of_one_step(Workflow("one", 1, checkpoint=Nothing))
    agent = Agent("plain", description="Does one thing.", skills=[], workflows=[workflow])
    (skill,) = agent_card(agent, GatewayConfig()).skills

    assert (skill.id, skill.description, list(skill.tags)) == (
        "plain",
        "Does one thing.",
        ["plain"],
    )


async def test_health_and_readiness(sqlite_url: str) -> None:
    problems: list[str] = []
    away: list[str] = []

    async def unready() -> list[str]:
        return away

    async with running_gateway(sqlite_url, problems=lambda: problems, unready=unready) as gateway:
        assert (await gateway.get("/healthz")).json() == {"status": "ok", "problems": []}
        problems.append("a step runs at twice its timeout")
        away.append("the store is away")
        health, ready = await gateway.get("/healthz"), await gateway.get("/readyz")

        assert (health.status_code, health.json()["problems"]) == (503, problems)
        assert (ready.status_code, ready.json()["problems"]) == (503, away)
        away.clear()
        assert (await gateway.get("/readyz")).status_code == 200
        gateway.handler.close()
        assert (await gateway.get("/readyz")).status_code == 503


def test_a_taken_port_is_an_error_of_the_configuration() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(ConfigError, match="choose another"):
        listen("127.0.0.1", taken.getsockname()[1])


async def test_an_agent_that_cannot_choose_its_workflow_is_refused(sqlite_url: str) -> None:
    one = of_one_step(Workflow("one", 1, checkpoint=Nothing))
    two = of_one_step(Workflow("two", 1, checkpoint=Nothing))
    agent = Agent("torn", description="", skills=[Skill("s", "S", "")], workflows=[one, two])
    with pytest.raises(AuthorError, match=r"@agent\.route"):
        async with running_gateway(sqlite_url, agent=agent):
            pass


def test_credentials_never_reach_a_handler() -> None:
    headers = [
        (b"authorization", b"Bearer s3cret"),
        (b"cookie", b"s3cret"),
        (b"x-api-key", b"s3cret"),
        (b"idempotency-key", b"k"),
        (b"a2a-version", b"1.0"),
    ]
    request = Request({"type": "http", "headers": headers, "query_string": b"", "method": "GET"})
    context = CallContexts().build(request)

    assert context.state["headers"] == {"idempotency-key": "k", "a2a-version": "1.0"}
    assert "s3cret" not in json.dumps(context.state["headers"])


def _names(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [name for key, item in value.items() for name in (key, *_names(item))]
    if isinstance(value, list):
        return [name for item in value for name in _names(item)]
    return []
