"""Values that are computed once per visit and kept."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from outlast.model.ledger import Kept, LedgerEntry, LedgerKind
from outlast.workflow.jsontype import JsonType
from outlast.workflow.limits import check_key
from outlast.workflow.requests import Request, encode_result, request_of, result_type
from outlast.workflow.rules import calling
from outlast.workflow.run import Run


async def memo(
    run: Run[Any], key: str, fn: Callable[..., Any], args: tuple[Any, ...], *, result: Any
) -> Any:
    """What `fn(*args)` gave in this visit, computed now if it was not before.

    Always the JSON round trip, so that the first run sees what later ones will. A call that fails
    keeps nothing. Raises AuthorError for a key used before in this run.
    """
    what = f"memo {check_key(key, verb='memo')!r}"
    type_ = result_type(fn, result, what=what)
    request = request_of(args, what=what)
    ledger_key = run.key("memo", key)
    with run.using("memo", key, ledger_key):
        entry = await run.session.entry(ledger_key)
        if entry is not None and entry.result is not None:
            return kept_value(run, entry, entry.result, request, type_, verb="memo", key=key)
        return await compute(run, ledger_key, fn, args, request, type_, what=what)


async def compute(
    run: Run[Any],
    ledger_key: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    request: Request,
    type_: JsonType[Any],
    *,
    what: str,
) -> Any:
    """Call `fn` and keep what it gives under the ledger's key."""
    with calling(what.split()[0]):
        value = fn(*args)
        if inspect.isawaitable(value):
            value = await value
    text = encode_result(value, type_, what=what)
    value = type_.decode_kept(text, what=f"The result of {what}")
    kept = Kept(key=ledger_key, kind=LedgerKind.MEMO, result=text, digest=request.digest)
    await run.session.write(ledger=(kept,))
    return value


def kept_value(
    run: Run[Any],
    entry: LedgerEntry,
    text: str,
    request: Request,
    type_: JsonType[Any],
    *,
    verb: str,
    key: str,
) -> Any:
    """The value of an entry, if it stands for this very request. Else raises AuthorError."""
    run.check_digest(entry, request.digest, request.text, verb=verb, key=key)
    return type_.decode_kept(text, what=f"The kept result of {verb} {key!r}")
