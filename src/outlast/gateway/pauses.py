"""Which pause a caller names."""

from __future__ import annotations

from typing import Any

from outlast.model.errors import InvalidParams, UnsupportedOperation
from outlast.model.ids import Seq
from outlast.wire.extension import View


def pause_named(named: Any, view: View, *, path: str) -> Seq:
    """The pause of this name, or of this number.

    Raises InvalidParams for what names no pause, and UnsupportedOperation for a pause of another
    epoch: it belongs to a future that a restore has undone.
    """
    if isinstance(named, int) and not isinstance(named, bool) and 0 < named < 1 << 62:
        return Seq(named)
    number = named.rpartition("-")[2] if isinstance(named, str) else ""
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise InvalidParams("must be the name of a pause, or its number", path=path)
    pause_id = Seq(int(number))
    if named not in (number, view.pause_name(pause_id)):
        raise UnsupportedOperation(
            f"the pause {named} is over: it is not of the state that the agent's store is in now"
        )
    return pause_id
