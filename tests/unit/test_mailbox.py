"""One mailbox per lease: what a run wants written, in order, one write at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.artifacts import artifact_event, fold_artifacts
from outlast.model.commit import (
    Backoff,
    Committed,
    Event,
    EventKind,
    Finish,
    Hold,
    LoggedEvent,
    Lost,
    Marked,
    Move,
    Pause,
    Refused,
    Release,
    Unread,
    Verdict,
    Wait,
    Write,
    status_event,
    status_of,
)
from outlast.model.content import Data, Message, Text
from outlast.model.errors import CancelRequested, LeaseLost
from outlast.model.ids import Fence, Millis, Seq, StepName, Visit, WriteNo
from outlast.model.ledger import Clear, Intent, Kept, LedgerKind, Result
from outlast.model.pause import DueBy
from outlast.model.task import State
from outlast.worker import mailbox as module
from outlast.worker.mailbox import Mailbox, UnreadMessages, WriteRefused, coalesced
from tests.unit.fake_session import fake_session

INTENT = Intent(key="effect:mail", kind=LedgerKind.EFFECT)
HERE = Move(checkpoint="{}", step=StepName("work"), visit=Visit(2))
SOON = DueBy(after=Millis(1))


def said(text: str) -> Event:
    return status_event(State.WORKING, Message.agent(text).to_json())


def progress(done: int) -> Event:
    return status_event(State.WORKING, Message.agent(f"{done}").to_json(), progress={"done": done})


def chunk(text: str, *, of: str = "a", append: bool = True, last: bool = False) -> Event:
    body = {"artifactId": of, "parts": [{"text": text}]}
    return artifact_event(body, append=append, last_chunk=last)


def texts(write: Write) -> list[str]:
    return [Message.from_json(event.body["message"]).text for event in write.events]


@dataclass
class Post:
    """The far end: keeps what was sent; holds replies back while it is closed."""

    sent: list[Write] = field(default_factory=list)
    verdicts: list[Verdict | Exception] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    logged: int = 0
    is_open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.is_open.set()

    async def submit(self, write: Write) -> Verdict:
        self.sent.append(write)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(0)
            await self.is_open.wait()
        finally:
            self.under_way -= 1
        verdict = self.verdicts.pop(0) if self.verdicts else Committed(last_seq=Seq(len(self.sent)))
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    def log(self) -> None:
        self.logged += 1


@pytest.fixture
async def post() -> Post:
    return Post()


@pytest.fixture
def mailbox(post: Post) -> Mailbox:
    return Mailbox(fake_session("{}").lease, post.submit, on_logged=post.log)


async def idle(holds: Callable[[], bool]) -> None:
    """Let the loop turn until this holds."""
    for _ in range(1_000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to hold")


# --- order ----------------------------------------------------------------------------------------


async def test_a_write_carries_the_numbers_of_its_lease(mailbox: Mailbox, post: Post) -> None:
    written = await mailbox.post(events=[said("one")], ledger=[INTENT])
    (write,) = post.sent
    assert (write.task_id, write.ledger_id, write.fence) == ("task-1", "ledger-1", Fence(3))
    assert write.write_no == 0
    assert write.ledger == (INTENT,)
    assert written.write_no == 1


async def test_each_write_has_the_next_number(mailbox: Mailbox, post: Post) -> None:
    for number in range(1, 4):
        assert (await mailbox.post(events=[said("x")])).write_no == number
    assert [write.write_no for write in post.sent] == [0, 1, 2]


async def test_what_waits_together_goes_out_as_one_write_in_the_order_of_posting(
    mailbox: Mailbox, post: Post
) -> None:
    written = await asyncio.gather(*(mailbox.post(events=[said(f"{n}")]) for n in range(20)))
    (write,) = post.sent
    assert texts(write) == [f"{n}" for n in range(20)]
    assert {one.write_no for one in written} == {1}


async def test_one_write_is_under_way_at_a_time(mailbox: Mailbox, post: Post) -> None:
    post.is_open.clear()
    first = mailbox.put(events=[said("first")])
    await idle(lambda: post.under_way == 1)
    rest = [mailbox.put(events=[said(f"{n}")]) for n in range(5)]
    await asyncio.sleep(0.01)
    assert len(post.sent) == 1
    post.is_open.set()
    await asyncio.gather(first, *rest)
    assert [texts(write) for write in post.sent] == [["first"], ["0", "1", "2", "3", "4"]]
    assert post.most_under_way == 1


@pytest.mark.parametrize("final", [{"move": HERE}, {"ending": Finish(state=State.COMPLETED)}])
async def test_nothing_is_added_to_a_commit_or_an_end_that_was_posted_after_it(
    mailbox: Mailbox, post: Post, final: dict[str, Any]
) -> None:
    """A chunk would count as committed; a terminal event would not be the last."""
    post.is_open.clear()
    running = mailbox.put(events=[said("under way")])
    await idle(lambda: post.under_way == 1)
    before = mailbox.put(events=[said("before")], urgent=False)
    commit = mailbox.put(events=[said("the commit")], **final)
    after = mailbox.put(events=[said("after")], urgent=False)
    post.is_open.set()
    await asyncio.gather(running, before, commit, after)
    assert [texts(write) for write in post.sent] == [
        ["under way"],
        ["before", "the commit"],
        ["after"],
    ]


async def test_two_commits_are_two_writes(mailbox: Mailbox, post: Post) -> None:
    later = Move(checkpoint='{"n":1}', step=StepName("work"), visit=Visit(2))
    await asyncio.gather(mailbox.post(move=HERE), mailbox.post(move=later))
    assert [write.move for write in post.sent] == [HERE, later]


# --- company --------------------------------------------------------------------------------------


async def test_what_is_not_urgent_waits_for_company(
    mailbox: Mailbox, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COALESCE_S", 60)
    slow = [mailbox.put(events=[chunk(c)], urgent=False) for c in "abc"]
    await asyncio.sleep(0.01)
    assert post.sent == []
    await mailbox.post(events=[said("now")])
    await asyncio.gather(*slow)
    (write,) = post.sent
    assert [event.kind for event in write.events] == [EventKind.ARTIFACT, EventKind.STATUS]


async def test_but_no_longer_than_a_tenth_of_a_second(mailbox: Mailbox, post: Post) -> None:
    assert module.COALESCE_S == 0.1
    async with asyncio.timeout(5):
        await mailbox.put(events=[chunk("a")], urgent=False)
    assert len(post.sent) == 1


async def test_nor_once_there_is_enough_to_say(
    mailbox: Mailbox, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COALESCE_S", 60)
    async with asyncio.timeout(5):
        await asyncio.gather(
            *(mailbox.put(events=[chunk("x" * 1_000)], urgent=False) for _ in range(5))
        )
    (write,) = post.sent
    (event,) = write.events
    assert len(event.body["artifact"]["parts"][0]["text"]) == 5_000


def test_neighbouring_chunks_of_one_artifact_become_one() -> None:
    first, other = chunk("He", append=False), chunk("x", of="b", append=False)
    out = coalesced([first, chunk("l"), chunk("lo"), other, chunk("!"), chunk("?", last=True)])
    assert [event.body["artifact"]["parts"][0]["text"] for event in out] == ["Hello", "x", "!?"]
    assert [event.body["append"] for event in out] == [False, False, True]
    assert [event.body["lastChunk"] for event in out] == [False, False, True]


def test_a_chunk_that_begins_anew_or_follows_the_last_stays_apart() -> None:
    anew = [chunk("a", append=False), chunk("b", append=False)]
    assert coalesced(anew) == tuple(anew)
    closed = [chunk("a", last=True), chunk("b")]
    assert coalesced(closed) == tuple(closed)


def test_of_neighbouring_progress_reports_the_newest_is_kept() -> None:
    posted = [progress(1), progress(2), said("so far"), progress(3), progress(4)]
    assert coalesced(posted) == (posted[1], posted[2], posted[4])


chunks = st.builds(
    lambda text, of, append, last: chunk(text, of=of, append=append, last=last),
    st.text("abc", max_size=3),
    st.sampled_from("ab"),
    st.booleans(),
    st.booleans(),
)
data_chunks = st.builds(
    lambda of, append: artifact_event(
        {"artifactId": of, "parts": [Data([1]).to_json()]}, append=append, last_chunk=False
    ),
    st.sampled_from("ab"),
    st.booleans(),
)
events = st.lists(
    chunks | data_chunks | st.integers(0, 9).map(progress) | st.text("xy", max_size=2).map(said),
    max_size=12,
)


@given(events)
def test_coalescing_changes_nothing_that_readers_end_up_with(posted: list[Event]) -> None:
    out = coalesced(posted)
    assert contents(out) == contents(posted)
    assert statuses(out)[-1:] == statuses(posted)[-1:]
    assert [event for event in out if is_kept(event)] == [e for e in posted if is_kept(e)]
    assert coalesced(out) == out


def contents(posted: Sequence[Event]) -> dict[str, list[Any]]:
    """The artifacts' texts, and what stands between them."""
    logged = [
        LoggedEvent(
            seq=Seq(n),
            kind=event.kind,
            body=json.loads(json.dumps(event.body)),
            is_message=False,
            fence=Fence(1),
            write_no=WriteNo(1),
            created_at=Millis(0),
        )
        for n, event in enumerate(posted, 1)
    ]
    held: dict[str, list[Any]] = {}
    for name, body in fold_artifacts(logged).items():
        texts: list[Any] = [""]
        for part in body["parts"]:
            if "text" in part:
                texts[-1] += part["text"]
            else:
                texts += [part, ""]
        held[name] = texts
    return held


def statuses(posted: Sequence[Event]) -> list[Any]:
    return [status for event in posted if (status := status_of(event)) is not None]


def is_kept(event: Event) -> bool:
    return event.kind is EventKind.STATUS and "progress" not in event.body


# --- what the store says --------------------------------------------------------------------------


async def test_all_that_was_posted_learns_what_became_of_the_write(
    mailbox: Mailbox, post: Post
) -> None:
    committed = Committed(last_seq=Seq(9), marked=True, settled={"effect:mail": "1"})
    post.verdicts = [committed]
    written = await asyncio.gather(mailbox.post(ledger=[INTENT]), mailbox.post(events=[said("x")]))
    assert [one.committed for one in written] == [committed, committed]


async def test_readers_are_woken_when_the_log_has_grown_and_only_then(
    mailbox: Mailbox, post: Post
) -> None:
    await mailbox.post(ledger=[INTENT])
    await mailbox.post(move=HERE)
    assert post.logged == 0
    await mailbox.post(events=[said("x")])
    assert post.logged == 1
    post.verdicts = [Lost()]
    with pytest.raises(LeaseLost):
        await mailbox.post(events=[said("y")])
    assert post.logged == 1


async def test_a_lost_lease_is_told_to_all_who_wait_and_to_all_who_come(
    mailbox: Mailbox, post: Post
) -> None:
    post.is_open.clear()
    post.verdicts = [Lost()]
    under_way = mailbox.put(events=[said("under way")])
    await idle(lambda: post.under_way == 1)
    waiting = mailbox.put(events=[said("waiting")])
    post.is_open.set()
    for answered in (under_way, waiting):
        with pytest.raises(LeaseLost):
            await answered
    with pytest.raises(LeaseLost):
        await mailbox.post(events=[said("late")])
    assert len(post.sent) == 1


@pytest.mark.parametrize(
    "forbidden",
    [
        {"ledger": [INTENT]},
        {"events": [said("?")], "ending": Pause(state=State.INPUT_REQUIRED, deadline=SOON)},
        {"ending": Wait(until=SOON)},
        {"ending": Backoff(delay=Millis(1), error={})},
        {"ending": Hold(reason="look")},
    ],
    ids=["intent", "pause", "wait", "backoff", "hold"],
)
async def test_a_mark_stops_what_it_forbids_and_lets_the_rest_out(
    mailbox: Mailbox, post: Post, forbidden: dict[str, Any]
) -> None:
    post.verdicts = [Marked()]
    allowed = [
        mailbox.put(events=[said("a report")], urgent=False),
        mailbox.put(ledger=[Result(key="effect:old", result="1")]),
    ]
    with pytest.raises(CancelRequested):
        await mailbox.post(**forbidden)
    assert {one.write_no for one in await asyncio.gather(*allowed)} == {1}
    first, second = post.sent
    assert first.write_no == second.write_no == 0
    assert texts(second) == ["a report"]
    assert second.ledger == (Result(key="effect:old", result="1"),)
    assert second.ending is None


@pytest.mark.parametrize(
    "what",
    [
        {"ledger": [Clear(key="effect:mail", write_no=WriteNo(1))]},
        {"ledger": [Kept(key="2:memo:x", kind=LedgerKind.MEMO, result="1")]},
        {"move": HERE},
        {"ending": Release()},
        {"events": [status_event(State.COMPLETED)], "ending": Finish(state=State.COMPLETED)},
        {"ledger": [INTENT], "in_hook": True},
    ],
    ids=["clear", "memo", "commit", "release", "end", "the hook's intent"],
)
async def test_a_mark_does_not_stop(mailbox: Mailbox, post: Post, what: dict[str, Any]) -> None:
    """Such a write goes out again without the intent that was in its company."""
    post.verdicts = [Marked()]
    intent = mailbox.put(ledger=[INTENT])
    assert (await mailbox.post(**what)).write_no == 1
    with pytest.raises(CancelRequested):
        await intent


async def test_after_a_mark_the_lease_goes_on(mailbox: Mailbox, post: Post) -> None:
    post.verdicts = [Marked()]
    with pytest.raises(CancelRequested):
        await mailbox.post(ledger=[INTENT])
    assert (await mailbox.post(ledger=[INTENT], in_hook=True)).write_no == 1
    assert post.sent[-1].in_hook


async def test_an_unread_message_stops_the_end_and_lets_the_rest_out(
    mailbox: Mailbox, post: Post
) -> None:
    post.verdicts = [Unread()]
    report = mailbox.put(events=[said("a report")], urgent=False)
    with pytest.raises(UnreadMessages):
        await mailbox.post(
            events=[status_event(State.COMPLETED)],
            ending=Finish(state=State.COMPLETED),
            move=replace(HERE, closes=True),
        )
    assert (await report).write_no == 1
    first, second = post.sent
    assert first.write_no == second.write_no == 0
    assert (texts(second), second.move, second.ending) == (["a report"], None, None)
    assert (await mailbox.post(ending=Release())).write_no == 2


async def test_of_a_refused_write_only_the_guilty_part_fails(mailbox: Mailbox, post: Post) -> None:
    ok = Committed(last_seq=Seq(1))
    post.verdicts = [Refused(reason="half a character"), ok, Refused(reason="that one"), ok]
    posts = [mailbox.put(events=[said(text)]) for text in ("a", "guilty", "b")]
    await asyncio.wait(posts)
    assert (await posts[0]).write_no == 1
    with pytest.raises(WriteRefused, match="that one"):
        await posts[1]
    assert (await posts[2]).write_no == 2
    assert [texts(write) for write in post.sent] == [["a", "guilty", "b"], ["a"], ["guilty"], ["b"]]


async def test_a_write_that_is_refused_alone_fails_at_once(mailbox: Mailbox, post: Post) -> None:
    post.verdicts = [Refused(reason="too deep")]
    with pytest.raises(WriteRefused, match="too deep"):
        await mailbox.post(events=[said("x")])
    assert len(post.sent) == 1
    assert (await mailbox.post(events=[said("y")])).write_no == 1


async def test_an_unexpected_error_reaches_whoever_waits_and_not_those_after(
    mailbox: Mailbox, post: Post
) -> None:
    post.verdicts = [RuntimeError("a fault of ours")]
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await mailbox.post(events=[said("x")])
    assert (await mailbox.post(events=[said("y")])).write_no == 1


# --- who stops waiting ----------------------------------------------------------------------------


async def test_what_a_cancelled_poster_posted_is_written_all_the_same(
    mailbox: Mailbox, post: Post
) -> None:
    post.is_open.clear()
    poster = asyncio.create_task(mailbox.post(events=[said("from the dead")]))
    await idle(lambda: post.under_way == 1)
    poster.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poster
    post.is_open.set()
    assert (await mailbox.post(events=[said("next")])).write_no == 2
    assert [texts(write) for write in post.sent] == [["from the dead"], ["next"]]


async def test_a_poster_that_left_leaves_no_unheard_error(mailbox: Mailbox, post: Post) -> None:
    post.is_open.clear()
    post.verdicts = [Lost()]
    poster = asyncio.create_task(mailbox.post(events=[said("x")]))
    await idle(lambda: post.under_way == 1)
    poster.cancel()
    await asyncio.wait([poster])
    post.is_open.set()
    with pytest.raises(LeaseLost):
        await mailbox.post(events=[said("y")])


def test_parts_of_chunks_survive_the_joining() -> None:
    first = artifact_event(
        {"artifactId": "a", "name": "log", "parts": [Text("a").to_json(), Data(1).to_json()]},
        append=False,
        last_chunk=False,
    )
    (event,) = coalesced([first, chunk("b")])
    assert event.body["artifact"] == {
        "artifactId": "a",
        "name": "log",
        "parts": [{"text": "a"}, {"data": 1}, {"text": "b"}],
    }
