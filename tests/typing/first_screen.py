"""What the author's API looks like in one screen, as it is written: checked, not run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_type

from pydantic import BaseModel

from outlast import Agent, Context, Message, Next, Retry, Skill, Text, Workflow


class Grant(BaseModel):
    system: str
    user: str


class Approval(BaseModel):
    approved: list[str]


class Directory:
    async def grants(self, system: str) -> list[Grant]:
        return [Grant(system=system, user="ann")]

    async def revoke(self, grant: str, *, idempotency_key: str) -> bool:
        return bool(grant and idempotency_key)


@dataclass
class Clients:
    directory: Directory


@asynccontextmanager
async def open_clients() -> AsyncIterator[Clients]:
    yield Clients(Directory())


def render(review: Review) -> str:
    return ", ".join(review.approved)


# --- the screen -----------------------------------------------------------------------------------


class Review(BaseModel):
    systems: list[str]
    grants: dict[str, list[Grant]] = {}
    approved: list[str] = []

    def remaining(self) -> list[str]:
        return [system for system in self.systems if system not in self.grants]


review = Workflow("access-review", version=1, checkpoint=Review)


@review.start
async def begin(message: Message) -> Review:
    return Review(systems=message.text.split())


@review.step
async def fetch_grants(ctx: Context[Review, Clients]) -> None:
    for system in ctx.checkpoint.remaining():
        ctx.checkpoint.grants[system] = await ctx.resources.directory.grants(system)
        await ctx.commit(f"fetched {system}")


@review.step
async def ask_approval(ctx: Context[Review, Clients]) -> None:
    decision = await ctx.ask("Revoke these 14 grants?", answer=Approval, deadline=timedelta(days=7))
    ctx.checkpoint.approved = decision.approved
    assert_type(decision, Approval)


@review.step(retry=Retry(attempts=5), timeout=timedelta(minutes=10))
async def apply_revocations(ctx: Context[Review, Clients]) -> None:
    for grant in ctx.checkpoint.approved:
        await ctx.once(f"revoke:{grant}", ctx.resources.directory.revoke, grant)


@review.step
async def write_report(ctx: Context[Review, Clients]) -> Next:
    await ctx.artifact("report.md", Text(render(ctx.checkpoint)))
    return ctx.complete("14 grants revoked")


agent = Agent(
    "compliance",
    description="Reviews who may do what.",
    skills=[Skill("review", "Access review", "Reviews grants.")],
    workflows=[review],
    resources=open_clients,
)
