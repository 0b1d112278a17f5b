"""What operators, tests and demos do to a store."""

from __future__ import annotations

import asyncio

import pytest

from outlast.model.commit import Hold, Lost, Release
from outlast.model.errors import ConfigError, SchemaMismatch
from outlast.model.ids import Fence, Millis, Seq, TaskId, WriteNo
from outlast.model.ledger import Result
from outlast.model.task import Fold
from outlast.store.admin import SCHEMA_VERSION
from tests.contract.stores import DAY, HOUR, Run, Store, intent, moved, said

KEY = "effect:mail"


async def open_intent(store: Store) -> Run:
    """A run that has left an intent of unknown outcome as (fence 1, write_no 1)."""
    run = await store.claimed()
    await run.commit(ledger=[intent(KEY)])
    return run


async def resolve(store: Store, run: Run, result: str | None, *, force: bool = False) -> bool:
    return await store.admin.resolve(
        run.task_id, KEY, fence=run.lease.fence, write_no=WriteNo(1), result=result, force=force
    )


class TestMigrate:
    async def test_brings_an_empty_database_up_to_date(self, empty_store: Store) -> None:
        """Bring the schema up to this binary's version; returns the numbers that were applied."""
        applied = await empty_store.admin.migrate()
        assert list(applied) == list(range(1, SCHEMA_VERSION + 1))
        facts = await empty_store.admin.check()
        assert (facts.schema_version, facts.readable_from) == (SCHEMA_VERSION, 1)

    async def test_again_applies_nothing(self, store: Store) -> None:
        """Bring the schema up to this binary's version; returns the numbers that were applied."""
        await store.new_task()
        async with store.unchanged():
            assert await store.admin.migrate() == []

    async def test_by_several_at_once_is_applied_once(self, empty_store: Store) -> None:
        """Safe when several processes start at once on an empty database: each migration is
        applied once."""
        stores = [empty_store, *[await empty_store.another() for _ in range(4)]]
        applied = await asyncio.gather(*(store.admin.migrate() for store in stores))
        assert sorted(map(list, applied)) == [[], [], [], [], [1]]

    async def test_of_a_store_from_the_future_is_refused(self, store: Store) -> None:
        """A store whose `readable_from` is newer than this binary raises SchemaMismatch."""
        await store.sql("update store set schema_version = 9, readable_from = 9")
        async with store.unchanged():
            with pytest.raises(SchemaMismatch, match="newer release"):
                await store.admin.migrate()


class TestCheck:
    async def test_tells_the_facts(self, store: Store) -> None:
        """Make sure that this binary can use the store."""
        facts = await store.admin.check()
        assert facts.schema_version == SCHEMA_VERSION
        assert len(facts.epoch) == 12
        other = await store.another()
        assert (await other.admin.check()).epoch == facts.epoch

    async def test_of_an_older_schema_names_the_command(self, store: Store) -> None:
        """An older or missing schema raises SchemaMismatch with the command to run; one from the
        future, too, unless it says that this binary may still use it."""
        await store.sql("update store set schema_version = 0, readable_from = 0")
        with pytest.raises(SchemaMismatch, match="outlast migrate"):
            await store.admin.check()

    async def test_of_a_missing_schema_names_the_command(self, empty_store: Store) -> None:
        """An older or missing schema raises SchemaMismatch with the command to run; one from the
        future, too, unless it says that this binary may still use it."""
        with pytest.raises(SchemaMismatch, match="outlast migrate"):
            await empty_store.admin.check()

    async def test_of_a_schema_from_the_future_is_refused(self, store: Store) -> None:
        """An older or missing schema raises SchemaMismatch with the command to run; one from the
        future, too, unless it says that this binary may still use it."""
        await store.sql("update store set schema_version = 9, readable_from = 2")
        with pytest.raises(SchemaMismatch, match=r"schema 9.*knows schema 2"):
            await store.admin.check()

    async def test_of_a_future_that_this_binary_may_use_passes(self, store: Store) -> None:
        """An older or missing schema raises SchemaMismatch with the command to run; one from the
        future, too, unless it says that this binary may still use it."""
        await store.sql("update store set schema_version = 9, readable_from = 1")
        assert (await store.admin.check()).schema_version == 9
        assert await store.admin.migrate() == []


class TestRestored:
    async def test_begins_a_new_epoch(self, store: Store) -> None:
        """Begin a new epoch, after an older copy of the database was put in its place or a server
        took over that may lack commits."""
        before = (await store.admin.check()).epoch
        began = await store.admin.restored()
        assert began.epoch == (await store.admin.check()).epoch != before
        assert (len(began.epoch), began.leases, began.workers) == (12, 0, 0)

    async def test_ends_leases_and_workers_and_nothing_else(self, store: Store) -> None:
        """In one transaction every lease ends and its task is claimable at once, every worker is
        dead, and every fence is past any that the lost future can have given: nothing that comes
        from there changes anything."""
        leased = [await store.task_that_is("leased"), await store.task_that_is("leased", name="w2")]
        resting = {
            await store.task_that_is(condition)
            for condition in ("submitted", "paused", "waiting", "held", "completed", "failed")
        }
        kept = ("state", "ready_at", "pause_id", "pause_deadline_at", "held_reason", "status_at")
        before = {row["task_id"]: row for row in (await store.everything())["tasks"]}
        began = await store.admin.restored()
        assert (began.leases, began.workers) == (2, 7)
        everything = await store.everything()
        assert all(row["dead_at"] is not None for row in everything["workers"])
        assert all(row["ended_at"] is not None for row in everything["task_runs"])
        for row in everything["tasks"]:
            was = before[row["task_id"]]
            is_over = was["state"] in ("completed", "failed")
            assert (row["fence"] - was["fence"] > 1_000_000_000) is not is_over
            assert row["lease_owner"] is None
            if row["task_id"] in resting:
                assert [row[name] for name in kept] == [was[name] for name in kept]
        await store.worker("w9", workflow="leased")
        assert {one.task_id for one in await store.claim("w9", workflow="leased")} == set(leased)

    async def test_interleaving_14_a_lease_of_the_lost_future_ends(self, store: Store) -> None:
        """In one transaction every lease ends and its task is claimable at once, every worker is
        dead, and every fence is past any that the lost future can have given: nothing that comes
        from there changes anything."""
        run = await store.claimed()
        await run.commit(move=moved())
        backup = next(row for row in (await store.everything())["tasks"])
        await run.commit(ending=Release())
        lost = await store.claim_again(run.task_id)
        await store.sql(
            "update tasks set lease_owner = null, fence = :fence, write_no = :write_no,"
            " ready_at = :ready_at, updated_at = :updated_at",
            ready_at=backup["updated_at"],
            **{name: backup[name] for name in ("fence", "write_no", "updated_at")},
        )
        await store.sql("delete from task_runs where fence > :fence", fence=backup["fence"])
        await store.sql("update task_runs set ended_at = started_at, outcome = 'lost'")
        await store.admin.restored()
        await store.worker("w2")
        successor = await store.claim_again(run.task_id, "w2")
        async with store.unchanged():
            assert await store.commit(run.write(said("late"))) == Lost()
            assert await store.commit(lost.write(said("of the lost future"))) == Lost()
            assert await store.claim("w1") == []
        await successor.finish()

    async def test_of_one_copy_restored_twice_both_futures_are_lost(self, store: Store) -> None:
        """In one transaction every lease ends and its task is claimable at once, every worker is
        dead, and every fence is past any that the lost future can have given: nothing that comes
        from there changes anything."""
        task_id = await store.task_that_is("leased")
        backup = (await store.everything())["tasks"][0]["fence"]
        futures = []
        for number in range(2):
            await store.admin.restored()
            await store.worker(f"next {number}", workflow="leased")
            futures.append(await store.claim_again(task_id, f"next {number}"))
            await store.sql("delete from task_runs where fence > :fence", fence=backup)
            await store.sql(
                "update tasks set lease_owner = null, ready_at = 1, fence = :fence", fence=backup
            )
            await store.later(1)
        assert futures[0].lease.fence < futures[1].lease.fence

    async def test_forgets_folds_of_the_lost_future(self, store: Store) -> None:
        """In one transaction every lease ends and its task is claimable at once, every worker is
        dead, and every fence is past any that the lost future can have given: nothing that comes
        from there changes anything."""
        run = await store.claimed()
        await run.commit(said(), said())
        for seq in (2, 3):
            await store.keep_fold(run.task_id, Fold(seq=Seq(seq), packed=b"x"), next_at=256)
        await store.sql("delete from task_events where seq > 2")
        await store.sql("update tasks set next_seq = 3, commit_seq = 2")
        await store.admin.restored()
        assert [row["seq"] for row in await store.sql("select seq from task_folds")] == [2]

    async def test_is_no_crash(self, store: Store) -> None:
        """It counts as nobody's crash."""
        task_id = await store.task_that_is("leased")
        for number in range(4):
            await store.admin.restored()
            assert (await store.sweeping.free_orphans()).freed == ()
            assert (await store.sql("select crashes from tasks"))[0]["crashes"] == 0
            await store.worker(f"next {number}", workflow="leased")
            await store.claim_again(task_id, f"next {number}")

    async def test_a_second_time_does_the_same(self, store: Store) -> None:
        """A second time does the same again."""
        await store.task_that_is("leased")
        first, second = await store.admin.restored(), await store.admin.restored()
        assert first.epoch != second.epoch
        assert (second.leases, second.workers) == (0, 0)

    async def test_frees_the_leases_of_webhooks_too(self, store: Store) -> None:
        """In one transaction every lease ends and its task is claimable at once, every worker is
        dead, and every fence is past any that the lost future can have given: nothing that comes
        from there changes anything."""
        await store.sql(
            "insert into webhooks (task_id, config_id, url, lease_owner, fence, created_at)"
            " values (:task_id, 'one', 'https://example.com', 'w1', 7, 1)",
            task_id=await store.task_that_is("completed"),
        )
        await store.admin.restored()
        (webhook,) = (await store.everything())["webhooks"]
        assert webhook["lease_owner"] is None
        assert webhook["due_at"] is not None
        assert webhook["fence"] > 1_000_000_000


class TestMoveClock:
    async def test_moves_timers_and_deadlines(self, store: Store) -> None:
        """Move the clock of timers and deadlines."""
        before = await store.now()
        await store.admin.move_clock(Millis(DAY))
        await store.admin.move_clock(Millis(HOUR))
        assert DAY + HOUR <= await store.now() - before < DAY + HOUR + 60_000
        await store.task_that_is("waiting")
        await store.admin.move_clock(Millis(HOUR))
        assert len(await store.claim("worker of waiting", workflow="waiting")) == 1
        await store.admin.move_clock(Millis(-2 * DAY))
        assert await store.now() < before

    async def test_of_an_hour_is_no_outage(self, store: Store) -> None:
        """Not an outage: the last sweep moves with it."""
        excuse = store.sweeping.excuse_outage
        await excuse(longest=Millis(DAY), gap=Millis(60_000))
        paused = await store.paused(after=HOUR)
        await store.admin.move_clock(Millis(2 * HOUR))
        assert await excuse(longest=Millis(DAY), gap=Millis(60_000)) == 0
        assert await store.sweeping.end_overdue_pauses() == [paused.task_id]

    async def test_is_seen_by_everybody(self, store: Store) -> None:
        """Move the clock of timers and deadlines."""
        other = await store.another()
        await store.admin.move_clock(Millis(DAY))
        assert abs(await other.now() - await store.now()) < 60_000


class TestNextDue:
    @pytest.mark.parametrize(
        ("condition", "due"),
        [
            ("submitted", 0),
            ("waiting", HOUR),
            ("backing off", HOUR),
            ("paused", HOUR),
            ("leased", 30 * DAY),
            ("held", 30 * DAY),
        ],
    )
    async def test_is_the_nearest_of_all(self, store: Store, condition: str, due: int) -> None:
        """When the next timer, retry, pause or life comes due, and the time now."""
        await store.task_that_is("completed")
        await store.task_that_is(condition)
        when, now = await store.admin.next_due()
        assert when is not None
        assert abs(when - now - due) < 60_000
        assert abs(now - await store.now()) < 60_000

    async def test_of_a_store_at_rest_is_none(self, store: Store) -> None:
        """When the next timer, retry, pause or life comes due, and the time now."""
        await store.task_that_is("completed")
        assert (await store.admin.next_due())[0] is None


class TestUnhold:
    async def test_lets_a_held_task_run_again(self, store: Store) -> None:
        """Let a held task run again, with its attempts back at one; False if it is not held."""
        task_id = await store.task_that_is("held", workflow="review")
        await store.sql("update tasks set attempt = 4, crashes = 2")
        assert await store.admin.unhold(task_id)
        lease = (await store.claim_again(task_id, "worker of held")).lease
        assert (lease.attempt, lease.crashes) == (1, 0)
        assert (await store.task(task_id)).held_reason is None

    @pytest.mark.parametrize("condition", ["submitted", "leased", "paused", "waiting", "failed"])
    async def test_of_a_task_that_is_not_held_is_false(self, store: Store, condition: str) -> None:
        """Let a held task run again, with its attempts back at one; False if it is not held."""
        task_id = await store.task_that_is(condition)
        async with store.unchanged():
            assert not await store.admin.unhold(task_id)
            assert not await store.admin.unhold(TaskId("unknown"))

    async def test_repeated_is_false(self, store: Store) -> None:
        """Let a held task run again, with its attempts back at one; False if it is not held."""
        task_id = await store.task_that_is("held")
        await store.admin.unhold(task_id)
        async with store.unchanged():
            assert not await store.admin.unhold(task_id)


class TestResolve:
    async def test_takes_an_operators_word(self, store: Store) -> None:
        """An operator's word about the effect of unknown outcome that the call (fence, write_no)
        left: its result, or None for "not done"."""
        run = await open_intent(store)
        await run.commit(ending=Hold(reason="was the mail sent?"))
        assert await resolve(store, run, '"sent"')
        entry = await store.work.entry(run.ledger_id, KEY)
        assert entry is not None
        assert (entry.result, entry.is_done) == ('"sent"', True)
        assert await store.admin.unhold(run.task_id)

    async def test_not_done_forgets_the_intent(self, store: Store) -> None:
        """An operator's word about the effect of unknown outcome that the call (fence, write_no)
        left: its result, or None for "not done"."""
        run = await open_intent(store)
        await run.commit(ending=Hold(reason="was the mail sent?"))
        assert await resolve(store, run, None)
        assert await store.work.entry(run.ledger_id, KEY) is None

    async def test_interleaving_06_a_recorded_result_stands(self, store: Store) -> None:
        """A result is recorded where none is and the intent is still that call's."""
        run = await open_intent(store)
        await run.commit(ledger=[Result(key=KEY, result='"the real one"')])
        async with store.unchanged():
            assert not await resolve(store, run, '"a late guess"')
            assert not await resolve(store, run, None, force=True)

    async def test_interleaving_06_a_late_result_is_not_taken_for_a_later_call(
        self, store: Store
    ) -> None:
        """A result is recorded where none is and the intent is still that call's."""
        run = await open_intent(store)
        await run.dies()
        assert await resolve(store, run, None)
        await store.worker("w2")
        successor = await store.claim_again(run.task_id, "w2")
        await successor.commit(ledger=[intent(KEY)])
        async with store.unchanged():
            assert not await resolve(store, run, '"of the first call"')

    async def test_interleaving_06_a_late_not_done_clears_nothing_newer(self, store: Store) -> None:
        """ "Not done" clears that call's own intent and nothing newer, and is refused (ConfigError)
        while the worker of that fence is not proven dead, unless `force`; one that is only frozen
        is not."""
        run = await open_intent(store)
        await run.dies()
        assert await resolve(store, run, None)
        await store.worker("w2")
        successor = await store.claim_again(run.task_id, "w2")
        await successor.commit(ledger=[intent(KEY)])
        async with store.unchanged():
            assert not await resolve(store, run, None)
            assert not await resolve(store, run, None, force=True)
        await successor.commit(ledger=[intent(KEY)])
        async with store.unchanged():
            assert not await resolve(store, successor, None, force=True)

    @pytest.mark.parametrize(
        "how", ["it runs", "it was given back", "it has signed off", "it may be frozen"]
    )
    async def test_interleaving_06_not_done_is_refused_while_the_worker_may_live(
        self, store: Store, how: str
    ) -> None:
        """ "Not done" clears that call's own intent and nothing newer, and is refused (ConfigError)
        while the worker of that fence is not proven dead, unless `force`; one that is only frozen
        is not."""
        run = await open_intent(store)
        if how == "it was given back":
            await store.beats.release(run.worker_id, run.task_id, run.lease.fence)
        if how == "it has signed off":
            await store.work.sign_off(run.worker_id)
            await store.sweeping.free_orphans()
        if how == "it may be frozen":
            await store.bury(run.worker_id)
        async with store.unchanged():
            with pytest.raises(ConfigError, match=r"w1.*not proven dead.*--force"):
                await resolve(store, run, None)
        assert await resolve(store, run, None, force=True)
        assert await store.work.entry(run.ledger_id, KEY) is None

    async def test_not_done_is_taken_when_the_death_is_proven(self, store: Store) -> None:
        """ "Not done" clears that call's own intent and nothing newer, and is refused (ConfigError)
        while the worker of that fence is not proven dead, unless `force`; one that is only frozen
        is not."""
        run = await open_intent(store)
        await run.dies()
        assert await resolve(store, run, None)

    async def test_not_done_is_taken_when_the_run_has_ended_itself(self, store: Store) -> None:
        """ "Not done" clears that call's own intent and nothing newer, and is refused (ConfigError)
        while the worker of that fence is not proven dead, unless `force`; one that is only frozen
        is not."""
        run = await open_intent(store)
        await run.commit(said(), move=moved(), ending=Hold(reason="was the mail sent?"))
        assert await resolve(store, run, None)

    async def test_of_nothing_is_false(self, store: Store) -> None:
        """False: there was nothing of that call to resolve."""
        run = await open_intent(store)
        await run.commit(ending=Hold(reason="was the mail sent?"))
        async with store.unchanged():
            for fence, write_no, key in (
                (run.lease.fence + 1, 1, KEY),
                (run.lease.fence, 2, KEY),
                (run.lease.fence, 1, "effect:unknown"),
            ):
                assert not await store.admin.resolve(
                    run.task_id, key, fence=Fence(fence), write_no=WriteNo(write_no), result=None
                )
            for result in (None, "1"):
                assert not await store.admin.resolve(
                    TaskId("unknown"), KEY, fence=Fence(1), write_no=WriteNo(1), result=result
                )

    async def test_repeated_is_false(self, store: Store) -> None:
        """False: there was nothing of that call to resolve."""
        run = await open_intent(store)
        await run.commit(ending=Hold(reason="was the mail sent?"))
        await resolve(store, run, '"sent"')
        async with store.unchanged():
            assert not await resolve(store, run, '"sent"')
