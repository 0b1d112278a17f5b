"""A batch: ten thousand reminders, each sent once, and one that cannot be.

They go to the counter sink (`python -m examples.probe.sink`) at the URL in `BATCH_SINK`. Kill the
worker in the middle: those that were sent are in the ledger, and the next worker sends the rest.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import httpx
from pydantic import BaseModel, ConfigDict, Field

from outlast import (
    Agent,
    Context,
    Data,
    ItemError,
    Message,
    Next,
    NotDone,
    Skill,
    Workflow,
)

BAD = 42
"""The customer without an address."""


class Job(BaseModel):
    """What a caller sends, in a data part; the gateway refuses anything else."""

    model_config = ConfigDict(extra="forbid")

    customers: int = Field(default=10_000, ge=1, le=100_000)


class Batch(BaseModel):
    """The checkpoint: not the items, which are made from their number, but what became of them."""

    customers: int
    failed: list[int] = []


class Reminder(BaseModel):
    model_config = ConfigDict(frozen=True)

    customer: int
    address: str | None


@dataclass(frozen=True)
class Mailer:
    http: httpx.AsyncClient

    async def send(self, reminder: Reminder, *, idempotency_key: str) -> None:
        if reminder.address is None:
            # Nothing was sent, and the ledger may know that for certain.
            raise NotDone(f"customer {reminder.customer} has no address")
        answer = await self.http.post(
            f"/effects/{reminder.customer}", headers={"Idempotency-Key": idempotency_key}
        )
        answer.raise_for_status()


@asynccontextmanager
async def open_mailer() -> AsyncIterator[Mailer]:
    url = os.environ.get("BATCH_SINK", "http://127.0.0.1:8801")
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        yield Mailer(http)


batch = Workflow("batch", version=1, checkpoint=Batch, input=Job)


@batch.start
async def begin(message: Message) -> Batch:
    return Batch(customers=Job.model_validate(message.data).customers)


@batch.step(timeout=timedelta(hours=2))
async def send(ctx: Context[Batch, Mailer]) -> None:
    reminders = write_reminders(ctx.checkpoint.customers)
    sent = await ctx.map(
        reminders,
        ctx.resources.send,
        key=lambda reminder: f"reminder:{reminder.customer}",
        limit=64,
        effect=True,
        errors="return",
        report="reminders sent",
    )
    ctx.checkpoint.failed = [
        reminder.customer
        for reminder, outcome in zip(reminders, sent, strict=True)
        if isinstance(outcome, ItemError)
    ]


@batch.step
async def conclude(ctx: Context[Batch, Mailer]) -> Next:
    customers, failed = ctx.checkpoint.customers, ctx.checkpoint.failed
    if failed:
        await ctx.artifact("failed.json", Data({"customers": failed}))
    return ctx.complete(f"{customers - len(failed)} of {customers} reminders sent")


def write_reminders(customers: int) -> list[Reminder]:
    """Make the same reminders in every run, so that a key always stands for the same one."""
    return [
        Reminder(
            customer=number, address=None if number == BAD else f"customer-{number}@example.com"
        )
        for number in range(1, customers + 1)
    ]


agent = Agent(
    "batch",
    description="Sends a reminder to each of many customers.",
    skills=[Skill("reminders", "Reminders", "Sends ten thousand reminders, each one once.")],
    workflows=[batch],
    resources=open_mailer,
)
