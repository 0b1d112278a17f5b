"""What the one body of the store asks of a database driver.

The body is written as *scripts*: generators that yield statements and receive rows. A script
does no waiting of its own, so the same text runs inside SQLite's writer thread, over an
asynchronous PostgreSQL connection, and in a test that interleaves two of them statement by
statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, Protocol, TypeVar

T = TypeVar("T")

Row = Mapping[str, Any]
Rows = list[Row]
Dialect = Literal["postgres", "sqlite"]


@dataclass(frozen=True)
class Query:
    """A named query with `:name` parameters; it pastes into psql and into sqlite3."""

    name: str
    promise: str
    text: str


@dataclass(frozen=True)
class Statement:
    """A query and its parameters."""

    query: Query
    params: Mapping[str, Any]


Script = Generator[Statement, Rows, T]


class Database(Protocol):
    """A database driver. Driver exceptions never leave it: see each verb's errors."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def wakeups(self) -> Wakeups: ...

    async def open(self) -> None:
        """Connect. Raises ConfigError when the database is not there or not usable."""

    async def close(self) -> None:
        """Give everything back. Calls under way end first or are dropped at their deadline."""

    async def transact(self, script: Callable[[], Script[T]], *, timeout: float | None = None) -> T:
        """Run the script in one read-write transaction and commit it.

        The script may run more than once when the database says that it did not happen
        (serialization failure, deadlock), so it must not have effects of its own.

        Raises StoreUnavailable when the outcome is unknown or the database cannot be reached
        within `timeout` seconds (`happened=False` when it certainly did not happen), and
        StatementRefused when the database refuses a statement whoever sends it.
        """
        ...

    async def autocommit(
        self, script: Callable[[], Script[T]], *, timeout: float | None = None
    ) -> T:
        """As `transact`, for a script of a single statement: it is its own transaction."""
        ...

    async def read(self, script: Callable[[], Script[T]], *, timeout: float | None = None) -> T:
        """Run a script that only reads, on one snapshot; retried within `timeout`."""
        ...

    async def keep_presence(self, name: str) -> None:
        """Show that this process lives, under `name`, until it dies or closes the database."""

    async def drop_presence(self, name: str) -> None:
        """Stop showing `name`, or clear what a dead process of that name left behind."""

    async def is_present(self, names: Iterable[str]) -> Mapping[str, bool | None]:
        """Who of `names` is alive by presence; None where that cannot be known."""
        ...

    async def incarnation(self) -> str:
        """Which start of which server this is: presence says nothing across two of them."""
        ...

    async def run_ddl(self, text: str) -> None:
        """Run a migration's statements, one by one where they cannot share a transaction."""


class Wakeups(Protocol):
    """Hints that something changed. They may be lost: whoever waits also polls."""

    def send(self, topics: Iterable[str]) -> None:
        """Tell everybody who listens for one of `topics`, in any process, after the commit."""

    def subscribe(self, topic: str) -> Subscription:
        """Listen for `topic` from now on."""
        ...


class Subscription(Protocol):
    """One listener. Use as a context manager, so that it is dropped when the waiting ends."""

    async def wait(self, timeout: float) -> bool:
        """Wait for a wake-up since the last wait, at most `timeout` seconds; False: none came."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Subscription: ...

    def __exit__(self, *exc: object) -> None: ...


class StatementRefused(Exception):
    """The database refused a statement for its content; caught by the store's body."""

    def __init__(self, query: str, reason: str) -> None:
        self.query = query
        self.reason = reason
        super().__init__(f"{query}: {reason}")


_HEAD = re.compile(r"^-- ([a-z]+(?:_[a-z]+)+): (.+)$")
PARAMETER = re.compile(r"(?<![:\w\"]):([a-z_]+)\b")


class Catalog(Mapping[str, Query]):
    """All named queries of one dialect: the shared ones, and the dialect's overrides."""

    def __init__(self, queries: Mapping[str, Query]) -> None:
        self._queries = queries

    def __getitem__(self, name: str) -> Query:
        return self._queries[name]

    def __iter__(self) -> Any:
        return iter(self._queries)

    def __len__(self) -> int:
        return len(self._queries)

    def __call__(self, name: str, /, **params: Any) -> Statement:
        return Statement(self._queries[name], params)


@cache
def catalog(dialect: Dialect) -> Catalog:
    """The queries of `store/sql`, with those of `store/sql/<dialect>` in their place."""
    root = resources.files("outlast.store") / "sql"
    queries: dict[str, Query] = {}
    # A dialect that overrides nothing has no folder: git and wheels keep no empty ones.
    for folder in (place for place in (root, root / dialect) if place.is_dir()):
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.name.endswith(".sql"):
                queries |= parse(entry.read_text(encoding="utf-8"))
    return Catalog(queries)


def parse(text: str) -> dict[str, Query]:
    """The queries of a file: each begins with a line `-- <table>_<verb>: what it promises`."""
    found: dict[str, Query] = {}
    head: re.Match[str] | None = None
    lines: list[str] = []
    for line in [*text.splitlines(), "-- end_of_file: x"]:
        match = _HEAD.match(line)
        if match is None:
            lines.append(line)
            continue
        if head is not None:
            body = "\n".join(row for row in lines if not row.startswith("--")).strip()
            found[head[1]] = Query(name=head[1], promise=head[2], text=body.rstrip(";"))
        head, lines = match, []
    return found
