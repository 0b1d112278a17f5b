"""An access review that must get through, whoever dies.

One small review (five systems, five findings); the answer to its question comes from the test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from examples.access_review.agent import agent
from outlast import Agent
from outlast.compose import Stores
from outlast.model.ids import TaskId
from outlast.testing.fleet import Children
from tests.chaos.caller import PAUSED, TERMINAL, Caller, Json, history_of, texts_of

SYSTEMS = ("badges", "crm", "secrets", "source", "treasury")


async def start_review(children: Children) -> Review:
    """A review, with a directory of its own."""
    service = await children.service(
        "directory", "examples.access_review.directory:main", "--port", "0"
    )
    return Review(service.url)


@dataclass(frozen=True)
class Review:
    """The play, and its directory as a test sees it."""

    url: str
    place: str = "examples.access_review.agent:agent"

    @property
    def agent(self) -> Agent:
        return agent

    @property
    def environment(self) -> Mapping[str, str]:
        return {"DIRECTORY_URL": self.url}

    async def reset(self) -> None:
        async with httpx.AsyncClient(base_url=self.url) as http:
            (await http.post("/reset")).raise_for_status()

    async def begin(self, caller: Caller) -> Reviewer:
        task = await caller.send("Review", data={"systems": list(SYSTEMS)}, wait=False)
        return Reviewer(self, caller, task)

    async def applied(self, stores: Stores) -> Mapping[str, int]:
        applied: Mapping[str, int] = (await self.counters())["applied_by_key"]
        return applied

    async def counters(self) -> Mapping[str, Any]:
        async with httpx.AsyncClient(base_url=self.url) as http:
            counters: Mapping[str, Any] = (await http.get("/counters")).json()
            return counters


@dataclass
class Reviewer:
    """Answers the review's question."""

    review: Review
    caller: Caller
    task: Json
    approved: list[str] = field(default_factory=list)

    @property
    def task_id(self) -> TaskId:
        return TaskId(self.task["id"])

    async def look(self) -> bool:
        """Whether the review has ended; an open question is answered first."""
        self.task = await self.caller.get(self.task)
        state = self.task["status"]["state"]
        if state == PAUSED and not self.approved:
            self.approved = self._proposed()
            answer = {"approved": self.approved}
            await self.caller.send("Yes", task=self.task, wait=False, data=answer)
        return state in TERMINAL

    def _proposed(self) -> list[str]:
        question = self.task["status"]["message"]["parts"][1]["data"]
        return [finding["grant"] for finding in question["findings"]]

    async def complaints(self) -> list[str]:
        return list(_not_as_it_should(self, await self.review.counters()))


def _not_as_it_should(clerk: Reviewer, counters: Mapping[str, Any]) -> Iterator[str]:
    """What the caller and the directory saw, beside the laws that hold for every task."""
    task, approved = clerk.task, clerk.approved
    if task["status"]["state"] != "TASK_STATE_COMPLETED":
        yield f"the review did not complete: {task['status']}"
    if Counter(counters["applied"]) != Counter(approved):
        yield f"approved {approved}, applied {counters['applied']}"
    fetches = counters["fetches"]
    if set(fetches) != set(SYSTEMS) or sum(fetches.values()) > len(SYSTEMS) + 1:
        yield f"more than one fetch was repeated, or one was lost: {fetches}"
    if set(texts_of(task)) != {"report.md", "revocations.csv"}:
        yield f"the artifacts are {sorted(texts_of(task))}"
    if len(history_of(task)) != 3:
        yield f"a question, an answer or the request is lost or doubled: {history_of(task)}"
