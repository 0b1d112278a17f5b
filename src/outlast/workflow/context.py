"""What a step gets: the task's state, and the verbs that outlast a crash."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar, cast, overload

from pydantic import TypeAdapter

from outlast.model.commit import status_event
from outlast.model.content import Artifact, Message, Part
from outlast.model.errors import AuthorError
from outlast.model.ledger import LedgerKind, effect_key
from outlast.model.task import State
from outlast.workflow import effects, mapping, memos, streams, waits
from outlast.workflow.answers import Answer
from outlast.workflow.artifacts import whole_artifact
from outlast.workflow.effects import EFFECT_TIMEOUT, KEY_PARAM
from outlast.workflow.facts import Facts
from outlast.workflow.history import read_history
from outlast.workflow.inbox import read_inbox
from outlast.workflow.jsontype import plain
from outlast.workflow.mapping import MAP_LIMIT, ItemError
from outlast.workflow.next import Complete, Fail, Goto, Reject
from outlast.workflow.rules import verb
from outlast.workflow.signatures import is_async, name_of
from outlast.workflow.streams import Stream

C = TypeVar("C")
R = TypeVar("R")
T = TypeVar("T")

Type = type[T] | TypeAdapter[T]


class Context(Facts[C, R]):
    """One run of a step. It starts from the last committed checkpoint, always.

    Every verb raises again what has stopped the run, and may raise AuthorError in the form of a
    Stopped, which holds the task: a broken rule cannot be caught by accident.
    """

    # --- saying ---------------------------------------------------------------------------------

    async def commit(self, text: str | None = None, *, data: Any = None) -> None:
        """Keep the checkpoint and everything said since the last commit, in one transaction.

        The checkpoint is copied when this is called. With text or data, callers see a status.
        """
        with verb(self._run.session):
            message = self._run.message(text, data)
            status = None if message is None else status_event(State.WORKING, message)
            await self._run.commit(status)

    async def report(
        self,
        text: str,
        *,
        done: int | None = None,
        total: int | None = None,
        data: Any = None,
    ) -> None:
        """Tell callers how far the step is. Nothing is kept of it but the event."""
        with verb(self._run.session):
            counted = {"done": done, "total": total}
            progress = {name: count for name, count in counted.items() if count is not None}
            message = self._run.message(text, data)
            await self._run.outbox.post(status_event(State.WORKING, message, progress=progress))

    async def artifact(
        self,
        name: str,
        *parts: str | Part,
        id: str | None = None,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Something that the task produced; goes out with the next commit, the same id replaces."""
        with verb(self._run.session):
            self._run.outbox.say(
                whole_artifact(name, parts, id=id, description=description, metadata=metadata)
            )

    @overload
    async def stream(
        self,
        artifact: str | Artifact,
        chunks: Callable[[], AsyncIterator[str | Part] | Awaitable[AsyncIterator[str | Part]]],
        *,
        key: str | None = None,
        result: None = None,
    ) -> str: ...

    @overload
    async def stream(
        self,
        artifact: str | Artifact,
        chunks: Callable[[], AsyncIterator[str | Part] | Awaitable[AsyncIterator[str | Part]]],
        *,
        key: str | None = None,
        result: Type[T],
    ) -> T: ...

    async def stream(
        self,
        artifact: str | Artifact,
        chunks: Callable[[], Any],
        *,
        key: str | None = None,
        result: Any = None,
    ) -> Any:
        """Send text to readers as it comes, and keep it when it ends: a memo that streams.

        `chunks` is called at most once in a visit and gives an async iterator of text or parts.
        Returns the whole text, or what it says as JSON with `result=`.
        """
        with verb(self._run.session):
            return await streams.stream(self._run, artifact, chunks, key=key, result=result)

    def open_stream(self, artifact: str | Artifact) -> AbstractAsyncContextManager[Stream]:
        """`async with ctx.open_stream("log.txt") as out: await out.write("…")`.

        Chunks are added to what the artifact held at the last commit, and are provisional until
        the next: a run that dies before it leaves nothing of them.
        """
        return streams.open_stream(self._run, artifact)

    # --- waiting --------------------------------------------------------------------------------

    @overload
    async def ask(
        self,
        text: str,
        *,
        answer: None = None,
        data: Any = None,
        deadline: timedelta | datetime | None = None,
        on_deadline: Literal["fail", "cancel", "resume"] = "fail",
        remind: timedelta | datetime | None = None,
        key: str | None = None,
    ) -> Answer: ...

    @overload
    async def ask(
        self,
        text: str,
        *,
        answer: Type[T],
        data: Any = None,
        deadline: timedelta | datetime | None = None,
        on_deadline: Literal["fail", "cancel", "resume"] = "fail",
        remind: timedelta | datetime | None = None,
        key: str | None = None,
    ) -> T: ...

    async def ask(
        self,
        text: str,
        *,
        answer: Any = None,
        data: Any = None,
        deadline: timedelta | datetime | None = None,
        on_deadline: str = "fail",
        remind: timedelta | datetime | None = None,
        key: str | None = None,
    ) -> Any:
        """The caller's answer: the task pauses until it comes, and the step then starts over.

        With `answer=` it is a value of that type, and what does not fit is refused. Raises
        DeadlinePassed with on_deadline="resume" when nobody answered in time.
        """
        with verb(self._run.session):
            question = waits.checked_question(
                self._run,
                text,
                answer=answer,
                data=data,
                deadline=deadline,
                on_deadline=on_deadline,
                remind=remind,
                key=key,
            )
            return await waits.ask(self._run, question)

    async def require_auth(
        self,
        text: str,
        *,
        scheme: str | None = None,
        deadline: timedelta | datetime | None = None,
        in_band: bool = False,
        key: str | None = None,
    ) -> Any:
        """What the task may not do without: it pauses until somebody authorizes it, and the step
        then starts over.

        Returns the JSON value that `authorize` brought: a token, as a rule. It lies in the ledger
        and is in no event. With `in_band` a caller's message may bring it too: its data, else its
        text, which then is part of the task's history. `scheme` tells callers by which of the
        agent's security schemes. Without an authorization by the deadline the task fails.
        """
        with verb(self._run.session):
            wanted = waits.checked_authorization(
                self._run, text, scheme=scheme, deadline=deadline, in_band=in_band, key=key
            )
            return await waits.require_auth(self._run, wanted)

    async def sleep(self, until: timedelta | datetime, *, key: str | None = None) -> None:
        """Wait without a worker: one row. The step then starts over and passes this line."""
        with verb(self._run.session):
            await waits.sleep(self._run, until, key=key)

    # --- the outside ----------------------------------------------------------------------------

    async def once(
        self,
        key: str,
        fn: Callable[..., Awaitable[T]],
        *args: Any,
        result: Type[T] | None = None,
        timeout: timedelta = EFFECT_TIMEOUT,
        reconcile: Callable[[str], Awaitable[T]] | None = None,
        at_most_once: bool = False,
        not_done: tuple[type[Exception], ...] = (),
        key_param: str | None = KEY_PARAM,
    ) -> T:
        """An effect: a call that must happen once in the life of the task, under this key.

        Returns the kept result if there is one. Else calls `fn(*args, idempotency_key=…)`, which
        nothing interrupts until its own timeout. After a crash in between, `reconcile(key)` says
        what became of it; without one `fn` is called again under the same key, or with
        `at_most_once` the task is held for an operator. An exception leaves the outcome unknown
        unless it is NotDone or one of `not_done`.
        """
        with verb(self._run.session):
            effect = effects.checked_effect(
                key,
                fn,
                args,
                result=result,
                timeout=timeout,
                reconcile=reconcile,
                at_most_once=at_most_once,
                not_done=not_done,
                key_param=key_param,
            )
            return cast("T", await effects.once(self._run, effect))

    async def unknown_effects(self) -> list[str]:
        """Keys of the task's effects that were called and have no result: they may have happened.

        What a cancel or failure step looks at before it undoes anything.
        """
        with verb(self._run.session):
            open_intents = await self._run.session.open_intents(LedgerKind.EFFECT)
            return [entry.key.removeprefix(effect_key("")) for entry in open_intents]

    @overload
    async def memo(
        self,
        key: str,
        fn: Callable[..., Awaitable[T]],
        *args: Any,
        result: Type[T] | None = None,
    ) -> T: ...

    @overload
    async def memo(
        self, key: str, fn: Callable[..., T], *args: Any, result: Type[T] | None = None
    ) -> T: ...

    async def memo(self, key: str, fn: Callable[..., Any], *args: Any, result: Any = None) -> Any:
        """What `fn(*args)` gives, computed once per visit: a model's draft, a random id, the time.

        `fn` may be a plain function if it is quick.
        """
        with verb(self._run.session):
            return await memos.memo(self._run, key, fn, args, result=result)

    @overload
    async def map(
        self,
        items: Iterable[Any],
        fn: Callable[..., Awaitable[T]],
        *,
        key: str | Callable[[Any], str],
        limit: int = MAP_LIMIT,
        effect: bool = False,
        errors: Literal["raise"] = "raise",
        result: Type[T] | None = None,
        report: str | None = None,
    ) -> list[T]: ...

    @overload
    async def map(
        self,
        items: Iterable[Any],
        fn: Callable[..., Awaitable[T]],
        *,
        key: str | Callable[[Any], str],
        limit: int = MAP_LIMIT,
        effect: bool = False,
        errors: Literal["return"],
        result: Type[T] | None = None,
        report: str | None = None,
    ) -> list[T | ItemError]: ...

    async def map(
        self,
        items: Iterable[Any],
        fn: Callable[..., Any],
        *,
        key: str | Callable[[Any], str],
        limit: int = MAP_LIMIT,
        effect: bool = False,
        errors: str = "raise",
        result: Any = None,
        report: str | None = None,
    ) -> list[Any]:
        """`fn(item)` for every item, `limit` at a time, each result kept as it comes.

        `key` is a prefix for the items' numbers, or gives each item its own. With `effect` each
        call is one of `once`. `fn` may not wait. `report` tells callers how many are done.
        """
        with verb(self._run.session):
            mapped = mapping.checked_map(
                items,
                fn,
                key=key,
                limit=limit,
                effect=effect,
                errors=errors,
                result=result,
                report=report,
            )
            return await mapping.map_items(self._run, mapped)

    async def thread(self, fn: Callable[..., T], *args: Any) -> T:
        """Run blocking code in the worker's own threads."""
        with verb(self._run.session):
            if is_async(fn):
                raise AuthorError(
                    f"thread got {name_of(fn)}, an async function.", "await it in the step."
                )
            return await self._run.session.thread(fn, *args)

    async def history(self, last: int | None = None) -> list[Message]:
        """The conversation of this task: the callers' messages and the questions they answered,
        in order; the newest `last` of them."""
        with verb(self._run.session):
            return await read_history(self._run.session, last)

    async def inbox(self) -> list[Message]:
        """What callers have sent while the task works, in order, since the last commit.

        It is read when the next commit lands: until then a run that starts over gets the same
        messages, and so does a second call, with what came meanwhile. The task does not complete
        past a message that it has not read. For a Workflow with `inbox=True`.
        """
        with verb(self._run.session):
            return await read_inbox(self._run)

    # --- ending ---------------------------------------------------------------------------------

    def complete(self, text: str | None = None, *, data: Any = None) -> Complete:
        """`return ctx.complete(…)` ends the task as COMPLETED."""
        with verb(self._run.session):
            self._run.message(text, data)
            return Complete(text, plain(data, what="the data of complete"))

    def fail(self, text: str) -> Fail:
        """`return ctx.fail(…)` ends the task as FAILED; the caller sees the text."""
        with verb(self._run.session):
            self._run.message(text, None)
            return Fail(text)

    def reject(self, text: str) -> Reject:
        """`return ctx.reject(…)` ends the task as REJECTED; the caller sees the text."""
        with verb(self._run.session):
            self._run.message(text, None)
            return Reject(text)

    def goto(self, step: str | Callable[..., Any]) -> Goto:
        """`return ctx.goto(…)` goes on with another step, or with this one anew."""
        with verb(self._run.session):
            return Goto(self._run.workflow.name_of_step(step))
