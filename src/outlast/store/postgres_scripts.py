"""One script on one psycopg connection: its statements, and what their failures mean."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from typing import Any, TypeVar

import psycopg

from outlast.model.errors import ConfigError, StoreUnavailable
from outlast.model.points import point
from outlast.store.database import PARAMETER, Query, Rows, Script, StatementRefused

T = TypeVar("T")
Connection = psycopg.AsyncConnection[dict[str, Any]]

_STALE_PLAN = "0A000"
_RETRIED = {"40001", "40P01", _STALE_PLAN}
_UNSENDABLE = (psycopg.DataError, psycopg.ProgrammingError, psycopg.NotSupportedError)
_AWAY = re.compile(r"08...|57...|53...|25006|25P0[23]|55P03|58...")


class Sent:
    """How far a call got. Once the commit may have reached the server, a failure of the
    connection leaves the outcome unknown."""

    query = "connect"
    commit = False


def is_worth_another_try(failure: Exception) -> bool:
    return isinstance(failure, StoreUnavailable) and failure.happened is False


async def run_script(connection: Connection, script: Script[T], sent: Sent) -> T:
    rows: Rows | None = None
    while True:
        try:
            statement = script.send(rows) if rows is not None else next(script)
        except StopIteration as stop:
            result: T = stop.value
            return result
        point(f"before:{statement.query.name}")
        sent.query = statement.query.name
        try:
            cursor = await connection.execute(_text(statement.query), statement.params)
        except psycopg.errors.FeatureNotSupported:  # a plan from before a migration
            await connection.close()
            raise
        except UnicodeError as error:  # half a character
            raise StatementRefused(statement.query.name, str(error)) from None
        rows = list(await cursor.fetchall()) if cursor.description else []
        point(f"after:{statement.query.name}")


_TEXTS: dict[str, bytes] = {}


def _text(query: Query) -> bytes:
    """The query with psycopg's placeholders in the place of `:name`."""
    text = _TEXTS.get(query.text)
    if text is None:
        text = PARAMETER.sub(r"%(\1)s", query.text.replace("%", "%%")).encode()
        _TEXTS[query.text] = text
    return text


def hang_up(connection: Connection) -> None:
    with (
        contextlib.suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(connection.fileno())) as duplicate,
    ):
        duplicate.shutdown(socket.SHUT_RDWR)


def translated(error: psycopg.Error, sent: Sent) -> Exception:
    state = error.sqlstate
    if state == "42P01":
        return ConfigError("the database has no Outlast schema: run `outlast migrate`")
    by_server = state and state not in _RETRIED and not _AWAY.fullmatch(state)
    by_psycopg = state is None and isinstance(error, _UNSENDABLE)
    if by_server or by_psycopg:
        return StatementRefused(sent.query, reason_of(error))
    known = state is not None and not state.startswith(("08", "57P"))
    return StoreUnavailable(
        f"PostgreSQL: {reason_of(error)}", happened=False if known or not sent.commit else None
    )


def reason_of(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
