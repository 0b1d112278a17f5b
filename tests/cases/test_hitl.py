"""Human in the loop: pauses outlast everything, and one answer counts."""

from __future__ import annotations

import asyncio

import pytest

from outlast.model.ids import Millis, Seq, TaskId
from outlast.testing.fleet import Fleet, until
from tests.cases.conftest import Town
from tests.chaos.caller import Caller, Json, Refusal, history_of, pause_of, state_of
from tests.chaos.fleets import NEVER, ONCE, CounterSink, have_beaten

AT_ONCE = 10
BEAT_S, LEASE_S = 0.1, 0.4
STEP_TIMEOUT = Millis(600_000)


async def test_case_079_parked_task_is_left_alone(fleet: Fleet) -> None:
    """Ten leases and the step's timeout pass, the server dies twice; then comes the answer."""
    fleet.settings |= {"beat": BEAT_S, "lease": LEASE_S}
    server = await fleet.serve()
    async with Caller(server.url) as caller:
        task = await caller.send("ask Go on?")
        assert state_of(task) == "INPUT_REQUIRED"
        async with fleet.stores() as stores:
            parked = await stores.inspect.find(TaskId(task["id"]))
            assert parked is not None
            await stores.admin.move_clock(STEP_TIMEOUT)
            await have_beaten(fleet, int(10 * LEASE_S / BEAT_S))
            assert await stores.inspect.find(TaskId(task["id"])) == parked
    for _ in range(2):
        server.kill()
        server = await fleet.serve()
    async with Caller(server.url) as caller:
        assert await caller.get(task) == task
        assert state_of(await caller.send("yes", task=task)) == "COMPLETED"
    assert parked.lease_owner is None
    async with fleet.stores() as stores:
        runs = await stores.inspect.runs(TaskId(task["id"]))
    assert [(run["attempt"], run["outcome"]) for run in runs] == [(1, "paused"), (1, "completed")]


@pytest.mark.parametrize("rounds", [10, pytest.param(500, marks=pytest.mark.soak)])
async def test_case_080_two_answers_at_once(
    town: Town, one: Caller, other: Caller, rounds: int
) -> None:
    async def race() -> None:
        suffix = town.sink.key()
        task = await one.send(f"ask Well?; effect {{answer}}-{suffix}")
        answers = ("approve", "reject")
        replies = await asyncio.gather(
            *(
                caller.send(answer, task=task)
                for caller, answer in zip((one, other), answers, strict=True)
            ),
            return_exceptions=True,
        )
        won = [isinstance(reply, dict) for reply in replies]
        assert sorted(won) == [False, True], replies
        winner, loser = answers if won[0] else reversed(answers)
        refusal = replies[won.index(False)]
        assert isinstance(refusal, Refusal)
        assert (refusal.status, refusal.reason) == (400, "UNSUPPORTED_OPERATION")

        ended = await other.get(task)
        assert state_of(ended) == "COMPLETED"
        assert history_of(ended)[1:] == ["Well?", winner]
        assert await town.sink.counts(f"{winner}-{suffix}") == ONCE
        assert await town.sink.counts(f"{loser}-{suffix}") == NEVER

    for _ in range(rounds // AT_ONCE):
        await asyncio.gather(*(race() for _ in range(AT_ONCE)))


@pytest.mark.parametrize("rounds", [20, pytest.param(1000, marks=pytest.mark.soak)])
async def test_case_082_answer_to_the_first_frame(
    town: Town, one: Caller, other: Caller, rounds: int
) -> None:
    """The clients answer, through the other gateway, as soon as the question reaches them."""

    async def answer_at_once() -> str | None:
        async with one.stream("ask Well?") as events:
            task = (await anext(events))["task"]
            async for event in events:
                if state_of(event) == "INPUT_REQUIRED":
                    break
            return state_of(await other.send("yes", task=task))

    for _ in range(rounds // AT_ONCE):
        states = await asyncio.gather(*(answer_at_once() for _ in range(AT_ONCE)))
        assert set(states) == {"COMPLETED"}


async def test_case_086_timers_outlast_a_restart(fleet: Fleet, sink: CounterSink) -> None:
    """A timer and a deadline come due while every server is down."""
    key = sink.key()
    server = await fleet.serve()
    async with Caller(server.url) as caller:
        sleeper = await caller.send(f"sleep 1.5; effect {key}", wait=False)
        asker = await caller.send("ask Well? within 1.5")
        await server.logged("run.ended", task_id=sleeper["id"])
    server.kill()

    async with fleet.stores() as stores:

        async def all_is_due() -> bool:
            rows = [await stores.inspect.find(TaskId(task["id"])) for task in (sleeper, asker)]
            dues = [row.ready_at or row.pause_deadline_at for row in rows if row is not None]
            _, now = await stores.admin.next_due()
            return all(due is not None and due < now for due in dues)

        await until(all_is_due)

    server = await fleet.serve()
    async with Caller(server.url) as caller:
        await until(lambda: has_state(caller, sleeper, "COMPLETED"), within=3)
        await until(lambda: has_state(caller, asker, "FAILED"), within=3)
    assert await sink.counts(key) == ONCE
    async with fleet.stores() as stores:
        log = await stores.log.events_since(TaskId(asker["id"]), Seq(0))
        assert [event.body.get("state") for event in log].count("failed") == 1


async def has_state(caller: Caller, task: Json, state: str) -> bool:
    return state_of(await caller.get(task)) == state


async def test_case_008_a_blocking_send_returns_at_an_authorization(
    one: Caller, other: Caller
) -> None:
    """And it is authorized through the other gateway, once, and by no message."""
    task = await one.send("auth Log in; say in")
    assert state_of(task) == "AUTH_REQUIRED"
    assert task["status"]["message"]["parts"] == [{"text": "Log in"}]
    with pytest.raises(Refusal, match="UNSUPPORTED_OPERATION"):
        await other.send("s3cret", task=task)
    replies = await asyncio.gather(
        *(caller.authorize(task, "s3cret", pause=pause_of(task)) for caller in (one, other) * 2)
    )
    assert sorted(reply["alreadyAuthorized"] for reply in replies) == [False, True, True, True]
    await until(lambda: has_state(other, task, "COMPLETED"))
    assert "s3cret" not in str(await other.get(task))
