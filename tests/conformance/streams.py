"""What a test expects of a stream: how many events, in which order of states, and what each holds.

The format names the kinds of events in snake case, and its tests name a payload's fields as if
they were the event's: an event is matched as all of these at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tests.conformance.matching import Mismatch, matches, mismatches

Event = Mapping[str, Any]

_KINDS: Final = {
    "task": "task",
    "message": "message",
    "statusUpdate": "status_update",
    "artifactUpdate": "artifact_update",
}
_OURS: Final = ("description", "match", "index")
_ENDS: Final = frozenset(
    f"TASK_STATE_{name}" for name in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
)
_PAUSES: Final = frozenset({"TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"})
_NEXT: Final[Mapping[str, frozenset[str]]] = {
    # An agent may reject before it works, and what happens unseen needs no event of its own.
    "TASK_STATE_SUBMITTED": _ENDS | _PAUSES | {"TASK_STATE_WORKING"},
    "TASK_STATE_WORKING": _ENDS | _PAUSES,
    "TASK_STATE_INPUT_REQUIRED": _ENDS | {"TASK_STATE_WORKING"},
    "TASK_STATE_AUTH_REQUIRED": _ENDS | {"TASK_STATE_WORKING"},
}


def view(event: Event) -> dict[str, Any]:
    """The event as tests see it: itself, its kind in snake case, and its payload's fields."""
    seen: dict[str, Any] = {}
    for name, snake in _KINDS.items():
        if isinstance(payload := event.get(name), Mapping):
            seen |= {key: value for key, value in payload.items() if key not in _KINDS}
            seen[snake] = payload
    return {**seen, **event}


def differences(expected: Mapping[str, Any], events: Sequence[Event]) -> Iterator[Mismatch]:
    """Where the events differ from an `expect_stream` block."""
    views = [view(event) for event in events]
    counts = {"count_gte": expected.get("min_count"), "count_lte": expected.get("max_count")}
    for name, count in counts.items():
        if count is not None:
            yield from mismatches({name: count}, views, "events")
    if expected.get("ordering") == "monotonic_state":
        yield from _regressions(views)
    for wanted in expected.get("events", ()):
        yield from _event(wanted, views)
    if "final_event" in expected:
        last = views[-1] if views else {}
        yield from mismatches(expected["final_event"], last, "final event")
    if "each_event" in expected:
        for index, seen in enumerate(views):
            yield from mismatches(expected["each_event"], seen, f"event {index}")


def _event(wanted: Mapping[str, Any], views: Sequence[Event]) -> Iterator[Mismatch]:
    inner = {key: value for key, value in wanted.items() if key not in _OURS}
    if "index" in wanted:
        seen = views[wanted["index"]] if wanted["index"] < len(views) else {}
        yield from mismatches(inner, seen, f"event {wanted['index']}")
    elif not any(matches(inner, seen) for seen in views):
        yield Mismatch(path="some event", expected=inner, seen=list(views))


def _regressions(views: Sequence[Event]) -> Iterator[Mismatch]:
    states = [seen["status"]["state"] for seen in views if isinstance(seen.get("status"), Mapping)]
    for before, after in itertools.pairwise(states):
        allowed = _NEXT.get(before, frozenset())
        if after != before and after not in allowed:
            yield Mismatch(path=f"state after {before}", expected=sorted(allowed), seen=after)
