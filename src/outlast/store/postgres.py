"""PostgreSQL through psycopg 3: a pool, a deadline on every call, LISTEN/NOTIFY, presence.

A call that passes its deadline is freed without asking the server: a timer shuts the socket
down through a duplicate of its descriptor, and the pending await fails by itself. Finishing the
connection under a pending await would break whichever socket gets the number next, and psycopg's
own cancel waits for the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

import psycopg
import psycopg_pool
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from outlast.model.errors import ConfigError, StoreUnavailable
from outlast.model.points import point
from outlast.store.database import Script, StatementRefused
from outlast.store.postgres_scripts import (
    Connection,
    Sent,
    hang_up,
    is_worth_another_try,
    reason_of,
    run_script,
    translated,
)
from outlast.store.wakeups import Bell, Board

T = TypeVar("T")

_CHANNEL = "outlast"


class PostgresDatabase:
    """The driver for one PostgreSQL database; see `Database` for what each verb promises.

    Presence is the advisory lock of the name given to `keep_presence`, held by one session and
    taken again when that is lost: with `size` 1 it is the session that beats. Behind a
    transaction pooler there is none: the lease decides then.
    """

    dialect: Literal["postgres"] = "postgres"

    def __init__(
        self,
        dsn: str,
        *,
        timeout: float = 10.0,
        size: int = 10,
        listens: bool = True,
        pooler: bool = False,
    ) -> None:
        try:
            given = conninfo_to_dict(dsn)
        except psycopg.ProgrammingError as error:
            raise ConfigError(f"the database URL is not understood: {error}") from None
        self._dsn = make_conninfo(dsn, **_defaults(given))
        self._timeout = timeout
        self._board = Board()
        self._pooler = pooler
        self._listens = listens and not pooler
        self._listening: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._topics: set[str] = set()
        self._presence: str | None = None
        self._present: Connection | None = None  # whose session holds the lock of the name
        self._calls: set[asyncio.Task[Any]] = set()
        self._pool: psycopg_pool.AsyncConnectionPool[Connection] = psycopg_pool.AsyncConnectionPool(
            self._dsn,
            connection_class=psycopg.AsyncConnection[dict[str, Any]],
            kwargs={
                "autocommit": True,
                "row_factory": dict_row,
                "prepare_threshold": None if pooler else 5,
            },
            min_size=1,
            max_size=size,
            open=False,
            configure=self._configure,
            timeout=timeout,
            reconnect_timeout=30,
        )

    @property
    def wakeups(self) -> PostgresDatabase:
        return self

    # --- opening and closing ----------------------------------------------------------------

    async def open(self) -> None:
        await self._try_once()
        await self._pool.open(wait=False)
        if self._listens:
            self._listening = asyncio.create_task(self._listen(), name="outlast-listen")

    async def _try_once(self) -> None:
        """One plain connection first, because it says clearly what is wrong."""
        try:
            connection = await psycopg.AsyncConnection.connect(self._dsn)
        except psycopg.OperationalError as error:
            raise ConfigError(f"PostgreSQL cannot be reached: {reason_of(error)}") from None
        version = connection.info.server_version
        await connection.close()
        if version < 140000:
            raise ConfigError(f"PostgreSQL 14 or newer is needed; the server is {version // 10000}")

    async def close(self) -> None:
        for task in (self._listening, self._sending):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._calls:
            await asyncio.gather(*self._calls, return_exceptions=True)
        await self._pool.close()

    async def _configure(self, connection: Connection) -> None:
        if not self._pooler:
            # Its caller has given up by then; when the network has eaten the farewell, the server
            # must let go of the row locks by itself, for a take-over waits for them.
            await connection.execute(
                "select set_config('idle_in_transaction_session_timeout', %s, false)",
                (str(math.ceil(self._timeout * 1000)),),
            )
        await self._show_presence(connection)

    # --- scripts ----------------------------------------------------------------------------

    async def transact(self, script: Callable[[], Script[T]], *, timeout: float | None = None) -> T:
        async def run(connection: Connection, sent: Sent) -> T:
            await connection.execute("begin")
            try:
                result = await run_script(connection, script(), sent)
                point("before:commit")
                sent.commit = True
                await connection.execute("commit")
                sent.commit = False
            except BaseException:
                if not connection.closed and not sent.commit:
                    await connection.execute("rollback")
                raise
            point("after:commit")
            return result

        result: T = await self._call(run, timeout)
        return result

    async def autocommit(
        self, script: Callable[[], Script[T]], *, timeout: float | None = None
    ) -> T:
        async def run(connection: Connection, sent: Sent) -> T:
            sent.commit = True
            return await run_script(connection, script(), sent)

        result: T = await self._call(run, timeout)
        return result

    async def read(self, script: Callable[[], Script[T]], *, timeout: float | None = None) -> T:
        async def run(connection: Connection, sent: Sent) -> T:
            await connection.execute("begin isolation level repeatable read read only")
            try:
                return await run_script(connection, script(), sent)
            finally:
                if not connection.closed:
                    await connection.execute("rollback")

        result: T = await self._call(run, timeout)
        return result

    async def run_ddl(self, text: str) -> None:
        async def run(connection: Connection, sent: Sent) -> None:
            sent.commit = True
            await connection.execute(text.encode())

        await self._call(run, 600)

    # --- one call and its deadline ----------------------------------------------------------

    async def _call(self, run: Callable[[Connection, Sent], Any], timeout: float | None) -> Any:
        """Run the call to its end even when the caller is cancelled: psycopg's reaction to a
        cancel is to ask the server, which may be frozen; the deadline bounds it instead."""
        task = asyncio.ensure_future(self._tried(run, timeout or self._timeout))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_retrieve)
            raise

    async def _tried(self, run: Callable[[Connection, Sent], Awaitable[T]], timeout: float) -> T:
        """Try until it happened, or may have happened, or the deadline has passed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        delay = 0.02
        while True:
            sent = Sent()
            try:
                async with self._connection(deadline) as connection:
                    return await run(connection, sent)
            except psycopg_pool.PoolTimeout:
                raise StoreUnavailable(
                    "PostgreSQL gave no connection within the deadline", happened=False
                ) from None
            except psycopg_pool.PoolClosed:
                raise StoreUnavailable("the database is not open", happened=False) from None
            except psycopg.Error as error:
                failure = translated(error, sent)
                if not is_worth_another_try(failure) or loop.time() + delay >= deadline:
                    raise failure from None
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(delay * 2, 0.5)

    @contextlib.asynccontextmanager
    async def _connection(self, deadline: float) -> AsyncIterator[Connection]:
        loop = asyncio.get_running_loop()
        connection = await self._pool.getconn(timeout=max(deadline - loop.time(), 0.001))
        timer = loop.call_at(deadline, hang_up, connection)
        try:
            await self._show_presence(connection)
            yield connection
        except psycopg.errors.ReadOnlySqlTransaction:
            await connection.close()  # demoted, or gone read-only: the pool looks for another
            raise
        finally:
            timer.cancel()
            await self._pool.putconn(connection)

    # --- wake-ups ---------------------------------------------------------------------------

    def send(self, topics: Iterable[str]) -> None:
        topics = list(topics)
        self._board.ring(topics)
        if not self._listens:
            return
        self._topics.update(topics)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send(), name="outlast-notify")

    async def _send(self) -> None:
        """Send what has gathered, on a connection that holds no locks of ours."""
        while self._topics:
            topics, self._topics = self._topics, set()

            async def run(connection: Connection, sent: Sent, topics: set[str] = topics) -> None:
                # Not marked as sent: a wake-up may come twice, so a dead session costs none.
                await connection.execute(
                    "select pg_notify(%s, topic) from unnest(%s::text[]) as topic",
                    (_CHANNEL, sorted(topics)),
                )

            with contextlib.suppress(StoreUnavailable, StatementRefused, ConfigError):
                await self._call(run, 5)  # lost wake-ups are made up for by polling

    def subscribe(self, topic: str) -> Bell:
        return self._board.subscribe(topic)

    async def _listen(self) -> None:
        delay = 0.1
        while True:
            connection: Connection | None = None
            try:
                connection = await psycopg.AsyncConnection[dict[str, Any]].connect(
                    self._dsn, autocommit=True
                )
                await connection.execute(f"listen {_CHANNEL}")
                self._board.ring_all()  # whatever was sent meanwhile was missed
                delay = 0.1
                while True:
                    async for notice in connection.notifies(timeout=10):
                        self._board.ring([notice.payload])
                    await _answers(connection)
            except (psycopg.Error, OSError):
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                delay = min(delay * 2, 5)
            finally:
                if connection is not None:
                    with contextlib.suppress(psycopg.Error):
                        await connection.close()

    # --- presence ---------------------------------------------------------------------------

    async def keep_presence(self, name: str) -> None:
        self._presence, self._present = name, None

        async def run(connection: Connection, sent: Sent) -> None:
            """Every call takes the lock first, while no session has it."""

        if not self._pooler:
            await self._call(run, None)

    async def _show_presence(self, connection: Connection) -> None:
        """Take the lock, unless a session of ours has it. One that was lost may keep it for a
        while, on a server that is frozen or slow to end: each call tries again."""
        name, present = self._presence, self._present
        if name is None or self._pooler or (present is not None and not present.closed):
            return
        cursor = await connection.execute(
            "select pg_try_advisory_lock(%s) as taken", (_lock_of(name),)
        )
        row = await cursor.fetchone()
        if row is not None and row["taken"]:
            self._present = connection

    async def drop_presence(self, name: str) -> None:
        if self._presence != name:
            return
        self._presence, self._present = None, None

        async def run(connection: Connection, sent: Sent) -> None:
            await connection.execute("select pg_advisory_unlock_all()")

        if not self._pooler:
            await self._call(run, None)

    async def is_present(self, names: Iterable[str]) -> Mapping[str, bool | None]:
        names = list(names)
        if self._pooler:
            return dict.fromkeys(names)

        async def run(connection: Connection, sent: Sent) -> set[int]:
            cursor = await connection.execute(
                "select (classid::bigint << 32) | objid::bigint as lock from pg_locks"
                " where locktype = 'advisory' and objsubid = 1 and granted and database ="
                " (select oid from pg_database where datname = current_database())"
            )
            return {row["lock"] for row in await cursor.fetchall()}

        held = await self._call(run, None)
        return {name: _lock_of(name) in held for name in names}

    async def incarnation(self) -> str:
        async def run(connection: Connection, sent: Sent) -> str:
            cursor = await connection.execute(
                "select (select system_identifier from pg_control_system())::text || '/' ||"
                " extract(epoch from pg_postmaster_start_time())::text as name"
            )
            row = await cursor.fetchone()
            return str(row["name"]) if row else ""

        name: str = await self._call(run, None)
        return name


async def _answers(connection: Connection) -> None:
    """Ask an idle listener's server for a sign of life; a frozen one is hung up on."""
    timer = asyncio.get_running_loop().call_later(5, hang_up, connection)
    try:
        await connection.execute("select 1")
    finally:
        timer.cancel()


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _lock_of(name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"outlast:{name}".encode()).digest()[:8], signed=True)


def _defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {
        "connect_timeout": "5",
        "application_name": "outlast",
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "3",
    }
    return {key: value for key, value in wanted.items() if key not in given}
