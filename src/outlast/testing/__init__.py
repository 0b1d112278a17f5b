"""What tests of Outlast, and of agents written for it, are made of. Not for production."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.testing.rehearsal import Held, Run, run_workflow

__all__ = ["Held", "Run", "run_workflow"]


def __getattr__(name: str) -> Any:
    """`run_workflow` and what belongs to it, loaded when asked for: a test that only wants a
    database server does not load the runtime."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from outlast.testing import rehearsal

    return getattr(rehearsal, name)
