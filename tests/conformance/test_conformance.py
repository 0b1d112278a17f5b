"""The conformance tests over every binding of one process, where their data is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import acts, faults, houses
from tests.conformance.__main__ import play_all
from tests.conformance.report import Passed

needs_data = pytest.mark.skipif(not acts.is_here(), reason=acts.absence())


@needs_data
async def test_every_test_passes_or_is_explained(tmp_path: Path) -> None:
    tests = acts.load()
    async with houses.one_file(tmp_path) as fleet, houses.one_process(fleet) as transports:
        runs = await play_all("one process", transports, tests)
    for run in runs:
        assert not run.problems, f"{run.binding}:\n" + "\n".join(run.problems)
        assert sum(isinstance(result, Passed) for result in run.results) >= 50


@needs_data
def test_every_fault_is_of_a_test_that_is_there() -> None:
    names = {test.id: test.bindings for test in acts.load()}
    for fault in faults.load():
        assert fault.test in names
