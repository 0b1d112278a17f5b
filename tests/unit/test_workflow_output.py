"""What a step says: commits, reports, artifacts, streams, and what becomes of half of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from pydantic import BaseModel

from outlast import Artifact, Context, Data, Text, Workflow
from outlast.model.commit import Move
from outlast.model.errors import LeaseLost
from outlast.model.ids import StepName, Visit
from tests.unit.fake_session import FakeSession, context_of, fake_session


class Review(BaseModel):
    count: int = 0


flow = Workflow("review", 1, checkpoint=Review)


@flow.step
async def work(ctx: Context[Review, None]) -> None: ...


@pytest.fixture
def session() -> FakeSession:
    return fake_session("{}")


@pytest.fixture
def ctx(session: FakeSession) -> Context[Review, None]:
    return context_of(session, flow)


def again(session: FakeSession) -> Context[Review, None]:
    session.again()
    return context_of(session, flow)


def text_of(session: FakeSession, name: str) -> str:
    return "".join(part["text"] for part in session.artifacts()[name])


def pieces(*texts: str, calls: list[int] | None = None) -> Callable[[], AsyncIterator[str]]:
    async def chunks() -> AsyncIterator[str]:
        if calls is not None:
            calls.append(1)
        for text in texts:
            await asyncio.sleep(0)
            yield text

    return chunks


# --- commit and report --------------------------------------------------------------------------


async def test_a_commit_is_one_write(session: FakeSession, ctx: Context[Review, None]) -> None:
    await ctx.artifact("a.md", "first")
    await ctx.artifact("b.md", "other")
    await ctx.artifact("a.md", "second", Data({"n": 1}), description="…")
    ctx.checkpoint.count = 1
    await ctx.commit("half way", data={"done": 1})
    (write,) = session.writes
    assert write.urgent
    assert write.move == Move(checkpoint='{"count":1}', step=StepName("work"), visit=Visit(2))
    b, a, status = (event.body for event in write.events)
    assert b["artifact"]["artifactId"] == "b.md"
    assert a == {
        "artifact": {
            "artifactId": "a.md",
            "name": "a.md",
            "description": "…",
            "parts": [{"text": "second"}, {"data": {"n": 1}}],
        },
        "append": False,
        "lastChunk": True,
    }
    assert status["state"] == "working"
    assert status["message"]["parts"] == [{"text": "half way"}, {"data": {"done": 1}}]
    assert not write.events[-1].is_message


async def test_a_silent_commit_says_nothing(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    await ctx.commit()
    assert session.writes[0].events == ()


async def test_the_checkpoint_is_copied_when_commit_is_called(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    async def before_write() -> None:
        ctx.checkpoint.count = 2

    session.before_write = before_write
    ctx.checkpoint.count = 1
    await ctx.commit()
    assert session.lease.checkpoint == '{"count":1}'
    assert ctx.checkpoint.count == 2


async def test_a_run_starts_from_the_last_commit(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    ctx.checkpoint.count = 1
    await ctx.commit()
    ctx.checkpoint.count = 2
    assert again(session).checkpoint.count == 1


async def test_a_checkpoint_can_be_replaced(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    ctx.checkpoint = Review(count=7)
    await ctx.commit()
    assert session.lease.checkpoint == '{"count":7}'


async def test_attempts_are_counted_since_the_last_commit(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    session.lease = replace(session.lease, attempt=3)
    third = again(session)
    assert third.attempt == 3
    await third.commit()
    assert third.attempt == 1


async def test_a_hook_goes_on_ending_as_it_should() -> None:
    session = fake_session("{}", in_hook=True)
    session.lease = replace(session.lease, ending_as={"state": "canceled"})
    await context_of(session, flow).commit()
    assert session.writes[0].move is not None
    assert session.writes[0].move.ending_as == {"state": "canceled"}


async def test_a_report_is_progress_and_no_commit(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    await ctx.report("revoking", done=2, total=14)
    await ctx.report("thinking")
    assert [write.urgent for write in session.writes] == [False, False]
    assert [write.move for write in session.writes] == [None, None]
    first, second = (write.events[0] for write in session.writes)
    assert first.body["progress"] == {"done": 2, "total": 14}
    assert second.body["progress"] == {}
    assert not first.is_message


async def test_the_returns_commit_is_that_of_ctx_commit(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    ctx.checkpoint.count = 3
    await ctx.artifact("a.md", "text")
    events, checkpoint = await ctx.take_commit()
    assert checkpoint == '{"count":3}'
    assert [event.body["artifact"]["artifactId"] for event in events] == ["a.md"]
    assert session.writes == []


# --- open_stream --------------------------------------------------------------------------------


async def test_chunks_of_a_stream(session: FakeSession, ctx: Context[Review, None]) -> None:
    log = Artifact(id="log", name="Log", description="…", parts=())
    async with ctx.open_stream(log) as out:
        await out.write("a")
        await out.write("")
        await out.write(Data({"n": 1}))
        assert ctx.has_provisional
    bodies = [event.body for write in session.writes for event in write.events]
    assert bodies == [
        {
            "artifact": {
                "artifactId": "log",
                "name": "Log",
                "description": "…",
                "parts": [{"text": "a"}],
            },
            "append": False,
            "lastChunk": False,
        },
        {
            "artifact": {"artifactId": "log", "parts": [{"data": {"n": 1}}]},
            "append": True,
            "lastChunk": False,
        },
        {
            "artifact": {"artifactId": "log", "parts": [{"text": ""}]},
            "append": True,
            "lastChunk": True,
        },
    ]
    assert not any(write.urgent for write in session.writes)
    await ctx.commit()
    assert not ctx.has_provisional


async def test_an_empty_stream_is_an_artifact(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    async with ctx.open_stream("log"):
        pass
    (event,) = session.writes[0].events
    assert (event.body["append"], event.body["lastChunk"]) == (False, True)
    assert session.artifacts() == {"log": [{"text": ""}]}


async def test_a_chunk_never_goes_out_after_what_is_written_later(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    async with ctx.open_stream("log") as out:
        await out.write("a")
        await ctx.commit()
        await out.write("b")
        await ctx.report("…")
    kinds = [event.kind.value for write in session.writes for event in write.events]
    assert kinds == ["artifact", "artifact", "status", "artifact"]
    assert [write.move is not None for write in session.writes] == [
        False,
        True,
        False,
        False,
        False,
    ]


async def test_writing_does_not_wait_for_the_store(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    gate = asyncio.Event()

    async def before_write() -> None:
        await gate.wait()

    session.before_write = before_write
    async with ctx.open_stream("log") as out:
        for number in range(100):
            await out.write(str(number))
    gate.set()
    await ctx.drained()
    assert len(session.writes) == 101


async def test_a_very_fast_writer_waits(session: FakeSession, ctx: Context[Review, None]) -> None:
    gate = asyncio.Event()

    async def before_write() -> None:
        await gate.wait()

    session.before_write = before_write

    async def pour() -> None:
        async with ctx.open_stream("log") as out:
            for _ in range(1_000):
                await out.write("x")

    task = asyncio.create_task(pour())
    for _ in range(3_000):
        await asyncio.sleep(0)
    assert len(session.writes) < 300
    gate.set()
    await task
    await ctx.drained()
    assert len(session.writes) == 1_001


async def test_what_the_store_refuses_is_told_by_the_next_verb(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    async def before_write() -> None:
        raise RuntimeError("refused")

    session.before_write = before_write
    await ctx.report("…")
    await ctx.drained()
    session.before_write = None
    with pytest.raises(RuntimeError, match="refused"):
        await ctx.commit()


async def test_a_run_that_is_stopped_streams_no_further(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    out = await ctx.open_stream("log").__aenter__()
    session.stop(LeaseLost("gone"))
    with pytest.raises(LeaseLost):
        await out.write("a")
    assert session.writes == []


# --- what a run leaves half-written -------------------------------------------------------------


async def leave_half(session: FakeSession, name: str = "log", *texts: str) -> None:
    ctx = context_of(session, flow)
    out = await ctx.open_stream(name).__aenter__()
    for text in texts or ("half",):
        await out.write(text)
    await ctx.drained()
    session.again()


async def test_case_74_three_attempts_leave_what_the_last_one_wrote(session: FakeSession) -> None:
    for attempt in range(3):
        ctx = context_of(session, flow)
        async with ctx.open_stream("log") as out:
            for number in range(5 if attempt == 2 else 3):
                await out.write(f"{number} ")
            if attempt < 2:
                await ctx.drained()
                session.again()
                continue
        await ctx.commit()
    assert text_of(session, "log") == "0 1 2 3 4 "
    assert len([part for part in session.artifacts()["log"] if part["text"]]) == 5


async def test_interleaving_19_what_nobody_touches_again_is_rewound_by_the_next_commit(
    session: FakeSession,
) -> None:
    await leave_half(session, "one")
    await leave_half(session, "two")
    ctx = context_of(session, flow)
    await ctx.artifact("two", "whole")
    await ctx.commit()
    events = [event.body for event in session.writes[-1].events]
    assert [(body["artifact"]["artifactId"], body["append"]) for body in events] == [
        ("one", False),
        ("two", False),
    ]
    assert session.artifacts() == {"one": [{"text": ""}], "two": [{"text": "whole"}]}


async def test_the_return_rewinds_too(session: FakeSession) -> None:
    await leave_half(session)
    events, _ = await context_of(session, flow).take_commit()
    assert [event.body["artifact"]["parts"] for event in events] == [[{"text": ""}]]


async def test_the_first_chunk_rewinds_every_artifact_once(session: FakeSession) -> None:
    async with context_of(session, flow).open_stream("kept") as out:
        await out.write("before ")
        await out._run.commit(None)
        await out.write("lost")
    session.again()
    await leave_half(session, "other")
    ctx = context_of(session, flow)
    before = len(session.writes)
    async with ctx.open_stream("kept") as out:
        await out.write("after")
    first, *rest = session.writes[before:]
    assert [event.body["artifact"]["artifactId"] for event in first.events] == [
        "kept",
        "other",
        "kept",
    ]
    assert [event.body["append"] for event in first.events] == [False, False, True]
    assert [len(write.events) for write in rest] == [1]
    assert text_of(session, "kept") == "before after"
    assert text_of(session, "other") == ""
    await ctx.commit()
    assert session.writes[-1].events == ()


async def test_two_first_chunks_at_once_rewind_once(session: FakeSession) -> None:
    await leave_half(session, "old")
    ctx = context_of(session, flow)

    async def pour(name: str) -> None:
        async with ctx.open_stream(name) as out:
            await out.write(name)

    await asyncio.gather(pour("one"), pour("two"))
    rewinds = [
        event for event in session.log if event.body.get("artifact", {}).get("artifactId") == "old"
    ]
    assert len(rewinds) == 2
    assert session.log[rewinds[1].seq].body["artifact"]["artifactId"] in ("one", "two")


async def test_a_stream_opened_again_in_the_same_run_goes_on(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    for text in ("a", "b"):
        async with ctx.open_stream("log") as out:
            await out.write(text)
    assert text_of(session, "log") == "ab"


async def test_a_block_left_by_an_error_leaves_the_stream_open(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    async def act() -> None:
        async with ctx.open_stream("log") as out:
            await out.write("a")
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        await act()
    await ctx.drained()
    assert not any(event.body.get("lastChunk") for event in session.log)


# --- stream -------------------------------------------------------------------------------------


async def test_a_stream_is_sent_and_kept(session: FakeSession, ctx: Context[Review, None]) -> None:
    assert await ctx.stream("answer.md", pieces("a", "b", "c")) == "abc"
    last = session.writes[-1]
    assert last.urgent
    assert last.events[0].body["lastChunk"]
    assert session.ledger["2:stream:answer.md"].result == '[{"text":"abc"}]'
    assert text_of(session, "answer.md") == "abc"


async def test_a_run_that_finds_a_stream_emits_and_rewinds_nothing(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    calls: list[int] = []
    await ctx.stream("answer.md", pieces("a", "b", calls=calls))
    later = again(session)
    before = len(session.writes)
    assert await later.stream("answer.md", pieces("other", calls=calls)) == "ab"
    assert len(session.writes) == before
    assert len(calls) == 1
    await later.commit()
    assert session.writes[-1].events == ()
    assert text_of(session, "answer.md") == "ab"


@pytest.mark.parametrize("before", ["commit", "another stream"])
async def test_a_kept_stream_that_was_rewound_before_it_was_found_goes_out_again(
    session: FakeSession, ctx: Context[Review, None], before: str
) -> None:
    async def mixed() -> AsyncIterator[str | Data]:
        for chunk in ("a", "b", Data({"n": 1}), "c"):
            yield chunk

    await ctx.stream("answer", mixed)
    later = again(session)
    if before == "commit":
        await later.commit("about to answer")
    else:
        await later.stream("other", pieces("x"))
    assert text_of(session, "answer") == ""
    assert await later.stream("answer", mixed) == "abc"
    await later.commit()
    assert session.artifacts()["answer"] == [{"text": "ab"}, {"data": {"n": 1}}, {"text": "c"}]


async def test_a_stream_that_broke_is_begun_anew(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    async def breaks() -> AsyncIterator[str]:
        yield "half"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await ctx.stream("answer.md", breaks)
    await ctx.drained()
    assert await again(session).stream("answer.md", pieces("whole")) == "whole"
    assert text_of(session, "answer.md") == "whole"


async def test_a_stream_of_a_type(session: FakeSession, ctx: Context[Review, None]) -> None:
    with pytest.raises(ValueError, match="does not fit: count"):
        await ctx.stream("a", pieces('{"count": ', '"many"}'), result=Review)
    assert session.ledger == {}
    assert await ctx.stream("a", pieces('{"count": ', "4}"), result=Review) == Review(count=4)
    assert await again(session).stream("a", pieces(), result=Review) == Review(count=4)
    assert text_of(session, "a") == '{"count": 4}'


async def test_a_stream_may_be_awaited_and_hold_parts(ctx: Context[Review, None]) -> None:
    async def mixed() -> AsyncIterator[str | Text | Data]:
        yield "a"
        yield Data({"n": 1})
        yield Text("b")

    async def begin() -> AsyncIterator[str | Text | Data]:
        return mixed()

    assert await ctx.stream("answer", begin) == "ab"


async def test_the_source_of_a_stream_is_closed(ctx: Context[Review, None]) -> None:
    closed: list[bool] = []

    async def source() -> AsyncIterator[str]:
        try:
            yield "a"
            yield "b\0"
        finally:
            closed.append(True)

    with pytest.raises(BaseException, match="NUL"):
        await ctx.stream("answer", source)
    assert closed == [True]


async def test_streams_with_keys(session: FakeSession, ctx: Context[Review, None]) -> None:
    await ctx.stream("answer", pieces("first"), key="one")
    await ctx.stream("answer", pieces("second"), key="two")
    assert text_of(session, "answer") == "second"
    assert sorted(session.ledger) == ["2:stream:one", "2:stream:two"]
