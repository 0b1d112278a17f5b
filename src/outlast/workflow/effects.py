"""Effects: calls to the outside that must happen once, whatever dies.

The intent is in the store before the call, under the run's fence; the result after it. What stands
between is a call whose outcome nobody knows, and the next run meets it as an open intent.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from outlast.model.errors import AuthorError, NotDone
from outlast.model.ids import WriteNo
from outlast.model.ledger import Intent, LedgerEntry, LedgerKind, effect_key
from outlast.model.points import point
from outlast.workflow.jsontype import JsonType
from outlast.workflow.limits import check_duration, check_key
from outlast.workflow.requests import Request, encode_result, request_of, result_type
from outlast.workflow.rules import calling
from outlast.workflow.run import Call, Run
from outlast.workflow.signatures import is_async, name_of
from outlast.workflow.suspend import OutcomeUnknown

T = TypeVar("T")

EFFECT_TIMEOUT = timedelta(seconds=60)
KEY_PARAM = "idempotency_key"


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A call as the author wrote it, checked."""

    key: str
    fn: Callable[..., Awaitable[Any]]
    args: tuple[Any, ...]
    result: JsonType[Any]
    request: Request
    timeout: timedelta
    reconcile: Callable[[str], Awaitable[Any]] | None = None
    at_most_once: bool = False
    not_done: tuple[type[Exception], ...] = ()
    key_param: str | None = KEY_PARAM

    @property
    def ledger_key(self) -> str:
        return effect_key(self.key)

    @property
    def what(self) -> str:
        return f"once {self.key!r}"


def checked_effect(
    key: str,
    fn: Callable[..., Awaitable[Any]],
    args: tuple[Any, ...],
    *,
    result: Any = None,
    timeout: timedelta = EFFECT_TIMEOUT,
    reconcile: Callable[[str], Awaitable[Any]] | None = None,
    at_most_once: bool = False,
    not_done: tuple[type[Exception], ...] = (),
    key_param: str | None = KEY_PARAM,
) -> Effect:
    """The effect, ready to be called. Raises AuthorError for what would not work after a crash."""
    what = f"once {check_key(key, verb='once')!r}"
    _check_callable(fn, args, key_param, what=what)
    if reconcile is not None and not is_async(reconcile):
        raise AuthorError(
            f"{what} has a plain function for reconcile: {name_of(reconcile)}.",
            "write `async def reconcile(key)`: it returns the result or raises NotDone.",
        )
    return Effect(
        key=key,
        fn=fn,
        args=args,
        result=result_type(fn, result, what=what),
        request=request_of(args, what=what),
        timeout=check_duration(timeout, of=f"the timeout of {what}"),
        reconcile=reconcile,
        at_most_once=at_most_once,
        not_done=not_done,
        key_param=key_param,
    )


async def once(
    run: Run[Any], effect: Effect, *, known: Mapping[str, LedgerEntry] | None = None
) -> Any:
    """The effect's result: the kept one, else that of the call made now.

    Calls of one key in one run are one call, also when the first waiter has gone meanwhile: it
    goes on as long as it is outside. After one that failed, a new call is made. `known` holds the
    ledger's entries, where they were read before.
    """
    call = run.calls.get(effect.key)
    if call is None:
        call = _begin(run, effect, known)
    elif call.digest != effect.request.digest:
        raise AuthorError(
            f"{effect.what} is called twice in one run, with different arguments.",
            "use one key for one request, for example with an id in it.",
        )
    text = await _result_of(call)
    return effect.result.decode_kept(text, what=f"The result of {effect.what}")


def _begin(run: Run[Any], effect: Effect, known: Mapping[str, LedgerEntry] | None) -> Call:
    call = run.calls[effect.key] = Call(digest=effect.request.digest)
    call.task = asyncio.create_task(_perform(run, effect, call, known))
    call.task.add_done_callback(lambda task: _forget_failed(run, effect.key, call))
    return call


def _forget_failed(run: Run[Any], key: str, call: Call) -> None:
    assert call.task is not None
    if (call.task.cancelled() or call.task.exception()) and run.calls.get(key) is call:
        del run.calls[key]


async def _result_of(call: Call) -> str:
    assert call.task is not None
    call.waiters += 1
    try:
        # Not `shield`: a waiter that leaves must not take the call with it, nor its exception.
        await asyncio.wait((call.task,))
        return call.task.result()
    finally:
        call.waiters -= 1
        if not call.waiters and not call.is_outside:
            call.task.cancel()


async def _perform(
    run: Run[Any], effect: Effect, call: Call, known: Mapping[str, LedgerEntry] | None
) -> str:
    if known is None:
        entry = await run.session.entry(effect.ledger_key)
    else:
        entry = known.get(effect.ledger_key)
    if entry is not None:
        request = effect.request
        run.check_digest(entry, request.digest, request.text, verb="once", key=effect.key)
        if entry.result is not None:
            return entry.result
        if effect.at_most_once and effect.reconcile is None:
            unknown = OutcomeUnknown(key=entry.key, fence=entry.fence, write_no=entry.write_no)
            raise run.session.stop(unknown)
    # Also over an open intent: only the holder of the lease may call, and this write proves it.
    written = await run.session.write(ledger=(_intent(effect),))
    settled = written.committed.settled.get(effect.ledger_key)
    if settled is not None:
        return settled
    if entry is not None and effect.reconcile is not None:
        found = await _outside(run, call, lambda: _reconciled(run, effect))
        if found is not None:
            return found
    return await _outside(run, call, lambda: _called(run, effect, written.write_no))


async def _outside(run: Run[Any], call: Call, leave: Callable[[], Awaitable[T]]) -> T:
    run.session.check()
    if not call.waiters:
        raise asyncio.CancelledError  # everybody who wanted it has left
    call.is_outside = True
    try:
        return await run.session.shielded(leave())
    finally:
        call.is_outside = False


async def _called(run: Run[Any], effect: Effect, write_no: WriteNo) -> str:
    """Call the function and record what it brought, or that it certainly did nothing."""
    named = {} if effect.key_param is None else {effect.key_param: _downstream_key(run, effect)}
    limit = asyncio.timeout(effect.timeout.total_seconds())
    not_done: tuple[type[Exception], ...] = (NotDone, *effect.not_done)
    try:
        async with limit:
            point("before:effect")
            with calling("once"):
                value = await effect.fn(*effect.args, **named)
            point("after:effect")
    except not_done:
        # Our own timeout interrupts a call that may have arrived, whatever its error looks like.
        if not limit.expired():
            await run.session.clear(effect.ledger_key, write_no)
        raise
    return await _settled(run, effect, value)


async def _reconciled(run: Run[Any], effect: Effect) -> str | None:
    """What the outside says about an earlier call: its result, or None: it was never done."""
    assert effect.reconcile is not None
    try:
        async with asyncio.timeout(effect.timeout.total_seconds()):
            point("before:reconcile")
            with calling("once"):
                value = await effect.reconcile(_downstream_key(run, effect))
            point("after:reconcile")
    except NotDone:
        return None
    return await _settled(run, effect, value)


async def _settled(run: Run[Any], effect: Effect, value: Any) -> str:
    text = encode_result(value, effect.result, what=effect.what)
    return await run.session.settle(effect.ledger_key, text)


def _intent(effect: Effect) -> Intent:
    return Intent(
        key=effect.ledger_key,
        kind=LedgerKind.EFFECT,
        digest=effect.request.digest,
        request=effect.request.text,
    )


def _downstream_key(run: Run[Any], effect: Effect) -> str:
    return f"{run.lease.ledger_id}:{effect.key}"


def _check_callable(
    fn: Callable[..., Any], args: tuple[Any, ...], key_param: str | None, *, what: str
) -> None:
    if not is_async(fn):
        raise AuthorError(
            f"{what} calls {name_of(fn)}, a plain function, which would block the worker.",
            "write `async def`, and call blocking code in it with `await ctx.thread(fn, *args)`.",
        )
    try:
        signature = inspect.signature(fn)
    except ValueError:  # a builtin that does not say
        return
    named = {} if key_param is None else {key_param: ""}
    if key_param is not None and not _takes(signature, key_param):
        raise AuthorError(
            f"{what} calls {name_of(fn)}, which takes no {key_param}.",
            f"let it take {key_param}= and send it along, so that a repeated call does nothing "
            f"new; key_param= names another parameter, key_param=None says that there is none.",
        )
    try:
        signature.bind(*args, **named)
    except TypeError as error:
        raise AuthorError(
            f"{what} cannot call {name_of(fn)}{signature}: {error}.",
            "pass the arguments that it takes.",
        ) from error


def _takes(signature: inspect.Signature, name: str) -> bool:
    parameter = signature.parameters.get(name)
    if parameter is not None:
        return parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
    kinds = (parameter.kind for parameter in signature.parameters.values())
    return inspect.Parameter.VAR_KEYWORD in kinds
