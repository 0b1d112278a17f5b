"""`memo` and `map`: values kept for the visit."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from outlast import AuthorError, Context, ItemError, NotDone, Workflow
from outlast.model.errors import LeaseLost
from outlast.model.ids import Visit
from outlast.model.ledger import Kept, LedgerKind
from outlast.workflow.suspend import BrokenRule
from tests.unit.fake_session import FakeSession, context_of, fake_session


class Empty(BaseModel):
    pass


flow = Workflow("review", 1, checkpoint=Empty)


@flow.step
async def work(ctx: Context[Empty, None]) -> None: ...


@pytest.fixture
def session() -> FakeSession:
    return fake_session("{}")


@pytest.fixture
def ctx(session: FakeSession) -> Context[Empty, None]:
    return context_of(session, flow)


def again(session: FakeSession) -> Context[Empty, None]:
    session.again()
    return context_of(session, flow)


class Doubler:
    """Counts its calls, fails for what it is told to fail for, and knows how many run at once."""

    def __init__(self, *bad: int) -> None:
        self.bad = set(bad)
        self.calls: list[int] = []
        self.keys: list[str] = []
        self.at_once = 0
        self.most_at_once = 0

    async def __call__(self, number: int) -> int:
        self.calls.append(number)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if number in self.bad:
            raise ValueError(f"bad {number}")
        return 2 * number

    async def keyed(self, number: int, *, idempotency_key: str) -> int:
        self.keys.append(idempotency_key)
        return await self(number)


# --- memo ---------------------------------------------------------------------------------------


async def test_a_memo_is_computed_once_per_visit(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    numbers = itertools.count(1)

    async def draw() -> int:
        return next(numbers)

    assert await ctx.memo("n", draw) == 1
    assert await again(session).memo("n", draw) == 1
    session.lease = replace(session.lease, visit=Visit(3))
    assert await again(session).memo("n", draw) == 2
    (kept,) = session.writes[0].ledger
    assert isinstance(kept, Kept)
    assert (kept.key, kept.kind, kept.result) == ("2:memo:n", LedgerKind.MEMO, "1")
    assert session.writes[0].urgent


async def test_a_quick_plain_function_will_do(ctx: Context[Empty, None]) -> None:
    def pair() -> Any:
        return {"tuple": (1, 2)}

    assert await ctx.memo("a", pair) == {"tuple": [1, 2]}
    assert await ctx.memo("b", Doubler(), 3) == 6


async def test_a_memo_that_fails_keeps_nothing(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    double = Doubler(1)
    with pytest.raises(ValueError, match="bad 1"):
        await ctx.memo("n", double, 1)
    assert session.writes == []
    double.bad.clear()
    assert await ctx.memo("n", double, 1) == 2


async def test_a_value_of_the_wrong_type_is_not_kept(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    async def wrong() -> int:
        return "many"  # type: ignore[return-value]

    with pytest.raises(BrokenRule):
        await ctx.memo("n", wrong)
    assert session.ledger == {}


# --- map ----------------------------------------------------------------------------------------


async def test_a_map_keeps_each_result_under_its_number(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    double = Doubler()
    assert await ctx.map(range(5), double, key="n", limit=2) == [0, 2, 4, 6, 8]
    assert double.most_at_once == 2
    assert sorted(session.ledger) == [f"2:map:n:{index:06d}" for index in range(5)]


async def test_nothing_to_do(session: FakeSession, ctx: Context[Empty, None]) -> None:
    assert await ctx.map([], Doubler(), key="n") == []
    assert session.writes == []


async def test_a_run_that_starts_over_computes_what_is_missing(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    double = Doubler(3)
    with pytest.raises(ExceptionGroup):
        await ctx.map(range(5), double, key="n", limit=1)
    assert double.calls == [0, 1, 2, 3]
    double.bad.clear()
    assert await again(session).map(range(5), double, key="n", limit=1) == [0, 2, 4, 6, 8]
    assert double.calls == [0, 1, 2, 3, 3, 4]


async def test_items_can_have_keys_of_their_own(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    double = Doubler()
    await ctx.map([3, 1, 2], double, key=lambda number: f"item-{number}")
    assert sorted(session.ledger) == [f"2:map:item-{number}" for number in (1, 2, 3)]
    assert await again(session).map([2, 1], double, key=lambda number: f"item-{number}") == [4, 2]
    assert len(double.calls) == 3


async def test_a_failure_lets_those_under_way_finish_and_starts_no_more(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    double = Doubler(0)
    with pytest.raises(ExceptionGroup, match="1 of 10 items failed") as caught:
        await ctx.map(range(10), double, key="n", limit=3)
    (error,) = caught.value.exceptions
    assert str(error) == "bad 0"
    assert error.__notes__ == ["item 0 of map, key 'n:000000'"]
    assert double.calls == [0, 1, 2]
    assert len(session.ledger) == 2


async def test_failures_can_be_returned(ctx: Context[Empty, None]) -> None:
    found = await ctx.map(range(4), Doubler(1, 2), key="n", errors="return")
    assert found == [
        0,
        ItemError(1, "ValueError: bad 1"),
        ItemError(2, "ValueError: bad 2"),
        6,
    ]


async def test_effects_of_a_map_are_effects_of_the_task(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    double = Doubler()
    assert await ctx.map([7, 8], double.keyed, key="send", effect=True) == [14, 16]
    assert sorted(double.keys) == ["ledger-1:send:000000", "ledger-1:send:000001"]
    session.lease = replace(session.lease, visit=Visit(9))
    assert await again(session).map([7, 8], double.keyed, key="send", effect=True) == [14, 16]
    assert len(double.calls) == 2
    assert sorted(session.ledger) == ["effect:send:000000", "effect:send:000001"]


async def test_one_bad_effect_among_good_ones(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    async def send(number: int, *, idempotency_key: str) -> None:
        if number == 1:
            raise NotDone("no address")

    found = await ctx.map(range(3), send, key="send", effect=True, errors="return")
    assert found == [None, ItemError(1, "NotDone: no address"), None]
    assert sorted(session.ledger) == ["effect:send:000000", "effect:send:000002"]


async def test_a_broken_rule_is_no_item_error(ctx: Context[Empty, None]) -> None:
    async def breaks(number: int) -> int:
        raise AuthorError("A rule.", "a fix.")

    with pytest.raises(BrokenRule):
        await ctx.map(range(3), breaks, key="n", errors="return")


async def test_a_run_that_is_stopped_stops_the_map_as_it_is(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    double = Doubler()

    async def loses(number: int) -> int:
        session.stop(LeaseLost("gone"))
        return await double(number)

    with pytest.raises(LeaseLost):
        await ctx.map(range(10), loses, key="n", limit=2)
    assert double.calls == [0, 1]
    assert session.ledger == {}


async def test_a_cancelled_map_leaves_nothing_running(ctx: Context[Empty, None]) -> None:
    started = asyncio.Event()
    left: list[int] = []

    async def waits(number: int) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.append(number)

    task = asyncio.create_task(ctx.map(range(4), waits, key="n", limit=2))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(left) == [0, 1]


async def test_progress_is_told_by_the_latest_number(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    await ctx.map(range(20), Doubler(), key="n", limit=4, report="doubled")
    told = [event.body for write in session.writes for event in write.events]
    counts = [body["progress"]["done"] for body in told]
    assert counts == sorted(set(counts))
    assert counts[-1] == 20
    assert len(counts) < 20
    assert told[-1]["message"]["parts"] == [{"text": "doubled: 20/20"}]
    assert not any(write.urgent for write in session.writes if write.events)


async def test_a_map_that_finds_everything_tells_nothing(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    await ctx.map(range(3), Doubler(), key="n")
    before = len(session.writes)
    await again(session).map(range(3), Doubler(), key="n", report="doubled")
    assert len(session.writes) == before


async def test_verbs_may_be_used_within_an_item(ctx: Context[Empty, None]) -> None:
    async def nested(number: int) -> Any:
        await ctx.report(f"item {number}")
        return await ctx.memo(f"m:{number}", Doubler(), number)

    assert await ctx.map([1, 2], nested, key="n") == [2, 4]
