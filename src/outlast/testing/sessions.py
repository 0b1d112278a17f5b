"""Connections of a `ScriptedDatabase`: each does one action at a time, or says that it waits."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Protocol

from outlast.model.errors import ConfigError
from outlast.store.database import PARAMETER, Rows, Statement, StatementRefused

if TYPE_CHECKING:
    import psycopg

    from outlast.testing.scripted import ScriptedDatabase

LOOK_EVERY_S = 0.004
GIVEN_UP_AFTER_S = 20.0


class Deadlock(AssertionError):
    """Two transactions took the same rows in different orders: no writer of ours may."""


class Commit:
    """What a transaction does last."""


Action = Statement | Commit
COMMIT = Commit()


class Session(Protocol):
    """A connection. `pid` is that of its PostgreSQL backend."""

    pid: int

    def perform(self, action: Action, *, reads: bool) -> Rows | None:
        """Do it, in a transaction that the first action begins. None: it waits for a lock; call
        again with the same action to look again."""
        ...

    def leave(self) -> None:
        """Roll back what is not committed; a statement that waits is given up."""
        ...

    def observe(self, text: str, params: Mapping[str, Any]) -> Rows: ...

    def look(self, texts: Sequence[str]) -> list[Rows]: ...

    def run_ddl(self, text: str) -> None: ...

    def close(self) -> None: ...


class SqliteSession:
    """SQLite's writers take turns: who begins while another writes waits for its end."""

    pid = 0

    def __init__(self, database: ScriptedDatabase, path: str) -> None:
        self._database = database
        self._connection = sqlite3.connect(path, timeout=0, isolation_level=None)
        self._connection.row_factory = _as_dict
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = off")  # no machine dies in these tests

    def perform(self, action: Action, *, reads: bool) -> Rows | None:
        if not isinstance(action, Statement):
            self._connection.execute("commit")
            return []
        if not self._connection.in_transaction:
            try:
                self._connection.execute("begin" if reads else "begin immediate")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname != "SQLITE_BUSY":
                    raise
                return None
        try:
            return self.observe(self._database.text_of(action), action.params)
        except (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.OperationalError) as error:
            if "no such table" in str(error):
                raise ConfigError(str(error)) from None
            raise StatementRefused(action.query.name, str(error)) from None

    def leave(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("rollback")

    def observe(self, text: str, params: Mapping[str, Any]) -> Rows:
        return self._connection.execute(text, dict(params)).fetchall()

    def look(self, texts: Sequence[str]) -> list[Rows]:
        return [self.observe(text, {}) for text in texts]

    def run_ddl(self, text: str) -> None:
        self._connection.executescript(f"begin immediate;\n{text}\ncommit;")

    def close(self) -> None:
        self._connection.close()


def _as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


class PostgresSession:
    """A connection with a thread of its own, so that a statement may really wait for a lock while
    the test goes on. The server says who waits for whom."""

    def __init__(self, database: ScriptedDatabase, dsn: str) -> None:
        import psycopg
        from psycopg.rows import dict_row

        self._database = database
        self._connection: psycopg.Connection[dict[str, Any]] = psycopg.connect(
            dsn, autocommit=True, row_factory=dict_row
        )
        self._connection.execute("set deadlock_timeout = '20ms'")
        self.pid = self._connection.info.backend_pid
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"session-{self.pid}")
        self._pending: Future[Rows] | None = None

    def perform(self, action: Action, *, reads: bool) -> Rows | None:
        if self._pending is None:
            if reads or not self._database.is_contended(self):
                return self._do(action, reads)  # nobody can be in the way
            self._pending = self._thread.submit(self._do, action, reads)
        if not self._is_done_or_waits(self._pending):
            return None
        done, self._pending = self._pending, None
        return done.result()

    def _is_done_or_waits(self, pending: Future[Rows]) -> bool:
        looks = int(GIVEN_UP_AFTER_S / LOOK_EVERY_S)
        for _ in range(looks):
            if wait([pending], LOOK_EVERY_S).done:
                return True
            if self._database.waits(self.pid):
                return False
        raise AssertionError("a statement neither ends nor waits for another of the test's")

    def _do(self, action: Action, reads: bool) -> Rows:
        import psycopg

        if not isinstance(action, Statement):
            self._connection.execute("commit")
            return []
        try:
            if self._connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                mode = "isolation level repeatable read read only" if reads else ""
                self._connection.execute(f"begin {mode}".encode())
            return self.observe(self._database.text_of(action), action.params)
        except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
            raise Deadlock(f"{action.query.name}: {error}") from None
        except psycopg.errors.UndefinedTable as error:
            raise ConfigError(str(error)) from None
        except (psycopg.IntegrityError, psycopg.DataError, psycopg.ProgrammingError) as error:
            raise StatementRefused(action.query.name, str(error)) from None

    def leave(self) -> None:
        import psycopg

        if self._pending is not None:
            self._database.cancel(self.pid)
            wait([self._pending])
            self._pending = None
        if self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self._connection.execute("rollback")

    def observe(self, text: str, params: Mapping[str, Any]) -> Rows:
        sent = PARAMETER.sub(r"%(\1)s", text.replace("%", "%%")) if params else text
        cursor = self._connection.execute(sent.encode(), params or None)
        return list(cursor.fetchall()) if cursor.description else []

    def look(self, texts: Sequence[str]) -> list[Rows]:
        with self._connection.pipeline():
            cursors = [self._connection.execute(text.encode()) for text in texts]
            return [list(cursor.fetchall()) for cursor in cursors]

    def run_ddl(self, text: str) -> None:
        self._connection.execute(text.encode())

    def close(self) -> None:
        self.leave()
        self._thread.shutdown()
        self._connection.close()
