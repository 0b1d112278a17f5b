"""What can be seen of an author's function before it is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from outlast.model.errors import AuthorError

UNKNOWN: Any = object()
"""An annotation that is not there, or that cannot be resolved from here."""


def name_of(fn: object) -> str:
    """The function as an error message names it."""
    named = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return str(named).rpartition("<locals>.")[2]


def is_async(fn: object) -> bool:
    """Whether a call gives a coroutine: the function itself, what it wraps, or its __call__."""
    return any(
        inspect.iscoroutinefunction(seen)
        for seen in (fn, inspect.unwrap(fn) if callable(fn) else fn, getattr(fn, "__call__", fn))  # noqa: B004
    )


def check_async(fn: Callable[..., Any], *, role: str) -> None:
    """Raises AuthorError for a plain function and for an async generator."""
    if inspect.isasyncgenfunction(inspect.unwrap(fn)):
        raise AuthorError(
            f"{role} {name_of(fn)} is an async generator: nothing reads what it yields.",
            "replace `yield`: ctx.report tells progress, ctx.open_stream sends chunks.",
        )
    if not is_async(fn):
        raise AuthorError(
            f"{role} {name_of(fn)} is a plain function.",
            "write `async def`; blocking code goes through `await ctx.thread(fn, *args)`.",
        )


def check_takes(fn: Callable[..., Any], *counts: int, role: str, parameters: str) -> int:
    """How many arguments the function wants. Raises AuthorError when that is none of `counts`."""
    listed = inspect.signature(fn).parameters.values()
    needed = sum(_is_needed(parameter) for parameter in listed)
    offered = [count for count in counts if needed <= count and _binds(fn, count)]
    if not offered:
        raise AuthorError(
            f"{role} {name_of(fn)}{inspect.signature(fn)} cannot be called with {parameters}.",
            f"let it take {parameters}, and nothing else without a default.",
        )
    return min(offered)


def _is_needed(parameter: inspect.Parameter) -> bool:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in variadic


def _binds(fn: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(fn).bind(*range(count))
    except TypeError:
        return False
    return True


def annotation_of(fn: Callable[..., Any], name: str) -> Any:
    """The annotation of a parameter, or of "return"; UNKNOWN if it has none to be seen."""
    function = _function_of(fn)
    try:
        annotation = inspect.get_annotations(function).get(name, UNKNOWN)
        if isinstance(annotation, str):
            scope = {**getattr(function, "__globals__", {}), **_closure_of(function)}
            return eval(annotation, scope)  # the author's own text, as typing.get_type_hints does
    except Exception:
        return UNKNOWN
    return annotation


def has_annotation(fn: Callable[..., Any], name: str) -> bool:
    """Whether something is written there, even if it cannot be resolved from here."""
    try:
        return name in inspect.get_annotations(_function_of(fn))
    except NameError:  # annotations are evaluated late, and this one cannot be
        return True


def _function_of(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if inspect.ismethod(fn):
        return fn.__func__
    return fn if inspect.isfunction(fn) or inspect.isbuiltin(fn) else type(fn).__call__


def _closure_of(function: Any) -> dict[str, Any]:
    if not inspect.isfunction(function):
        return {}
    return dict(inspect.getclosurevars(function).nonlocals)
