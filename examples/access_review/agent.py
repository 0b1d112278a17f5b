"""A quarterly access review: look through every system, ask, revoke, report.

Needs the directory, at the URL in `DIRECTORY_URL`. A crash at any point costs at most one system's
fetch, and no grant is revoked twice.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from examples.access_review.analysis import Finding, Policy, find, keep_relevant
from examples.access_review.client import Directory
from examples.access_review.records import Grant
from examples.access_review.report import render_csv, render_markdown
from outlast import (
    Agent,
    Context,
    File,
    Message,
    Next,
    Rejected,
    Retry,
    Skill,
    Text,
    Workflow,
)


class Request(BaseModel):
    """What a caller may ask for, in a data part. The default is all systems."""

    model_config = ConfigDict(extra="forbid")

    systems: list[str] | None = None


class Approval(BaseModel):
    """The owners' answer: the ids of the grants that may be revoked. An empty list is a no."""

    approved: list[str]


class Review(BaseModel):
    """The checkpoint. Each part stays only until no later step needs it.

    owners: the account that answers for a system, for each one under review.
    grants: what a rule can say anything about, by system; a small part of what was fetched.
    """

    request: Request
    policy: Policy | None = None
    owners: dict[str, str] = {}
    grants: dict[str, list[Grant]] = {}
    findings: list[Finding] = []
    approved: list[str] = []
    revoked: dict[str, datetime] = {}

    @property
    def rules(self) -> Policy:
        assert self.policy is not None, "the plan comes first"
        return self.policy

    def remaining(self) -> list[str]:
        return [system for system in self.owners if system not in self.grants]


@dataclass(frozen=True)
class Clients:
    directory: Directory


@asynccontextmanager
async def open_clients() -> AsyncIterator[Clients]:
    url = os.environ.get("DIRECTORY_URL", "http://127.0.0.1:8800")
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        yield Clients(Directory(http))


review = Workflow("access-review", version=1, checkpoint=Review)

PATIENT = Retry(attempts=8, first=timedelta(seconds=1))
"""The directory may be away for two minutes. Attempts are counted since the last commit."""


@review.start
async def begin(message: Message) -> Review:
    wanted = {} if message.data is None else message.data
    try:
        return Review(request=Request.model_validate(wanted))
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise Rejected(f"the request does not fit: {'; '.join(faults)}") from error


@review.step(retry=PATIENT)
async def plan(ctx: Context[Review, Clients]) -> Next | None:
    register = await ctx.resources.directory.systems()
    owners = {system.name: system.owner for system in register.systems}
    wanted = ctx.checkpoint.request.systems
    if unknown := sorted(set(wanted or ()) - owners.keys()):
        return ctx.reject(f"there is no system {', '.join(unknown)}")
    ctx.checkpoint.owners = {
        name: owner for name, owner in owners.items() if wanted is None or name in wanted
    }
    ctx.checkpoint.policy = Policy(
        as_of=register.as_of,
        leavers=await ctx.resources.directory.leavers(register.as_of),
        toxic=tuple(pair for system in register.systems for pair in system.toxic),
    )
    return None


@review.step(retry=PATIENT)
async def fetch_grants(ctx: Context[Review, Clients]) -> None:
    for system in ctx.checkpoint.remaining():
        grants = await ctx.resources.directory.grants(system)
        ctx.checkpoint.grants[system] = keep_relevant(grants, ctx.checkpoint.rules)
        await ctx.commit(f"fetched {system}")  # from here on a crash costs one system


@review.step
async def analyse(ctx: Context[Review, Clients]) -> None:
    everything = [grant for grants in ctx.checkpoint.grants.values() for grant in grants]
    ctx.checkpoint.findings = find(everything, ctx.checkpoint.rules)
    ctx.checkpoint.grants = {}  # the findings hold all that is needed from here on


@review.step
async def ask_approval(ctx: Context[Review, Clients]) -> None:
    proposed = ctx.checkpoint.findings
    if not proposed:
        return
    decision = await ctx.ask(
        f"Revoke these {count_grants(len(proposed))}?",
        answer=Approval,
        data=describe(proposed, ctx.checkpoint.owners),
        deadline=timedelta(days=7),
    )
    # What was not proposed is not revoked, whatever the answer names.
    named = set(decision.approved)
    ctx.checkpoint.approved = [item.grant.id for item in proposed if item.grant.id in named]


# Held, not failed: what the owners approved must not be lost because the directory was away.
@review.step(retry=replace(PATIENT, exhausted="hold"), timeout=timedelta(minutes=10))
async def apply_revocations(ctx: Context[Review, Clients]) -> None:
    approved = ctx.checkpoint.approved
    for done, grant in enumerate(approved, start=1):
        revocation = await ctx.once(
            f"revoke:{grant}",
            ctx.resources.directory.revoke,
            grant,
            # It never reached the directory, so it certainly did not happen.
            not_done=(httpx.ConnectError,),
        )
        ctx.checkpoint.revoked[grant] = revocation.revoked_at
        await ctx.report(f"revoked {grant}", done=done, total=len(approved))


@review.step
async def write_report(ctx: Context[Review, Clients]) -> Next:
    done = ctx.checkpoint
    markdown = render_markdown(
        as_of=done.rules.as_of,
        systems=len(done.owners),
        findings=done.findings,
        revoked=done.revoked,
    )
    table = render_csv(done.findings, done.revoked)
    await ctx.artifact("report.md", Text(markdown, media_type="text/markdown"))
    await ctx.artifact(
        "revocations.csv",
        File(raw=table.encode(), name="revocations.csv", media_type="text/csv"),
    )
    return ctx.complete(f"{count_grants(len(done.revoked))} revoked")


def describe(findings: Sequence[Finding], owners: dict[str, str]) -> dict[str, Any]:
    """What an owner needs to decide, as the question's data part."""
    return {
        "findings": [
            {
                "grant": finding.grant.id,
                "user": finding.grant.user,
                "role": finding.grant.qualified_role,
                "owner": owners[finding.grant.system],
                "reasons": list(finding.reasons),
                "explanation": finding.explanation,
            }
            for finding in findings
        ]
    }


def count_grants(number: int) -> str:
    return f"{number} grant" if number == 1 else f"{number} grants"


agent = Agent(
    "compliance",
    description="Reviews who may do what, and revokes what the owners agree to.",
    skills=[
        Skill(
            "access-review",
            "Access review",
            "Looks for grants of leavers, unused grants and toxic combinations; asks; revokes.",
            tags=("compliance", "access"),
        )
    ],
    workflows=[review],
    resources=open_clients,
    output_modes=["text/plain", "application/json", "text/markdown", "text/csv"],
)
