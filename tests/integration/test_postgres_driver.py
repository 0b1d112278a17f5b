"""The PostgreSQL driver on a server that freezes, restarts, dies and hangs up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outlast.model.errors import ConfigError, StoreUnavailable
from outlast.model.ids import Millis, WorkerId
from outlast.store.admin import Admin
from outlast.store.beats import Beats
from outlast.store.database import Query, Rows, Script, Statement, StatementRefused
from outlast.store.postgres import PostgresDatabase
from outlast.store.protocols import NewTask
from outlast.store.tasks import Tasks
from outlast.store.work import Work
from outlast.testing.postgres_server import PostgresServer
from outlast.testing.processes import read_process, wait_until_gone
from tests.contract.stores import new_task, new_worker, until

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
Open = Callable[..., Awaitable[PostgresDatabase]]
Verb = Literal["read", "transact", "autocommit"]
VERBS: tuple[Verb, ...] = ("read", "transact", "autocommit")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that nobody else uses: the tests of this module freeze and kill it."""
    with PostgresServer() as own:
        yield own


@pytest.fixture(scope="module")
def template(server: PostgresServer) -> str:
    url = server.create_database("template")

    async def migrate() -> None:
        database = PostgresDatabase(url, listens=False)
        await database.open()
        await Admin(database).migrate()
        await database.close()

    asyncio.run(migrate())
    return "template"


@pytest.fixture
def dsn(server: PostgresServer, template: str) -> Iterator[str]:
    """The URL of a migrated database of this test's own."""
    server.thaw()
    if not server.is_running:
        server.start()
    yield server.create_database(f"test_{uuid.uuid4().hex}", template=template)
    server.thaw()


@pytest.fixture
async def connect(dsn: str) -> AsyncIterator[Open]:
    """Opens databases and closes them after the test."""
    opened: list[PostgresDatabase] = []

    async def connect(url: str = dsn, **options: Any) -> PostgresDatabase:
        database = PostgresDatabase(url, **({"listens": False} | options))
        opened.append(database)
        await database.open()
        return database

    yield connect
    for database in opened:
        await database.close()


# --- asking -------------------------------------------------------------------------------------


def statement(text: str, **params: Any) -> Callable[[], Script[Rows]]:
    def script() -> Script[Rows]:
        return (yield Statement(Query(name="test_own", promise="", text=text), params))

    return script


async def ask(
    database: PostgresDatabase, text: str, *, verb: Verb = "transact", **options: Any
) -> Rows:
    call = getattr(database, verb)
    rows: Rows = await call(statement(text), **options)
    return rows


async def backend_of(database: PostgresDatabase) -> int:
    """The pid of the process that serves this database's one session."""
    rows = await ask(database, "select pg_backend_pid() as pid", verb="read")
    return int(rows[0]["pid"])


def look(dsn: str, text: str, *params: Any) -> list[tuple[Any, ...]]:
    """A statement over a connection of the test's own."""
    with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(text.encode(), params)
        return cursor.fetchall() if cursor.description else []


async def seconds(call: Awaitable[T]) -> tuple[float, T | BaseException]:
    """How long this took, and what became of it."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    (outcome,) = await asyncio.gather(call, return_exceptions=True)
    return loop.time() - began, outcome


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """A server that answers what it is told; yields its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(await reader.readexactly(5))
            await writer.drain()
        writer.close()

    answering = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield answering.sockets[0].getsockname()[1]
    answering.close()
    await answering.wait_closed()


class Sockets:
    """Opens and closes sockets, as fast as it can, until told to stop."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stopping = False
        self.used = 0

    async def run(self) -> None:
        while not self._stopping:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.close()
            await writer.wait_closed()
            self.used += 1

    def stop(self) -> None:
        self._stopping = True


# --- deadlines ----------------------------------------------------------------------------------


class TestFrozenBackend:
    @pytest.mark.parametrize("verb", VERBS)
    async def test_a_call_is_free_at_its_deadline_and_no_socket_suffers(
        self, server: PostgresServer, connect: Open, verb: Verb
    ) -> None:
        timeout = 0.7
        database = await connect(size=1)
        server.freeze(await backend_of(database))
        async with echo() as port:
            others = [Sockets(port) for _ in range(4)]
            running = [asyncio.create_task(one.run()) for one in others]
            took, outcome = await seconds(ask(database, "select 1", verb=verb, timeout=timeout))

            async def enough() -> bool:
                return sum(one.used for one in others) >= 100

            await until(enough)
            for one in others:
                one.stop()
            await asyncio.gather(*running)  # raises what a socket has met
        assert isinstance(outcome, StoreUnavailable)
        assert outcome.happened is (None if verb == "autocommit" else False)
        assert timeout <= took < timeout + 0.2
        assert sum(one.used for one in others) >= 100

    async def test_the_pool_recovers_while_the_backend_is_still_frozen(
        self, server: PostgresServer, connect: Open
    ) -> None:
        database = await connect(size=1)
        frozen = await backend_of(database)
        server.freeze(frozen)
        with pytest.raises(StoreUnavailable):
            await ask(database, "select 1", timeout=0.3)
        took, outcome = await seconds(ask(database, "select 1 as n", timeout=5))
        assert outcome == [{"n": 1}]
        assert took < 3
        assert await backend_of(database) != frozen
        server.thaw(frozen)
        assert await ask(database, "select 2 as n") == [{"n": 2}]

    async def test_the_pool_recovers_when_the_backend_is_never_thawed_but_killed(
        self, server: PostgresServer, connect: Open
    ) -> None:
        database = await connect(size=2)
        frozen = await backend_of(database)
        server.freeze(frozen)
        calls = (ask(database, "select 1", timeout=0.3) for _ in range(2))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in outcomes].count(StoreUnavailable) == 1
        process = read_process(frozen)
        assert process is not None
        process.send(signal.SIGKILL)  # and with it the server ends all sessions and recovers
        assert wait_until_gone([process], deadline_s=10) == []
        assert await ask(database, "select 1 as n", verb="read", timeout=10) == [{"n": 1}]
        assert await ask(database, "select 2 as n", timeout=10) == [{"n": 2}]

    async def test_ten_calls_at_once_are_free_at_their_deadline(
        self, server: PostgresServer, connect: Open
    ) -> None:
        timeout = 0.5
        database = await connect(size=4)
        await asyncio.gather(*(ask(database, "select pg_sleep(0.05)") for _ in range(8)))
        server.freeze()
        calls = [seconds(ask(database, "select 1", timeout=timeout)) for _ in range(10)]
        for took, outcome in await asyncio.gather(*calls):
            assert isinstance(outcome, StoreUnavailable)
            assert outcome.happened is False
            assert took < timeout + 0.2
        server.thaw()
        assert await ask(database, "select 1 as n") == [{"n": 1}]

    async def test_the_event_loop_runs_on(self, server: PostgresServer, connect: Open) -> None:
        database = await connect(size=1)
        server.freeze(await backend_of(database))
        asking = asyncio.create_task(seconds(ask(database, "select 1", timeout=0.6)))
        loop = asyncio.get_running_loop()
        longest, before = 0.0, loop.time()
        while not asking.done():
            await asyncio.sleep(0.005)
            longest, before = max(longest, loop.time() - before), loop.time()
        assert longest < 0.3
        await asking

    async def test_a_statement_that_takes_too_long_is_dropped(self, connect: Open) -> None:
        database = await connect(size=1)
        took, outcome = await seconds(ask(database, "select pg_sleep(30)", timeout=0.3))
        assert isinstance(outcome, StoreUnavailable)
        assert took < 0.5
        assert await ask(database, "select 1 as n") == [{"n": 1}]

    async def test_closing_ends_at_the_deadline_of_calls_under_way(
        self, server: PostgresServer, dsn: str
    ) -> None:
        database = PostgresDatabase(dsn, size=1, listens=False)
        await database.open()
        server.freeze(await backend_of(database))
        asking = asyncio.create_task(seconds(ask(database, "select 1", timeout=0.5)))
        await asyncio.sleep(0)
        took, _ = await seconds(database.close())
        assert took < 2
        _, outcome = await asking
        assert isinstance(outcome, StoreUnavailable)


class TestCancelledCaller:
    async def test_does_not_break_the_connection(self, connect: Open, dsn: str) -> None:
        database = await connect(size=1)
        backend = await backend_of(database)
        asking = asyncio.create_task(ask(database, "select pg_sleep(0.3)", verb="read"))

        async def is_under_way() -> bool:
            query = "select 1 from pg_stat_activity where pid = %s and query like '%%pg_sleep%%'"
            return bool(look(dsn, query, backend))

        await until(is_under_way)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await ask(database, "select 1 as n") == [{"n": 1}]
        assert await backend_of(database) == backend

    async def test_leaves_no_half_of_a_transaction(self, connect: Open, dsn: str) -> None:
        tasks = Tasks(await connect(size=1))
        for pause in (0, 0, 0.001, 0.002, 0.004):
            new = new_task()
            creating = asyncio.create_task(tasks.create(new))
            await asyncio.sleep(pause)
            creating.cancel()
            await asyncio.gather(creating, return_exceptions=True)
        await tasks.create(new_task())
        rows = look(
            dsn,
            "select count(*) filter (where e.seq = 1), count(*) filter (where k.key is not null),"
            " count(*) from tasks left join task_events e using (task_id)"
            " left join send_keys k using (task_id)",
        )
        assert rows[0][0] == rows[0][1] == rows[0][2]

    async def test_at_a_frozen_server_is_free_at_once(
        self, server: PostgresServer, connect: Open
    ) -> None:
        database = await connect(size=1)
        server.freeze(await backend_of(database))
        asking = asyncio.create_task(ask(database, "select 1", timeout=1))
        await asyncio.sleep(0)
        asking.cancel()
        took, outcome = await seconds(asking)
        assert isinstance(outcome, asyncio.CancelledError)
        assert took < 0.1


# --- restarts -----------------------------------------------------------------------------------


class TestRestart:
    @pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
    async def test_writes_in_flight_succeed_or_raise_and_never_both(
        self, server: PostgresServer, connect: Open, dsn: str, how: str
    ) -> None:
        database = await connect(timeout=0.4)
        tasks = Tasks(database)
        stopping = asyncio.Event()
        outcomes: list[tuple[NewTask, bool | None]] = []

        async def write() -> None:
            while not stopping.is_set():
                new = new_task()
                try:
                    await tasks.create(new)
                except StoreUnavailable as error:
                    outcomes.append((new, error.happened))
                else:
                    outcomes.append((new, True))

        writing = [asyncio.create_task(write()) for _ in range(8)]

        async def written(number: int) -> None:
            async def enough() -> bool:
                return sum(1 for _, happened in list(outcomes) if happened) >= number

            await until(enough, within=30)

        await written(100)
        match how:
            case "kill":
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            case "immediate":
                await asyncio.to_thread(server.restart, "immediate")
            case _:
                await asyncio.to_thread(server.restart)
        await written(sum(1 for _, happened in outcomes if happened) + 100)
        stopping.set()
        await asyncio.gather(*writing)
        there = {row[0] for row in look(dsn, "select task_id from tasks")}
        for new, happened in outcomes:
            if happened is not None:
                assert (new.task_id in there) is happened
        for new, happened in outcomes:
            if happened is not True:  # may be repeated, with the same content
                sent = await tasks.create(new)
                assert sent.is_repeat is (new.task_id in there)
        assert len(look(dsn, "select 1 from tasks")) == len(outcomes)

    async def test_reads_in_flight_wait_and_succeed(
        self, server: PostgresServer, connect: Open
    ) -> None:
        database = await connect(timeout=20)
        reading = [
            asyncio.create_task(ask(database, "select 1 as n, pg_sleep(0.1)", verb="read"))
            for _ in range(20)
        ]
        await asyncio.to_thread(server.restart)
        for rows in await asyncio.gather(*reading):
            assert rows[0]["n"] == 1

    async def test_a_server_that_is_down_is_unavailable_and_comes_back(
        self, server: PostgresServer, connect: Open
    ) -> None:
        database = await connect()
        await asyncio.to_thread(server.stop)
        for verb in VERBS:
            took, outcome = await seconds(ask(database, "select 1", verb=verb, timeout=0.5))
            assert isinstance(outcome, StoreUnavailable)
            assert outcome.happened is False
            assert took < 0.8
        asking = asyncio.create_task(ask(database, "select 1 as n", timeout=20))
        await asyncio.to_thread(server.start)
        assert await asking == [{"n": 1}]

    async def test_a_terminated_session_costs_a_call_nothing(self, connect: Open, dsn: str) -> None:
        database = await connect(size=1)
        for n in range(10):
            look(dsn, "select pg_terminate_backend(%s)", await backend_of(database))
            assert await ask(database, f"select {n} as n") == [{"n": n}]


# --- replies that are lost ----------------------------------------------------------------------


class Wire:
    """A connection to the server through us. It can be cut where a word goes by."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._words: dict[bytes, Literal["before", "after"]] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self.cuts = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        yield listening.sockets[0].getsockname()[1]
        listening.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self, word: bytes, where: Literal["before", "after"]) -> None:
        """Cut the next connection on which this word is sent: before the server gets it, or
        after, so that only its answer is lost."""
        self._words[word] = where

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        there, back = await asyncio.open_connection("127.0.0.1", self._server)
        answering = asyncio.create_task(self._copy(there, writer))
        try:
            while data := await reader.read(65_536):
                word = next((word for word in self._words if word in data), None)
                where = self._words.pop(word) if word is not None else None
                if where is not None:
                    self.cuts += 1
                    answering.cancel()
                    await asyncio.gather(answering, return_exceptions=True)
                if where != "before":
                    back.write(data)
                    await back.drain()
                if where == "after":
                    await there.read(1)  # the server has answered
                if where is not None:
                    break
        except ConnectionError:
            pass
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            for one in (writer, back):
                one.close()
            self._connections.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
            writer.close()


@pytest.fixture
async def wire(server: PostgresServer, dsn: str) -> AsyncIterator[tuple[Wire, str]]:
    wire = Wire(server.port)
    async with wire.listening() as port:
        yield wire, dsn.replace(str(server.port), str(port))


class TestLostReplies:
    async def test_a_commit_whose_reply_is_lost_may_be_repeated(
        self, connect: Open, wire: tuple[Wire, str], dsn: str
    ) -> None:
        cutter, url = wire
        tasks = Tasks(await connect(url))
        new = new_task()
        cutter.cut(b"commit", "after")
        with pytest.raises(StoreUnavailable) as caught:
            await tasks.create(new)
        assert caught.value.happened is None
        assert len(look(dsn, "select 1 from tasks")) == 1
        assert (await tasks.create(new)).is_repeat
        assert cutter.cuts == 1

    async def test_a_commit_that_never_arrived_may_be_repeated(
        self, connect: Open, wire: tuple[Wire, str], dsn: str
    ) -> None:
        cutter, url = wire
        tasks = Tasks(await connect(url))
        new = new_task()
        cutter.cut(b"commit", "before")
        with pytest.raises(StoreUnavailable) as caught:
            await tasks.create(new)
        assert caught.value.happened is None
        assert look(dsn, "select 1 from tasks") == []
        assert not (await tasks.create(new)).is_repeat

    @pytest.mark.parametrize("where", ["before", "after"])
    async def test_a_cut_inside_the_transaction_is_made_up_for(
        self, connect: Open, wire: tuple[Wire, str], where: Literal["before", "after"]
    ) -> None:
        cutter, url = wire
        tasks = Tasks(await connect(url))
        cutter.cut(b"insert into tasks", where)
        assert not (await tasks.create(new_task())).is_repeat
        assert cutter.cuts == 1

    async def test_interleaving_10_a_claim_whose_reply_is_lost_is_given_back(
        self, connect: Open, wire: tuple[Wire, str]
    ) -> None:
        cutter, url = wire
        database = await connect(url)
        work, beats = Work(database), Beats(database)
        await work.register(new_worker("w1"))
        task_id = (await Tasks(database).create(new_task())).task_id
        cutter.cut(b"with recursive queues", "after")
        with pytest.raises(StoreUnavailable) as caught:
            await work.claim(WorkerId("w1"), "agent", "review", 1, limit=10)
        assert caught.value.happened is None
        leased = await beats.beat(WorkerId("w1"), presence=None)
        assert leased is not None
        assert list(leased) == [task_id]
        for leased_id, standing in leased.items():
            assert await beats.release(WorkerId("w1"), leased_id, standing.fence)
        claimed = await work.claim(WorkerId("w1"), "agent", "review", 1, limit=10)
        assert [lease.task_id for lease in claimed] == [task_id]


# --- wake-ups -----------------------------------------------------------------------------------


def listeners(dsn: str) -> set[int]:
    query = (
        "select pid from pg_stat_activity where datname = current_database()"
        " and (query like 'listen%%' or query = 'select 1') and pid <> pg_backend_pid()"
    )
    return {row[0] for row in look(dsn, query)}


class TestWakeups:
    async def test_reach_other_processes(self, connect: Open, dsn: str) -> None:
        here, there = await connect(listens=True), await connect(listens=True)
        await until(lambda: _both_listen(dsn))
        with there.subscribe("work:a") as bell, there.subscribe("work:b") as other:
            await _quiet(bell, other)
            here.send(["work:a"])
            assert await bell.wait(5)
            assert not await other.wait(0)

    async def test_reach_this_process_at_once(self, connect: Open) -> None:
        database = await connect(listens=True)
        with database.subscribe("work:a") as bell:
            database.send(["work:a"])
            assert await bell.wait(0)

    async def test_of_ten_thousand_topics_are_all_sent(self, connect: Open, dsn: str) -> None:
        here, there = await connect(listens=True), await connect(listens=True)
        await until(lambda: _both_listen(dsn))
        with there.subscribe("topic:9999") as bell:
            await _quiet(bell)
            here.send([f"topic:{n}" for n in range(10_000)])
            assert await bell.wait(10)

    async def test_without_listening_nothing_is_sent(self, connect: Open, dsn: str) -> None:
        database = await connect(listens=False)
        database.send(["work:a"])
        assert await ask(database, "select 1 as n") == [{"n": 1}]
        assert listeners(dsn) == set()

    @pytest.mark.parametrize("how", ["terminated", "restarted"])
    async def test_case_032_come_back_after_all_listeners_have_gone(
        self, server: PostgresServer, connect: Open, dsn: str, how: str
    ) -> None:
        here, there = await connect(listens=True), await connect(listens=True)
        await until(lambda: _both_listen(dsn))
        before = listeners(dsn)
        with there.subscribe("work:a") as bell:
            await _quiet(bell)
            if how == "restarted":
                await asyncio.to_thread(server.restart)
            for pid in before:
                look(dsn, "select pg_terminate_backend(%s)", pid)
            assert await bell.wait(10)  # something may have been missed, so everybody looks

            async def both_are_new() -> bool:
                return len(listeners(dsn)) == 2 and not listeners(dsn) & before

            await until(both_are_new)
            await _quiet(bell)
            here.send(["work:a"])
            took, rung = await seconds(bell.wait(5))
            assert rung is True
            assert took < 2


async def _both_listen(dsn: str) -> bool:
    return len(listeners(dsn)) == 2


async def _quiet(*bells: Any) -> None:
    """What a new listener was told to look at is looked at."""
    for bell in bells:
        while await bell.wait(0.05):
            pass


# --- presence -----------------------------------------------------------------------------------

_PRESENT = """
import asyncio, sys
from outlast.store.postgres import PostgresDatabase

async def main():
    database = PostgresDatabase(sys.argv[1], size=1, listens=False)
    await database.open()
    await database.keep_presence("child")
    print(await database.incarnation(), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def start(code: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


class TestPresence:
    async def test_is_seen_by_others(self, connect: Open) -> None:
        here, there = await connect(size=1), await connect()
        await here.keep_presence("w1")
        assert await there.is_present(["w1", "w2"]) == {"w1": True, "w2": False}
        assert await here.is_present(["w1"]) == {"w1": True}
        await here.drop_presence("another")
        assert await there.is_present(["w1"]) == {"w1": True}
        await here.drop_presence("w1")
        assert await there.is_present(["w1"]) == {"w1": False}

    async def test_is_found_whatever_the_name(self, connect: Open) -> None:
        here, there = await connect(size=1), await connect(size=1)
        for n in range(20):  # locks with and without the highest bits
            await here.keep_presence(f"w{n}")
            assert await there.is_present([f"w{n}"]) == {f"w{n}": True}
            await here.drop_presence(f"w{n}")
            assert await there.is_present([f"w{n}"]) == {f"w{n}": False}

    async def test_is_of_one_database_only(
        self, server: PostgresServer, connect: Open, template: str
    ) -> None:
        here = await connect(size=1)
        await here.keep_presence("w1")
        other = server.create_database(f"test_{uuid.uuid4().hex}", template=template)
        assert await (await connect(other)).is_present(["w1"]) == {"w1": False}

    async def test_ends_with_the_process(self, connect: Open, dsn: str) -> None:
        there = await connect()
        child = start(_PRESENT, dsn)
        try:
            assert child.stdout is not None
            incarnation = await asyncio.to_thread(child.stdout.readline)
            assert incarnation.strip() == await there.incarnation()
            assert await there.is_present(["child"]) == {"child": True}
        finally:
            child.send_signal(signal.SIGKILL)
            child.communicate()

        async def is_gone() -> bool:
            return await there.is_present(["child"]) == {"child": False}

        await until(is_gone, within=2)

    async def test_is_taken_again_after_its_session_was_terminated(
        self, connect: Open, dsn: str
    ) -> None:
        here, there = await connect(size=1), await connect()
        await here.keep_presence("w1")
        for _ in range(50):
            look(dsn, "select pg_terminate_backend(%s)", await backend_of(here))

            async def is_back() -> bool:
                await ask(here, "select 1")  # a beat
                return await there.is_present(["w1"]) == {"w1": True}

            await until(is_back, within=2)

    async def test_is_taken_again_after_its_session_was_frozen(
        self, server: PostgresServer, connect: Open
    ) -> None:
        here, there = await connect(size=1), await connect()
        await here.keep_presence("w1")
        frozen = await backend_of(here)
        server.freeze(frozen)
        with pytest.raises(StoreUnavailable):
            await ask(here, "select 1", timeout=0.3)
        await ask(here, "select 1")
        assert await there.is_present(["w1"]) == {"w1": True}  # the frozen one has it still
        server.thaw(frozen)
        process = read_process(frozen)
        assert process is None or wait_until_gone([process], deadline_s=10) == []
        await ask(here, "select 1")
        assert await there.is_present(["w1"]) == {"w1": True}

    async def test_is_taken_again_after_a_restart_of_another_incarnation(
        self, server: PostgresServer, connect: Open
    ) -> None:
        here, there = await connect(size=1), await connect()
        await here.keep_presence("w1")
        before = await there.incarnation()
        await asyncio.to_thread(server.restart)
        assert await here.incarnation() == await there.incarnation() != before
        assert await there.is_present(["w1"]) == {"w1": True}

    async def test_behind_a_pooler_is_not_known(self, connect: Open) -> None:
        here, there = await connect(size=1, pooler=True), await connect(pooler=True)
        await here.keep_presence("w1")
        assert await there.is_present(["w1"]) == {"w1": None}
        assert look(here._dsn, "select 1 from pg_locks where locktype = 'advisory'") == []


# --- what is wrong is said ----------------------------------------------------------------------


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


class TestClearErrors:
    async def open_fails(self, url: str) -> str:
        with pytest.raises(ConfigError) as caught:
            await PostgresDatabase(url).open()
        return str(caught.value)

    async def test_of_a_url_that_is_none(self) -> None:
        with pytest.raises(ConfigError, match="database URL is not understood"):
            PostgresDatabase("postgresql://host:port/x?nonsense")

    async def test_of_a_server_that_is_not_there(self) -> None:
        port = closed_port()
        text = await self.open_fails(f"postgresql://postgres@127.0.0.1:{port}/x")
        assert "PostgreSQL cannot be reached" in text
        assert str(port) in text

    async def test_of_a_host_that_is_not_there(self) -> None:
        text = await self.open_fails("postgresql://postgres@nowhere.invalid/x")
        assert "PostgreSQL cannot be reached" in text
        assert "nowhere.invalid" in text

    async def test_of_a_database_that_is_not_there(self, dsn: str) -> None:
        text = await self.open_fails(dsn.replace("/test_", "/nothing_"))
        assert 'database "nothing_' in text
        assert "does not exist" in text

    async def test_of_a_user_that_is_not_there(self, dsn: str) -> None:
        text = await self.open_fails(dsn.replace("postgres@", "nobody@"))
        assert 'role "nobody" does not exist' in text

    async def test_of_a_frozen_server(self, server: PostgresServer, dsn: str) -> None:
        server.freeze()
        url = make_conninfo(dsn, connect_timeout=2)
        took, outcome = await seconds(PostgresDatabase(url).open())
        server.thaw()
        assert isinstance(outcome, ConfigError)
        assert "timeout" in str(outcome)
        assert took < 5

    async def test_never_holds_the_password(self) -> None:
        url = f"postgresql://ann:hunter2@127.0.0.1:{closed_port()}/x"
        assert "hunter2" not in await self.open_fails(url)

    async def test_of_a_missing_schema(self, connect: Open, dsn: str) -> None:
        look(dsn, "drop table store cascade")
        database = await connect()
        for call in (
            Tasks(database).create(new_task()),
            Work(database).claim(WorkerId("w"), "agent", "review", 1, limit=1),
            Work(database).settle("ledger", "key", "1"),  # type: ignore[arg-type]
        ):
            with pytest.raises(ConfigError, match="run `outlast migrate`"):
                await call

    async def test_of_a_read_only_database(self, connect: Open, dsn: str) -> None:
        name = dsn.rpartition("/")[2]
        look(dsn, f"alter database {name} set default_transaction_read_only = on")
        database = await connect(timeout=0.4)
        with pytest.raises(StoreUnavailable, match="read-only transaction") as caught:
            await Tasks(database).create(new_task())
        assert caught.value.happened is False
        writable = make_conninfo(dsn, options="-c default_transaction_read_only=off")
        look(writable, f"alter database {name} reset default_transaction_read_only")
        await Tasks(database).create(new_task())  # on a new session

    async def test_of_a_refused_statement(self, connect: Open) -> None:
        database = await connect()
        for verb in VERBS:
            with pytest.raises(StatementRefused, match=r"test_own: division by zero"):
                await ask(database, "select 1 / 0", verb=verb)

    async def test_a_role_that_owns_nothing_else_will_do(
        self, server: PostgresServer, connect: Open
    ) -> None:
        look(server.dsn(), "drop database if exists plain")
        look(server.dsn(), "drop role if exists plain")
        look(server.dsn(), "create role plain login")
        look(server.dsn(), "create database plain owner plain")
        url = server.dsn("plain").replace("postgres@", "plain@")
        here, there = await connect(url, size=1), await connect(url, listens=True)
        assert list(await Admin(here).migrate()) == [1]
        await here.keep_presence("w1")
        assert await there.is_present(["w1"]) == {"w1": True}
        assert await here.incarnation() == await there.incarnation()
        await Tasks(there).create(new_task())


class TestRetries:
    async def test_a_serialization_failure_is_tried_again(self, connect: Open, dsn: str) -> None:
        database = await connect()
        await Admin(database).move_clock(Millis(1))
        attempts = 0

        def script() -> Script[None]:
            nonlocal attempts
            attempts += 1
            yield from statement("set transaction isolation level repeatable read")()
            yield from statement("select * from store")()
            if attempts < 3:  # somebody else is faster, twice
                look(dsn, "update store set clock_offset = clock_offset + 1")
            yield from statement("update store set clock_offset = clock_offset + 10")()

        await database.transact(script)
        assert attempts == 3
        assert look(dsn, "select clock_offset from store") == [(13,)]

    async def test_a_deadlock_is_tried_again(self, connect: Open, dsn: str) -> None:
        look(dsn, "create table pair as select n, 0 as value from generate_series(1, 2) as n")
        name = dsn.rpartition("/")[2]
        look(dsn, f"alter database {name} set deadlock_timeout = '50ms'")
        database = await connect()

        def both(first: int, second: int) -> Callable[[], Script[None]]:
            def script() -> Script[None]:
                yield from statement(f"update pair set value = value + 1 where n = {first}")()
                yield from statement("select pg_sleep(0.1)")()
                yield from statement(f"update pair set value = value + 1 where n = {second}")()

            return script

        await asyncio.gather(
            *(database.transact(both(*order)) for order in ((1, 2), (2, 1), (1, 2), (2, 1)))
        )
        assert look(dsn, "select value from pair") == [(4,), (4,)]

    async def test_what_a_script_raises_comes_out_and_nothing_is_written(
        self, connect: Open, dsn: str
    ) -> None:
        database = await connect(size=1)

        def script() -> Script[None]:
            yield from statement("update store set clock_offset = 77")()
            raise ValueError("the body's own")

        with pytest.raises(ValueError, match="the body's own"):
            await database.transact(script)
        assert look(dsn, "select clock_offset from store") == [(0,)]
        assert await ask(database, "select 1 as n") == [{"n": 1}]

    async def test_a_read_writes_nothing(self, connect: Open) -> None:
        database = await connect(timeout=0.3)
        with pytest.raises(StoreUnavailable, match="read-only transaction"):
            await ask(database, "update store set clock_offset = 77", verb="read")

    async def test_more_calls_than_connections_take_turns(self, connect: Open) -> None:
        database = await connect(size=3)
        calls = [ask(database, f"select {n} as n, pg_sleep(0.005)") for n in range(100)]
        rows = await asyncio.gather(*calls)
        assert [one[0]["n"] for one in rows] == list(range(100))


def test_the_server_is_our_own(server: PostgresServer) -> None:
    assert os.getpid() != server.postmaster_pid
