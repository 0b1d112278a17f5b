"""Author's code that eats cancellation, or wants to end the process: it costs its own task."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from outlast import Next, Retry
from outlast.model.task import State
from outlast.worker import run as runs
from tests.worker.flows import Ctx, Gate, Outside, flow, single
from tests.worker.house import House, text_of

pytest_plugins = ["tests.worker.fixtures"]


class Stubborn:
    """A step's body that goes on for ever, whoever cancels it, until the test lets it go."""

    def __init__(self) -> None:
        self.reached = Gate()
        self.over = False

    async def __call__(self) -> None:
        while not self.over:
            try:
                await self.reached()
            except asyncio.CancelledError:
                continue


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_PATIENCE_S", 0.1)


async def test_a_step_that_eats_its_timeout_is_held_and_gives_up_its_slot(house: House) -> None:
    body = Stubborn()
    workflow = flow()

    @workflow.step(timeout=timedelta(seconds=0.2))
    async def work(ctx: Ctx) -> None:
        await body()

    task_id = await house.send(workflow)
    healthy = single("healthy")
    hired = await house.hire(workflow, healthy)
    try:
        assert "went on after its timeout" in await house.held(task_id)
        await house.logs("step.ignores_stop", task_id=task_id)
        assert "goes on although it was stopped" in hired.worker.problems()[0]
        await house.ended(await house.send(healthy))
    finally:
        body.over = True
        body.reached.open()


async def test_a_canceled_step_that_goes_on_gives_up_its_slot(house: House) -> None:
    body = Stubborn()
    workflow = flow()

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await body()

    task_id = await house.send(workflow)
    hired = await house.hire(workflow)
    await body.reached.reached()
    try:
        await house.cancel(task_id)
        await house.ended(task_id, State.CANCELED)
        await house.logs("step.ignores_stop", task_id=task_id)
        async with asyncio.timeout(5):
            while hired.worker.running:
                await asyncio.sleep(0.01)
    finally:
        body.over = True
        body.reached.open()


@pytest.mark.parametrize("exit_", [SystemExit(3), KeyboardInterrupt()])
async def test_an_exit_in_a_step_is_an_error_of_the_step(
    house: House, exit_: BaseException
) -> None:
    workflow = flow(retry=Retry(attempts=1))

    @workflow.step
    async def work(ctx: Ctx) -> Next:
        raise exit_

    task_id = await house.send(workflow)
    await house.hire(workflow)
    task = await house.ended(task_id, State.FAILED)
    assert "reference" in (text_of(task) or "")
    error = json.loads((await house.runs(task_id))[0]["error"])
    assert error["type"] == "ExitInCode"


async def test_an_exit_in_an_effect_is_an_error_of_the_step(house: House) -> None:
    outside = Outside()
    workflow = flow(retry=Retry(attempts=1))

    async def leave(name: str, *, idempotency_key: str) -> str:
        await outside.send(name, idempotency_key=idempotency_key)
        raise SystemExit

    @workflow.step
    async def work(ctx: Ctx) -> None:
        await ctx.once("mail", leave, "mail")

    task_id = await house.send(workflow)
    await house.hire(workflow)
    await house.ended(task_id, State.FAILED)
    assert outside.calls == ["mail"]
