"""The extended Agent Card: more skills, for callers who have authenticated."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from outlast import Agent, Skill, Workflow
from tests.cases.doors import BINDINGS, OPERATIONS, guarded
from tests.integration.test_gateway_support import Nothing, of_one_step, running_gateway

each_binding = pytest.mark.parametrize("binding", BINDINGS)
(GET,) = (each for each in OPERATIONS if each.method == "GetExtendedAgentCard")


def an_agent() -> Agent:
    only = of_one_step(Workflow("only", 1, checkpoint=Nothing))
    return Agent(
        "tester",
        description="An agent for tests.",
        skills=[Skill("chat", "Chat", "Talks.")],
        extended_skills=[Skill("refund", "Refund", "Gives money back.")],
        workflows=[only],
    )


def skills(card: Any) -> list[str]:
    return [skill["id"] for skill in card["skills"]]


@each_binding
async def test_a_known_caller_sees_more_than_the_public_card(sqlite_url: str, binding: str) -> None:
    async with guarded(sqlite_url, {"ann": "acme"}, agent=an_agent()) as door:
        public = MessageToDict(door.gateway.card)
        assert public["capabilities"]["extendedAgentCard"]
        assert skills(public) == ["chat"]
        answer = await door.ask("ann", binding, GET, "")
        assert skills(answer.body.get("result", answer.body)) == ["chat", "refund"]
        served = await door.gateway.http.get(f"{door.gateway.url}/.well-known/agent-card.json")
        assert skills(served.json()) == ["chat"]


@each_binding
async def test_an_unknown_caller_sees_nothing_of_it(sqlite_url: str, binding: str) -> None:
    async with guarded(sqlite_url, {"ann": "acme"}, agent=an_agent()) as door:
        answer = await door.ask("nobody", binding, GET, "")
        assert answer.reason == "UNAUTHENTICATED"
        assert "refund" not in str(answer)


@each_binding
async def test_an_agent_without_one_says_so(sqlite_url: str, binding: str) -> None:
    async with guarded(sqlite_url, {"ann": "acme"}) as door:
        assert not door.gateway.card.capabilities.extended_agent_card
        answer = await door.ask("ann", binding, GET, "")
        assert answer.reason == "UNSUPPORTED_OPERATION"


async def test_where_nobody_authenticates_there_is_none(sqlite_url: str) -> None:
    async with running_gateway(sqlite_url, agent=an_agent()) as gateway:
        assert not gateway.card.capabilities.extended_agent_card
        assert (await gateway.rpc("GetExtendedAgentCard", {}))["error"]["code"] == -32004
        refused = await gateway.get("/extendedAgentCard")
        assert refused.status_code == 400
        assert "refund" not in refused.text


async def test_it_is_the_whole_card_and_for_no_shared_cache(sqlite_url: str) -> None:
    async with guarded(sqlite_url, {"ann": "acme"}, agent=an_agent()) as door:
        got = await door.gateway.http.get(
            f"{door.gateway.url}/extendedAgentCard", headers=door.headers("ann")
        )
        public = MessageToDict(door.gateway.card)
        assert {**got.json(), "skills": None} == {**public, "skills": None}
        assert got.headers["Cache-Control"] == "private, max-age=300"
        assert "X-API-Key" in got.headers["Vary"]
