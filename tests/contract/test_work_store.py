"""What a worker does, but for its one verb of writing: that is in test_commit.py."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from outlast.model.commit import Backoff, Release, Wait
from outlast.model.errors import AuthorError
from outlast.model.ids import LedgerId, Millis, WorkerId, WriteNo
from outlast.model.ledger import Clear, Kept, LedgerKind, Result
from outlast.model.pause import DueBy
from outlast.model.task import State
from outlast.store.protocols import Standing, VersionOf
from tests.contract.stores import (
    DAY,
    HOUR,
    SCOPE,
    Store,
    intent,
    moved,
    new_worker,
    said,
    scope_with,
    statements,
)


def version_of(*steps: str, number: int = 1, on_cancel: bool = False) -> VersionOf:
    return VersionOf(
        workflow="review",
        version=number,
        steps=steps,
        fingerprint="/".join(steps),
        on_cancel=on_cancel,
    )


class TestRegister:
    async def test_puts_the_worker_among_the_living(self, store: Store) -> None:
        """Put the worker among the living, with its first beat, and its versions among the
        known."""
        versions = [version_of("first"), version_of("first", "second", number=2)]
        await store.work.register(new_worker("w1", versions=versions, presence="here"))
        (row,) = await store.inspect.workers()
        assert (row["worker_id"], row["agent"], row["host"]) == ("w1", "agent", "host")
        assert (row["beat"], row["beat_ms"], row["lease_ms"]) == (1, 1_000, 15_000)
        assert (row["presence"], row["versions"]) == ("here", '[["review",1],["review",2]]')
        known = await store.sql("select version, steps, fingerprint from versions order by 1")
        assert [tuple(row.values()) for row in known] == [
            (1, '["first"]', "first"),
            (2, '["first","second"]', "first/second"),
        ]

    async def test_repeated_after_its_reply_was_lost_changes_nothing(self, store: Store) -> None:
        """Put the worker among the living, with its first beat, and its versions among the
        known."""
        worker = new_worker("w1", versions=[version_of("first")])
        await store.work.register(worker)
        await store.beats.beat(WorkerId("w1"), presence=None)
        async with store.unchanged(but=["versions"]):
            await store.work.register(worker)

    async def test_refuses_a_list_that_changed_under_tasks_in_flight(self, store: Store) -> None:
        """A version whose steps differ from what the store knows under its number is refused with
        an AuthorError that names the version while tasks are in flight on it, and replaces the
        known one when none are."""
        await store.worker(steps=["first", "second"])
        await store.new_task()
        changed = new_worker("w2", versions=[version_of("first", "renamed")])
        async with store.unchanged():
            with pytest.raises(AuthorError) as caught:
                await store.work.register(changed)
        assert "'review' version 1" in caught.value.rule
        assert "first, second to first, renamed" in caught.value.rule
        assert "version 2" in caught.value.fix

    @pytest.mark.parametrize("condition", ["paused", "waiting", "held", "leased"])
    async def test_case_076_a_task_at_rest_is_in_flight_too(
        self, store: Store, condition: str
    ) -> None:
        """A version whose steps differ from what the store knows under its number is refused with
        an AuthorError that names the version while tasks are in flight on it, and replaces the
        known one when none are."""
        await store.task_that_is(condition, workflow="review")
        with pytest.raises(AuthorError):
            await store.work.register(new_worker("w2", versions=[version_of("renamed")]))

    async def test_replaces_a_list_when_no_task_is_in_flight(self, store: Store) -> None:
        """A version whose steps differ from what the store knows under its number is refused with
        an AuthorError that names the version while tasks are in flight on it, and replaces the
        known one when none are."""
        await (await store.claimed()).finish()
        await store.new_task(version=2)
        await store.new_task(workflow="other")
        await store.new_task(scope=scope_with(agent="another"))
        await store.work.register(new_worker("w2", versions=[version_of("renamed")]))
        known = await store.sql("select steps from versions where version = 1")
        assert known == [{"steps": '["renamed"]'}]

    async def test_the_same_list_may_come_with_other_hooks(self, store: Store) -> None:
        """A version whose steps differ from what the store knows under its number is refused with
        an AuthorError that names the version while tasks are in flight on it, and replaces the
        known one when none are."""
        run = await store.claimed()
        await run.commit(move=moved())
        hooked = version_of("first", "second", on_cancel=True)
        await store.work.register(new_worker("w2", versions=[hooked]))
        task = await store.tasks.cancel(SCOPE, run.task_id)
        assert (task.state, task.cancel_requested_at is not None) == (State.WORKING, True)


class TestClaim:
    async def test_leases_up_to_limit(self, store: Store) -> None:
        """Lease up to `limit` ready tasks of one version to the worker, in turn between tenants,
        then by priority (lower first), then by age."""
        await store.worker()
        for _ in range(5):
            await store.new_task()
        first = await store.claim(limit=2)
        second = await store.claim(limit=100)
        assert (len(first), len(second), await store.claim()) == (2, 3, [])
        assert len({lease.task_id for lease in [*first, *second]}) == 5

    async def test_leases_one_version_of_one_workflow_of_one_agent(self, store: Store) -> None:
        """Lease up to `limit` ready tasks of one version to the worker, in turn between tenants,
        then by priority (lower first), then by age."""
        await store.worker()
        wanted = await store.new_task()
        await store.new_task(version=2)
        await store.new_task(workflow="other")
        await store.new_task(scope=scope_with(agent="another"))
        assert [lease.task_id for lease in await store.claim()] == [wanted]

    async def test_takes_the_oldest_of_a_priority_first(self, store: Store) -> None:
        """Lease up to `limit` ready tasks of one version to the worker, in turn between tenants,
        then by priority (lower first), then by age."""
        await store.worker()
        ages = {"young": 1, "old": 300, "middle": 20}
        tasks = {name: await store.new_task() for name in ages}
        for name, age in ages.items():
            await store.sql(
                "update tasks set ready_at = ready_at - :age where task_id = :id",
                age=age * 1000,
                id=tasks[name],
            )
        claimed = [(await store.claim(limit=1))[0].task_id for _ in ages]
        assert claimed == [tasks["old"], tasks["middle"], tasks["young"]]

    async def test_takes_the_lower_priority_first(self, store: Store) -> None:
        """Lease up to `limit` ready tasks of one version to the worker, in turn between tenants,
        then by priority (lower first), then by age."""
        await store.worker()
        tasks = {}
        for priority in (5, -3, 0, 7):
            tasks[priority] = await store.new_task(priority=priority)
        claimed = [(await store.claim(limit=1))[0].task_id for _ in tasks]
        assert claimed == [tasks[-3], tasks[0], tasks[5], tasks[7]]

    async def test_takes_turns_between_tenants(self, store: Store) -> None:
        """Lease up to `limit` ready tasks of one version to the worker, in turn between tenants,
        then by priority (lower first), then by age."""
        await store.worker()
        for tenant, tasks in {"flood": 30, "small": 2, "other": 3}.items():
            for _ in range(tasks):
                await store.new_task(scope=scope_with(tenant=tenant))

        async def next_tenants(limit: int) -> Counter[str]:
            return Counter(lease.scope.tenant for lease in await store.claim(limit=limit))

        assert await next_tenants(6) == {"flood": 2, "small": 2, "other": 2}
        assert await next_tenants(6) == {"flood": 5, "other": 1}

    async def test_a_tenants_high_priority_does_not_starve_the_others(self, store: Store) -> None:
        """Lease up to `limit` ready tasks of one version to the worker, in turn between tenants,
        then by priority (lower first), then by age."""
        await store.worker()
        for _ in range(10):
            await store.new_task(scope=scope_with(tenant="urgent"), priority=-100)
        for _ in range(3):
            await store.new_task(scope=scope_with(tenant="patient"), priority=100)
        leases = await store.claim(limit=6)
        assert Counter(lease.scope.tenant for lease in leases) == {"urgent": 3, "patient": 3}

    async def test_is_one_statement_on_postgresql(self, store: Store) -> None:
        """One statement on PostgreSQL."""
        await store.worker()
        for _ in range(3):
            await store.new_task()
        with statements() as sent:
            assert len(await store.claim()) == 3
        if not store.is_sqlite:
            assert sent == ["tasks_claim"]
        assert sent[0] == "tasks_claim"

    @pytest.mark.parametrize(
        "condition",
        [
            "leased",
            "paused",
            "waiting for authorisation",
            "waiting",
            "backing off",
            "held",
            "completed",
            "failed",
            "rejected",
            "canceled",
        ],
    )
    async def test_leaves_alone_what_is_not_ready(self, store: Store, condition: str) -> None:
        """Only tasks without a lease whose `ready_at` has come are claimed: never paused, held,
        waiting, leased or finished ones."""
        task_id = await store.task_that_is(condition)
        await store.worker("other")
        async with store.unchanged():
            for name in ("other", f"worker of {condition}"):
                assert await store.claim(name, workflow=condition) == []
        await store.later(31 * DAY)
        leases = await store.claim("other", workflow=condition)
        comes_due = condition in ("waiting", "backing off")
        assert [lease.task_id for lease in leases] == ([task_id] if comes_due else [])

    async def test_case_086_takes_what_has_come_due(self, store: Store) -> None:
        """Only tasks without a lease whose `ready_at` has come are claimed: never paused, held,
        waiting, leased or finished ones."""
        run = await store.claimed()
        now = await store.now()
        await run.commit(ending=Wait(until=DueBy(at=Millis(now + HOUR)), timer_key="1:sleep"))
        await store.later(HOUR - 60_000)
        assert await store.claim() == []
        await store.later(60_000)
        run = await store.claim_again(run.task_id)
        assert run.lease.claimed_at >= now + HOUR
        timer = await store.work.entry(run.ledger_id, "1:sleep")
        assert timer is not None
        assert timer.result == str(now + HOUR)

    async def test_raises_the_fence_and_opens_a_run(self, store: Store) -> None:
        """Each grant raises the fence, sets write_no to 0 and opens a run."""
        run = await store.claimed()
        assert run.lease.fence == 1
        await run.commit(said())
        await run.commit(ending=Release())
        again = await store.claim_again(run.task_id)
        assert again.lease.fence == run.lease.fence + 2  # the release has raised it, too
        row = (await store.sql("select fence, write_no, lease_owner, ready_at from tasks"))[0]
        assert tuple(row.values()) == (again.lease.fence, 0, "w1", None)
        first, second = await store.inspect.runs(run.task_id)
        assert (first["fence"], first["outcome"]) == (1, "released")
        assert (second["fence"], second["worker_id"]) == (again.lease.fence, "w1")
        assert (second["step"], second["attempt"]) == ("first", 1)
        assert 0 <= second["started_at"] - again.lease.claimed_at < 1_000
        assert second["ended_at"] is None

    async def test_brings_all_that_a_run_starts_from(self, store: Store) -> None:
        """Each grant raises the fence, sets write_no to 0 and opens a run."""
        run = await store.claimed(metadata={"n": 1})
        await run.commit(said(), move=moved('{"n":2}', "second", 2))
        await run.commit(said())
        error = {"type": "OSError", "text": "away"}
        await run.commit(ending=Backoff(delay=Millis(0), error=error))
        lease = (await store.claim_again(run.task_id)).lease
        task = await store.task(run.task_id)
        assert (lease.scope, lease.context_id, lease.metadata) == (SCOPE, "context", {"n": 1})
        assert (lease.workflow, lease.version, lease.state) == ("review", 1, State.WORKING)
        assert (lease.step, lease.visit, lease.checkpoint) == ("second", 2, '{"n":2}')
        assert (lease.attempt, lease.crashes) == (2, 0)
        assert (lease.last_seq, lease.commit_seq) == (3, 2)
        assert (lease.cancel_requested, lease.ending_as) == (False, None)
        assert lease.give_up_at == task.give_up_at
        assert abs(lease.claimed_at - await store.now()) < 60_000

    async def test_gives_nothing_to_a_worker_that_is_dead_or_unknown(self, store: Store) -> None:
        """A worker that is dead or has no row gets nothing."""
        await store.worker("dead")
        await store.bury("dead")
        await store.worker("gone")
        await store.work.sign_off(WorkerId("gone"))
        await store.new_task()
        async with store.unchanged():
            for name in ("dead", "gone", "unknown"):
                assert await store.claim(name) == []

    async def test_two_at_once_never_get_the_same_task(self, store: Store) -> None:
        """Two claims at once never get the same task."""
        other = await store.another()
        await store.worker("w1")
        await store.worker("w2")
        for _ in range(60):
            await store.new_task()
        claims = await asyncio.gather(
            *((store, other)[n % 2].claim(("w1", "w2")[n % 2], limit=7) for n in range(8))
        )
        got = [lease.task_id for claim in claims for lease in claim]
        assert len(got) == len(set(got))
        while claim := await store.claim("w1", limit=7):
            got.extend(lease.task_id for lease in claim)
        assert len(got) == len(set(got)) == 60

    async def test_goes_round_rows_that_somebody_has_locked(self, store: Store) -> None:
        """Two claims at once never get the same task."""
        await store.worker()
        tasks = [await store.new_task() for _ in range(6)]
        for age, task_id in enumerate(tasks):
            await store.sql(
                "update tasks set ready_at = ready_at + :age where task_id = :id",
                age=age * 1_000 - 60_000,
                id=task_id,
            )
        if store.is_sqlite:
            return  # a lock is on the whole file there
        async with store.locked(*tasks[:2]):  # the oldest
            for wanted in (tasks[2:3], tasks[3:5], tasks[5:], []):
                leases = await store.claim(limit=max(len(wanted), 1))
                assert {lease.task_id for lease in leases} == set(wanted)
        assert {lease.task_id for lease in await store.claim()} == set(tasks[:2])


class TestSettle:
    async def test_records_a_result_whatever_became_of_the_lease(self, store: Store) -> None:
        """Record the result of a call that was already made, without a fence: whatever became of
        the lease, the outside has done it."""
        run = await store.claimed()
        await run.commit(ledger=[intent()])
        await run.dies()
        assert await store.work.settle(run.ledger_id, "effect:mail", '"sent"')
        entry = await store.work.entry(run.ledger_id, "effect:mail")
        assert entry is not None
        assert (entry.result, entry.is_done) == ('"sent"', True)
        assert (entry.fence, entry.write_no) == (run.lease.fence, 1)

    async def test_case_069_the_successor_finds_the_result(self, store: Store) -> None:
        """Record the result of a call that was already made, without a fence: whatever became of
        the lease, the outside has done it."""
        run = await store.claimed()
        await run.commit(ledger=[intent()])
        await run.dies()
        await store.worker("w2")
        successor = await store.claim_again(run.task_id, "w2")
        await store.work.settle(run.ledger_id, "effect:mail", '"sent"')
        committed = await successor.commit(ledger=[intent()])
        assert committed.settled == {"effect:mail": '"sent"'}

    async def test_leaves_a_result_that_is_there(self, store: Store) -> None:
        """Where a result is recorded already, that one stays and False is returned."""
        run = await store.claimed()
        await run.commit(ledger=[intent()])
        assert await store.work.settle(run.ledger_id, "effect:mail", "1")
        async with store.unchanged():
            assert not await store.work.settle(run.ledger_id, "effect:mail", "2")
            assert not await store.work.settle(run.ledger_id, "effect:mail", "1")

    async def test_two_at_once_record_one(self, store: Store) -> None:
        """Where a result is recorded already, that one stays and False is returned."""
        other = await store.another()
        run = await store.claimed()
        for n in range(10):
            await run.commit(ledger=[intent(f"effect:{n}")])
            recorded = await asyncio.gather(
                store.work.settle(run.ledger_id, f"effect:{n}", "1"),
                other.work.settle(run.ledger_id, f"effect:{n}", "2"),
            )
            entry = await store.work.entry(run.ledger_id, f"effect:{n}")
            assert entry is not None
            assert sorted(recorded) == [False, True]
            assert entry.result == str(1 + recorded.index(True))


class TestEntry:
    async def test_is_found_under_its_key(self, store: Store) -> None:
        """The ledger's entry under the key."""
        run = await store.claimed()
        await run.commit(ledger=[intent(), Kept(key="1:memo", kind=LedgerKind.MEMO, result="7")])
        mail = await store.work.entry(run.ledger_id, "effect:mail")
        memo = await store.work.entry(run.ledger_id, "1:memo")
        assert mail is not None
        assert memo is not None
        assert (mail.kind, mail.digest, mail.request) == (LedgerKind.EFFECT, "d", '{"to":"ann"}')
        assert (mail.fence, mail.write_no) == (run.lease.fence, 1)
        assert (mail.result, mail.done_at, mail.is_done) == (None, None, False)
        assert (memo.kind, memo.result, memo.is_done) == (LedgerKind.MEMO, "7", True)
        assert await store.work.entry(run.ledger_id, "unknown") is None
        assert await store.work.entry(LedgerId("unknown"), "1:memo") is None


class TestEntries:
    async def test_come_in_pages_in_key_order(self, store: Store) -> None:
        """Entries with first <= key < last, in key order, at most `limit`: one page of a map."""
        run = await store.claimed()
        keys = [f"1:map:{n:05d}" for n in range(20)]
        others = ["1:mao", "1:map", "1:map;", "1:memo", "2:map:00001"]
        for key in [*reversed(keys), *others]:
            await run.commit(ledger=[Kept(key=key, kind=LedgerKind.MEMO, result="1")])

        async def page(first: str, last: str, limit: int = 500) -> list[str]:
            found = await store.work.entries(run.ledger_id, first, last, limit=limit)
            return [entry.key for entry in found]

        assert await page("1:map:", "1:map;") == keys
        assert await page("1:map:", "1:map;", 7) == keys[:7]
        assert await page("1:map:00007", "1:map;", 7) == keys[7:14]
        assert await page("1:map:00007", "1:map:00009") == keys[7:9]
        assert await store.work.entries(LedgerId("unknown"), "", "~") == []

    async def test_are_ordered_alike_on_every_database(self, store: Store) -> None:
        """Entries with first <= key < last, in key order, at most `limit`: one page of a map."""
        run = await store.claimed()
        keys = ["1:B", "1:a", "1:_", "1:ä", "1:Z", "1:é", "1:1", "1:10", "1:2", "1:-", "1:€"]
        for key in keys:
            await run.commit(ledger=[Kept(key=key, kind=LedgerKind.MEMO, result="1")])
        found = await store.work.entries(run.ledger_id, "1:", "1;")
        assert [entry.key for entry in found] == sorted(keys)


class TestOpenIntents:
    async def test_are_those_of_unknown_outcome(self, store: Store) -> None:
        """Entries of this kind whose outcome is unknown."""
        run = await store.claimed()
        other = await store.claimed("w2", workflow="other")
        await other.commit(ledger=[intent()])
        effects = ("open", "settled", "cleared", "resulted", "also open")
        await run.commit(ledger=[intent(key) for key in effects])
        await run.commit(ledger=[intent("1:ask", LedgerKind.ANSWER)])
        await store.work.settle(run.ledger_id, "settled", "1")
        await run.commit(
            ledger=[Clear(key="cleared", write_no=WriteNo(1)), Result(key="resulted", result="1")]
        )

        async def keys(kind: LedgerKind) -> list[str]:
            return [entry.key for entry in await store.work.open_intents(run.ledger_id, kind)]

        assert await keys(LedgerKind.EFFECT) == ["also open", "open"]
        assert await keys(LedgerKind.ANSWER) == ["1:ask"]
        assert await keys(LedgerKind.MEMO) == []


class TestLeasedTo:
    async def test_says_what_the_worker_runs(self, store: Store) -> None:
        """What the worker runs as the store sees it."""
        run = await store.claimed()
        hooked = await store.claimed("w1", workflow="hooked")
        await store.claimed("w2", workflow="other")
        await store.worker("w3", workflow="hooked", on_cancel=True)
        await hooked.commit(move=moved())
        await store.tasks.cancel(SCOPE, hooked.task_id)
        await (await store.claimed("w1", workflow="done")).finish()
        assert await store.work.leased_to(WorkerId("w1")) == {
            run.task_id: Standing(fence=run.lease.fence, is_marked=False, ending_as=None),
            hooked.task_id: Standing(
                fence=hooked.lease.fence,
                is_marked=True,
                ending_as={"state": "canceled", "text": None, "hook": "on_cancel"},
            ),
        }
        assert await store.work.leased_to(WorkerId("unknown")) == {}


class TestSignOff:
    async def test_nothing_can_be_claimed_afterwards(self, store: Store) -> None:
        """The worker leaves: from now on nothing can be claimed for it."""
        await store.worker()
        await store.work.sign_off(WorkerId("w1"))
        await store.new_task()
        async with store.unchanged():
            assert await store.claim() == []
            await store.work.sign_off(WorkerId("w1"))
            await store.work.sign_off(WorkerId("unknown"))
        assert await store.inspect.workers() == []
        assert await store.beats.beat(WorkerId("w1"), presence=None) is None

    async def test_interleaving_01_a_claim_that_comes_after_it_gets_nothing(
        self, store: Store
    ) -> None:
        """The worker leaves: from now on nothing can be claimed for it."""
        await store.worker()
        task_id = await store.new_task()
        await store.work.sign_off(WorkerId("w1"))
        assert await store.claim() == []
        await store.worker("w2")
        assert [lease.task_id for lease in await store.claim("w2")] == [task_id]
