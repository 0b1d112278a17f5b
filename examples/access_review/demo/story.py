"""What is done to the review, in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from a2a.types import a2a_pb2 as pb
from rich.markup import escape

from examples.access_review.account import FETCHED, Witness
from examples.access_review.demo.caller import Caller
from examples.access_review.demo.children import Child
from examples.access_review.demo.directory import DirectoryDesk, network_failure, slow_fetches
from examples.access_review.demo.stage import Stage
from outlast.compose import Stores
from outlast.model.ids import Millis, TaskId, WorkerId

STRUCK = 23
"""The worker is killed within the fetch of this system."""

CUT_AFTER = range(26, 34)
MISSED = 3
"""The caller is away for at least so many events."""

REVOKED_BEFORE_FAILURE = 9
LATE = timedelta(days=1)

STALL_S = 3.0
KILLED_WITHIN_S = 1.5
"""Half of the stall, so that a slow machine still kills within the fetch."""

EACH_S = 0.04


@dataclass(frozen=True, kw_only=True)
class Play:
    """The parts. workers: by pid."""

    stage: Stage
    dice: random.Random
    stores: Stores
    desk: DirectoryDesk
    caller: Caller
    workers: Mapping[int, Child]
    systems: Sequence[str]
    pids: dict[WorkerId, int] = field(default_factory=dict)

    async def perform(self) -> Witness:
        """The whole review; returns when it has ended and been read by its caller."""
        await self._send()
        killed, killed_at = await self._kill()
        await self._cut()
        approved = await self._answer_late()
        got = await self._finish()
        return Witness(
            systems=self.systems,
            struck=self.systems[STRUCK - 1],
            killed=killed,
            killed_at=killed_at,
            pids=self.pids,
            approved=approved,
            seen=self.caller.seen.sightings,
            held=self.caller.seen.task,
            got=got,
        )

    async def _send(self) -> None:
        await self.desk.ask_for(slow_fetches(before=STRUCK - 1, stall_s=STALL_S, each_s=EACH_S))
        self.caller.send("Review who may do what, for this quarter.")
        await self.caller.until(lambda seen: seen.generation > 0)
        self.stage.say(f"The review is sent: task [bold]{self._task_id}[/].")
        self.stage.wait_for("a worker fetches what the systems grant, with a commit after each")

    async def _kill(self) -> tuple[WorkerId, Millis]:
        """kill -9, at a random moment of one fetch."""
        await self._fetched(STRUCK - 1)
        await self.desk.until_asked_for(self.systems[STRUCK - 1])
        moment = self.dice.uniform(0, KILLED_WITHIN_S)
        await asyncio.sleep(moment)
        holder, victim = await self._holder()
        killed_at = (await self.stores.admin.check()).now
        victim.kill()
        self.stage.say(
            f"[bold red]kill -9 {victim.pid}[/]: {victim.name}, {moment * 1000:.0f} ms into the"
            f" fetch of system {STRUCK}, {self.systems[STRUCK - 1]}."
        )
        self.stage.wait_for("nobody runs the review; the other worker watches a beat that stopped")
        await self._fetched(STRUCK)
        _, successor = await self._holder()
        self.stage.say(f"{successor.name} goes on, from the last commit.")
        return holder, killed_at

    async def _cut(self) -> None:
        """The caller loses its connection, misses some events, and comes back."""
        self.stage.wait_for("a worker fetches what the systems grant, with a commit after each")
        await self._fetched(self.dice.choice(CUT_AFTER))
        error = await self.caller.cut()
        missed_from = self.caller.seen.generation
        self.stage.say(
            f"[bold red]The caller's stream is cut[/] after event {missed_from}; its client says:"
            f" [dim]{escape(error)}[/]"
        )
        await _until(lambda: self._has_reached(missed_from + MISSED))
        self.caller.subscribe()
        await self.caller.until(lambda seen: seen.generation > missed_from)
        self.stage.say(f"The caller is back, at event {self.caller.seen.generation}.")

    async def _answer_late(self) -> list[str]:
        """The owners say yes to everything, a day later."""
        await self.caller.until(lambda seen: seen.is_paused)
        question = self.caller.seen.question()
        self.stage.say(f"The review asks: [bold]{question.text}[/] No worker waits with it.")
        await self.stores.admin.move_clock(Millis(LATE // timedelta(milliseconds=1)))
        await self.desk.ask_for(network_failure(after=REVOKED_BEFORE_FAILURE, each_s=EACH_S))
        approved = [finding["grant"] for finding in question.data["findings"]]
        await self.caller.answer({"approved": approved}, pause=question.pause)
        self.stage.say(
            "The store's clock moves a day; the owners agree. The network will fail after"
            f" {REVOKED_BEFORE_FAILURE} revocations."
        )
        return approved

    async def _finish(self) -> pb.Task:
        self.stage.wait_for("the step that revokes fails, is tried again, and goes on")
        await self.caller.until(lambda seen: seen.has_ended)
        self.stage.say(f"The review has ended: [bold]{self.caller.seen.said[-1]}[/].")
        return await self.caller.get()

    # --- looking ------------------------------------------------------------------------------

    @property
    def _task_id(self) -> TaskId:
        return TaskId(self.caller.seen.task.id)

    async def _fetched(self, number: int) -> None:
        """Wait until the caller knows that so many systems were fetched."""
        text = f"{FETCHED}{self.systems[number - 1]}"
        await self.caller.until(lambda seen: text in seen.said)

    async def _holder(self) -> tuple[WorkerId, Child]:
        """The worker that holds the task. Its row says which process it is."""

        async def holder() -> str | None:
            task = await self.stores.inspect.find(self._task_id)
            return None if task is None else task.lease_owner

        found = WorkerId(await _until(holder))
        for row in await self.stores.inspect.workers():
            self.pids[row["worker_id"]] = int(row["host"].rpartition("/")[2])
        return found, self.workers[self.pids[found]]

    async def _has_reached(self, generation: int) -> bool:
        task = await self.stores.inspect.find(self._task_id)
        return task is not None and task.generation >= generation


async def _until(condition: Callable[[], Awaitable[Any]]) -> Any:
    """The first result that is true. The whole play has a deadline, so this has none."""
    while not (found := await condition()):
        await asyncio.sleep(0.01)
    return found
