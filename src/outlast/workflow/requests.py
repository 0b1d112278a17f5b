"""What a verb asks of the outside, so that an equal request can be told from another."""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.model.errors import AuthorError
from outlast.model.ledger import digest_of
from outlast.workflow.jsontype import JsonType, canonical, plain, refuse_nul
from outlast.workflow.limits import LEDGER_RESULT_LIMIT, check_size, size_of
from outlast.workflow.signatures import UNKNOWN, annotation_of, has_annotation, name_of

_KEPT = 2_000
"""How much of a request is kept for people to read. The digest covers all of it."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of a call: their digest, and their text as far as it is kept."""

    digest: str
    text: str


def request_of(arguments: Sequence[Any], *, what: str) -> Request:
    """The request that these arguments make. Raises AuthorError when they are not JSON."""
    value = plain(list(arguments), what=f"an argument of {what}")
    refuse_nul(value, what=f"an argument of {what}")
    text = canonical(value)
    return Request(digest=digest_of(text), text=text[:_KEPT])


def result_type(fn: Callable[..., Any], result: Any, *, what: str) -> JsonType[Any]:
    """The type of a call's result: `result`, else what `fn` is annotated with, else any JSON.

    Raises AuthorError for an annotation that cannot be read from here.
    """
    if result is not None:
        return JsonType(result, what=f"the result of {what}")
    annotation = annotation_of(fn, "return")
    if annotation is not UNKNOWN:
        return JsonType(_awaited(annotation), what=f"the result of {what}")
    if has_annotation(fn, "return"):
        raise AuthorError(
            f"The return annotation of {name_of(fn)} cannot be resolved from here.",
            f"name the type: {what.split()[0]}(…, result=…).",
        )
    return JsonType(Any, what=f"the result of {what}")


def encode_result(value: Any, type_: JsonType[Any], *, what: str) -> str:
    """The result as the ledger keeps it. Raises AuthorError when it cannot be kept."""
    text = type_.encode(value, what=f"the result of {what}")
    check_size(
        size_of(text),
        LEDGER_RESULT_LIMIT,
        what=f"The result of {what}",
        fix="return an id or an address, and keep the rest in your own store.",
    )
    return text


def _awaited(annotation: Any) -> Any:
    """What awaiting a call gives, for plain functions that are annotated with an awaitable."""
    origin = typing.get_origin(annotation)
    if origin in (Awaitable, Coroutine):
        return typing.get_args(annotation)[-1]
    return annotation
