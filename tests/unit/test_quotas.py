"""What one owner may have of a gateway process."""

from __future__ import annotations

import contextlib

import pytest

from outlast.gateway.config import GatewayConfig
from outlast.gateway.quotas import Quotas
from outlast.model.errors import TooMany
from outlast.model.task import Scope

ANN = Scope(agent="a", tenant="acme", owner="ann")
BOB = Scope(agent="a", tenant="acme", owner="bob")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_minutes_sends_may_come_at_once_and_come_back_with_time() -> None:
    clock = Clock()
    quotas = Quotas(GatewayConfig(max_sends=3), clock=clock)
    for _ in range(3):
        quotas.send(ANN)
    for _ in range(5):
        with pytest.raises(TooMany) as refused:
            quotas.send(ANN)
        assert refused.value.retry_after == pytest.approx(20)
    quotas.send(BOB)
    clock.now += 19.9
    with pytest.raises(TooMany):
        quotas.send(ANN)
    clock.now += 0.2
    quotas.send(ANN)
    clock.now += 3600
    for _ in range(3):
        quotas.send(ANN)
    with pytest.raises(TooMany):
        quotas.send(ANN)


def test_who_has_not_sent_for_a_minute_costs_no_memory() -> None:
    clock = Clock()
    quotas = Quotas(GatewayConfig(max_sends=3), clock=clock)
    for n in range(1000):
        clock.now += 1
        quotas.send(Scope(agent="a", tenant="acme", owner=f"owner-{n}"))
    assert len(quotas._left) <= 60


def test_open_calls_are_counted_until_they_end_however_they_end() -> None:
    quotas = Quotas(GatewayConfig(max_open_calls=2))
    with quotas.open(ANN):
        with contextlib.suppress(KeyError), quotas.open(ANN):
            with pytest.raises(TooMany), quotas.open(ANN):
                pass
            with quotas.open(BOB):
                pass
            raise KeyError
        with quotas.open(ANN):
            pass
    assert not quotas._open


def test_without_a_limit_there_is_none() -> None:
    quotas = Quotas(GatewayConfig())
    for _ in range(10_000):
        quotas.send(ANN)
    assert not quotas._left
