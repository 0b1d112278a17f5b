"""The directory: applies a revocation once per key, counts what it is asked, fails on demand."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest

from tests.examples.conftest import Service, Services

MODULE = "examples.access_review.directory"


@pytest.fixture
def http(directory: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=directory.url) as client:
        yield client


def revoke(http: httpx.Client, grant: str, key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return http.post(f"/grants/{grant}/revoke", headers=headers)


def counters(http: httpx.Client) -> dict[str, Any]:
    answer: dict[str, Any] = http.get("/counters").json()
    return answer


def ask_for(http: httpx.Client, **fault: Any) -> None:
    http.post("/faults", json=fault).raise_for_status()


def test_reads(http: httpx.Client) -> None:
    register = http.get("/systems").json()
    assert register["as_of"] == "2025-09-30"
    assert len(register["systems"]) == 40
    grants = http.get("/systems/ledger/grants").json()
    assert grants[0]["id"] == "ledger-0001"
    assert len(http.get("/users").json()) == 2_000
    leavers = http.get("/users", params={"left_by": "2025-09-30"}).json()
    assert 0 < len(leavers) < 100
    assert max(user["left_at"] for user in leavers) <= "2025-09-30"
    assert counters(http)["listings"] == {"list_systems": 1, "list_users": 2}
    assert counters(http)["fetches"] == {"ledger": 1}


def test_what_is_not_there(http: httpx.Client) -> None:
    assert http.get("/systems/nowhere/grants").status_code == 404
    assert revoke(http, "ledger-9999", "k").status_code == 404
    assert revoke(http, "nonsense", "k").status_code == 404
    assert http.get("/users", params={"left_by": "yesterday"}).status_code == 400
    assert counters(http)["applied"] == {}


def test_a_repeat_gets_the_first_answer_and_changes_nothing(http: httpx.Client) -> None:
    first, second = revoke(http, "ledger-0001", "k"), revoke(http, "ledger-0001", "k")
    assert first.status_code == second.status_code == 200
    assert first.content == second.content
    seen = counters(http)
    assert seen["revoke_calls"] == {"k": 2}
    assert seen["applied"] == {"ledger-0001": 1}
    assert seen["applied_by_key"] == {"k": 1}
    assert seen["duplicates"] == 1


def test_repeats_at_once_are_applied_once(http: httpx.Client) -> None:
    ask_for(http, kind="revoke", action="hang", seconds=0.05, times=None)
    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(lambda _: revoke(http, "ledger-0001", "k"), range(20)))
    assert len({answer.content for answer in answers}) == 1
    assert counters(http)["applied"] == {"ledger-0001": 1}


def test_a_key_stands_for_one_request(http: httpx.Client) -> None:
    revoke(http, "ledger-0001", "k")
    assert revoke(http, "ledger-0002", "k").status_code == 422
    other_body = http.post(
        "/grants/ledger-0001/revoke", content=b"{}", headers={"Idempotency-Key": "k"}
    )
    assert other_body.status_code == 422
    assert counters(http)["applied"] == {"ledger-0001": 1}
    assert counters(http)["refusals"] == 2


def test_without_a_key_or_under_another_each_call_is_applied(http: httpx.Client) -> None:
    """So that a test sees what a caller does who repeats an effect without its key."""
    for key in (None, None, "k", "other"):
        revoke(http, "ledger-0001", key)
    seen = counters(http)
    assert seen["applied"] == {"ledger-0001": 4}
    assert seen["revoke_calls_without_key"] == 2


def test_a_revoked_grant_is_not_listed(http: httpx.Client) -> None:
    revoke(http, "ledger-0001", "k")
    grants = http.get("/systems/ledger/grants").json()
    assert "ledger-0001" not in {grant["id"] for grant in grants}


def test_status_fault(http: httpx.Client) -> None:
    ask_for(http, kind="fetch", action="status", status=500, skip=1, times=2)
    codes = [http.get("/systems/ledger/grants").status_code for _ in range(4)]
    assert codes == [200, 500, 500, 200]
    assert counters(http)["fetches"] == {"ledger": 4}


def test_hang_fault_slows_every_fetch_until_cleared(http: httpx.Client) -> None:
    ask_for(http, kind="fetch", action="hang", seconds=0.2, times=None)
    for _ in range(2):
        before = monotonic()
        assert http.get("/systems/ledger/grants").status_code == 200
        assert monotonic() - before >= 0.2
    assert http.get("/systems").elapsed.total_seconds() < 0.2
    http.delete("/faults").raise_for_status()
    assert http.get("/systems/ledger/grants").elapsed.total_seconds() < 0.2


def test_the_network_fails_before_the_third_revocation(http: httpx.Client) -> None:
    ask_for(http, kind="revoke", action="drop", when="before", skip=2)
    revoke(http, "ledger-0001", "k1")
    revoke(http, "ledger-0002", "k2")
    with pytest.raises(httpx.TransportError):
        revoke(http, "ledger-0003", "k3")
    assert set(counters(http)["applied"]) == {"ledger-0001", "ledger-0002"}
    assert revoke(http, "ledger-0003", "k3").status_code == 200
    assert counters(http)["duplicates"] == 0


def test_the_network_fails_after_the_third_revocation_was_applied(http: httpx.Client) -> None:
    ask_for(http, kind="revoke", action="drop", when="after", skip=2)
    revoke(http, "ledger-0001", "k1")
    revoke(http, "ledger-0002", "k2")
    with pytest.raises(httpx.TransportError):
        revoke(http, "ledger-0003", "k3")
    assert counters(http)["applied"]["ledger-0003"] == 1
    assert revoke(http, "ledger-0003", "k3").status_code == 200
    assert counters(http)["applied"]["ledger-0003"] == 1
    assert counters(http)["duplicates"] == 1


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "fetch"},
        {"kind": "fetch", "action": "explode"},
        {"kind": "coffee", "action": "drop"},
        {"kind": "fetch", "action": "drop", "times": 0},
        {"kind": "fetch", "action": "drop", "oops": 1},
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(http: httpx.Client, fault: dict[str, Any]) -> None:
    answer = http.post("/faults", json=fault)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert http.delete("/faults").json() == {"in_force": 0}


def test_several_faults_in_one_request(http: httpx.Client) -> None:
    slow = {"kind": "fetch", "action": "hang", "seconds": 0.01}
    answer = http.post("/faults", json=[slow, {"kind": "revoke", "action": "drop"}])
    assert answer.json() == {"in_force": 2}


def test_what_it_did_survives_a_kill(services: Services, tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = services.start(MODULE, "--state", str(state))
    with httpx.Client(base_url=first.url) as http:
        http.get("/systems/ledger/grants")
        answer = revoke(http, "ledger-0001", "k")
        before = counters(http)
    first.kill()

    # A kill in the middle of a write leaves half a line, which nobody was told of.
    with state.open("ab") as file:
        file.write(b'{"what":"revocation","name":"led')

    second = services.start(MODULE, "--state", str(state))
    with httpx.Client(base_url=second.url) as http:
        assert counters(http) == before
        assert revoke(http, "ledger-0001", "k").content == answer.content
        after = counters(http)
    assert after["applied"] == {"ledger-0001": 1}
    assert after["duplicates"] == 1
    assert state.read_bytes().endswith(b"\n")


def test_a_reset_is_for_good(services: Services, tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = services.start(MODULE, "--state", str(state))
    with httpx.Client(base_url=first.url) as http:
        revoke(http, "ledger-0001", "k")
        ask_for(http, kind="fetch", action="status")
        http.post("/reset").raise_for_status()
        assert counters(http)["applied"] == {}
        assert http.get("/systems/ledger/grants").json()[0]["id"] == "ledger-0001"
        before = counters(http)
    first.kill()
    second = services.start(MODULE, "--state", str(state))
    with httpx.Client(base_url=second.url) as http:
        assert counters(http) == before


def test_it_stops_at_sigterm(services: Services) -> None:
    directory = services.start(MODULE)
    directory.process.send_signal(signal.SIGTERM)
    assert directory.process.wait(timeout=10) in (0, -signal.SIGTERM)
