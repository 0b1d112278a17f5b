"""What a worker claims, and how much of it at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from outlast import AuthorError, Context, Message, Workflow
from outlast.model.ids import TaskId
from outlast.model.task import State
from outlast.model.topics import work_topic
from tests.contract.stores import SCOPE
from tests.worker.house import House

pytest_plugins = ["tests.worker.fixtures"]


async def test_smoke(house: House) -> None:
    class Notes(BaseModel):
        done: list[str] = []

    flow = Workflow("review", 1, checkpoint=Notes)

    @flow.start
    async def begin(message: Message) -> Notes:
        return Notes()

    @flow.step
    async def work(ctx: Context[Notes, None]) -> None:
        await ctx.commit("half")

    hired = await house.hire(flow)
    task_id = await house.send(flow)
    await house.ended(task_id)
    print(await house.said(task_id), await house.outcomes(task_id))
    await hired.stop()
