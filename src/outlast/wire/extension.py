"""Our extension of A2A: its URI, and what stands under it in metadata.

What is always there can be ignored by a client that does not know it: a question's answer schema
and pause, a report's progress. What needs the extension to be activated says more than plain 1.0
has a place for: the generation, and a caller's message as an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlast.model.errors import InvalidParams
from outlast.model.ids import Seq

EXTENSION_URI = "https://outlast.dev/ext/v1"


@dataclass(frozen=True, kw_only=True)
class View:
    """How a client sees tasks.

    extended: it has activated our extension.
    epoch: of the store; part of the names of pauses, so that an answer to a question from a future
        that a restore has undone is told from an answer to the question that took its number.
    """

    extended: bool = False
    epoch: str = ""

    def pause_name(self, pause_id: Seq) -> str:
        """What clients call a pause."""
        return f"{self.epoch}-{pause_id}" if self.epoch else str(pause_id)


PLAIN = View()


def said_under_uri(metadata: Mapping[str, Any] | None, *, path: str) -> Mapping[str, Any]:
    """What a client's metadata holds under our URI. Raises InvalidParams if it is no object."""
    said = (metadata or {}).get(EXTENSION_URI, {})
    if not isinstance(said, Mapping):
        raise InvalidParams("must be an object", path=f"{path}['{EXTENSION_URI}']")
    return said
