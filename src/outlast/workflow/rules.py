"""How a broken rule stops the run that met it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from outlast.model.errors import AuthorError
from outlast.workflow.session import Session
from outlast.workflow.suspend import BrokenRule

_surrounding: ContextVar[str | None] = ContextVar("outlast_surrounding_verb", default=None)


@contextmanager
def verb(session: Session) -> Iterator[None]:
    """The outside of every verb.

    Raises at once what has already stopped the run. An AuthorError becomes a BrokenRule, which no
    `except Exception` of a step eats, and ends the run.
    """
    session.check()
    try:
        yield
    except AuthorError as error:
        raise session.stop(BrokenRule(error)) from error


class ExitInCode(RuntimeError):
    """The author's code, or a library under it, wanted to end the process."""


@contextmanager
def authors_code() -> Iterator[None]:
    """Code of the author's runs here. An exit in it is an error of its step like any other: the
    process has other tasks."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        raise ExitInCode(f"the code raised {error!r}, which would end the worker") from error


@contextmanager
def calling(name: str) -> Iterator[None]:
    """Code of the author's runs inside a verb that cannot wait."""
    token = _surrounding.set(name)
    try:
        with authors_code():
            yield
    finally:
        _surrounding.reset(token)


def surrounding_verb() -> str | None:
    """The verb inside whose function we are, or None when we are in the step itself."""
    return _surrounding.get()
