"""What became of the tests, and how it is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.conformance.acts import Test
from tests.conformance.matching import Mismatch


@dataclass(frozen=True, kw_only=True)
class Passed:
    test: Test
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Failed:
    """step: which one. difference: where it was not as expected."""

    test: Test
    step: str
    difference: Mismatch
    seconds: float = 0.0

    def __str__(self) -> str:
        text = f"{self.test.id} ({self.test.level}), step {self.step}: {self.difference}"
        return text if len(text) < 600 else text[:600] + " …"


@dataclass(frozen=True, kw_only=True)
class Skipped:
    test: Test
    reason: str


Result = Passed | Failed | Skipped


@dataclass(frozen=True, kw_only=True)
class Run:
    """Every test over one binding of one arrangement of processes. problems: what is wrong that
    the list of known faults does not explain."""

    house: str
    binding: str
    results: Sequence[Result]
    known: Sequence[str]
    problems: Sequence[str]


def tell(runs: Iterable[Run], console: Console, *, verbose: bool = False) -> None:
    """A table with a line per run, then what is wrong."""
    runs = list(runs)
    table = Table("processes", "binding", "passed", "failed", "of these known", "skipped")
    for run in runs:
        count = Counter(type(result) for result in run.results)
        numbers = (count[Passed], count[Failed], len(run.known), count[Skipped])
        table.add_row(run.house, run.binding, *map(str, numbers))
    console.print(table)
    for run in runs:
        if verbose:
            for text in (*run.known, *_reasons(run.results)):
                _say(console, f"  {run.binding}: {text}")
        for problem in run.problems:
            _say(console, f"{run.house}, {run.binding}: {problem}")


def _reasons(results: Iterable[Any]) -> Iterable[str]:
    for result in results:
        if isinstance(result, Skipped):
            yield f"{result.test.id} skipped: {result.reason}"


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
