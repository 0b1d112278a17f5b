"""Parallel sub-steps: one function over many items, each result kept as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from outlast.model.commit import status_event
from outlast.model.errors import AuthorError, Stopped
from outlast.model.ledger import LedgerEntry, effect_key
from outlast.model.task import State
from outlast.workflow.effects import Effect, checked_effect, once
from outlast.workflow.limits import check_key
from outlast.workflow.memos import compute, kept_value
from outlast.workflow.requests import request_of, result_type
from outlast.workflow.rules import calling
from outlast.workflow.run import Run

Key = str | Callable[[Any], str]

MAP_LIMIT = 8


@dataclass(frozen=True)
class ItemError:
    """In place of a result, with errors="return": the item that failed, and how."""

    item: Any
    error: str


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """A map as the author wrote it, checked. `keys` are those of the items, in their order."""

    items: Sequence[Any]
    keys: Sequence[str]
    fn: Callable[..., Any]
    limit: int
    effect: bool
    returns_errors: bool
    result: Any
    report: str | None


def checked_map(
    items: Iterable[Any],
    fn: Callable[..., Any],
    *,
    key: Key,
    limit: int,
    effect: bool,
    errors: str,
    result: Any,
    report: str | None,
) -> Mapped:
    """The map, ready to run. Raises AuthorError."""
    if errors not in ("raise", "return"):
        raise AuthorError(f"map got errors={errors!r}.", 'write errors="raise" or errors="return".')
    if limit < 1:
        raise AuthorError(f"map got limit={limit}: nothing would run.", "use limit=1 or more.")
    listed = list(items)
    return Mapped(
        items=listed,
        keys=_keys_of(listed, key),
        fn=fn,
        limit=limit,
        effect=effect,
        returns_errors=errors == "return",
        result=result,
        report=report,
    )


def _keys_of(items: Sequence[Any], key: Key) -> Sequence[str]:
    if not callable(key):
        prefix = check_key(key, verb="map")
        return [f"{prefix}:{index:06d}" for index in range(len(items))]
    keys: dict[str, int] = {}
    for index, item in enumerate(items):
        name = check_key(key(item), verb="map")
        first = keys.setdefault(name, index)
        if first != index:
            raise AuthorError(
                f"map has the key {name!r} for two items, numbers {first} and {index}.",
                "let key= give each item its own, for example its id.",
            )
    return list(keys)


async def map_items(run: Run[Any], mapped: Mapped) -> list[Any]:
    """The results, in the order of the items.

    Each is kept as it comes, so that a run that starts over computes only what is missing. When
    an item fails, those under way finish and are kept, and an ExceptionGroup is raised; with
    errors="return" an ItemError stands in its place.
    """
    if not mapped.items:
        return []
    work = _Work(run, mapped, await _known(run, mapped))
    async with asyncio.TaskGroup() as group:
        for _ in range(min(mapped.limit, len(mapped.items))):
            group.create_task(work.take_turns(group))
    return work.outcome()


async def _known(run: Run[Any], mapped: Mapped) -> Mapping[str, LedgerEntry]:
    keys = [_ledger_key(run, mapped, key) for key in mapped.keys]
    # The end is exclusive: any text that sorts after the last key will do.
    entries = await run.session.entries(min(keys), max(keys) + " ")
    wanted = set(keys)
    return {entry.key: entry for entry in entries if entry.key in wanted}


def _ledger_key(run: Run[Any], mapped: Mapped, key: str) -> str:
    return effect_key(key) if mapped.effect else run.key("map", key)


class _Work:
    """Items taken one by one by `limit` workers, until none is left or one has failed."""

    def __init__(self, run: Run[Any], mapped: Mapped, known: Mapping[str, LedgerEntry]) -> None:
        self._run = run
        self._mapped = mapped
        self._known = known
        self._left: Iterator[int] = iter(range(len(mapped.items)))
        self._results: list[Any] = [None] * len(mapped.items)
        self._errors: list[Exception] = []
        self._stopped: BaseException | None = None
        self._progress = _Progress(run, mapped.report, len(mapped.items))
        self._effect: Effect | None = None
        if mapped.effect:
            # Checked once: for ten thousand items the signature is the same.
            self._effect = checked_effect(
                mapped.keys[0], mapped.fn, (mapped.items[0],), result=mapped.result
            )
            self._type = self._effect.result
        else:
            self._type = result_type(mapped.fn, mapped.result, what="map")

    async def take_turns(self, group: asyncio.TaskGroup) -> None:
        for index in self._left:
            await self._take(index)
            if self._stopped is not None or (self._errors and not self._mapped.returns_errors):
                return
            if self._progress.is_due():
                group.create_task(self._progress.tell())

    async def _take(self, index: int) -> None:
        item, key = self._mapped.items[index], self._mapped.keys[index]
        try:
            self._results[index] = await self._result(key, item)
        except AuthorError as error:
            self._stopped = error
        except Exception as error:
            error.add_note(f"item {index} of map, key {key!r}")
            self._errors.append(error)
            self._results[index] = ItemError(item, f"{type(error).__name__}: {error}")
        except asyncio.CancelledError:
            raise
        except BaseException as reason:
            # A Stopped: the others learn of it from their next verb, and no group wraps it.
            self._stopped = reason
        else:
            self._progress.done += 1

    async def _result(self, key: str, item: Any) -> Any:
        run, type_ = self._run, self._type
        ledger_key = _ledger_key(run, self._mapped, key)
        what = f"map {key!r}"
        request = request_of((item,), what=what)
        entry = self._known.get(ledger_key)
        with self._using(key, ledger_key):
            if entry is not None and entry.result is not None:
                self._progress.found += 1
                return kept_value(run, entry, entry.result, request, type_, verb="map", key=key)
            if self._effect is not None:
                effect = replace(self._effect, key=key, args=(item,), request=request)
                with calling("map"):
                    return await once(run, effect, known=self._known)
            fn = self._mapped.fn
            return await compute(run, ledger_key, fn, (item,), request, type_, what=what)

    def _using(self, key: str, ledger_key: str) -> AbstractContextManager[None]:
        # An effect may be met again in the same run, and joins the first.
        if self._effect is not None:
            return nullcontext()
        return self._run.using("map", key, ledger_key)

    def outcome(self) -> list[Any]:
        if self._stopped is not None:
            raise self._stopped
        if self._errors and not self._mapped.returns_errors:
            raise ExceptionGroup(
                f"{len(self._errors)} of {len(self._mapped.items)} items failed", self._errors
            )
        return self._results


class _Progress:
    """Reports of how many items are done: one under way at a time, always the latest number."""

    def __init__(self, run: Run[Any], label: str | None, total: int) -> None:
        self._run = run
        self._label = label
        self._total = total
        self._told = 0
        self._is_telling = False
        self.done = 0
        self.found = 0

    def is_due(self) -> bool:
        """Whether something is done that nobody has been told, and a run has done it itself."""
        fresh = self.done > max(self._told, self.found)
        return self._label is not None and fresh and not self._is_telling

    async def tell(self) -> None:
        self._is_telling = True
        while self._told < self.done:
            self._told = self.done
            text = f"{self._label}: {self._told}/{self._total}"
            event = status_event(
                State.WORKING,
                self._run.message(text, None),
                progress={"done": self._told, "total": self._total},
            )
            try:
                await self._run.session.write(events=(event,), urgent=False)
            except Stopped:
                return  # the next verb of the run says why
        self._is_telling = False
