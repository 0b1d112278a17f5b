"""The rules that an author's function must keep to become a step, checked at import."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pydantic import ValidationError

from outlast.model.errors import AuthorError
from outlast.model.retry import BUGS, Retry
from outlast.workflow.context import Context
from outlast.workflow.limits import check_duration
from outlast.workflow.next import Complete, Fail, Goto, Reject
from outlast.workflow.signatures import UNKNOWN, annotation_of, check_async, check_takes, name_of
from outlast.workflow.steps import NOT_GIVEN

AUTHOR_BUGS: tuple[type[BaseException], ...] = (*BUGS, ValidationError)
"""What is not tried again unless the author says so: data that did not fit will not fit later."""

_RETURNED = frozenset({Complete, Fail, Reject, Goto, types.NoneType})


def check_step(fn: Callable[..., Any], checkpoint: object, *, role: str) -> None:
    """Raise AuthorError unless `fn` can be a step of a workflow with this checkpoint type."""
    check_async(fn, role=role)
    check_takes(fn, 1, role=role, parameters="one parameter, ctx")
    _check_context(fn, 0, checkpoint, role=role)
    returned = annotation_of(fn, "return")
    if returned is not UNKNOWN and not set(_members_of(returned)) <= _RETURNED | {Any}:
        raise AuthorError(
            f"{role} {name_of(fn)} is annotated to return {_shown(returned)}.",
            "return None or Next; what the next step needs belongs in ctx.checkpoint.",
        )


def check_start(fn: Callable[..., Any], checkpoint: object) -> int:
    """How many arguments the start takes. Raises AuthorError unless `fn` can be one."""
    check_async(fn, role="start")
    count = check_takes(fn, 1, 2, role="start", parameters="(message) or (message, ctx)")
    if count == 2:
        _check_context(fn, 1, checkpoint, role="start")
    returned = annotation_of(fn, "return")
    if returned is None or not _may_be(returned, checkpoint):
        raise AuthorError(
            f"start {name_of(fn)} is annotated to return {_shown(returned)}, the workflow's "
            f"checkpoint is {_shown(checkpoint)}.",
            f"return the first {_shown(checkpoint)}.",
        )
    return count


def _may_be(returned: object, checkpoint: object) -> bool:
    if not (isinstance(returned, type) and isinstance(checkpoint, type)):
        return True
    try:
        return issubclass(returned, checkpoint)
    except TypeError:  # a TypedDict cannot be asked
        return True


def check_timeout(timeout: timedelta | None, default: timedelta, *, of: str) -> timedelta | None:
    """The timeout of a step: the default where none was written, None where None was."""
    if timeout is NOT_GIVEN:
        return default
    return None if timeout is None else check_duration(timeout, of=f"the timeout of {of}")


def effective_retry(retry: Retry) -> Retry:
    """The policy with pydantic's errors among the bugs, where the author did not list bugs."""
    return dataclasses.replace(retry, unless=AUTHOR_BUGS) if retry.unless == BUGS else retry


def _check_context(fn: Callable[..., Any], index: int, checkpoint: object, *, role: str) -> None:
    annotation = annotation_of(fn, _parameter(fn, index))
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is not Context or not arguments:
        return
    seen = arguments[0]
    if seen is Any or isinstance(seen, typing.TypeVar) or seen == checkpoint:
        return
    raise AuthorError(
        f"{role} {name_of(fn)} takes a Context[{_shown(seen)}, …], the workflow's checkpoint is "
        f"{_shown(checkpoint)}.",
        f"annotate ctx with Context[{_shown(checkpoint)}, …], or put the step into its workflow.",
    )


def _parameter(fn: Callable[..., Any], index: int) -> str:
    return list(inspect.signature(fn).parameters)[index]


def _members_of(annotation: Any) -> tuple[Any, ...]:
    if annotation is None:
        return (types.NoneType,)
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return typing.get_args(annotation)
    return (annotation,)


def _shown(type_: object) -> str:
    return getattr(type_, "__name__", repr(type_))
