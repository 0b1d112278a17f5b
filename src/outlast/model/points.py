"""Named points where a test can kill, freeze or look: before and after every statement of the
store and every call to the outside. Nothing listens in production.
"""

from __future__ import annotations

from collections.abc import Callable

_listener: Callable[[str], None] | None = None


def point(name: str) -> None:
    """Here a process may die. Names read like `after:tasks_commit`."""
    if _listener is not None:
        _listener(name)


def listen(listener: Callable[[str], None] | None) -> None:
    """Call `listener` at every point of this process; None ends it."""
    global _listener
    _listener = listener
