"""The beat thread: who this worker is, and until when it may act.

It has its own connection and its own event loop, so a step that blocks the worker's loop loses
nothing. What it shares with the worker's thread is behind one lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from outlast.model.errors import StoreUnavailable
from outlast.model.ids import NOBODY, Fence, TaskId, WorkerId, uuid7
from outlast.model.lease import awake_seconds
from outlast.store.database import Database, StatementRefused
from outlast.store.protocols import BeatStore, NewWorker, Standing, WorkStore

log = structlog.get_logger("outlast.beat")

_LOG_EVERY = 100
_BLOCKED_S = 5.0


@dataclass(frozen=True, kw_only=True)
class BeatStores:
    """The beat's own connection and what it does over it."""

    database: Database
    beats: BeatStore
    work: WorkStore


@dataclass
class Roll:
    """What the worker's thread and the beat thread tell each other, under one lock.

    turned_at: when the worker's loop was last seen to turn.
    running: the leases that have a run here. claims: how many claims are under way.
    given_back: leases that the beat released because no run knew them: a claim's reply that comes
    after that is dropped.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    worker_id: WorkerId = NOBODY
    valid_until: float = 0.0
    turned_at: float = 0.0
    running: dict[TaskId, Fence] = field(default_factory=dict)
    claims: int = 0
    given_back: set[tuple[TaskId, Fence]] = field(default_factory=set)

    def holds(self, worker_id: WorkerId) -> bool:
        """Whether leases of this identity are still good by the holder's own clock."""
        with self.lock:
            return self.worker_id == worker_id and awake_seconds() < self.valid_until


class BeatThread:
    """Registers the worker, beats, and reads back what is leased to it.

    on_standing is called on the beat's thread after each beat with the identity, the time when
    the beat was sent, and the leases as the store sees them; on_lost when the identity is over.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], BeatStores],
        worker: NewWorker,
        roll: Roll,
        on_standing: Callable[[WorkerId, float, Mapping[TaskId, Standing]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._worker = worker
        self._roll = roll
        self._on_standing = on_standing
        self._on_lost = on_lost
        self._thread = threading.Thread(target=self._main, name="outlast-beat", daemon=True)
        self._started: threading.Event = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._strangers: dict[TaskId, Fence] = {}
        self._is_blocked = False

    async def start(self) -> None:
        """Returns when the worker is registered; raises what registering raised."""
        self._thread.start()
        await asyncio.to_thread(self._started.wait)
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """Sign off, so that nobody has to prove this worker dead, and end the thread."""
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join)

    @property
    def failure(self) -> BaseException | None:
        """What ended the thread, if it ended by an error."""
        return self._failure

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    # --- on the beat's thread -----------------------------------------------------------------

    def _main(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            self._failure = error
            log.error("beat.died", error=repr(error))
            self._on_lost()
        finally:
            self._started.set()

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        stores = self._connect()
        await stores.database.open()
        try:
            await self._register(stores)
            self._started.set()
            await self._beat_until_stopped(stores, self._stopping)
            with contextlib.suppress(StoreUnavailable):
                await stores.work.sign_off(self._roll.worker_id)
                await stores.database.drop_presence(self._roll.worker_id)
        finally:
            await stores.database.close()

    async def _register(self, stores: BeatStores) -> None:
        """Under a new id: an identity that was declared dead is never used again."""
        worker_id = WorkerId(f"{socket.gethostname()}-{uuid7().hex[-12:]}")
        await stores.database.keep_presence(worker_id)
        try:
            presence = await stores.database.incarnation()
            sent = awake_seconds()
            await stores.work.register(
                replace(self._worker, worker_id=worker_id, presence=presence)
            )
        except BaseException:
            await stores.database.drop_presence(worker_id)
            raise
        with self._roll.lock:
            self._roll.worker_id = worker_id
            self._roll.valid_until = sent + self._worker.lease_ms / 1000
            self._roll.given_back.clear()
        log.info("worker.registered", worker_id=worker_id)

    async def _beat_until_stopped(self, stores: BeatStores, stopping: asyncio.Event) -> None:
        interval = self._worker.beat_ms / 1000
        failures = 0
        while not stopping.is_set():
            began = awake_seconds()
            try:
                await self._beat(stores)
                wait = interval - (awake_seconds() - began)
                failures = 0
                self._notice_blocked_loop()
            except (StoreUnavailable, StatementRefused) as error:
                # The session may be gone, and with it the presence: come back at once, because
                # others may find the lock free while this worker is alive.
                if failures % _LOG_EVERY == 0:
                    log.warning("beat.failed", error=str(error), before=failures)
                failures += 1
                wait = min(0.1, interval)
            if wait > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await stopping.wait()

    def _notice_blocked_loop(self) -> None:
        """Code that blocks the worker's loop cannot be interrupted; at least it can be named."""
        roll = self._roll
        with roll.lock:
            still = awake_seconds() - roll.turned_at
            running = list(roll.running)
        is_blocked = roll.turned_at > 0 and still > _BLOCKED_S
        if is_blocked and not self._is_blocked:
            log.warning("worker.blocked", seconds=round(still), tasks=running)
        self._is_blocked = is_blocked

    async def _beat(self, stores: BeatStores) -> None:
        roll = self._roll
        worker_id = roll.worker_id
        presence = await stores.database.incarnation()
        with roll.lock:
            claims_before = roll.claims
        sent = awake_seconds()
        leased = await stores.beats.beat(worker_id, presence=presence)
        if leased is None:
            log.warning("worker.declared_dead", worker_id=worker_id)
            with roll.lock:
                roll.valid_until = 0.0
            self._on_lost()
            await stores.database.drop_presence(worker_id)
            await self._register(stores)
            return
        with roll.lock:
            roll.valid_until = sent + self._worker.lease_ms / 1000
        self._on_standing(worker_id, sent, leased)
        await self._give_back_strangers(stores, worker_id, leased, claims_before)

    async def _give_back_strangers(
        self,
        stores: BeatStores,
        worker_id: WorkerId,
        leased: Mapping[TaskId, Standing],
        claims_before: int,
    ) -> None:
        """Leases without a run, under the same fence in two beats running and with no claim under
        way: the reply to their claim was lost."""
        roll = self._roll
        with roll.lock:
            if claims_before or roll.claims:
                self._strangers = {}
                return
            strangers = {
                task_id: standing.fence
                for task_id, standing in leased.items()
                if roll.running.get(task_id) != standing.fence
            }
            overdue = [
                (task_id, fence)
                for task_id, fence in strangers.items()
                if self._strangers.get(task_id) == fence
            ]
            roll.given_back.update(overdue)
        self._strangers = strangers
        for task_id, fence in overdue:
            if await stores.beats.release(worker_id, task_id, fence):
                log.warning("lease.given_back", task_id=task_id, fence=fence)
