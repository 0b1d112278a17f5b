"""Tests of the draft that contradict the specification, and how each of them fails here.

`faults.yaml` says for each which section it contradicts and why, and which failure that causes. A
fault that fails otherwise, or that passes, is a problem: the list is checked by every run. A fault
with a mend is a test that is right but for one place: mended, it must pass.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from tests.conformance.acts import BINDINGS, BindingName, Test
from tests.conformance.report import Failed, Passed, Result, Skipped

FILE: Final = Path(__file__).with_name("faults.yaml")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """step, seen: where the test fails, and a part of what its failure says."""

    test: str
    section: str
    why: str
    step: str
    seen: str
    bindings: tuple[BindingName, ...] = BINDINGS
    mend: Mapping[str, Any] | None = None

    def explains(self, result: Failed) -> bool:
        return result.step == self.step and self.seen in str(result.difference)


def load(path: Path = FILE) -> list[Fault]:
    """Every fault in the file."""
    entries: list[dict[str, Any]] = yaml.safe_load(path.read_text())
    return [
        Fault(**{**entry, "bindings": tuple(entry.get("bindings", BINDINGS))}) for entry in entries
    ]


def fault_of(test: Test, binding: BindingName, faults: Sequence[Fault]) -> Fault | None:
    return next(
        (fault for fault in faults if fault.test == test.id and binding in fault.bindings), None
    )


def mended(test: Test, fault: Fault) -> Test:
    """The test with the values of the fault's mend at their paths.

    Raises LookupError for a path whose parent is not in the test.
    """
    steps = copy.deepcopy(list(test.steps))
    for path, value in (fault.mend or {}).items():
        *parents, last = path.split("/")
        place: Any = steps
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place[name]
        if isinstance(place, list):
            place[int(last)] = value
        elif value is None:
            del place[last]
        else:
            place[last] = value
    return replace(test, steps=tuple(steps))


def judge(result: Result, fault: Fault | None, after: Result | None) -> str | None:
    """What is wrong with a result, given what is known of its test; `after`: that of the mended.

    None when all is as it must be: passed or skipped without a fault, failed as the fault says.
    """
    if isinstance(result, Skipped):
        return None
    if fault is None:
        return str(result) if isinstance(result, Failed) else None
    if isinstance(result, Passed):
        return f"{result.test.id} passes and is listed as a fault (§{fault.section}): unlist it"
    if not fault.explains(result):
        return f"not as its fault says (step {fault.step}: {fault.seen}): {result}"
    if isinstance(after, Failed):
        return f"mended, and still: {after}"
    return None
