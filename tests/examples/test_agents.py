"""The example agents, each run to its end, and dropped after every commit and every wait."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from examples.access_review.agent import Clients as ReviewClients
from examples.access_review.agent import agent as compliance
from examples.access_review.agent import review
from examples.access_review.client import Directory
from examples.access_review.generate import generate
from examples.batch.agent import BAD, Mailer, batch
from examples.chat.agent import chat
from examples.hello.agent import hello
from examples.probe.agent import Sink, probe
from examples.research.agent import Clients as ResearchClients
from examples.research.agent import research
from examples.research.tools import Tools
from examples.tck.agent import agent as tck_agent
from examples.tck.agent import tck
from outlast import Data, File, Message
from outlast.model.errors import InvalidParams
from outlast.model.task import Caller
from outlast.testing import run_workflow
from tests.examples.conftest import Service

PLANTED = sorted(generate().planted)
QUESTION = "Revoke these 14 grants?"

# Where the findings are, and the other halves of the toxic combinations: as much to find as in all
# 40 systems, in less time.
SOME = sorted({grant.rpartition("-")[0] for grant in PLANTED} | {"payments", "payroll"})
REVIEW_SOME = Message.user(Data({"systems": SOME}))


# --- hello ---------------------------------------------------------------------------------------


async def test_hello() -> None:
    run = await run_workflow(hello, "World")
    assert (run.state, run.text) == ("completed", "Hello, World.")


# --- access review -------------------------------------------------------------------------------


@pytest.fixture
async def clients(directory: Service) -> AsyncIterator[ReviewClients]:
    async with httpx.AsyncClient(base_url=directory.url) as http:
        yield ReviewClients(Directory(http))


async def _counters(service: Service) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=service.url) as http:
        counters: dict[str, Any] = (await http.get("/counters")).json()
        return counters


async def _ask_for(service: Service, **fault: Any) -> None:
    async with httpx.AsyncClient(base_url=service.url) as http:
        (await http.post("/faults", json=fault)).raise_for_status()


async def test_review_revokes_what_was_approved(clients: ReviewClients, directory: Service) -> None:
    run = await run_workflow(
        review,
        "Review access.",
        answers={QUESTION: {"approved": PLANTED}},
        resources=clients,
    )
    assert (run.state, run.text) == ("completed", "14 grants revoked")
    assert list(run.questions) == [QUESTION]
    assert sorted(run.calls) == [f"revoke:{grant}" for grant in PLANTED]

    seen = await _counters(directory)
    assert len(seen["fetches"]) == 40
    # Dropped after each commit: no system was fetched twice, for each has a commit of its own.
    assert set(seen["fetches"].values()) == {1}
    assert seen["applied"] == dict.fromkeys(PLANTED, 1)
    assert len(seen["revoke_calls"]) == 14


async def test_review_writes_two_artifacts(clients: ReviewClients) -> None:
    run = await run_workflow(
        review, REVIEW_SOME, answers={QUESTION: {"approved": PLANTED[:2]}}, resources=clients
    )
    assert run.text == "2 grants revoked"
    assert set(run.artifacts) == {"report.md", "revocations.csv"}
    assert run.artifacts["report.md"].text.count("kept: not approved") == 12
    (table,) = run.artifacts["revocations.csv"].parts
    assert isinstance(table, File)
    assert table.raw is not None
    rows = list(csv.DictReader(io.StringIO(table.raw.decode(), newline="")))
    assert [row["grant"] for row in rows] == PLANTED[:2]


async def test_review_never_revokes_what_was_not_proposed(
    clients: ReviewClients, directory: Service
) -> None:
    run = await run_workflow(
        review, REVIEW_SOME, answers={QUESTION: {"approved": ["ledger-0001"]}}, resources=clients
    )
    assert run.text == "0 grants revoked"
    assert (await _counters(directory))["applied"] == {}


async def test_review_survives_a_network_that_fails_after_nine_revocations(
    clients: ReviewClients, directory: Service
) -> None:
    await _ask_for(directory, kind="revoke", action="drop", when="after", skip=8)
    await _ask_for(directory, kind="revoke", action="drop", when="before", skip=9, times=3)
    run = await run_workflow(
        review, REVIEW_SOME, answers={QUESTION: {"approved": PLANTED}}, resources=clients
    )
    assert run.text == "14 grants revoked"
    seen = await _counters(directory)
    assert seen["applied"] == dict.fromkeys(PLANTED, 1)
    assert len(seen["revoke_calls"]) == 14
    assert seen["duplicates"] == 1


async def test_review_goes_on_after_a_directory_that_was_away(
    clients: ReviewClients, directory: Service
) -> None:
    await _ask_for(directory, kind="fetch", action="status", status=503, skip=5, times=3)
    run = await run_workflow(
        review, REVIEW_SOME, answers={QUESTION: {"approved": []}}, resources=clients
    )
    assert run.text == "0 grants revoked"
    fetches = (await _counters(directory))["fetches"]
    assert sorted(fetches.values()) == [1] * (len(SOME) - 1) + [4]


async def test_review_of_some_systems(clients: ReviewClients, directory: Service) -> None:
    run = await run_workflow(
        review,
        Message.user(Data({"systems": ["tickets", "surveys"]})),
        resources=clients,
    )
    assert (run.state, run.text) == ("completed", "0 grants revoked")
    assert not run.questions, "there was nothing to ask about"
    assert (await _counters(directory))["fetches"] == {"surveys": 1, "tickets": 1}


@pytest.mark.parametrize("data", [{"systems": ["nowhere"]}, {"sistems": []}, {"systems": 3}, []])
async def test_review_refuses_what_it_cannot_review(clients: ReviewClients, data: object) -> None:
    run = await run_workflow(review, Message.user(Data(data)), resources=clients)
    assert run.state == "rejected"


def test_review_is_offered() -> None:
    assert [skill.id for skill in compliance.skills] == ["access-review"]


# --- probe ---------------------------------------------------------------------------------------


@pytest.fixture
async def counted(sink: Service) -> AsyncIterator[Sink]:
    async with httpx.AsyncClient(base_url=sink.url) as http:
        yield Sink(http)


async def test_case_075_probe_repeats_nothing_after_a_pause(counted: Sink, sink: Service) -> None:
    run = await run_workflow(
        probe,
        "effect A; ask; effect B; ask Again?; effect C",
        answers={"Go on?": "yes", "Again?": "yes"},
        resources=counted,
    )
    assert (run.state, run.text) == ("completed", "done")
    assert list(run.questions) == ["Go on?", "Again?"]
    assert (await _counters(sink))["calls"] == {"A": 1, "B": 1, "C": 1}


async def test_probe_asks_the_same_question_twice(counted: Sink) -> None:
    run = await run_workflow(
        probe, "ask Q; ask Q; say {answer}", answers={"Q": ["one", "two"]}, resources=counted
    )
    assert list(run.questions) == ["Q", "Q"]
    assert run.checkpoint.answer == "two"


async def test_probe_goes_on_when_it_is_authorized(counted: Sink, sink: Service) -> None:
    run = await run_workflow(
        probe, "effect A; auth Log in; effect B", answers={"Log in": "granted"}, resources=counted
    )
    assert run.state == "completed"
    assert list(run.questions) == ["Log in"]
    assert (await _counters(sink))["calls"] == {"A": 1, "B": 1}


async def test_probe_acts_on_the_answer(counted: Sink, sink: Service) -> None:
    await run_workflow(probe, "ask Q; effect {answer}", answers={"Q": "approve"}, resources=counted)
    assert (await _counters(sink))["calls"] == {"approve": 1}


async def test_probe_emits_after_a_failure_and_sleeps(counted: Sink) -> None:
    run = await run_workflow(
        probe, "flaky 3; emit 3; sleep 1h; wait 1ms; block 1ms; emit 2 every 1ms", resources=counted
    )
    assert run.state == "completed"
    assert run.artifacts["chunks"].text == "1\n2\n3\n1\n2\n"


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("raise", "failed"),
        ("say x; raise", "failed"),
        ("reject", "rejected"),
        ("auth", "failed"),
        ("dance", "rejected"),
        ("ask Q within 1h", "failed"),
        ("", "completed"),
    ],
)
async def test_probe_ends(counted: Sink, script: str, state: str) -> None:
    run = await run_workflow(probe, script, resources=counted)
    assert run.state == state


async def test_probe_effect_whose_answer_is_lost(counted: Sink, sink: Service) -> None:
    await _ask_for(sink, kind="effect", action="drop", when="after")
    await run_workflow(probe, "effect A", resources=counted)
    assert await _counters(sink) == {"calls": {"A": 2}, "distinct": {"A": 1}}


# --- conformance ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("tck-complete-task hello", "completed"),
        ("tck-auth-required", "rejected"),
        ("tck-reject-task", "rejected"),
        ("tck-task-failure", "failed"),
        ("tck-stream-basic", "completed"),
        ("tck-stream-chunked", "completed"),
        ("tck-artifact-text", "completed"),
        ("anything else", "completed"),
    ],
)
async def test_tck_ends(text: str, state: str) -> None:
    assert (await run_workflow(tck, text)).state == state


async def test_tck_says_something_at_the_end() -> None:
    for text in ("tck-complete-task", "tck-task-failure"):
        assert (await run_workflow(tck, text)).text


async def test_tck_input_required() -> None:
    run = await run_workflow(tck, "tck-input-required", answers=["here"])
    assert (run.state, len(run.questions)) == ("completed", 1)


async def test_tck_multi_turn() -> None:
    run = await run_workflow(tck, "tck-multi-turn start", answers=["more", "and more", "done"])
    assert (run.state, len(run.questions)) == ("completed", 3)


async def test_tck_artifacts() -> None:
    kinds = {"-text": "text", "-file": "raw", "-file-url": "url", "-data": "data"}
    for suffix, field in kinds.items():
        run = await run_workflow(tck, f"tck-artifact{suffix}")
        (artifact,) = run.artifacts.values()
        (part,) = artifact.parts
        assert field in part.to_json(), suffix


async def test_tck_chunks_make_one_artifact() -> None:
    run = await run_workflow(tck, "tck-stream-chunked")
    assert run.artifacts["result"].text == "chunk 1\nchunk 2\nchunk 3\nchunk 4\n"


async def test_tck_router_answers_at_once() -> None:
    direct = await tck_agent.pick(Message.user("tck-message-response hello"), Caller())
    assert isinstance(direct, Message)
    assert (direct.role, bool(direct.text)) == ("agent", True)
    assert await tck_agent.pick(Message.user("tck-complete-task"), Caller()) is tck


# --- chat ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [20, pytest.param(2_000, marks=pytest.mark.soak)])
async def test_chat_does_not_grow(turns: int) -> None:
    said = [f"remark {number}" for number in range(2, turns + 1)] + ["bye"]
    run = await run_workflow(chat, "remark 1", answers=said)
    assert (run.state, run.text) == ("completed", f"Goodbye, after {turns} turns.")
    assert len(run.checkpoint.model_dump_json()) < 20
    assert run.questions[0] == "You said: remark 1. Tell me more, or say bye."
    assert run.questions[2] == "You said: remark 3. Before that: remark 2. Go on, or say bye."
    assert len(run.questions) == turns


# --- research ------------------------------------------------------------------------------------


async def test_research_runs_what_was_approved() -> None:
    tools = Tools()
    run = await run_workflow(
        research,
        "Why is the sky blue?",
        answers={"Run these 2 tools?": [["publish-11"]]},
        resources=ResearchClients(tools),
    )
    assert run.state == "completed"
    assert list(tools.done.values()) == ["publish the answer"]
    answer = run.artifacts["answer.md"].text
    assert answer.startswith("# Why is the sky blue?\n\n- archive: 20 letters about ")
    assert answer.endswith("- glossary: no answer\n- done: publish the answer\n")
    assert answer.count("\n- ") == 11


async def test_research_does_nothing_dangerous_without_approval() -> None:
    tools = Tools()
    run = await run_workflow(research, "Why?", answers=[[]], resources=ResearchClients(tools))
    assert run.state == "completed"
    assert not tools.done


# --- batch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("customers", [100, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_batch_sends_each_reminder_once(sink: Service, customers: int) -> None:
    async with httpx.AsyncClient(base_url=sink.url) as http:
        run = await run_workflow(
            batch, Message.user(Data({"customers": customers})), resources=Mailer(http)
        )
    assert run.text == f"{customers - 1} of {customers} reminders sent"
    assert run.artifacts["failed.json"].parts == (Data({"customers": [BAD]}),)
    seen = await _counters(sink)
    expected = {str(number) for number in range(1, customers + 1)} - {str(BAD)}
    assert seen["calls"] == dict.fromkeys(expected, 1)


async def test_batch_without_its_data_part_is_refused() -> None:
    with pytest.raises(InvalidParams, match=r"message\.parts"):
        await run_workflow(batch, "Send them.", resources=None)
