"""To whom a client's credentials go. The far side of the network is played by a transport, which
knows what has been sent to which host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict
from typer.testing import CliRunner

from outlast import Client
from outlast.cli import app as commands
from outlast.client import Patience
from outlast.model.errors import ConfigError, TaskNotFound, UnsupportedOperation
from outlast.wire.extension import EXTENSION_URI

QUICK = Patience(total=0.1, first=0.01, longest=0.01)
TOKEN = "s3cret-token"
TASK = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
NO_TASK = {"error": {"message": "none", "details": [{"reason": "TASK_NOT_FOUND"}]}}


def card(*urls: str, binding: str = "HTTP+JSON", is_ours: bool = False) -> pb.AgentCard:
    made = pb.AgentCard(name="agent", description="An agent.", version="1")
    for url in urls:
        made.supported_interfaces.add(url=url, protocol_binding=binding, protocol_version="1.0")
    if is_ours:
        made.capabilities.extensions.add(uri=EXTENSION_URI)
    return made


class Network(httpx.MockTransport):
    """Answers for every host. `sent` holds each request but those for the card."""

    def __init__(self, said: pb.AgentCard, status: int = 404, body: Any = None) -> None:
        self.sent: list[httpx.Request] = []

        def answer(request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("agent-card.json"):
                return httpx.Response(200, json=MessageToDict(said))
            self.sent.append(request)
            if request.method == "GET":
                return httpx.Response(200, json=TASK)
            return httpx.Response(status, json=body)

        super().__init__(answer)

    def client(self, **credentials: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self, **credentials)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The network that every client is on from now."""

    def place(network: Network) -> Network:
        monkeypatch.setattr(
            httpx.AsyncHTTPTransport,
            "handle_async_request",
            lambda _, request: network.handle_async_request(request),
        )
        return network

    return place


WITH: tuple[Mapping[str, Any], ...] = ({"auth": TOKEN}, {"headers": {"X-API-Key": TOKEN}})
ELSEWHERE = (
    ("https://agent.example", "https://evil.example"),
    ("https://agent.example", "https://agent.example:8443"),
    ("https://agent.example", "https://agent.example.evil.example"),
    ("https://agent.example", "https://agent.example@evil.example/"),
    ("http://agent.example", "https://agent.example"),
    ("http://localhost:8000", "http://localhost:8001"),
    ("http://127.0.0.1:8000", "http://[::1]:8001"),
)
TLS_LOST = (
    ("https://agent.example", "http://agent.example"),
    ("https://agent.example", "http://evil.example:443"),
)


@pytest.mark.parametrize("credentials", WITH)
@pytest.mark.parametrize(("given", "named"), ELSEWHERE + TLS_LOST)
async def test_credentials_do_not_go_where_the_card_points_alone(
    on: Any, given: str, named: str, credentials: Mapping[str, Any]
) -> None:
    network = on(Network(card(named)))
    with pytest.raises(ConfigError, match=r"TLS|trust_card") as refused:
        async with Client(given, patience=QUICK, **credentials) as client:
            await client.get("t")
    assert network.sent == []
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize(("given", "named"), ELSEWHERE)
async def test_they_go_there_when_the_caller_says_so(on: Any, given: str, named: str) -> None:
    network = on(Network(card(named)))
    async with Client(given, auth=TOKEN, patience=QUICK, trust_card=True) as client:
        await client.get("t")
    assert [request.headers["Authorization"] for request in network.sent] == [f"Bearer {TOKEN}"]


@pytest.mark.parametrize(("given", "named"), TLS_LOST)
async def test_they_never_go_from_https_to_http(on: Any, given: str, named: str) -> None:
    network = on(Network(card(named)))
    with pytest.raises(ConfigError, match="without TLS"):
        async with Client(given, auth=TOKEN, patience=QUICK, trust_card=True):
            pass
    assert network.sent == []


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("https://agent.example", "https://agent.example/a2a"),
        ("https://agent.example/team", "https://AGENT.example:443/a2a"),
        ("https://agent.example/cards/agent-card.json", "https://agent.example"),
        ("http://localhost:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000", "http://localhost:8000"),
    ],
)
async def test_they_go_to_the_origin_that_was_given(on: Any, given: str, named: str) -> None:
    network = on(Network(card(named)))
    async with Client(given, auth=TOKEN, patience=QUICK) as client:
        await client.get("t")
    assert [request.headers["Authorization"] for request in network.sent] == [f"Bearer {TOKEN}"]


async def test_of_several_interfaces_the_one_of_the_origin_is_called(on: Any) -> None:
    named = card("https://evil.example", "https://agent.example/a2a", is_ours=True)
    network = on(Network(named, 200, {}))
    async with Client("https://agent.example", auth=TOKEN, patience=QUICK) as client:
        await client.get("t")
        await client.authorize("t", 1, pause="p")
    assert {request.url.host for request in network.sent} == {"agent.example"}


async def test_without_credentials_a_card_may_point_anywhere(on: Any) -> None:
    network = on(Network(card("http://other.example")))
    async with Client("https://agent.example", patience=QUICK) as client:
        await client.get("t")
    assert [request.url.host for request in network.sent] == ["other.example"]


@pytest.mark.parametrize(
    "credentials", [{"auth": ("ann", TOKEN)}, {"cookies": {"sid": TOKEN}}, *WITH[1:]]
)
async def test_a_client_of_the_callers_own_is_no_way_around(
    credentials: Mapping[str, Any],
) -> None:
    network = Network(card("https://evil.example"))
    async with network.client(**credentials) as http:
        with pytest.raises(ConfigError, match="trust_card"):
            await Client("https://agent.example", http=http).__aenter__()
    assert network.sent == []


async def test_a_card_of_the_callers_own_is_the_callers_word(on: Any) -> None:
    network = on(Network(card()))
    async with Client(card("https://agent.example"), auth=TOKEN, patience=QUICK) as client:
        await client.get("t")
    assert len(network.sent) == 1


def test_the_command_asks_for_its_option(on: Any) -> None:
    network = on(Network(card("https://evil.example")))
    words = ["get", "https://agent.example", "t"]
    refused = CliRunner().invoke(commands, words, env={"OUTLAST_TOKEN": TOKEN})
    assert (refused.exit_code, network.sent) == (1, [])
    assert "--trust-card" in refused.stderr
    allowed = CliRunner().invoke(commands, [*words, "--trust-card"], env={"OUTLAST_TOKEN": TOKEN})
    assert (allowed.exit_code, len(network.sent)) == (0, 1)


# --- what an authorization is sent to -------------------------------------------------------------


async def test_an_agent_that_is_not_ours_is_sent_no_authorization(on: Any) -> None:
    network = on(Network(card("https://agent.example")))
    async with Client("https://agent.example", auth=TOKEN, patience=QUICK) as client:
        with pytest.raises(UnsupportedOperation, match="Outlast"):
            await client.authorize("t", "s3cret")
    assert network.sent == []


@pytest.mark.parametrize(
    ("body", "error"),
    [(NO_TASK, TaskNotFound), ({}, UnsupportedOperation), (None, UnsupportedOperation)],
)
async def test_a_404_says_whether_the_task_or_the_endpoint_is_missing(
    on: Any, body: Any, error: type[Exception]
) -> None:
    on(Network(card("https://agent.example", is_ours=True), body=body))
    async with Client("https://agent.example", patience=QUICK) as client:
        with pytest.raises(error):
            await client.authorize("t", "s3cret", pause="p")
