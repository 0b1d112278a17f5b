"""`python -m tests.conformance`: play every test over every binding; what `make conformance` runs.

Exits 1 when a test fails that the list of known faults does not explain, 0 without the data.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.conformance import acts, faults, houses
from tests.conformance.play import play
from tests.conformance.report import Failed, Run, tell
from tests.conformance.transports import Transport

KNOWN = {"webhookUrl": "https://example.com/webhooks/conformance"}
AT_ONCE = 8


async def play_all(
    house: str, transports: Sequence[Transport], tests: Sequence[acts.Test]
) -> list[Run]:
    """One run per binding, all at once: most of a run is waiting for tasks that take seconds."""
    return await asyncio.gather(*(_run(house, transport, tests) for transport in transports))


async def _run(house: str, transport: Transport, tests: Sequence[acts.Test]) -> Run:
    card = (await transport.card()).body
    known_faults = faults.load()
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(test: acts.Test) -> tuple[Any, str | None, bool]:
        fault = faults.fault_of(test, transport.name, known_faults)
        async with turns:
            result = await play(test, transport, card, KNOWN)
            after = None
            if isinstance(result, Failed) and fault is not None and fault.mend is not None:
                after = await play(faults.mended(test, fault), transport, card, KNOWN)
        problem = faults.judge(result, fault, after)
        return result, problem, isinstance(result, Failed) and problem is None

    ends = await asyncio.gather(*map(one, tests))
    return Run(
        house=house,
        binding=transport.name,
        results=[result for result, _, _ in ends],
        known=[str(result) for result, _, is_known in ends if is_known],
        problems=[problem for _, problem, _ in ends if problem],
    )


async def main(names: Sequence[str]) -> list[Run]:
    """The runs of the arrangements that are named."""
    tests = acts.load()
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if "one" in names:
            async with houses.one_file(folder) as fleet:
                for name, settings in (("one process", {}), ("restarted", houses.WITH_WEBHOOKS)):
                    async with houses.one_process(fleet, **settings) as transports:
                        runs += await play_all(name, transports, tests)
        if "two" in names:
            async with houses.two_gateways(folder) as transports:
                runs += await play_all("two gateways", transports, tests)
    return runs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("--processes", choices=["one", "two"], action="append")
    parser.add_argument("--verbose", action="store_true", help="known failures and skips too")
    options = parser.parse_args()
    console = Console()
    if not acts.is_here():
        console.print(f"skipped: {acts.absence()}", soft_wrap=True)
        raise SystemExit(0)
    ran = asyncio.run(main(options.processes or ["one", "two"]))
    tell(ran, console, verbose=options.verbose)
    raise SystemExit(any(run.problems for run in ran))
