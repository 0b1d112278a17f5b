"""What callers are told of the deployment: by the command, by the card, and never typed twice."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver
from google.protobuf.json_format import MessageToDict
from pydantic import BaseModel
from structlog.testing import capture_logs
from typer.testing import CliRunner

from outlast import Agent, Workflow, compose
from outlast.cli import app, frame
from outlast.cli.policy import lines
from outlast.configuration import configuration
from outlast.configured import gateway_config
from outlast.gateway.policy import policy_of
from outlast.wire.extension import EXTENSION_URI
from tests.contract.stores import until
from tests.integration.test_gateway_support import epoch_of, make_agent, of_one_step

PAGE = Path(__file__).parents[2] / "docs/guides/policy.md"


class Nothing(BaseModel):
    pass


def policy(agent: Agent | None = None, **settings: Any) -> dict[str, Any]:
    config = gateway_config(configuration({}, **settings))
    return policy_of(agent or make_agent(), config)


def at(policy: Mapping[str, Any], path: str) -> Any:
    value: Any = policy
    for name in path.split("."):
        value = value[name]
    return value


@pytest.mark.parametrize(
    ("settings", "path", "expected"),
    [
        ({"retention": 90_000}, "retentionSeconds", 90_000),
        ({"resume_window": 60}, "resumeWindowSeconds", 60),
        ({"retention": 90_000}, "resumeWindowSeconds", 90_000),
        ({"tombstone": 90_000}, "tombstoneSeconds", 90_000),
        ({"tombstone": 1}, "tombstoneSeconds", 86_400),
        ({"idempotency": "always"}, "idempotency", "always"),
        ({"idempotency_window": 5}, "idempotencyWindowSeconds", 5),
        ({"retention": 60}, "idempotencyWindowSeconds", 60),
        ({"blocking_cap": 5}, "blockingCapSeconds", 5),
        ({"beat": 2}, "recovery.beatSeconds", 2),
        ({"lease": 30}, "recovery.leaseSeconds", 30),
        ({"lease": 30}, "recovery.takeOverSeconds", 35),
        ({"recovery": 2}, "recovery.takeOverSeconds", 23),
        ({"poll": 2}, "recovery.takeOverSeconds", 22),
        ({"grace": 3}, "recovery.graceSeconds", 3),
        ({"max_body": 9_000_000}, "limits.bodyBytes", 9_000_000),
        ({"max_message": 4_000}, "limits.messageBytes", 4_000),
        ({"max_part": 4_000}, "limits.partBytes", 4_000),
        ({"max_parts": 7}, "limits.parts", 7),
        ({"max_depth": 7}, "limits.depth", 7),
        ({"crash_limit": 7}, "recovery.workerDeathsUntilFailed", 7),
    ],
)
def test_what_is_promised_is_what_is_set(
    settings: dict[str, Any], path: str, expected: Any
) -> None:
    assert at(policy(**settings), path) == expected
    assert at(policy(), path) != expected


def test_limits_of_owners_are_told_where_owners_are_known() -> None:
    limits: dict[str, Any] = {"owner_tasks": 5, "owner_calls": 6, "owner_sends": 0}
    assert {"openTasks", "openCalls", "sendsPerMinute"}.isdisjoint(policy(**limits)["limits"])
    told = policy(**limits, api_keys=True)["limits"]
    assert (told["openTasks"], told["openCalls"]) == (5, 6)
    assert "sendsPerMinute" not in told, "0 lifts it"


def test_lives_and_pauses_are_those_of_the_workflows() -> None:
    short = Workflow("short", 1, checkpoint=Nothing, max_age=timedelta(hours=1))
    slow = Workflow("slow", 3, checkpoint=Nothing, longest_pause=timedelta(days=20))
    both = Agent("a", description="", skills=[], workflows=[of_one_step(short), of_one_step(slow)])
    told = policy(both)
    assert told["workflows"] == [
        {
            "name": "short",
            "version": 1,
            "longestLifeSeconds": 3600,
            "longestPauseSeconds": 3600,  # no pause outlasts its task
        },
        {
            "name": "slow",
            "version": 3,
            "longestLifeSeconds": 30 * 86400,
            "longestPauseSeconds": 20 * 86400,
        },
    ]
    assert (told["longestLifeSeconds"], told["longestPauseSeconds"]) == (30 * 86400, 20 * 86400)


def test_no_window_is_promised_where_repeats_are_not_recognised() -> None:
    told = policy(idempotency="off")
    assert (told["idempotency"], "idempotencyWindowSeconds" in told) == ("off", False)


async def test_the_card_of_a_running_gateway_is_the_policy(sqlite_url: str) -> None:
    settings = configuration({}, database=sqlite_url, port=0, retention=90_000, grace=3)
    agent = make_agent()
    async with compose.open_stores(settings) as stores:
        role = compose.gateway_role(agent, stores, settings, await epoch_of(stores))
        with capture_logs() as logged:
            serving = asyncio.ensure_future(role.run())
            await until(lambda: _named("gateway.listening", logged))
        try:
            (listening,) = [each for each in logged if each["event"] == "gateway.listening"]
            async with httpx.AsyncClient() as http:
                card = await A2ACardResolver(http, listening["url"]).get_agent_card()
        finally:
            role.stop()
            await serving
    (extension,) = card.capabilities.extensions
    assert extension.uri == EXTENSION_URI
    told = policy_of(agent, gateway_config(settings))
    assert MessageToDict(extension.params) == told
    assert told["retentionSeconds"] == 90_000


async def _named(name: str, logged: list[Any]) -> bool:
    return any(each["event"] == name for each in logged)


def test_the_command_prints_it_for_programs_and_for_people(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Logging would go on to the streams of a command that has ended.
    monkeypatch.setattr(frame, "configure_logging", lambda *_, **__: None)
    environment = {"OUTLAST_RETENTION": "90000", "OUTLAST_GRACE": "0.5", "COLUMNS": "200"}
    call = ["policy", "examples.hello.agent:agent"]
    for_programs = CliRunner().invoke(app, [*call, "--json"], env=environment)
    assert for_programs.exit_code == 0, for_programs.output
    told = json.loads(for_programs.stdout)
    assert told["retentionSeconds"] == 90_000
    assert told["workflows"][0]["name"] == "hello"
    for_people = CliRunner().invoke(app, call, env=environment)
    assert for_people.exit_code == 0, for_people.output
    rows = [
        tuple(map(str.strip, line.strip("│").split("│")))
        for line in for_people.stdout.splitlines()
        if line.startswith("│")
    ]
    assert rows == list(lines(told))
    assert ("retention", "25 h") in rows
    assert ("recovery: grace", "0.5 s") in rows
    assert ("limits: body", "8 MiB") in rows
    assert ("limits: parts", "1,000") in rows
    assert ("hello v1: longest pause", "7 d") in rows


def test_the_page_names_all_of_it() -> None:
    named = set(re.findall(r"`(?:\w+\.)?(\w+)`", PAGE.read_text(encoding="utf-8")))
    told = policy(push_notifications=True, api_keys=True)
    names = {*told, *told["recovery"], *told["limits"], *told["promises"]}
    assert names - {"recovery"} <= named
