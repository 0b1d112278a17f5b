"""Tails of a log that jumps, and of one that is gone, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from outlast.gateway.closing import Closing
from outlast.gateway.config import GatewayConfig
from outlast.gateway.tails import Tail, Tails
from outlast.model.commit import EventKind, LoggedEvent
from outlast.model.errors import LogTrimmed
from outlast.model.ids import Fence, Millis, Seq, TaskId, WriteNo
from outlast.model.topics import task_topic
from outlast.store.protocols import LogStore
from outlast.store.wakeups import Bell, Board

TASK = TaskId("t")


class Growing:
    """A log of so many events; or one that has expired."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.is_gone = False

    async def events_since(
        self, task_id: TaskId, seq: Seq, *, limit: int = 256
    ) -> Sequence[LoggedEvent]:
        await asyncio.sleep(0)
        last = 0 if self.is_gone else min(self.length, seq + limit)
        return [_event(number) for number in range(seq + 1, last + 1)]

    async def ends_of(self, task_ids: Sequence[TaskId]) -> Mapping[TaskId, Seq]:
        return {} if self.is_gone else dict.fromkeys(task_ids, Seq(self.length))


class Ringing:
    """Wake-ups that the test sends."""

    def __init__(self) -> None:
        self.board = Board()

    def subscribe(self, topic: str) -> Bell:
        return self.board.subscribe(topic)


def _event(seq: int) -> LoggedEvent:
    return LoggedEvent(
        seq=Seq(seq),
        kind=EventKind.STATUS,
        body={"state": "working"},
        is_message=False,
        fence=Fence(1),
        write_no=WriteNo(1),
        created_at=Millis(0),
    )


def tails_of(log: Growing, ringing: Ringing, **config: Any) -> Tails:
    return Tails(
        cast(LogStore, log), cast(Any, ringing), Closing(), GatewayConfig(poll_s=0.05, **config)
    )


async def seen(tail: Tail, after: int, last: int) -> list[int]:
    came: list[int] = []
    async for shared in tail.after(Seq(after)):
        came.append(shared.event.seq)
        if came[-1] == last:
            break
    return came


async def test_a_reader_that_waits_is_not_left_behind_by_one_that_comes_far_ahead() -> None:
    """One commit writes many events, and somebody has seen them all before the tail has."""
    log, ringing = Growing(1), Ringing()
    tails = tails_of(log, ringing)
    with tails.open(TASK) as tail, tails.open(TASK) as other:
        first = asyncio.create_task(seen(tail, 1, 300))
        while not tail._waiting or tail._reading is not None:
            await asyncio.sleep(0)
        log.length = 300
        second = asyncio.create_task(seen(other, 300, 301))
        await asyncio.sleep(0)
        ringing.board.ring([task_topic(TASK)])
        async with asyncio.timeout(10):
            assert await first == list(range(2, 301))
        log.length = 301
        ringing.board.ring([task_topic(TASK)])
        async with asyncio.timeout(10):
            assert await second == [301]


async def test_a_reader_of_a_log_that_expires_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it waits for more, or is behind and reads for itself."""
    log, ringing = Growing(1000), Ringing()
    tails = tails_of(log, ringing)
    with tails.open(TASK) as slow, tails.open(TASK) as fast:
        behind = slow.after(Seq(1))
        assert (await anext(behind)).event.seq == 2
        assert (await seen(fast, 1, 1000))[-1] == 1000
        log.is_gone = True
        waiting = asyncio.create_task(seen(fast, 1000, 1001))
        async with asyncio.timeout(10):
            with pytest.raises(LogTrimmed):
                await waiting
            with pytest.raises(LogTrimmed):
                async for _ in behind:
                    pass
