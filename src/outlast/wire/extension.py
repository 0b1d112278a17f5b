"""Our extension of A2A: its URI, and what stands under it in metadata.

What is always there can be ignored by a client that does not know it: a question's answer schema
and pause, a report's progress. What needs the extension to be activated says more than plain 1.0
has a place for: the generation, and a caller's message as an event.
"""

from __future__ import annotations

import re
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
        return self.event_id(pause_id)

    def event_id(self, seq: Seq) -> str:
        """What clients call an event, on whichever gateway they see it: ids of streams are these.
        A question's is the name of its pause."""
        return f"{self.epoch}-{seq}" if self.epoch else str(seq)


PLAIN = View()

IF_GENERATION = "ifGeneration"
"""Under our URI in a message: the generation at which its task must be."""

LAST_EVENT_ID = "Last-Event-ID"
_EVENT_ID = re.compile(r"(?:(?P<epoch>[\w-]{1,64})-)?(?P<seq>\d{1,18})", re.ASCII)


def read_event_id(text: str, epoch: str) -> Seq | None:
    """The seq of the event of this id; None for one of another epoch, whose log may have had
    other events under the same numbers. Raises InvalidParams for what is no id of an event."""
    match = _EVENT_ID.fullmatch(text.strip())
    if match is None:
        raise InvalidParams(
            "must be the id of an event of this task, as its stream gave it", path=LAST_EVENT_ID
        )
    return Seq(int(match["seq"])) if (match["epoch"] or "") == epoch else None


def said_under_uri(metadata: Mapping[str, Any] | None, *, path: str) -> Mapping[str, Any]:
    """What a client's metadata holds under our URI. Raises InvalidParams if it is no object."""
    said = (metadata or {}).get(EXTENSION_URI, {})
    if not isinstance(said, Mapping):
        raise InvalidParams("must be an object", path=f"{path}['{EXTENSION_URI}']")
    return said
