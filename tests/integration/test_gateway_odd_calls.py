"""What odd calls found: each was an error of the server's, a line in the log, or no JSON."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from tests.integration.test_gateway_bad_input import body, nested
from tests.integration.test_gateway_support import Gateway, count_tasks, running_gateway

HALF = r'"\ud800"'
"""Half of a pair of surrogates: JSON can write it, and no encoding of Unicode."""

GOOD = json.dumps({"message": body()})


async def posted(gateway: Gateway, path: str, text: str, version: str = "1.0") -> httpx.Response:
    headers = {"A2A-Version": version, "Content-Type": "application/json"}
    return await gateway.http.post(gateway.url + path, content=text, headers=headers)


def rpc(params: str, request_id: str = "7", method: str = '"SendMessage"') -> str:
    return f'{{"jsonrpc": "2.0", "id": {request_id}, "method": {method}, "params": {params}}}'


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize(
    ("text", "code", "request_id"),
    [
        (rpc("{}", request_id="9" * 5000), -32700, None),
        (rpc(GOOD, request_id=HALF), -32600, None),
        (rpc(GOOD, request_id="1.5"), -32600, None),
        (rpc("null"), -32602, 7),
        (rpc("false"), -32600, 7),
        (rpc(f'{{"message": {HALF}}}'), -32602, 7),
        (rpc('{"message": 1.5}'), -32602, 7),
        (rpc("{}", method=HALF), -32601, 7),
        (rpc("{}", method="[1]"), -32600, 7),
        (rpc("{}")[:-1] + f", {HALF}: 1}}", -32600, 7),
        (rpc(f'{{"status": {HALF}}}', method='"ListTasks"'), -32602, 7),
        (rpc('{"status": "--5"}', method='"ListTasks"'), -32602, 7),
        (rpc(f'{{"status": "{"9" * 5000}"}}', method='"ListTasks"'), -32602, 7),
    ],
)
async def test_a_json_rpc_call_that_cannot_be_read_is_the_callers_fault_and_not_logged(
    sqlite_url: str, text: str, code: int, request_id: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    with capture_logs() as ours, caplog.at_level(logging.ERROR):
        async with running_gateway(sqlite_url) as gateway:
            response = await posted(gateway, "/", text)

            error = error_of(response, 200)
            assert (error["code"], response.json()["id"]) == (code, request_id)
            assert "object is not" not in response.text
            assert await count_tasks(gateway) == 0
    assert [line for line in ours if line["log_level"] == "error"] == []
    assert caplog.records == []


@pytest.mark.parametrize("path", ["/message:send", "/message:stream"])
async def test_half_a_character_in_the_place_of_something_else_is_refused(
    sqlite_url: str, path: str
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sent = json.dumps({"message": body(parts="?")}).replace('"?"', HALF)
        error = error_of(await posted(gateway, path, sent), 400)
        assert error["details"][0]["reason"] == "INVALID_PARAMS"

        unknown = f'{{"pause": "1", "value": 1, {HALF}: 1}}'
        error_of(await posted(gateway, "/tasks/a:authorize", unknown), 400)


async def test_a_number_that_is_none_within_a_list_of_metadata_is_refused(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        sent = f'{GOOD[:-1]}, "metadata": {{"a": [NaN]}}}}'
        for path, text in (("/message:send", sent), ("/", rpc(sent))):
            response = await posted(gateway, path, text)
            assert "metadata: holds a number that is not finite" in response.text
        assert await count_tasks(gateway) == 0


@pytest.mark.parametrize("status", ["--5", "²", "9" * 5000])
async def test_a_status_that_only_looks_like_a_number_is_refused(
    sqlite_url: str, status: str
) -> None:
    async with running_gateway(sqlite_url) as gateway:
        response = await gateway.http.get(
            gateway.url + "/tasks", params={"status": status}, headers={"A2A-Version": "1.0"}
        )
        assert "is none of TASK_STATE_SUBMITTED" in error_of(response, 400)["message"]


async def test_below_a_tenant_a_slash_too_much_is_no_redirection(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url) as gateway:
        for path in ("/acme/tasks/", "/tasks/"):
            error = error_of(await gateway.get(path), 404)
            assert error["details"][0]["reason"] == "METHOD_NOT_FOUND"


async def test_in_0_3_a_message_without_content_is_the_callers_fault(
    sqlite_url: str,
) -> None:
    async with running_gateway(sqlite_url, serves_0_3=True) as gateway:
        empty = json.dumps({"message": {"messageId": "m", "role": "ROLE_USER", "content": [{}]}})
        for path in ("/v1/message:send", "/v1/message:stream"):
            error = error_of(await posted(gateway, path, empty, "0.3"), 400)
            assert "each part needs one of text, file and data" in error["message"]


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"kind": "text", "text": "?"}, "surrogate"),
        ({"kind": "file", "file": {"bytes": "A"}}, "base64"),
        ({"kind": "data", "data": {"a": nested(150)}}, "too deep"),
        ({"kind": "data", "data": {"a": 10**400}}, "too large"),
    ],
)
async def test_in_0_3_a_part_that_cannot_be_translated_is_the_callers_fault(
    sqlite_url: str, part: Any, says: str
) -> None:
    message = {"kind": "message", "messageId": "m", "role": "user", "parts": [part]}
    sent = json.dumps({"message": message}).replace('"?"', HALF)
    async with running_gateway(sqlite_url, serves_0_3=True) as gateway:
        for method in ('"message/send"', '"message/stream"'):
            error = error_of(await posted(gateway, "/", rpc(sent, method=method), "0.3"), 200)
            assert error["code"] == -32602
            assert says in error["message"]
        assert await count_tasks(gateway) == 0


async def test_in_0_3_a_length_that_is_no_whole_number_of_32_bits_is_refused(
    sqlite_url: str,
) -> None:
    async with running_gateway(sqlite_url, serves_0_3=True) as gateway:
        text = rpc('{"id": "a", "historyLength": 2147483648}', method='"tasks/get"')
        error = error_of(await posted(gateway, "/", text, "0.3"), 200)
        assert (error["code"], "out of range" in error["message"]) == (-32602, True)
        for length in ("2147483648", "9" * 5000, "²"):
            path = f"/v1/tasks/a?historyLength={length}"
            response = await gateway.http.get(gateway.url + path)
            assert "historyLength: must be a whole number" in error_of(response, 400)["message"]


async def test_in_0_3_an_answer_has_an_id_and_a_result_also_where_they_are_null(
    sqlite_url: str,
) -> None:
    async with running_gateway(sqlite_url, serves_0_3=True, push_notifications=True) as gateway:
        task_id = await gateway.started()
        named = json.dumps({"id": task_id, "pushNotificationConfigId": "p"})
        text = rpc(named, method='"tasks/pushNotificationConfig/delete"')
        deleted = await posted(gateway, "/", text, "0.3")
        assert deleted.json() == {"jsonrpc": "2.0", "id": 7, "result": None}

        for request_id, code in (("null", -32602), ("1.5", -32600), (HALF, -32600)):
            text = rpc(named, request_id=request_id, method='"tasks/get"')
            answer = (await posted(gateway, "/", text, "0.3")).json()
            assert (answer["id"], answer["error"]["code"]) == (None, code)
