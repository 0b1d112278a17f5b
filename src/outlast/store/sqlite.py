"""SQLite: one file, several processes, one writer thread in each.

Every write transaction begins `immediate`, so a transaction never meets a lock half-way; each
process queues its writes in one thread, and readers have connections of their own on WAL
snapshots. Presence is a `flock` on a file beside the database, freed by the kernel when the
process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from outlast.model.errors import ConfigError, StoreUnavailable
from outlast.model.points import point
from outlast.store import place
from outlast.store.database import Query, Rows, Script, StatementRefused
from outlast.store.wakeups import Bell, Board

T = TypeVar("T")

_BUSY = {"SQLITE_BUSY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_BUSY_RECOVERY", "SQLITE_LOCKED"}
_POLL_S = 0.02
_READERS = 4


@dataclass
class _Job:
    """A script waiting for the writer thread, and where its outcome goes."""

    run: Callable[[sqlite3.Connection], Any]
    deadline: float
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop

    def settle(self, result: Any = None, error: BaseException | None = None) -> None:
        def deliver() -> None:
            if self.future.done():
                return
            if error is None:
                self.future.set_result(result)
            else:
                self.future.set_exception(error)

        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            self.loop.call_soon_threadsafe(deliver)


class SqliteDatabase:
    """The driver for one SQLite file; see `Database` for what each verb promises."""

    dialect: Literal["sqlite"] = "sqlite"

    def __init__(self, path: str | Path, *, timeout: float = 10.0) -> None:
        self.path = Path(path).absolute()
        self._timeout = timeout
        self._board = Board()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._is_open = False
        self._reader = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._polling: asyncio.Task[None] | None = None
        self._presences: dict[str, int] = {}

    @property
    def wakeups(self) -> SqliteDatabase:
        return self

    # --- opening and closing ----------------------------------------------------------------

    async def open(self) -> None:
        place.check_place(self.path)
        writer, watcher = await asyncio.to_thread(self._connect_first)
        self._writer = threading.Thread(
            target=self._write_until_closed, args=(writer,), name="outlast-writer", daemon=True
        )
        self._writer.start()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="outlast-reader")
        self._connections.append(watcher)
        self._polling = asyncio.create_task(self._poll(watcher), name="outlast-wakeups")
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False  # a call that came later would wait for a thread that has ended
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        if self._writer is not None:
            self._jobs.put(None)
            await asyncio.to_thread(self._writer.join)
        if self._readers is not None:
            await asyncio.to_thread(self._readers.shutdown)
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        for name in list(self._presences):
            os.close(self._presences.pop(name))

    def _connect_first(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        """The writer's connection, on a file in WAL mode, and that of the wake-ups."""
        deadline = time.monotonic() + self._timeout
        try:
            writer = self._connect(deadline)
            try:
                _until(deadline, lambda: _use_wal(writer, self.path))
                return writer, self._connect(deadline)
            except BaseException:
                writer.close()
                raise
        except StoreUnavailable as error:
            raise ConfigError(
                f"{self.path} cannot be opened as a SQLite database: {error}"
            ) from None

    def _connect(self, deadline: float) -> sqlite3.Connection:
        """A connection. Its first statement reads the file, which others may have locked."""

        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(
                self.path, timeout=0, isolation_level=None, check_same_thread=False
            )
            try:
                connection.execute("pragma synchronous = full")
            except BaseException:
                connection.close()
                raise
            connection.row_factory = _as_dict
            return connection

        return _until(deadline, connect)

    # --- scripts ----------------------------------------------------------------------------

    async def transact(self, script: Callable[[], Script[T]], *, timeout: float | None = None) -> T:
        def run(connection: sqlite3.Connection) -> T:
            return _in_transaction(connection, script)

        return await self._queued(run, timeout)

    async def autocommit(
        self, script: Callable[[], Script[T]], *, timeout: float | None = None
    ) -> T:
        return await self.transact(script, timeout=timeout)

    async def run_ddl(self, text: str) -> None:
        def run(connection: sqlite3.Connection) -> None:
            try:
                connection.executescript(f"begin immediate;\n{text}\ncommit;")
            finally:
                if connection.in_transaction:
                    connection.execute("rollback")

        await self._queued(run, None)

    async def read(self, script: Callable[[], Script[T]], *, timeout: float | None = None) -> T:
        if self._readers is None or not self._is_open:
            raise StoreUnavailable("the database is not open", happened=False)
        deadline = time.monotonic() + (timeout or self._timeout)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._read, script, deadline)

    def _read(self, script: Callable[[], Script[T]], deadline: float) -> T:
        connection: sqlite3.Connection | None = getattr(self._reader, "connection", None)
        if connection is None:
            connection = self._connect(deadline)
            connection.execute("pragma query_only = on")
            self._reader.connection = connection
            self._connections.append(connection)
        return _until(deadline, lambda: _in_transaction(connection, script, begin="begin"))

    async def _queued(self, run: Callable[[sqlite3.Connection], T], timeout: float | None) -> T:
        if self._writer is None or not self._is_open:
            raise StoreUnavailable("the database is not open", happened=False)
        loop = asyncio.get_running_loop()
        job = _Job(
            run=run,
            deadline=time.monotonic() + (timeout or self._timeout),
            future=loop.create_future(),
            loop=loop,
        )
        self._jobs.put(job)
        result: T = await job.future
        return result

    def _write_until_closed(self, connection: sqlite3.Connection) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                if job.future.cancelled():
                    continue
                try:
                    result = _until(job.deadline, lambda job=job: job.run(connection))  # type: ignore[misc]
                except BaseException as error:  # whatever it is belongs to the caller
                    job.settle(error=error)
                else:
                    job.settle(result)
        finally:
            connection.close()

    # --- wake-ups ---------------------------------------------------------------------------

    def send(self, topics: Iterable[str]) -> None:
        self._board.ring(topics)

    def subscribe(self, topic: str) -> Bell:
        return self._board.subscribe(topic)

    async def _poll(self, connection: sqlite3.Connection) -> None:
        """Notice the commits of other processes: `data_version` moves with each of them."""
        seen = _data_version(connection)
        while True:
            await asyncio.sleep(_POLL_S)
            if self._board.is_empty:
                continue
            version = _data_version(connection)
            if version is not None and version != seen:
                self._board.ring_all()
                seen = version

    # --- presence ---------------------------------------------------------------------------

    async def keep_presence(self, name: str) -> None:
        if name in self._presences:
            return
        file = self._presence_of(name)
        try:
            file.parent.mkdir(exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"{file} cannot be written, to show presence: {error}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise ConfigError(f"another process is present under the name {name}") from None
        self._presences[name] = descriptor

    async def drop_presence(self, name: str) -> None:
        if (descriptor := self._presences.pop(name, None)) is not None:
            os.close(descriptor)
        self._presence_of(name).unlink(missing_ok=True)

    async def is_present(self, names: Iterable[str]) -> Mapping[str, bool | None]:
        return {name: place.is_locked(self._presence_of(name)) for name in names}

    async def incarnation(self) -> str:
        return "file"

    def _presence_of(self, name: str) -> Path:
        return self.path.with_name(f"{self.path.name}-workers") / name


# --- running scripts --------------------------------------------------------------------------


def _in_transaction(
    connection: sqlite3.Connection,
    script: Callable[[], Script[T]],
    *,
    begin: str = "begin immediate",
) -> T:
    connection.execute(begin)
    try:
        result = _run(connection, script())
        if begin != "begin":
            point("before:commit")
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
    if begin != "begin":
        point("after:commit")
    return result


def _run(connection: sqlite3.Connection, script: Script[T]) -> T:
    rows: Rows | None = None
    while True:
        try:
            statement = script.send(rows) if rows is not None else next(script)
        except StopIteration as stop:
            result: T = stop.value
            return result
        point(f"before:{statement.query.name}")
        rows = _execute(connection, statement.query, statement.params)
        point(f"after:{statement.query.name}")


def _execute(connection: sqlite3.Connection, query: Query, params: Mapping[str, Any]) -> Rows:
    try:
        return connection.execute(query.text, dict(params)).fetchall()
    except (sqlite3.IntegrityError, sqlite3.DataError) as error:
        raise StatementRefused(query.name, str(error)) from None
    except (sqlite3.InterfaceError, sqlite3.ProgrammingError) as error:
        raise StatementRefused(query.name, str(error)) from None
    except (OverflowError, UnicodeError) as error:  # a number of 65 bits, half a character
        raise StatementRefused(query.name, str(error)) from None


def _data_version(connection: sqlite3.Connection) -> int | None:
    """Moves with every commit of another connection; None while the file is locked."""
    try:
        version: int = connection.execute("pragma data_version").fetchone()["data_version"]
    except sqlite3.DatabaseError:
        return None
    return version


def _use_wal(connection: sqlite3.Connection, path: Path) -> None:
    mode = connection.execute("pragma journal_mode = wal").fetchone()["journal_mode"]
    if mode != "wal":
        raise ConfigError(f"{path} cannot be used in WAL mode: SQLite keeps it in mode {mode}")


def _until(deadline: float, run: Callable[[], T]) -> T:
    """Try again while another process has the file locked. Nothing happened meanwhile."""
    delay = 0.001
    while True:
        try:
            return run()
        except sqlite3.OperationalError as error:
            name = getattr(error, "sqlite_errorname", "")
            if name in _BUSY and time.monotonic() + delay < deadline:
                time.sleep(delay)
                delay = min(delay * 1.5, 0.025)
                continue
            raise _translated(error, name) from None
        except sqlite3.DatabaseError as error:
            raise StoreUnavailable(f"SQLite: {error}", happened=False) from None


def _translated(error: sqlite3.OperationalError, name: str) -> Exception:
    if name in _BUSY:
        return StoreUnavailable(
            "another process has kept the SQLite file locked for the whole deadline",
            happened=False,
        )
    if name == "SQLITE_FULL":
        return StoreUnavailable("the disk under the SQLite file is full", happened=False)
    if name.startswith("SQLITE_READONLY"):
        return ConfigError(
            "the SQLite file or its folder is read-only: make both writable for this process"
        )
    if "no such table" in str(error):
        return ConfigError("the database has no Outlast schema: run `outlast migrate`")
    if name == "SQLITE_ERROR":
        return StatementRefused("statement", str(error))
    # What a failed write or sync has left in the log is not known before it is read again.
    happened = None if name.startswith("SQLITE_IOERR") else False
    return StoreUnavailable(f"SQLite: {error} ({name})", happened=happened)


def _as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}
