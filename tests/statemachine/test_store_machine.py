"""The store beside its model, with several connections interleaved statement by statement."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.statemachine.machine import StoreMachine
from tests.statemachine.stage import Stage

FEW = settings(
    max_examples=60,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
MANY = settings(FEW, derandomize=False, max_examples=3000, stateful_step_count=60)


def test_the_store_does_what_its_model_does(stage: Stage) -> None:
    """The same examples every time."""
    run_state_machine_as_test(machine_on(stage), settings=FEW)


@pytest.mark.soak
def test_the_store_does_what_its_model_does_for_long(stage: Stage) -> None:
    """Other examples every time; the seed that is printed brings them back."""
    number = random.SystemRandom().randrange(1 << 32)
    print(f"seed {number}")
    machine = seed(number)(machine_on(stage))
    run_state_machine_as_test(machine, settings=settings(MANY, phases=list(Phase)))


def machine_on(at: Stage) -> type[StoreMachine]:
    class Machine(StoreMachine):
        stage = at

    return Machine
