"""The probe's language, and the sink that counts its effects."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest

from examples.probe import commands
from examples.probe.commands import NotACommand, parse, split
from tests.examples.conftest import Service

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("emit 20", commands.Emit(20, timedelta(0))),
        ("emit 20 every 1s", commands.Emit(20, SECOND)),
        ("emit 3 every 0.5", commands.Emit(3, SECOND / 2)),
        ("effect K", commands.Effect("K")),
        ("ask", commands.Ask("Go on?", None)),
        ("ask Which one, then?", commands.Ask("Which one, then?", None)),
        ("ask Which one? within 60", commands.Ask("Which one?", 60 * SECOND)),
        ("ask within 2m", commands.Ask("Go on?", 120 * SECOND)),
        ("ask Is it within reach?", commands.Ask("Is it within reach?", None)),
        ("auth Show your badge", commands.Auth("Show your badge")),
        ("sleep 60", commands.Sleep(60 * SECOND)),
        ("wait 250ms", commands.Wait(SECOND / 4)),
        ("block 1.5 s", commands.Block(1.5 * SECOND)),
        ("raise", commands.Raise()),
        ("flaky 2", commands.Flaky(2)),
        ("exit", commands.Exit()),
        ("say half way; ".rstrip("; "), commands.Say("half way")),
        ("reject", commands.Reject()),
    ],
)
def test_parse(text: str, command: commands.Command) -> None:
    assert parse(text) == command


@pytest.mark.parametrize(
    "text",
    ["", "dance", "emit", "emit many", "effect", "effect a b", "sleep", "sleep 1w", "exit 1"],
)
def test_what_is_no_command(text: str) -> None:
    with pytest.raises(NotACommand, match="not a command"):
        parse(text)


def test_split() -> None:
    assert split("effect A; ask ;; effect B;") == ["effect A", "ask", "effect B"]
    assert split("") == []


def test_sink_counts_calls_and_keys(sink: Service) -> None:
    with httpx.Client(base_url=sink.url) as http:
        for key, idempotency_key in (("A", "1"), ("A", "1"), ("A", "2"), ("B/b", "3")):
            headers = {"Idempotency-Key": idempotency_key}
            http.post(f"/effects/{key}", headers=headers).raise_for_status()
        assert http.get("/counters").json() == {
            "calls": {"A": 3, "B/b": 1},
            "distinct": {"A": 2, "B/b": 1},
        }


def test_sink_drops_an_answer_after_counting(sink: Service) -> None:
    with httpx.Client(base_url=sink.url) as http:
        http.post("/faults", json={"kind": "effect", "action": "drop", "when": "after"})
        with pytest.raises(httpx.TransportError):
            http.post("/effects/A")
        http.post("/effects/A").raise_for_status()
        assert http.get("/counters").json()["calls"] == {"A": 2}
