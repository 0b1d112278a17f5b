"""The failure table (DESIGN.md §9), row by row, with real processes.

What a case of `tests/cases` shows already is not here again:

    worker frozen past its lease            case 069
    network cut between worker and database case 072, and below for an effect under way
    clock jump                              case 071
    deploy with a renamed step; a step list changed under its old number   case 076
    cancel racing the last commit           case 047
    two answers at once                     case 080
    poison task among healthy ones          case 066

The webhook that is down for a day comes with the issue that brings webhooks.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from outlast.model.ids import Millis, Seq, TaskId
from outlast.testing.fleet import Child, Fleet, until
from outlast.testing.postgres_server import PostgresServer
from outlast.testing.proxy import Proxy
from outlast.wire.extension import EXTENSION_URI
from tests.chaos.caller import (
    Caller,
    Json,
    Refusal,
    fold,
    generation_of,
    history_of,
    pause_of,
    seen,
    state_of,
    texts_of,
)
from tests.chaos.fleets import (
    AGENT,
    ONCE,
    CounterSink,
    Counts,
    all_ended,
    cut_off,
    have_beaten,
    is_sqlite,
    lawful,
)

LONG_STEPS = 200
TERMINATIONS = 50
A_DAY = Millis(86_400_000)
RACES = 10
DISK_FULL = "the disk under the SQLite file is full"


# --- connections and gateways ---------------------------------------------------------------------


async def test_connection_cut_mid_stream(fleet: Fleet) -> None:
    gateway, _ = await asyncio.gather(fleet.gateway(), fleet.worker())
    port = urlsplit(gateway.url).port
    assert port is not None
    async with (
        Proxy("127.0.0.1", port) as proxy,
        Caller(gateway.url) as caller,
        Caller(proxy.url(gateway.url)) as unlucky,
        unlucky.stream("emit 30 every 20ms") as events,
    ):
        task = (await anext(events))["task"]
        proxy.cut_after(1000)
        with pytest.raises(httpx.TransportError):
            await all_of(events)
        await is_complete_on(caller, task)


async def test_gateway_killed(fleet: Fleet) -> None:
    ours, theirs, _ = await asyncio.gather(fleet.gateway(), fleet.gateway(), fleet.worker())
    async with (
        Caller(ours.url) as caller,
        Caller(theirs.url) as other,
        caller.stream("emit 30 every 20ms") as events,
    ):
        task = (await anext(events))["task"]
        await anext(events)
        ours.kill()
        with pytest.raises(httpx.TransportError):
            await all_of(events)
        await is_complete_on(other, task)
    assert await outcomes(fleet, task) == ["completed"]


async def all_of(events: AsyncIterator[Json]) -> list[Json]:
    return [event async for event in events]


async def is_complete_on(caller: Caller, task: Json) -> None:
    """Who comes back finds every chunk, each once."""
    async with caller.subscribe(task) as events:
        rest = await all_of(events)
    assert state_of(rest[-1]) == "COMPLETED"
    assert texts_of(fold(rest)) == {"chunks": "".join(f"{n}\n" for n in range(1, 31))}
    assert seen(fold(rest)) == seen(await caller.get(task))


# --- commits ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "counts"),
    [
        pytest.param("after:effect#1", Counts(calls=2, effects=1), id="before"),
        pytest.param("after:task_ledger_settle#1", Counts(calls=2, effects=1), id="inside"),
        pytest.param("after:commit:task_ledger_settle#1", ONCE, id="after"),
    ],
)
async def test_worker_killed_at_a_commit(
    fleet: Fleet, sink: CounterSink, point: str, counts: Counts
) -> None:
    """Before, inside and after the commit of an effect's result: what was committed survives, and
    what was not is done again, under the same key."""
    key = sink.key()
    gateway = await fleet.gateway()
    async with Caller(gateway.url) as caller:
        task = await caller.send(f"say a; effect {key}; say b", wait=False)
        victim = fleet.start_role("worker", fault=(point,))
        assert await victim.ended() == -9
        await fleet.worker()
        await until(lambda: has_state(caller, task, "COMPLETED"))
    assert await sink.counts(key) == counts
    assert await outcomes(fleet, task) == ["lost", "completed"]


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("after:commit:task_ledger_settle#1", id="effect result"),
        pytest.param("after:commit:task_ledger_intend#1", id="intent"),
        pytest.param("after:commit:task_events_append#2", id="events"),
        pytest.param("after:commit:task_runs_end#1", id="end"),
    ],
)
async def test_reply_to_a_commit_lost(fleet: Fleet, sink: CounterSink, point: str) -> None:
    """The commit has happened and nobody says so: it is repeated, and counts once."""
    key = sink.key()
    gateway = await fleet.gateway()
    async with Caller(gateway.url) as caller:
        task = await caller.send(f"say a; effect {key}; emit 2; ask", wait=False)
        await fleet.worker(fault=("--lose", point))
        await until(lambda: has_state(caller, task, "INPUT_REQUIRED"))
        ended = await caller.send("yes", task=task)
    assert state_of(ended) == "COMPLETED"
    assert texts_of(ended) == {"chunks": "1\n2\n"}
    assert await sink.counts(key) == ONCE
    assert await outcomes(fleet, task) == ["paused", "completed"]


async def test_reply_to_a_claim_lost(fleet: Fleet) -> None:
    """The lease stands and its worker never hears of it: two beats later it is given back."""
    fleet.agent = "examples.probe.agent:agent"  # one workflow: its first claim gets the task
    gateway = await fleet.gateway()
    point = "after:commit:task_runs_open#1" if is_sqlite(fleet) else "after:tasks_claim#1"
    async with Caller(gateway.url) as caller:
        task = await caller.send("say a", wait=False)
        worker = await fleet.worker(fault=("--lose", point))
        await worker.logged("claim.failed")
        await worker.logged("lease.given_back", task_id=task["id"])
        await until(lambda: has_state(caller, task, "COMPLETED"))
    assert await outcomes(fleet, task) == ["released", "completed"]


async def test_reply_to_an_answer_lost(fleet: Fleet, sink: CounterSink) -> None:
    key = sink.key()
    gateway, _ = await asyncio.gather(
        fleet.gateway(fault=("--lose", "after:commit:task_ledger_settle#1")), fleet.worker()
    )
    async with Caller(gateway.url) as caller:
        task = await caller.send(f"ask Well?; effect {{answer}}-{key}")
        task = await caller.send("yes", task=task)
    assert state_of(task) == "COMPLETED"
    assert history_of(task)[1:] == ["Well?", "yes"]
    assert await sink.counts(f"yes-{key}") == ONCE


async def test_reply_to_a_send_lost(fleet: Fleet, sink: CounterSink) -> None:
    key = sink.key()
    gateway, _ = await asyncio.gather(
        fleet.gateway(fault=("--lose", "after:commit:task_events_append#1")), fleet.worker()
    )
    async with Caller(gateway.url) as caller:
        assert state_of(await caller.send(f"effect {key}")) == "COMPLETED"
    assert await sink.counts(key) == ONCE
    async with fleet.stores() as stores:
        assert list(await stores.inspect.in_flight("cases")) == [], "there is one task, not two"


# --- the database ---------------------------------------------------------------------------------


async def test_database_restarted_with_200_long_steps_in_flight(
    postgres_fleet: Fleet, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """Two workers, each of which could think the other dead: none does, and no step begins anew."""
    postgres_fleet.settings |= {"lease": 6.0, "concurrency": LONG_STEPS // 2}
    gateway, *workers = await asyncio.gather(
        postgres_fleet.gateway(), postgres_fleet.worker(), postgres_fleet.worker()
    )
    end = tmp_path / "end"
    async with Caller(gateway.url, timeout=60) as caller:
        tasks = await asyncio.gather(
            *(caller.send(f"until {end}", workflow="scenes", wait=False) for _ in range(LONG_STEPS))
        )
    await until(lambda: have_begun(workers, LONG_STEPS))
    await asyncio.to_thread(postgres_server.restart)
    await have_beaten(postgres_fleet, 3)
    end.touch()
    await all_ended(postgres_fleet, within=60)
    assert not any(worker.entries("worker.dead") for worker in workers)
    assert await outcomes(postgres_fleet, *tasks) == ["completed"] * LONG_STEPS


async def test_beats_backend_terminated_50_times(postgres_fleet: Fleet, tmp_path: Path) -> None:
    """Each time the presence is free for a moment; nobody takes that for a death."""
    postgres_fleet.settings |= {"lease": 3.0, "beat": 0.1}
    gateway, worker = await asyncio.gather(postgres_fleet.gateway(), postgres_fleet.worker())
    end = tmp_path / "end"
    async with Caller(gateway.url) as caller:
        tasks = [await caller.send(f"until {end}", workflow="scenes", wait=False) for _ in range(5)]
    await until(lambda: have_begun([worker], len(tasks)))
    watcher = await postgres_fleet.worker()
    url = str(postgres_fleet.settings["database"])
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as operator:
        for _ in range(TERMINATIONS):
            await until(lambda: beats_terminated(operator))
            await have_beaten(postgres_fleet, 1)
    assert not watcher.entries("worker.dead")
    assert not worker.entries("worker.declared_dead")
    end.touch()
    await all_ended(postgres_fleet)
    assert await outcomes(postgres_fleet, *tasks) == ["completed"] * len(tasks)


async def test_database_failed_over(tmp_path: Path, sink: CounterSink) -> None:
    """The server dies and another one, at another address, goes on from all that was committed,
    as with synchronous replication. Running steps go on too, and effects stay done."""
    async with two_servers() as (url, fail_over):
        fleet = Fleet(
            url, tmp_path / "fleet", agent=AGENT, environment={"PROBE_SINK": sink.url}, lease=8.0
        )
        async with lawful(fleet):
            await is_carried_over(fleet, sink, fail_over, tmp_path / "end")


async def is_carried_over(
    fleet: Fleet, sink: CounterSink, fail_over: Callable[[], Awaitable[None]], end: Path
) -> None:
    key = sink.key()
    gateway, worker = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with Caller(gateway.url) as caller:
        running = await caller.send(f"until {end}", workflow="scenes", wait=False)
        asking = await caller.send(f"effect {key}; ask Go on?; effect {key}-2")
        await worker.logged("run.began", task_id=running["id"])

        await fail_over()
        await have_beaten(fleet, 2)
        end.touch()
        assert state_of(await caller.send("yes", task=asking)) == "COMPLETED"
        await all_ended(fleet)
        assert state_of(await caller.get(running)) == "COMPLETED"
    assert await outcomes(fleet, running) == ["completed"]
    assert await sink.counts(key) == await sink.counts(f"{key}-2") == ONCE


@asynccontextmanager
async def two_servers() -> AsyncIterator[tuple[str, Callable[[], Awaitable[None]]]]:
    """A URL with two hosts, of which the first answers; and what makes it the second."""
    with PostgresServer() as primary, closing(PostgresServer(primary.folder)) as standby:
        async with Proxy("127.0.0.1", primary.port) as first, Proxy("127.0.0.1", 1) as second:
            primary.create_database("outlast")

            async def fail_over() -> None:
                await asyncio.to_thread(primary.kill)
                await asyncio.to_thread(standby.start)
                second.port_of_server = standby.port

            hosts = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
            yield (
                f"postgresql://postgres@{hosts}/outlast?target_session_attrs=read-write",
                fail_over,
            )


async def beats_terminated(operator: psycopg.AsyncConnection[tuple[int]]) -> bool:
    """Terminate the sessions that show the presence of a worker; False: there was none."""
    cursor = await operator.execute(
        "select pg_terminate_backend(pid) from pg_locks"
        " where locktype = 'advisory' and granted and database ="
        " (select oid from pg_database where datname = current_database())"
    )
    return cursor.rowcount > 0


async def test_restore_from_an_older_backup(
    sqlite_fleet: Fleet, tmp_path: Path, sink: CounterSink
) -> None:
    """Callers, answers and workers of the lost future change nothing; what they had done outside
    is done again under the same key."""
    fleet, key, backup = sqlite_fleet, sink.key(), tmp_path / "backup.db"
    live = Path(str(fleet.settings["database"]).removeprefix("sqlite:///"))
    gateway, lost = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with Caller(gateway.url, extended=True) as caller:
        task = await caller.send(f"emit 3; ask Go?; effect {key}; emit 1; wait 1; emit 2")
        copy(live, backup)
        await caller.send("there", task=task, wait=False)
        await until(lambda: has_emitted(caller, task, "1\n2\n3\n1\n"))
        lost_generation = generation_of(await caller.get(task))
        assert lost_generation > generation_of(task)
    gateway.kill()
    await restore(lost, backup, live)
    async with fleet.stores() as stores:
        old = (await stores.admin.check()).epoch
    command = fleet.start(
        "restored", "outlast.cli:app", "restored", "--yes",
        "--database", str(fleet.settings["database"]),
    )  # fmt: skip
    assert await command.ended() == 0, command.tail()
    await command.says("0 leases have ended, 1 workers")

    gateway, _ = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with Caller(gateway.url, extended=True) as caller:
        now = await caller.get(task)
        assert (state_of(now), generation_of(now)) == ("INPUT_REQUIRED", generation_of(task))
        assert pause_of(now) != pause_of(task), "the same question, in another time"
        async with caller.subscribe(task, after=f"{old}-{lost_generation}") as events:
            assert (await anext(events))["task"]["metadata"][EXTENSION_URI]["reset"] is True
        with pytest.raises(Refusal, match="UNSUPPORTED_OPERATION"):
            await caller.send("late", task=task, pause=pause_of(task))
        lost.thaw()
        await lost.logged("worker.declared_dead")
        ended = await caller.send("here", task=task, pause=pause_of(now))
        assert state_of(ended) == "COMPLETED"
        assert texts_of(ended) == {"chunks": "1\n2\n3\n1\n1\n2\n"}
        assert history_of(ended)[1:] == ["Go?", "here"]
    assert await sink.counts(key) == Counts(calls=2, effects=1)


async def test_a_gateway_that_goes_on_over_a_restore_ends(sqlite_fleet: Fleet) -> None:
    """It would take answers to questions of the lost future for answers to new ones."""
    gateway = await sqlite_fleet.gateway()
    async with sqlite_fleet.stores() as stores:
        await stores.admin.restored()
    assert await gateway.ended() == 1
    assert "the store was restored" in gateway.text()


async def has_emitted(caller: Caller, task: Json, text: str) -> bool:
    return texts_of(await caller.get(task)) == {"chunks": text}


def copy(live: Path, backup: Path) -> None:
    """As `sqlite3 live ".backup backup"` does, also into a file that others have open."""
    with closing(sqlite3.connect(live)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)


async def restore(worker: Child, backup: Path, live: Path) -> None:
    """Put the backup in place under a worker that hangs, but in no transaction."""

    async def has_frozen() -> bool:
        worker.freeze()
        try:
            copy(backup, live)
        except sqlite3.OperationalError:
            worker.thaw()
            return False
        return True

    await until(has_frozen)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk to fill")
async def test_disk_full(tmp_path: Path, sink: CounterSink) -> None:
    """Writes fail while the disk is full, and say why; when there is room again all goes on."""
    async with small_disk(tmp_path / "disk") as disk:
        fleet = Fleet(
            f"sqlite:///{disk}/outlast.db",
            tmp_path / "fleet",
            agent=AGENT,
            environment={"PROBE_SINK": sink.url},
            database_timeout=1.0,
        )
        key = sink.key()
        async with lawful(fleet):
            server = await fleet.serve()
            async with Caller(server.url) as caller:
                task = await caller.send(f"effect {key}; wait 1.5; emit 5; say b", wait=False)
                await until(lambda: sink.is_called(key))
                ballast = fill(disk)
                sending = asyncio.create_task(caller.send("say " + "x" * 200_000))
                await server.logged("beat.failed", error=DISK_FULL)
                assert not sending.done(), "it is tried again while there is no room"
                ballast.unlink()
                assert state_of(await sending) == "COMPLETED"
                await until(lambda: has_state(caller, task, "COMPLETED"))
                assert texts_of(await caller.get(task)) == {"chunks": "1\n2\n3\n4\n5\n"}
        assert await sink.counts(key) == ONCE


@asynccontextmanager
async def small_disk(place: Path) -> AsyncIterator[Path]:
    place.mkdir()
    await run("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place))
    try:
        yield place
    finally:
        await run("umount", "--lazy", str(place))


async def run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == 0, command


def fill(disk: Path) -> Path:
    """Write until nothing more fits."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    return ballast


# --- answers --------------------------------------------------------------------------------------


async def test_answer_a_day_late(fleet: Fleet) -> None:
    """The question waits for a week: a day later everybody has been restarted."""
    server = await fleet.serve()
    async with Caller(server.url) as caller:
        task = await caller.send("ask Go on? within 7d")
    server.kill()
    async with fleet.stores() as stores:
        await stores.admin.move_clock(A_DAY)
    server = await fleet.serve()
    async with Caller(server.url) as caller:
        assert state_of(await caller.send("yes", task=task)) == "COMPLETED"


async def test_answer_racing_the_deadline(fleet: Fleet, sink: CounterSink) -> None:
    """Either the answer or the deadline: the caller, the task and the effect agree on which."""
    dice = random.Random(22)
    gateway, *_ = await asyncio.gather(fleet.gateway(), fleet.worker(), fleet.worker())

    async def race(caller: Caller) -> str | None:
        key = sink.key()
        task = await caller.send(f"ask Well? within 0.5; effect {key}")
        await asyncio.sleep(0.5 + dice.uniform(0.0, 1.2))  # sweeps come every second
        try:
            ended = await caller.send("yes", task=task)
        except Refusal as refusal:
            assert refusal.reason == "UNSUPPORTED_OPERATION"  # noqa: PT017
            ended = await caller.get(task)
            assert state_of(ended) == "FAILED"
            assert history_of(ended)[1:] == []
        else:
            assert state_of(ended) == "COMPLETED"
            assert history_of(ended)[1:] == ["Well?", "yes"]
        assert await sink.is_called(key) == (state_of(ended) == "COMPLETED")
        return state_of(ended)

    async with Caller(gateway.url) as caller:
        ends = await asyncio.gather(*(race(caller) for _ in range(RACES)))
    assert set(ends) <= {"COMPLETED", "FAILED"}


async def test_answer_to_a_question_that_is_over(fleet: Fleet, sink: CounterSink) -> None:
    """An answer that names the first question never answers the second."""
    key = sink.key()
    server = await fleet.serve()
    async with Caller(server.url) as caller:
        first = await caller.send(f"ask First?; ask Second?; effect {{answer}}-{key}")
        second = await caller.send("one", task=first, pause=pause_of(first))
        assert state_of(second) == "INPUT_REQUIRED"
        with pytest.raises(Refusal, match="UNSUPPORTED_OPERATION"):
            await caller.send("late", task=first, pause=pause_of(first))
        assert await caller.get(first) == second
        ended = await caller.send("two", task=second, pause=pause_of(second))
    assert state_of(ended) == "COMPLETED"
    assert await sink.counts(f"two-{key}") == ONCE


# --- effects --------------------------------------------------------------------------------------


async def test_cancel_during_an_effect(fleet: Fleet, sink: CounterSink) -> None:
    """The task is canceled at once; the call that is under way ends, and its result is kept."""
    key = sink.key()
    gateway, worker = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with Caller(gateway.url) as caller:
        await sink.meets(action="hang", when="after", seconds=1)
        task = await caller.send(f"effect {key}; say b", wait=False)
        await until(lambda: sink.is_called(key))
        assert state_of(await caller.cancel(task)) == "CANCELED"
        await worker.logged("run.lease_lost", task_id=task["id"])
        assert state_of(await caller.get(task)) == "CANCELED"
    assert await sink.counts(key) == ONCE
    async with fleet.stores() as stores:
        row = await stores.inspect.find(TaskId(task["id"]))
        assert row is not None
        entry = await stores.work.entry(row.ledger_id, f"effect:effect:{key}")
        assert entry is not None
        assert entry.result == "null", "what it brought is in the ledger"


async def test_effect_done_and_ledger_write_lost(postgres_fleet: Fleet, sink: CounterSink) -> None:
    """The network goes while the sink works, and comes back when another worker has done it again
    under the same key. The first worker's result arrives late and changes nothing."""
    key = sink.key()
    gateway = await postgres_fleet.gateway()
    async with cut_off(postgres_fleet) as (proxy, url), Caller(gateway.url) as caller:
        lonely = await postgres_fleet.worker(database=url)
        await sink.meets(action="hang", when="after", seconds=1)
        task = await caller.send(f"effect {key}; say b", wait=False)
        await until(lambda: sink.is_called(key))
        proxy.blackhole()
        await postgres_fleet.worker()
        await until(lambda: has_state(caller, task, "COMPLETED"))
        ended = await caller.get(task)

        proxy.heal()
        await lonely.logged("run.lease_lost", task_id=task["id"])
        await lonely.logged("worker.registered", times=2)
        assert await caller.get(task) == ended
    assert await sink.counts(key) == Counts(calls=2, effects=1)
    assert await outcomes(postgres_fleet, task) == ["lost", "completed"]


# --- tasks that cannot be written -----------------------------------------------------------------


async def test_poisoned_row_in_a_batch(fleet: Fleet) -> None:
    """What one task wants written is refused by the database; those beside it notice nothing."""
    gateway, worker = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with Caller(gateway.url) as caller:
        healthy = [caller.send("say a; emit 3; say b") for _ in range(20)]
        poison = await caller.send("poison", workflow="scenes", wait=False)
        for task in await asyncio.gather(*healthy):
            assert state_of(task) == "COMPLETED"
        await is_held(fleet, worker, poison, because="NUL")


async def test_checkpoint_too_large(fleet: Fleet) -> None:
    """The author is told, the task is held at its last commit, and others go on."""
    gateway, worker = await asyncio.gather(fleet.gateway(), fleet.worker())
    async with Caller(gateway.url) as caller:
        large = await caller.send("grow", workflow="scenes", wait=False)
        await is_held(fleet, worker, large, because="checkpoint")
        assert state_of(await caller.get(large)) == "WORKING"
        assert state_of(await caller.send("say others go on")) == "COMPLETED"
        async with fleet.stores() as stores:
            checkpoint = await stores.inspect.checkpoint(TaskId(large["id"]))
            assert checkpoint is not None
            assert len(checkpoint) < 1000
            log = await stores.log.events_since(TaskId(large["id"]), Seq(0))
            assert "small" in str(log[-1].body)


async def is_held(fleet: Fleet, worker: Child, task: Json, *, because: str) -> None:
    async with fleet.stores() as stores:

        async def held() -> list[str]:
            rows = await stores.inspect.held("cases")
            return [row.held_reason or "" for row in rows if row.task_id == task["id"]]

        (reason,) = await until(held)
        assert because in reason
    assert len(worker.entries("run.began", task_id=task["id"])) == 1


# --- looking --------------------------------------------------------------------------------------


async def has_state(caller: Caller, task: Json, state: str) -> bool:
    return state_of(await caller.get(task)) == state


async def have_begun(workers: list[Child], count: int) -> bool:
    return sum(len(worker.entries("run.began")) for worker in workers) >= count


async def outcomes(fleet: Fleet, *tasks: Json) -> list[str | None]:
    """How each run of these tasks ended."""
    async with fleet.stores() as stores:
        return [
            run["outcome"]
            for task in tasks
            for run in await stores.inspect.runs(TaskId(task["id"]))
        ]
