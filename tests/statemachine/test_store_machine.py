"""The store beside its model, with several connections interleaved statement by statement."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.statemachine.machine import StoreMachine
from tests.statemachine.stage import Stage

FEW = settings(
    stateful_step_count=50,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
EXAMPLES = {"sqlite": 100, "postgres": 45}
MANY = settings(FEW, derandomize=False, max_examples=3000, stateful_step_count=80)


def test_the_store_does_what_its_model_does(stage: Stage) -> None:
    """The same examples every time."""
    few = settings(FEW, max_examples=EXAMPLES[stage.database.dialect])
    run_state_machine_as_test(machine_on(stage), settings=few)


@pytest.mark.soak
def test_the_store_does_what_its_model_does_for_long(
    stage: Stage, pytestconfig: pytest.Config
) -> None:
    """Other examples every time. `--hypothesis-seed` brings those of a printed number back."""
    number = int(pytestconfig.getoption("--hypothesis-seed") or random.randrange(1 << 32))
    print(f"--hypothesis-seed={number}")
    run_state_machine_as_test(seed(number)(machine_on(stage)), settings=MANY)


def machine_on(at: Stage) -> type[StoreMachine]:
    class Machine(StoreMachine):
        stage = at

    return Machine
