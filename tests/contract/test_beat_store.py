"""What the beat thread does."""

from __future__ import annotations

from outlast.model.commit import Lost
from outlast.model.ids import Fence, TaskId, WorkerId
from outlast.store.protocols import Standing
from tests.contract.stores import SCOPE, Store, moved, said, statements

W1 = WorkerId("w1")


class TestBeat:
    async def test_is_one_more_beat(self, store: Store) -> None:
        """One beat, and what the store holds leased to the worker by then."""
        await store.worker()
        await store.worker("w2")
        for beat in (2, 3, 4):
            assert await store.beats.beat(W1, presence="here") == {}
            assert await store.beat_of("w1") == beat
        assert await store.beat_of("w2") == 1
        row = (await store.inspect.workers())[0]
        assert (row["presence"], row["seen_at"] >= row["beat"]) == ("here", True)

    async def test_reads_back_what_is_leased_to_the_worker(self, store: Store) -> None:
        """One beat, and what the store holds leased to the worker by then."""
        first = await store.claimed()
        hooked = await store.claimed(workflow="hooked")
        await store.worker("w2", workflow="hooked", on_cancel=True)
        await hooked.commit(move=moved())
        await store.tasks.cancel(SCOPE, hooked.task_id)
        await (await store.claimed(workflow="ended")).finish()
        await store.task_that_is("leased")
        leased = await store.beats.beat(W1, presence=None)
        assert leased == {
            first.task_id: Standing(fence=first.lease.fence, is_marked=False, ending_as=None),
            hooked.task_id: Standing(
                fence=hooked.lease.fence,
                is_marked=True,
                ending_as={"state": "canceled", "text": None, "hook": "on_cancel"},
            ),
        }
        assert leased == await store.work.leased_to(W1)

    async def test_is_two_statements_whatever_is_leased(self, store: Store) -> None:
        """One beat, and what the store holds leased to the worker by then."""
        for n in range(5):
            await store.claimed(workflow=f"w{n}")
        with statements() as sent:
            await store.beats.beat(W1, presence=None)
        assert sent == ["workers_beat", "tasks_leased_to", "commit"]

    async def test_of_a_worker_that_was_declared_dead_is_none(self, store: Store) -> None:
        """None: the worker has been declared dead (or has no row); nothing changed."""
        await store.claimed()
        await store.bury("w1")
        async with store.unchanged():
            assert await store.beats.beat(W1, presence="here") is None
            assert await store.beats.beat(WorkerId("unknown"), presence="here") is None

    async def test_touches_no_task(self, store: Store) -> None:
        """One beat, and what the store holds leased to the worker by then."""
        await store.claimed()
        async with store.unchanged(but=["workers"]):
            await store.beats.beat(W1, presence=None)


class TestRelease:
    async def test_gives_the_lease_back(self, store: Store) -> None:
        """Give back a lease whose claim the worker never heard of; False if it is not leased to
        this worker under this fence."""
        run = await store.claimed()
        assert await store.beats.release(W1, run.task_id, run.lease.fence)
        assert (await store.task(run.task_id)).lease_owner is None

    async def test_of_what_is_not_leased_under_these_numbers_is_false(self, store: Store) -> None:
        """Give back a lease whose claim the worker never heard of; False if it is not leased to
        this worker under this fence."""
        run = await store.claimed()
        await store.worker("w2")
        fence = run.lease.fence
        async with store.unchanged():
            assert not await store.beats.release(WorkerId("w2"), run.task_id, fence)
            assert not await store.beats.release(W1, run.task_id, Fence(fence + 1))
            assert not await store.beats.release(W1, run.task_id, Fence(fence - 1))
            assert not await store.beats.release(W1, TaskId("unknown"), fence)

    async def test_repeated_or_late_is_false(self, store: Store) -> None:
        """Give back a lease whose claim the worker never heard of; False if it is not leased to
        this worker under this fence."""
        run = await store.claimed()
        await store.beats.release(W1, run.task_id, run.lease.fence)
        async with store.unchanged():
            assert not await store.beats.release(W1, run.task_id, run.lease.fence)
        await store.claim_again(run.task_id)
        async with store.unchanged():
            assert not await store.beats.release(W1, run.task_id, run.lease.fence)

    async def test_raises_the_fence_and_closes_the_run(self, store: Store) -> None:
        """The fence rises, the run is closed as released, and the task is claimable at once."""
        run = await store.claimed()
        await store.beats.release(W1, run.task_id, run.lease.fence)
        task = await store.task(run.task_id)
        assert (task.fence, task.attempt, task.crashes) == (run.lease.fence + 1, 1, 0)
        ran = await store.last_run(run.task_id)
        assert (ran["outcome"], ran["ended_write_no"]) == ("released", None)
        assert ran["ended_at"] is not None
        again = await store.claim_again(run.task_id)
        assert again.lease.fence == run.lease.fence + 2

    async def test_interleaving_10_a_run_that_began_all_the_same_writes_nothing(
        self, store: Store
    ) -> None:
        """The fence rises, the run is closed as released, and the task is claimable at once."""
        run = await store.claimed()
        await store.beats.release(W1, run.task_id, run.lease.fence)
        async with store.unchanged():
            assert await store.commit(run.write(said())) == Lost()
