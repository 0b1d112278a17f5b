"""Whether a call stands in a loop, seen from the author's source.

A question without a key of its own belongs to its visit. In a loop with commits, a run that starts
over would take the first round's answer for the second's, and neither texts nor digests could tell.
So that is refused before the first answer exists.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from types import CodeType, FrameType
from typing import Any

Place = tuple[int | None, int | None, int | None, int | None]

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def stands_in_loop(step: Callable[..., Any]) -> bool:
    """Whether the verb that calls this is awaited in a loop, of the step or of a function between.

    False where it cannot be seen: without source, or across a task of its own.
    """
    frames = _awaiting(sys._getframe(1), getattr(inspect.unwrap(step), "__code__", None))
    return any(_is_in_loop(frame.f_code, frame.f_lasti) for frame in frames)


def _awaiting(frame: FrameType | None, step: CodeType | None) -> Iterator[FrameType]:
    """The author's frames, from the one that called the verb out to the step's own."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("asyncio"):
            return
        if not module.startswith("outlast.workflow."):
            yield frame
        if frame.f_code is step:
            return
        frame = frame.f_back


@functools.lru_cache(maxsize=1024)
def _is_in_loop(code: CodeType, instruction: int) -> bool:
    place = next(islice(code.co_positions(), instruction // 2, None), None)
    tree = _source_of(code.co_filename)
    if place is None or tree is None:
        return False
    return bool(_search(tree, place, False))


@functools.lru_cache(maxsize=64)
def _source_of(filename: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return None


def _search(node: ast.AST, place: Place, in_loop: bool) -> bool | None:
    """Whether the call at this place stands in a loop; None if no call stands there: the source
    has changed since it was imported, and says nothing."""
    if isinstance(node, (ast.Await, ast.Call)) and _place_of(node) == place:
        return in_loop
    for child, repeats in _children(node):
        if _may_hold(child, place):
            inside = repeats or (in_loop and not isinstance(node, _FUNCTIONS))
            found = _search(child, place, inside)
            if found is not None:
                return found
    return None


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """The node's parts, and whether the node runs them again and again."""
    once: list[ast.AST] = []
    if isinstance(node, (ast.For, ast.AsyncFor)):
        once = [node.iter, *node.orelse]
    elif isinstance(node, ast.While):
        once = list(node.orelse)
    elif isinstance(node, _COMPREHENSIONS):
        yield node.generators[0].iter, False
    repeats = isinstance(node, (*_LOOPS, *_COMPREHENSIONS))
    for child in ast.iter_child_nodes(node):
        yield child, repeats and child not in once


def _may_hold(node: ast.AST, place: Place) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if first is None or last is None or place[0] is None:
        return True
    return bool(first <= place[0] <= last)


def _place_of(node: ast.expr) -> Place:
    return (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)
