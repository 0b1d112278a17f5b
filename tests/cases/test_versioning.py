"""Versioning: code that changes under a running task."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outlast.model.ids import TaskId
from outlast.testing.fleet import Fleet
from tests.cases.deploys import AGENT, deploy
from tests.chaos.caller import Caller, state_of
from tests.chaos.fleets import NEVER, ONCE, CounterSink

FIRST = ("prepare", "ask", "apply")
CHANGED = {
    "a step before the pause": ("prepare", "check", "ask", "apply"),
    "a renamed step": ("prepare", "ask", "carry_out"),
    "a step after the pause": ("prepare", "ask", "apply", "tidy"),
}


@pytest.mark.parametrize("change", CHANGED)
async def test_case_076_code_changed_under_a_running_task(
    fleet: Fleet, sink: CounterSink, tmp_path: Path, change: str
) -> None:
    """The policy: a list that changed under its old number is refused while a task is in flight
    on it, by name; registered as the next version it stands beside the old one, on which the task
    goes on. Nothing that was done is done again."""
    key = sink.key()
    fleet.agent, fleet.cwd = AGENT, tmp_path / "build"
    deploy(fleet.cwd, v1=FIRST)
    gateway, worker = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with Caller(gateway.url) as caller:
        task = await caller.send(key)
    assert state_of(task) == "INPUT_REQUIRED"
    worker.kill()
    gateway.kill()

    deploy(fleet.cwd, v1=CHANGED[change])
    refused = fleet.start_role("worker")
    assert await refused.ended() == 1
    told = " ".join(refused.text().split())
    assert f"from start, {', '.join(FIRST)} to start, {', '.join(CHANGED[change])}" in told
    assert "register the new list as version 2" in told

    deploy(fleet.cwd, v1=FIRST, v2=CHANGED[change])
    gateway, worker = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with Caller(gateway.url) as caller:
        assert state_of(await caller.send("yes", task=task)) == "COMPLETED"
        newer = await caller.send(sink.key())
        assert state_of(await caller.send("yes", task=newer)) == "COMPLETED"
    for step in {*FIRST, *CHANGED[change]} - {"ask"}:
        assert await sink.counts(f"{step}-{key}") == (ONCE if step in FIRST else NEVER)
    async with fleet.stores() as stores:
        rows = [await stores.inspect.find(TaskId(t["id"])) for t in (task, newer)]
    assert [row.version for row in rows if row is not None] == [1, 2]
