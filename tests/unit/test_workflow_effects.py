"""`once`: what is written before and after the call, and what a later run makes of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from outlast import Context, NotDone, Workflow
from outlast.model import points
from outlast.model.errors import LeaseLost
from outlast.model.ids import Visit, WriteNo
from outlast.model.ledger import Clear, Intent, LedgerKind, effect_key
from outlast.workflow.suspend import OutcomeUnknown
from tests.unit.fake_session import FENCE, FakeSession, context_of, fake_session


class Empty(BaseModel):
    pass


class Receipt(BaseModel):
    grant: str
    on: date


flow = Workflow("review", 1, checkpoint=Empty)


@flow.step
async def work(ctx: Context[Empty, None]) -> None: ...


@dataclass
class Directory:
    """The outside. `fault` is raised after the call has arrived; `gate` holds it there."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    fault: Exception | None = None
    gate: asyncio.Event | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def revoke(self, grant: str, *, idempotency_key: str) -> Receipt:
        self.calls.append((grant, idempotency_key))
        self.arrived.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return Receipt(grant=grant, on=date(2030, 1, 2))


RECEIPT = Receipt(grant="a", on=date(2030, 1, 2))
KEY = effect_key("revoke:a")


@pytest.fixture
def session() -> FakeSession:
    return fake_session("{}")


@pytest.fixture
def ctx(session: FakeSession) -> Context[Empty, None]:
    return context_of(session, flow)


@pytest.fixture
def directory() -> Directory:
    return Directory()


def again(session: FakeSession) -> Context[Empty, None]:
    session.again()
    return context_of(session, flow)


async def crash(ctx: Context[Empty, None], directory: Directory, **more: Any) -> None:
    """Leave an intent of which nobody knows the outcome."""
    directory.fault = ConnectionError("reset")
    with pytest.raises(ConnectionError):
        await ctx.once("revoke:a", directory.revoke, "a", **more)
    directory.fault = None


async def test_intent_call_and_result_in_this_order(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory
) -> None:
    passed: list[str] = []
    points.listen(
        lambda name: passed.append(f"{name} {len(session.writes)} {len(directory.calls)}")
    )
    try:
        result = await ctx.once("revoke:a", directory.revoke, "a")
    finally:
        points.listen(None)
    assert result == RECEIPT
    assert directory.calls == [("a", "ledger-1:revoke:a")]
    assert passed == ["before:effect 1 0", "after:effect 1 1"]
    (intent,) = session.writes[0].ledger
    assert intent == Intent(
        key=KEY,
        kind=LedgerKind.EFFECT,
        digest=session.ledger[KEY].digest,
        request='["a"]',
    )
    assert session.writes[0].urgent
    assert session.ledger[KEY].result == '{"grant":"a","on":"2030-01-02"}'


async def test_a_later_run_gets_the_result_without_a_call(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory
) -> None:
    await ctx.once("revoke:a", directory.revoke, "a")
    assert await again(session).once("revoke:a", directory.revoke, "a") == RECEIPT
    assert len(directory.calls) == 1
    assert len(session.writes) == 1


async def test_an_effects_key_outlives_its_visit(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory
) -> None:
    await ctx.once("revoke:a", directory.revoke, "a")
    session.lease = replace(session.lease, visit=Visit(9))
    await again(session).once("revoke:a", directory.revoke, "a")
    assert len(directory.calls) == 1


async def test_a_result_that_the_store_knew_already_is_not_asked_for(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory
) -> None:
    session.settled_by_others[KEY] = RECEIPT.model_dump_json()
    assert await ctx.once("revoke:a", directory.revoke, "a") == RECEIPT
    assert directory.calls == []


async def test_the_ledger_decides_which_result_counts(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory
) -> None:
    directory.gate = asyncio.Event()
    call = asyncio.create_task(ctx.once("revoke:a", directory.revoke, "a"))
    await directory.arrived.wait()
    session.finish(KEY, Receipt(grant="a", on=date(2020, 1, 1)).model_dump_json())
    directory.gate.set()
    assert (await call).on == date(2020, 1, 1)


# --- the result ---------------------------------------------------------------------------------


async def test_the_result_is_the_json_round_trip_the_first_time_too(
    ctx: Context[Empty, None],
) -> None:
    async def pair(*, idempotency_key: str) -> Any:
        return (1, RECEIPT)

    assert await ctx.once("k", pair) == [1, {"grant": "a", "on": "2030-01-02"}]


async def test_the_result_can_be_given_a_type(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    async def raw(*, idempotency_key: str) -> dict[str, str]:
        return {"grant": "a", "on": "2030-01-02"}

    assert await ctx.once("k", raw, result=Receipt) == RECEIPT  # type: ignore[arg-type]
    assert await again(session).once("k", raw, result=Receipt) == RECEIPT  # type: ignore[arg-type]


async def test_nothing_is_a_result_too(session: FakeSession, ctx: Context[Empty, None]) -> None:
    calls = 0

    async def ring(*, idempotency_key: str) -> None:
        nonlocal calls
        calls += 1

    await ctx.once("k", ring)
    await again(session).once("k", ring)
    assert calls == 1


async def test_the_key_can_have_another_name_or_none(ctx: Context[Empty, None]) -> None:
    async def named(*, token: str) -> str:
        return token

    async def nameless() -> str:
        return "no key"

    assert await ctx.once("a", named, key_param="token") == "ledger-1:a"
    assert await ctx.once("b", nameless, key_param=None) == "no key"


async def test_sets_and_models_are_arguments_equal_in_every_process(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    async def send(names: set[str], receipt: Receipt, *, idempotency_key: str) -> int:
        return len(names)

    await ctx.once("k", send, {"c", "a", "b"}, RECEIPT)
    assert json.loads(session.ledger["effect:k"].request or "") == [
        ["a", "b", "c"],
        {"grant": "a", "on": "2030-01-02"},
    ]


# --- joining ------------------------------------------------------------------------------------


async def test_interleaving_04_two_sub_steps_of_one_key_are_one_call(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory
) -> None:
    one, other = await asyncio.gather(
        ctx.once("revoke:a", directory.revoke, "a"), ctx.once("revoke:a", directory.revoke, "a")
    )
    assert one == other == RECEIPT
    assert one is not other
    assert await ctx.once("revoke:a", directory.revoke, "a") == RECEIPT
    assert len(directory.calls) == 1
    assert len(session.writes) == 1


async def test_a_failure_reaches_everybody_who_joined_and_nobody_later(
    ctx: Context[Empty, None], directory: Directory
) -> None:
    directory.fault = ConnectionError("reset")
    both = await asyncio.gather(
        ctx.once("revoke:a", directory.revoke, "a"),
        ctx.once("revoke:a", directory.revoke, "a"),
        return_exceptions=True,
    )
    assert [type(one) for one in both] == [ConnectionError, ConnectionError]
    directory.fault = None
    assert await ctx.once("revoke:a", directory.revoke, "a") == RECEIPT
    assert len(directory.calls) == 2


async def test_who_leaves_does_not_take_the_call_along(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory
) -> None:
    directory.gate = asyncio.Event()
    first = asyncio.create_task(ctx.once("revoke:a", directory.revoke, "a"))
    await directory.arrived.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    # Nobody waits, the call is still outside: whoever asks now joins it.
    second = asyncio.create_task(ctx.once("revoke:a", directory.revoke, "a"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(session.writes) == 1
    directory.gate.set()
    assert await second == RECEIPT
    assert len(directory.calls) == 1


async def test_a_result_is_recorded_when_everybody_has_left(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory
) -> None:
    directory.gate = asyncio.Event()
    call = asyncio.create_task(ctx.once("revoke:a", directory.revoke, "a"))
    await directory.arrived.wait()
    session.stop(LeaseLost("gone"))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    directory.gate.set()
    await session.drain()
    assert session.ledger[KEY].result == RECEIPT.model_dump_json()


async def test_who_leaves_before_the_call_prevents_it(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory
) -> None:
    writing = asyncio.Event()

    async def before_write() -> None:
        writing.set()
        await asyncio.Event().wait()

    session.before_write = before_write
    call = asyncio.create_task(ctx.once("revoke:a", directory.revoke, "a"))
    await writing.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    session.before_write = None
    await asyncio.sleep(0)
    await session.drain()
    assert directory.calls == []
    assert await ctx.once("revoke:a", directory.revoke, "a") == RECEIPT


async def test_no_call_is_made_when_the_run_stops_while_its_intent_is_written(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory
) -> None:
    async def before_write() -> None:
        session.stop(LeaseLost("the lease may have ended"))

    session.before_write = before_write
    with pytest.raises(LeaseLost):
        await ctx.once("revoke:a", directory.revoke, "a")
    assert directory.calls == []


# --- an outcome that nobody knows ---------------------------------------------------------------


async def test_an_exception_leaves_the_outcome_unknown_and_the_key_is_used_again(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory
) -> None:
    await crash(ctx, directory)
    assert not session.ledger[KEY].is_done
    assert await again(session).once("revoke:a", directory.revoke, "a") == RECEIPT
    assert directory.calls == [("a", "ledger-1:revoke:a")] * 2
    assert [len(write.ledger) for write in session.writes] == [1, 1]  # the intent is taken over


@pytest.mark.parametrize("declared", [False, True])
async def test_what_certainly_did_not_happen_clears_its_own_intent(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory, declared: bool
) -> None:
    directory.fault = LookupError("no such grant") if declared else NotDone("refused")
    with pytest.raises((LookupError, NotDone)):
        await ctx.once("revoke:a", directory.revoke, "a", not_done=(LookupError,))
    assert session.writes[1].ledger == (Clear(key=KEY, write_no=WriteNo(1)),)
    assert KEY not in session.ledger


async def test_a_timeout_leaves_the_outcome_unknown_even_if_timeouts_are_declared_not_done(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory
) -> None:
    directory.gate = asyncio.Event()
    with pytest.raises(TimeoutError):
        await ctx.once(
            "revoke:a",
            directory.revoke,
            "a",
            timeout=timedelta(milliseconds=5),
            not_done=(TimeoutError,),
        )
    assert not session.ledger[KEY].is_done


async def test_reconcile_finds_what_was_done(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory
) -> None:
    asked: list[str] = []

    async def reconcile(key: str) -> Receipt:
        asked.append(key)
        return RECEIPT

    await crash(ctx, directory, reconcile=reconcile)
    assert asked == []
    found = await again(session).once("revoke:a", directory.revoke, "a", reconcile=reconcile)
    assert found == RECEIPT
    assert asked == ["ledger-1:revoke:a"]
    assert len(directory.calls) == 1
    assert len(session.writes) == 2  # no fenced write, no reconcile either
    assert session.ledger[KEY].is_done


@pytest.mark.parametrize("at_most_once", [False, True])
async def test_reconcile_finds_that_nothing_was_done(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory, at_most_once: bool
) -> None:
    async def reconcile(key: str) -> Receipt:
        raise NotDone

    more: dict[str, Any] = {"reconcile": reconcile, "at_most_once": at_most_once}
    await crash(ctx, directory, **more)
    assert await again(session).once("revoke:a", directory.revoke, "a", **more) == RECEIPT
    assert len(directory.calls) == 2


async def test_no_call_follows_a_reconcile_for_which_nobody_waits(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory
) -> None:
    gate, asked = asyncio.Event(), asyncio.Event()

    async def reconcile(key: str) -> Receipt:
        asked.set()
        await gate.wait()
        raise NotDone

    await crash(ctx, directory, reconcile=reconcile)
    once = again(session).once("revoke:a", directory.revoke, "a", reconcile=reconcile)
    call = asyncio.create_task(once)
    await asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    gate.set()
    await session.drain()
    await asyncio.sleep(0)
    assert len(directory.calls) == 1


async def test_at_most_once_is_held_for_an_operator(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory
) -> None:
    await crash(ctx, directory, at_most_once=True)
    later = again(session)
    with pytest.raises(OutcomeUnknown) as caught:
        await later.once("revoke:a", directory.revoke, "a", at_most_once=True)
    assert (caught.value.key, caught.value.fence, caught.value.write_no) == (KEY, FENCE, 1)
    assert "outlast resolve" in str(caught.value)
    assert session.reason is caught.value
    assert len(directory.calls) == 1
    assert len(session.writes) == 1


async def test_at_most_once_in_the_same_run_too(
    ctx: Context[Empty, None], directory: Directory
) -> None:
    await crash(ctx, directory, at_most_once=True)
    with pytest.raises(OutcomeUnknown):
        await ctx.once("revoke:a", directory.revoke, "a", at_most_once=True)


async def test_a_resolved_effect_goes_on(
    session: FakeSession, ctx: Context[Empty, None], directory: Directory
) -> None:
    await crash(ctx, directory, at_most_once=True)
    session.finish(KEY, RECEIPT.model_dump_json())
    found = await again(session).once("revoke:a", directory.revoke, "a", at_most_once=True)
    assert found == RECEIPT
    assert len(directory.calls) == 1


async def test_hooks_may_use_effects(directory: Directory) -> None:
    session = fake_session("{}", in_hook=True)
    assert await context_of(session, flow).once("revoke:a", directory.revoke, "a") == RECEIPT
