"""A real database whose transactions a test moves on by hand, one statement at a time.

    with ScriptedDatabase.at(url) as database:
        tasks = Tasks(database)
        first = database.start(tasks.cancel(scope, task_id)).run_until("commit")
        second = database.start(tasks.answer(answer))
        assert second.step() is False  # the first one has the row locked
        first.finish()
        second.finish()

Each call of a store verb has a connection of its own. Nothing runs by itself: there is no event
loop, and what a call does between two steps is nothing, so an interleaving is a line of the test.
What the network does to a call is a line too: `drop` loses the connection before the commit,
`lose_reply` loses what comes after it, and a call that is left alone and stepped later is one that
arrives late. Locks are real: a step that waits for another connection says so and goes on by
itself once that one has ended its transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar

from outlast.model.errors import StoreUnavailable
from outlast.store.database import Dialect, Rows, Script, Statement, catalog
from outlast.store.wakeups import Bell, Board
from outlast.testing.sessions import COMMIT, Action, PostgresSession, Session, SqliteSession

T = TypeVar("T")


class WouldWait(AssertionError):
    """A call was to be finished, and it waits for a lock that another call holds."""


@dataclass(frozen=True)
class _Request(Generic[T]):
    """What a verb asks of its database. Awaiting it hands it to whoever moves the verb on."""

    script: Callable[[], Script[T]]
    reads: bool = False

    def __await__(self) -> Generator[_Request[T], T, T]:
        return (yield self)


class Watcher:
    """Told what a call does, at the moment when it has done it. Here it does nothing."""

    def executed(self, call: Call[Any], statement: Statement, rows: Rows) -> None:
        """A statement has returned its rows; nobody else sees its effect yet."""

    def committed(self, call: Call[Any], result: Any) -> None:
        """A transaction that writes is in the database; `result` is its script's."""


class Call(Generic[T]):
    """A store verb under way, on a connection of its own.

    next: what the next step does: a query's name or "commit"; None when the call is over.
    transaction: what it has executed in the transaction that is open now.
    session: its connection, while a transaction is open or begins.
    """

    def __init__(
        self, database: ScriptedDatabase, verb: Coroutine[Any, Any, T], watcher: Watcher
    ) -> None:
        self.transaction: list[Statement] = []
        self.error: BaseException | None = None
        self.is_waiting = False
        self.is_over = False
        self.session: Session | None = None
        self._database = database
        self._verb = verb
        self._watcher = watcher
        self._reads = False
        self._result: Any = None  # of the script
        self._value: T | None = None  # of the verb
        self._action: Action | None = None
        self._life = self._live()
        self._advance(partial(next, self._life))

    @property
    def next(self) -> str | None:
        if isinstance(self._action, Statement):
            return self._action.query.name
        return None if self._action is None else "commit"

    @property
    def is_writing(self) -> bool:
        """Whether its transaction has begun, so that it may hold locks."""
        return self.session is not None and not self._reads

    # --- what a test does with it -------------------------------------------------------------

    def step(self) -> bool:
        """Do the next thing. False: it waits for a lock, and nothing was done yet."""
        moved = self._go_on()
        self._database.settle()
        return moved

    def run_until(self, name: str) -> Self:
        """Step until the next step is `name`. Raises WouldWait, or what the verb raised."""
        while self.next != name:
            if self.is_over:
                self.result()
                raise AssertionError(f"the call has ended and did not come by {name}")
            self._step_or_raise()
        return self

    def run_until_it_waits(self) -> Self:
        """Step until a lock is in the way."""
        while not self.is_over:
            if not self.step():
                return self
        raise AssertionError("the call has ended and did not wait for anybody")

    def finish(self) -> T:
        """Step to the end; what the verb returned. Raises WouldWait, or what the verb raised."""
        while not self.is_over:
            self._step_or_raise()
        return self.result()

    def drop(self) -> None:
        """Lose the connection: what is not committed is rolled back, the verb is told so."""
        self._fail(StoreUnavailable("the connection was lost before the commit"))

    def lose_reply(self) -> None:
        """Go on to the end of the transaction and lose the connection before its reply comes."""
        self.run_until("commit")
        assert self.session is not None
        self.session.perform(COMMIT, reads=False)
        self._watcher.committed(self, self._result)
        self._fail(StoreUnavailable("the connection was lost and the commit with or without it"))

    def result(self) -> T:
        """What the verb returned, or raises what it raised."""
        assert self.is_over, f"the call is not over: next is {self.next}"
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]

    def abandon(self) -> None:
        """Roll back and forget it; its verb is told nothing."""
        self._leave()
        self._end()
        self._life.close()
        self._verb.close()

    # --- its life -----------------------------------------------------------------------------

    def _live(self) -> Generator[Action, Rows, T]:
        """The verb as one sequence of actions, whatever number of transactions it needs."""
        resume: Callable[[], Any] = partial(self._verb.send, None)
        while True:
            try:
                request = resume()
            except StopIteration as stop:
                value: T = stop.value
                return value
            try:
                answer = yield from self._serve(request)
            except Exception as failure:
                resume = partial(self._verb.throw, failure)
            else:
                resume = partial(self._verb.send, answer)

    def _serve(self, request: _Request[Any]) -> Generator[Action, Rows, Any]:
        self._reads = request.reads
        try:
            self._result = yield from request.script()
            if not request.reads:
                yield COMMIT
        finally:
            self._leave()
        return self._result

    def _go_on(self) -> bool:
        action = self._action
        assert action is not None, "the call is over"
        if self.session is None:
            self.session = self._database.borrow()
        try:
            rows = self.session.perform(action, reads=self._reads)
        except Exception as error:
            self.is_waiting = False
            self._throw(error)
            return True
        self.is_waiting = rows is None
        if rows is None:
            return False
        if isinstance(action, Statement):
            self.transaction.append(action)
            self._watcher.executed(self, action, rows)
        else:
            self._watcher.committed(self, self._result)
        self._advance(partial(self._life.send, rows))
        return True

    def _advance(self, resume: Callable[[], Action]) -> None:
        try:
            self._action = resume()
        except StopIteration as stop:
            self._value = stop.value
            self._end()
        except Exception as error:
            self.error = error
            self._end()

    def _throw(self, error: Exception) -> None:
        self._advance(partial(self._life.throw, error))

    def _fail(self, error: Exception) -> None:
        self._leave()
        self._throw(error)
        self._database.settle()

    def _step_or_raise(self) -> None:
        if not self.step():
            raise WouldWait(f"{self.next} waits for a lock of another connection")

    def _leave(self) -> None:
        """End the transaction, if it has not been committed, and give the connection back."""
        session, self.session = self.session, None
        self.is_waiting = False
        self.transaction = []
        if session is not None:
            session.leave()
            self._database.give_back(session)

    def _end(self) -> None:
        self.is_over = True
        self._action = None
        self._database.forget(self)


class ScriptedDatabase:
    """`Database` for tests: see the module. Its verbs are awaited by `start` and `run` only."""

    def __init__(self, dialect: Dialect, connect: Callable[[ScriptedDatabase], Session]) -> None:
        self.dialect: Dialect = dialect
        self._connect = connect
        self._free: list[Session] = []
        self._sessions: list[Session] = []
        self._calls: list[Call[Any]] = []
        self._texts: dict[str, str] = {}
        self._board = Board()
        self._observer = self.borrow()

    @classmethod
    def at(cls, url: str) -> ScriptedDatabase:
        """The database at `sqlite:///path` or `postgresql://…`; it need not have a schema yet."""
        if url.startswith("sqlite:///"):
            path = url.removeprefix("sqlite:///")
            return cls("sqlite", lambda database: SqliteSession(database, path))
        return cls("postgres", lambda database: PostgresSession(database, url))

    # --- for the test -------------------------------------------------------------------------

    def start(self, verb: Coroutine[Any, Any, T], watcher: Watcher | None = None) -> Call[T]:
        """Begin a call. It has sent nothing yet."""
        call = Call(self, verb, watcher or Watcher())
        if not call.is_over:
            self._calls.append(call)
        return call

    def run(self, verb: Coroutine[Any, Any, T]) -> T:
        """A call from its begin to its end. Raises WouldWait when another one is in the way."""
        call = self.start(verb)
        try:
            return call.finish()
        except WouldWait:
            call.abandon()
            raise

    def sql(self, text: str, **params: Any) -> Rows:
        """A statement of the test's own, committed at once, over a connection of its own."""
        return self._observer.observe(text, params)

    def look(self, texts: Sequence[str]) -> list[Rows]:
        """What several queries of the test's own see; nothing commits between them."""
        return self._observer.look(texts)

    @contextmanager
    def weakened(self, name: str, remove: str, put: str = "") -> Iterator[None]:
        """The named query with `remove` taken out of it: a mutant, to see that it is noticed."""
        text = catalog(self.dialect)[name].text
        assert text.count(remove) == 1, f"{name} should say {remove!r} once"
        self._texts[name] = text.replace(remove, put)
        try:
            yield
        finally:
            del self._texts[name]

    def abandon_all(self) -> None:
        """Roll back whatever is under way."""
        for call in list(self._calls):
            call.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.abandon_all()
        for session in self._sessions:
            session.close()
        self._sessions.clear()

    # --- for its calls ------------------------------------------------------------------------

    def borrow(self) -> Session:
        if self._free:
            return self._free.pop()
        session = self._connect(self)
        self._sessions.append(session)
        return session

    def give_back(self, session: Session) -> None:
        self._free.append(session)

    def forget(self, call: Call[Any]) -> None:
        if call in self._calls:
            self._calls.remove(call)

    def settle(self) -> None:
        """Let go on whoever waited for a lock that is free now."""
        while any(call.is_waiting and call._go_on() for call in list(self._calls)):
            pass

    def is_contended(self, session: Session) -> bool:
        """Whether another connection has a transaction open that writes."""
        return any(call.is_writing and call.session is not session for call in self._calls)

    def text_of(self, statement: Statement) -> str:
        return self._texts.get(statement.query.name, statement.query.text)

    def waits(self, pid: int) -> bool:
        """Whether a PostgreSQL session waits for a lock of one of ours."""
        found = self._observer.observe("select pg_blocking_pids(:pid) as pids", {"pid": pid})
        ours = {session.pid for session in self._sessions}
        return bool(ours.intersection(found[0]["pids"]))

    def cancel(self, pid: int) -> None:
        self._observer.observe("select pg_cancel_backend(:pid) as done", {"pid": pid})

    # --- Database -----------------------------------------------------------------------------

    @property
    def wakeups(self) -> ScriptedDatabase:
        return self

    def send(self, topics: Iterable[str]) -> None:
        """Nobody listens: a test reads."""

    def subscribe(self, topic: str) -> Bell:
        return self._board.subscribe(topic)

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def transact(self, script: Callable[[], Script[T]], *, timeout: float | None = None) -> T:
        result: T = await _Request(script)
        return result

    async def autocommit(
        self, script: Callable[[], Script[T]], *, timeout: float | None = None
    ) -> T:
        """The commit of a statement that is its own transaction is a step too: it takes its time,
        and others do not see it meanwhile."""
        result: T = await _Request(script)
        return result

    async def read(self, script: Callable[[], Script[T]], *, timeout: float | None = None) -> T:
        result: T = await _Request(script, reads=True)
        return result

    async def run_ddl(self, text: str) -> None:
        self._observer.run_ddl(text)

    async def keep_presence(self, name: str) -> None: ...

    async def drop_presence(self, name: str) -> None: ...

    async def is_present(self, names: Iterable[str]) -> Mapping[str, bool | None]:
        return dict.fromkeys(names)

    async def incarnation(self) -> str:
        return "scripted"
