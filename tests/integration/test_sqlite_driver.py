"""The SQLite driver on a file that others write, lock, fill and take away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from outlast.model.commit import Committed
from outlast.model.errors import ConfigError, StoreUnavailable
from outlast.store import place
from outlast.store.admin import Admin
from outlast.store.database import Query, Rows, Script, Statement, StatementRefused
from outlast.store.inspect import Inspect
from outlast.store.protocols import Settings
from outlast.store.sqlite import SqliteDatabase
from outlast.store.tasks import Tasks
from tests.contract.stores import Store, chunk, new_task

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
Open = Callable[..., Awaitable[SqliteDatabase]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outlast.db"


@pytest.fixture
async def connect(path: Path) -> AsyncIterator[Open]:
    """Opens databases and closes them after the test."""
    opened: list[SqliteDatabase] = []

    async def connect(at: Path = path, **options: Any) -> SqliteDatabase:
        database = SqliteDatabase(at, **options)
        await database.open()
        opened.append(database)
        return database

    yield connect
    for database in opened:
        await database.close()


@pytest.fixture
async def database(connect: Open) -> SqliteDatabase:
    """An open database with the schema."""
    opened = await connect()
    await Admin(opened).migrate()
    return opened


def statement(text: str, **params: Any) -> Callable[[], Script[Rows]]:
    def script() -> Script[Rows]:
        return (yield Statement(Query(name="test_own", promise="", text=text), params))

    return script


async def seconds(call: Awaitable[T]) -> tuple[float, T | BaseException]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    (outcome,) = await asyncio.gather(call, return_exceptions=True)
    return loop.time() - began, outcome


def start(code: str, *words: str | Path, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


async def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    line = await asyncio.to_thread(child.stdout.readline)
    return line.strip()


def end(*children: subprocess.Popen[str]) -> None:
    for child in children:
        child.kill()
        child.communicate()


# --- several processes --------------------------------------------------------------------------

_WORK = """
import asyncio, json, sys
from outlast.model.commit import Finish
from outlast.model.ids import WorkerId
from outlast.model.task import State
from tests.contract.stores import Run, Store, Settings, chunk, database_at, ended, said

async def main(url, name, tasks):
    database = database_at(url, timeout=60)
    await database.open()
    store = Store(url, database, Settings())
    await store.worker(name)
    print("ready", flush=True)
    sys.stdin.readline()
    claimed, errors = [], []

    async def work(n):
        try:
            await store.new_task()
            for lease in await store.claim(name, limit=1):
                run = Run(store, lease, WorkerId(name))
                claimed.append(lease.task_id)
                for _ in range(5):
                    await run.commit(chunk(), chunk(), said())
                await run.finish()
            await store.beats.beat(WorkerId(name), presence=None)
        except Exception as error:
            errors.append(repr(error))

    gate = asyncio.Semaphore(10)

    async def gated(n):
        async with gate:
            await work(n)

    await asyncio.gather(*(gated(n) for n in range(tasks)))
    await database.close()
    print(json.dumps([claimed, errors]), flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def test_case_129_several_processes_write_one_file_at_once(
    database: SqliteDatabase, path: Path
) -> None:
    """Nobody meets a lock, no task is claimed twice, nothing is lost, and a reader reads on."""
    processes, tasks = 4, 30
    children = [
        start(_WORK, f"sqlite:///{path}", f"w{n}", str(tasks), stderr=subprocess.PIPE)
        for n in range(processes)
    ]
    try:
        for child in children:
            assert await line_of(child) == "ready"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        looks = 0
        telling = [asyncio.create_task(line_of(child)) for child in children]
        while not all(told.done() for told in telling):
            assert await Inspect(database).broken_laws() == {}
            looks += 1
        told = [json.loads(one.result()) for one in telling]
    finally:
        end(*children)
    assert [errors for _, errors in told] == [[]] * processes
    claimed = [task for tasks_of_one, _ in told for task in tasks_of_one]
    assert len(claimed) == len(set(claimed)) == processes * tasks
    (row,) = await database.read(
        statement(
            "select count(*) as events, count(distinct task_id) as tasks,"
            " count(distinct task_id) filter (where body like '%completed%') as done"
            " from task_events"
        )
    )
    assert tuple(row.values()) == (processes * tasks * 17, processes * tasks, processes * tasks)
    assert looks > 0


_DIE_INSIDE = """
import asyncio, os, signal, sys
from outlast.model import points
from outlast.store.sqlite import SqliteDatabase
from outlast.store.tasks import Tasks
from tests.contract.stores import new_task

def kill(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    database = SqliteDatabase(sys.argv[1])
    await database.open()
    points.listen(kill)
    await Tasks(database).create(new_task(send_key="key"))

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("point", "happened"),
    [
        ("before:send_keys_claim", False),
        ("after:tasks_create", False),
        ("after:task_events_append", False),
        ("before:commit", False),
        ("after:commit", True),
    ],
)
async def test_a_process_that_dies_in_a_transaction_leaves_all_or_nothing(
    database: SqliteDatabase, path: Path, point: str, happened: bool
) -> None:
    child = start(_DIE_INSIDE, path, point)
    await asyncio.to_thread(child.communicate)
    assert child.returncode == -signal.SIGKILL
    tasks, inspect = Tasks(database), Inspect(database)
    assert await inspect.broken_laws() == {}
    sent = await tasks.create(new_task(send_key="key"))
    assert sent.is_repeat is happened
    assert await inspect.broken_laws() == {}


async def test_a_frozen_writer_costs_others_their_deadline_and_no_more(
    database: SqliteDatabase, path: Path, connect: Open
) -> None:
    impatient = await connect(timeout=0.5)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as frozen:
        frozen.execute("begin immediate")
        took, outcome = await seconds(Tasks(impatient).create(new_task()))
        assert isinstance(outcome, StoreUnavailable)
        assert outcome.happened is False
        assert "locked" in str(outcome)
        assert 0.4 < took < 0.7
        assert await Inspect(impatient).broken_laws() == {}  # readers read on
        frozen.execute("rollback")
    await Tasks(impatient).create(new_task())


async def test_the_event_loop_runs_on_while_the_file_is_locked(
    database: SqliteDatabase, path: Path, connect: Open
) -> None:
    impatient = await connect(timeout=0.4)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as frozen:
        frozen.execute("begin immediate")
        creating = asyncio.create_task(seconds(Tasks(impatient).create(new_task())))
        loop = asyncio.get_running_loop()
        longest, before = 0.0, loop.time()
        while not creating.done():
            await asyncio.sleep(0.005)
            longest, before = max(longest, loop.time() - before), loop.time()
        frozen.execute("rollback")
    assert longest < 0.25
    await creating


# --- settings -----------------------------------------------------------------------------------


async def test_every_connection_is_durable(database: SqliteDatabase, path: Path) -> None:
    for call in (database.transact, database.read):
        assert await call(statement("pragma journal_mode")) == [{"journal_mode": "wal"}]
        assert await call(statement("pragma synchronous")) == [{"synchronous": 2}]  # FULL
    assert path.with_name("outlast.db-wal").exists()


async def test_readers_cannot_write(database: SqliteDatabase) -> None:
    with pytest.raises(ConfigError, match="read-only"):
        await database.read(statement("update store set clock_offset = 7"))
    assert (await database.read(statement("select clock_offset from store"))) == [
        {"clock_offset": 0}
    ]


async def test_a_reader_sees_one_moment(database: SqliteDatabase, connect: Open) -> None:
    other = await connect()
    ready, written = threading.Event(), threading.Event()

    def script() -> Script[list[int]]:
        seen = []
        for _ in range(2):
            rows = yield from statement("select clock_offset from store")()
            seen.append(rows[0]["clock_offset"])
            ready.set()
            written.wait(10)
        return seen

    reading = asyncio.create_task(database.read(script))
    await asyncio.to_thread(ready.wait, 10)
    await other.transact(statement("update store set clock_offset = 7"))
    written.set()
    assert await reading == [0, 0]


# --- the writer thread --------------------------------------------------------------------------


class TestWriterThread:
    @pytest.mark.parametrize(
        "failure", [ValueError("own"), KeyError("x"), KeyboardInterrupt(), SystemExit(3)]
    )
    async def test_survives_what_a_script_raises(
        self, database: SqliteDatabase, failure: BaseException
    ) -> None:
        def script() -> Script[None]:
            yield from statement("update store set clock_offset = 77")()
            raise failure

        raised: BaseException | None = None
        try:
            await database.transact(script)
        except BaseException as error:
            raised = error
        assert raised is failure
        rows = await database.transact(statement("select clock_offset from store"))
        assert rows == [{"clock_offset": 0}]

    async def test_survives_statements_that_fail(self, database: SqliteDatabase) -> None:
        for text in ("select nonsense", "not even sql", "insert into store (epoch) values (null)"):
            for call in (database.transact, database.read):
                with pytest.raises((StatementRefused, ConfigError)):
                    await call(statement(text))
        with pytest.raises(StatementRefused):
            await database.transact(statement("select :n", n=1 << 70))
        with pytest.raises(StatementRefused):
            await database.transact(statement("select :word", word="\ud800"))
        assert await database.transact(statement("select 1 as n")) == [{"n": 1}]

    async def test_does_what_is_queued_in_order(self, database: SqliteDatabase) -> None:
        await database.transact(statement("create table numbers (n integer)"))
        await asyncio.gather(
            *(
                database.transact(statement("insert into numbers values (:n)", n=n))
                for n in range(100)
            )
        )
        rows = await database.read(statement("select n from numbers order by rowid"))
        assert [row["n"] for row in rows] == list(range(100))

    async def test_leaves_out_what_nobody_waits_for(self, database: SqliteDatabase) -> None:
        going = threading.Event()

        def slow() -> Script[None]:
            yield from statement("select 1")()
            going.wait(10)

        running = asyncio.create_task(database.transact(slow))
        canceled = asyncio.create_task(
            database.transact(statement("update store set clock_offset = 77"))
        )
        await asyncio.sleep(0)
        canceled.cancel()
        await asyncio.gather(canceled, return_exceptions=True)
        going.set()
        await running
        rows = await database.read(statement("select clock_offset from store"))
        assert rows == [{"clock_offset": 0}]

    async def test_finishes_what_it_has_when_it_closes(self, path: Path) -> None:
        database = SqliteDatabase(path)
        await database.open()
        await Admin(database).migrate()
        tasks = Tasks(database)
        creating = [asyncio.create_task(tasks.create(new_task())) for _ in range(20)]
        await asyncio.sleep(0)
        await database.close()
        sent = await asyncio.gather(*creating)
        assert [one.is_repeat for one in sent] == [False] * 20
        for late in (tasks.create(new_task()), database.read(statement("select 1"))):
            with pytest.raises(StoreUnavailable, match="not open") as caught:
                await late
            assert caught.value.happened is False

    async def test_ends_with_the_database(self, path: Path) -> None:
        before = set(threading.enumerate())
        for _ in range(3):
            database = SqliteDatabase(path)
            await database.open()
            await database.read(statement("select 1"))
            await database.close()
        left = [one for one in threading.enumerate() if one not in before]
        assert [one.name for one in left if one.name.startswith("outlast")] == []

    async def test_can_be_opened_again_after_closing(self, path: Path) -> None:
        database = SqliteDatabase(path)
        for n in range(3):
            await database.open()
            assert await database.transact(statement(f"select {n} as n")) == [{"n": n}]
            assert await database.read(statement(f"select {n} as n")) == [{"n": n}]
            await database.close()


# --- wake-ups -----------------------------------------------------------------------------------

_WRITE_ONCE = """
import asyncio, sys
from outlast.store.sqlite import SqliteDatabase
from outlast.store.tasks import Tasks
from tests.contract.stores import new_task

async def main():
    database = SqliteDatabase(sys.argv[1])
    await database.open()
    print("ready", flush=True)
    while sys.stdin.readline():
        await Tasks(database).create(new_task())
        print("written", flush=True)
    await database.close()

asyncio.run(main())
"""


class TestWakeups:
    async def test_cross_processes(self, database: SqliteDatabase, path: Path) -> None:
        child = start(_WRITE_ONCE, path)
        try:
            assert await line_of(child) == "ready"
            for _ in range(5):
                with database.subscribe("work:agent") as bell:
                    while await bell.wait(0.05):
                        pass
                    assert child.stdin is not None
                    child.stdin.write("go\n")
                    child.stdin.flush()
                    assert await line_of(child) == "written"
                    took, rung = await seconds(bell.wait(5))
                    assert rung is True
                    assert took < 1
        finally:
            end(child)

    async def test_reach_this_process_at_once(self, database: SqliteDatabase) -> None:
        with database.subscribe("work:a") as bell, database.subscribe("work:b") as other:
            while await bell.wait(0.05) or await other.wait(0.05):
                pass  # what the preparations of this test have rung
            database.send(["work:a"])
            assert await bell.wait(0)
            assert not await other.wait(0)
            assert not await bell.wait(0)

    async def test_of_a_closed_subscription_are_dropped(self, database: SqliteDatabase) -> None:
        with database.subscribe("work:a") as bell:
            pass
        database.send(["work:a"])
        assert not await bell.wait(0)

    async def test_survive_a_file_that_is_locked_for_a_while(
        self, database: SqliteDatabase, path: Path, connect: Open
    ) -> None:
        other = await connect()
        with database.subscribe("work:agent") as bell:
            while await bell.wait(0.05):
                pass
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as locker:
                locker.execute("begin exclusive")
                assert not await bell.wait(0.1)
                locker.execute("rollback")
            await Tasks(other).create(new_task())
            assert await bell.wait(5)


# --- presence -----------------------------------------------------------------------------------

_PRESENT = """
import asyncio, sys
from outlast.store.sqlite import SqliteDatabase

async def main():
    database = SqliteDatabase(sys.argv[1])
    await database.open()
    await database.keep_presence("child")
    print("present", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


class TestPresence:
    async def test_is_seen_across_processes_and_ends_with_them(
        self, database: SqliteDatabase, path: Path
    ) -> None:
        child = start(_PRESENT, path)
        try:
            assert await line_of(child) == "present"
            assert await database.is_present(["child", "other"]) == {"child": True, "other": None}
            child.send_signal(signal.SIGSTOP)
            assert await database.is_present(["child"]) == {"child": True}
        finally:
            end(child)
        assert await database.is_present(["child"]) == {"child": False}
        await database.drop_presence("child")
        assert await database.is_present(["child"]) == {"child": None}

    async def test_is_kept_and_dropped(self, database: SqliteDatabase, connect: Open) -> None:
        other = await connect()
        await database.keep_presence("w1")
        await database.keep_presence("w1")
        assert await other.is_present(["w1"]) == {"w1": True}
        with pytest.raises(ConfigError, match="w1"):
            await other.keep_presence("w1")
        await database.drop_presence("w1")
        assert await other.is_present(["w1"]) == {"w1": None}
        await other.keep_presence("w1")
        assert await database.is_present(["w1"]) == {"w1": True}

    async def test_ends_when_the_database_is_closed(self, path: Path, connect: Open) -> None:
        here, there = SqliteDatabase(path), await connect()
        await here.open()
        await here.keep_presence("w1")
        await here.close()
        assert await there.is_present(["w1"]) == {"w1": False}


# --- what is wrong is said ----------------------------------------------------------------------


async def opening_fails(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        await SqliteDatabase(path).open()
    return str(caught.value)


class TestClearErrors:
    async def test_of_a_missing_folder(self, tmp_path: Path) -> None:
        text = await opening_fails(tmp_path / "missing" / "outlast.db")
        assert f"create {tmp_path / 'missing'}" in text
        assert not (tmp_path / "missing").exists()

    async def test_of_a_folder(self, tmp_path: Path) -> None:
        assert "name a file" in await opening_fails(tmp_path)

    async def test_of_a_file_that_is_no_database(self, path: Path) -> None:
        path.write_text("This is a letter, and a rather long one.\n" * 100)
        text = await opening_fails(path)
        assert "not a database" in text
        assert path.read_text().startswith("This is a letter")

    async def test_of_a_database_that_is_cut_short(
        self, path: Path, database: SqliteDatabase
    ) -> None:
        await database.close()
        path.write_bytes(path.read_bytes()[:5_000])
        damaged = SqliteDatabase(path)
        with pytest.raises((ConfigError, StoreUnavailable), match=r"malformed|not a database"):
            await open_and_migrate(damaged)
        await damaged.close()

    async def test_of_a_network_file_system(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(place, "file_system_of", lambda folder: "nfs4")
        text = await opening_fails(path)
        assert "network file system (nfs4)" in text
        assert "PostgreSQL" in text

    async def test_of_a_missing_schema(self, connect: Open) -> None:
        with pytest.raises(ConfigError, match="run `outlast migrate`"):
            await Tasks(await connect()).create(new_task())

    async def test_of_a_file_that_stays_locked(self, path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as locker:
            locker.execute("create table x (n)")
            locker.execute("begin exclusive")
            opening = SqliteDatabase(path, timeout=0.3)
            took, outcome = await seconds(opening.open())
            locker.execute("rollback")
        assert isinstance(outcome, ConfigError)
        assert "locked" in str(outcome)
        assert took < 1

    async def test_of_a_read_only_file(self, small_disk: Path) -> None:
        path = small_disk / "outlast.db"
        database = SqliteDatabase(path)
        await database.open()
        await Admin(database).migrate()
        await database.close()
        with read_only(small_disk):
            text = await opening_fails(path)
        assert "read-only" in text
        assert "writable" in text
        await database.open()
        assert (await Admin(database).check()).schema_version >= 1
        await database.close()

    async def test_of_a_file_that_becomes_read_only(self, database: SqliteDatabase) -> None:
        await database.transact(statement("select 1"))

        def forbid() -> Script[Rows]:
            return (yield from statement("pragma query_only = on")())

        await database.transact(forbid)  # as good as a file that turned read-only under us
        with pytest.raises(ConfigError, match="read-only"):
            await Tasks(database).create(new_task())


# --- a full disk --------------------------------------------------------------------------------


def may_mount() -> bool:
    if os.geteuid() != 0 or sys.platform != "linux":
        return False
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=64k", "outlast-test", folder]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return False
        subprocess.run(["umount", folder], check=True)
    return True


@pytest.fixture(scope="module")
def mounting() -> bool:
    return may_mount()


@pytest.fixture
def small_disk(tmp_path: Path, mounting: bool) -> Iterator[Path]:
    """A folder on a disk of its own of 4 MiB, where we may mount one; else an ordinary folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not mounting:
        yield folder
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "outlast-test", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    if os.path.ismount(folder):
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        yield
        subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
        return
    for path in folder.iterdir():
        path.chmod(0o400)
    yield
    for path in folder.iterdir():
        path.chmod(0o600)


class TestFullDisk:
    @pytest.mark.parametrize("how", ["a full disk", "a full file"])
    async def test_is_a_clear_error_and_nothing_is_half_written(
        self, small_disk: Path, how: str
    ) -> None:
        path = small_disk / "outlast.db"
        database = SqliteDatabase(path)
        await database.open()
        store = Store(f"sqlite:///{path}", database, Settings())
        await store.admin.migrate()
        run = await store.claimed()
        ballast = small_disk / "ballast"
        if how == "a full disk" and os.path.ismount(small_disk):
            fill(ballast)
        else:
            await database.transact(statement("pragma max_page_count = 100"))
        full: StoreUnavailable | None = None
        write = run.write(chunk(text="x" * 20_000))
        for _ in range(1_000):
            try:
                verdict = await store.commit(write)
            except StoreUnavailable as error:
                full = error
                break
            assert isinstance(verdict, Committed)
            run.write_no = write.write_no + 1  # type: ignore[assignment]
            write = run.write(chunk(text="x" * 20_000))
        assert full is not None
        assert "full" in str(full)
        assert full.happened is False
        before = await store.task(run.task_id)
        assert before.generation == 1 + run.write_no
        assert await store.inspect.broken_laws() == {}
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="full"):
                await store.commit(write)
        assert await store.task(run.task_id) == before
        ballast.unlink(missing_ok=True)
        await database.transact(statement("pragma max_page_count = 100000"))
        assert isinstance(await store.commit(write), Committed)
        assert await store.inspect.broken_laws() == {}
        await store.close()

    async def test_from_the_start_is_a_clear_error(self, small_disk: Path) -> None:
        if not os.path.ismount(small_disk):
            return  # nothing to fill
        fill(small_disk / "ballast")
        database = SqliteDatabase(small_disk / "outlast.db")
        with pytest.raises((ConfigError, StoreUnavailable), match=r"full|disk I/O"):
            await open_and_migrate(database)
        await database.close()
        (small_disk / "ballast").unlink()
        again = SqliteDatabase(small_disk / "outlast.db")
        await open_and_migrate(again)
        await again.close()


async def open_and_migrate(database: SqliteDatabase) -> None:
    await database.open()
    await Admin(database).migrate()


def fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
