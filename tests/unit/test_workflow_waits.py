"""`ask` and `sleep`: what suspends a run, and what the next one meets."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from pydantic import BaseModel, TypeAdapter, field_validator

from outlast import Answer, Context, Data, DeadlinePassed, File, Message, Text, Workflow
from outlast.model.commit import Pause, Wait
from outlast.model.errors import InvalidParams
from outlast.model.ids import Millis, WriteNo
from outlast.model.ledger import Intent, Kept, LedgerKind, digest_of
from outlast.model.pause import Ask, DueBy, OnDeadline
from outlast.model.task import Caller, State
from outlast.workflow.answers import AnswerRecord, read_answer
from outlast.workflow.suspend import Suspended
from tests.unit.fake_session import NOW, FakeSession, context_of, fake_session

DAY = 86_400_000


class Empty(BaseModel):
    count: int = 0


class Approval(BaseModel):
    approved: list[str]

    @field_validator("approved")
    @classmethod
    def no_admins(cls, value: list[str]) -> list[str]:
        if "admin" in value:
            raise ValueError("admin stays")
        return value


flow = Workflow("review", 1, checkpoint=Empty)


@flow.step
async def work(ctx: Context[Empty, None]) -> None: ...


@pytest.fixture
def session() -> FakeSession:
    return fake_session("{}")


@pytest.fixture
def ctx(session: FakeSession) -> Context[Empty, None]:
    return context_of(session, flow)


async def asked(
    session: FakeSession, ctx: Context[Empty, None], text: str = "Revoke?", **more: Any
) -> Suspended:
    with pytest.raises(Suspended) as caught:
        await ctx.ask(text, **more)
    assert session.suspend() is caught.value
    return caught.value


# --- ask ----------------------------------------------------------------------------------------


async def test_a_question_is_one_write(session: FakeSession, ctx: Context[Empty, None]) -> None:
    suspended = await asked(
        session,
        ctx,
        answer=Approval,
        data={"grants": ["a", "b"]},
        deadline=timedelta(days=2),
        remind=timedelta(days=1),
        on_deadline="cancel",
    )
    waiting = suspended.waiting
    assert waiting.ending == Pause(
        state=State.INPUT_REQUIRED,
        deadline=DueBy(after=Millis(2 * DAY)),
        remind=DueBy(after=Millis(DAY)),
    )
    (event,) = waiting.events
    assert event.is_message
    assert event.body["state"] == "input-required"
    ask = Ask.from_json(event.body["ask"])
    assert (ask.ledger_key, ask.on_deadline) == ("2:ask", OnDeadline.CANCEL)
    assert ask.schema == TypeAdapter(Approval).json_schema()
    message = event.body["message"]
    assert (message["role"], message["taskId"], message["contextId"]) == (
        "ROLE_AGENT",
        "task-1",
        "context-1",
    )
    assert message["parts"] == [
        {"text": "Revoke?"},
        {"data": {"grants": ["a", "b"]}},
        {"data": {"schema": ask.schema}},
    ]
    request = '["Revoke?",{"grants":["a","b"]}]'
    assert waiting.ledger == (
        Intent(key="2:ask", kind=LedgerKind.ANSWER, digest=digest_of(request), request=request),
    )
    assert session.writes == []


async def test_a_question_without_a_type(session: FakeSession, ctx: Context[Empty, None]) -> None:
    suspended = await asked(session, ctx)
    assert suspended.waiting.events[0].body["message"]["parts"] == [{"text": "Revoke?"}]
    assert suspended.waiting.events[0].body["ask"]["schema"] is None
    assert suspended.waiting.ending == Pause(
        state=State.INPUT_REQUIRED, deadline=DueBy(after=Millis(7 * DAY))
    )
    message = Message.user("why not", Data({"a": 1}))
    session.answer(message, subject="bob")
    answer = await context_of(session, flow).ask("Revoke?")
    assert answer == Answer(
        text="why not", data={"a": 1}, message=message, caller=Caller(subject="bob")
    )


async def test_an_answer_of_a_type(session: FakeSession, ctx: Context[Empty, None]) -> None:
    await asked(session, ctx, answer=Approval)
    session.answer(Message.user(Data({"approved": ["a"]})))
    again = context_of(session, flow)
    assert await again.ask("Revoke?", answer=Approval) == Approval(approved=["a"])
    assert again.caller.subject == "alice"
    assert again.latest.data == {"approved": ["a"]}


async def test_an_answer_is_kept_through_commits_of_the_visit(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    await ctx.commit("about to ask")
    await asked(session, ctx, answer=bool)
    session.answer(Message.user("yes"))
    again = context_of(session, flow)
    assert await again.ask("Revoke?", answer=bool)
    again.checkpoint.count = 1
    await again.commit()
    session.again()
    assert await context_of(session, flow).ask("Revoke?", answer=bool)


async def test_what_fits_the_schema_and_not_the_type_is_asked_again(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    await asked(session, ctx, answer=Approval)
    session.answer(Message.user(Data({"approved": ["admin"]})))
    second = await asked(session, context_of(session, flow), answer=Approval)
    assert second.waiting.events[0].body["ask"]["key"] == "2:ask#2"
    text = second.waiting.events[0].body["message"]["parts"][0]["text"]
    assert text.startswith("Revoke?\n\n")
    assert "approved: Value error, admin stays" in text
    session.answer(Message.user(Data({"approved": ["admin"]})))
    third = await asked(session, context_of(session, flow), answer=Approval)
    assert third.waiting.events[0].body["ask"]["key"] == "2:ask#3"
    session.answer(Message.user(Data({"approved": ["a"]})))
    assert (await context_of(session, flow).ask("Revoke?", answer=Approval)).approved == ["a"]


async def test_questions_with_keys(session: FakeSession, ctx: Context[Empty, None]) -> None:
    first = await asked(session, ctx, "One?", key="one")
    assert first.waiting.events[0].body["ask"]["key"] == "2:ask:one"
    session.answer(Message.user("1"))
    again = context_of(session, flow)
    assert (await again.ask("One?", key="one")).text == "1"
    second = await asked(session, again, "Two?", key="two")
    assert second.waiting.events[0].body["ask"]["key"] == "2:ask:two"


async def test_a_question_that_is_open_is_asked_again(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    await asked(session, ctx)
    session.again()
    await asked(session, context_of(session, flow))


async def test_a_deadline_that_passed(session: FakeSession, ctx: Context[Empty, None]) -> None:
    await asked(session, ctx, on_deadline="resume")
    session.pass_deadline()
    with pytest.raises(DeadlinePassed, match=r"in time: Revoke\?"):
        await context_of(session, flow).ask("Revoke?", on_deadline="resume")


async def test_an_absolute_deadline(session: FakeSession, ctx: Context[Empty, None]) -> None:
    at = datetime.fromtimestamp(NOW / 1000, UTC) + timedelta(days=7)
    suspended = await asked(session, ctx, deadline=at)
    assert suspended.waiting.ending == Pause(
        state=State.INPUT_REQUIRED, deadline=DueBy(at=Millis(NOW + 7 * DAY))
    )


async def test_a_new_schema_does_not_make_it_another_question(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    class Wider(BaseModel):
        approved: list[str]
        comment: str = ""

    await asked(session, ctx, answer=Approval)
    session.answer(Message.user(Data({"approved": ["a"]})))
    assert await context_of(session, flow).ask("Revoke?", answer=Wider) == Wider(approved=["a"])


async def test_what_an_earlier_run_left_is_rewound_before_the_question(
    session: FakeSession, ctx: Context[Empty, None]
) -> None:
    async with ctx.open_stream("log") as out:
        await out.write("half")
    session.again()
    suspended = await asked(session, context_of(session, flow))
    kinds = [event.kind.value for event in suspended.waiting.events]
    assert kinds == ["artifact", "status"]
    assert session.artifacts() == {"log": [{"text": ""}]}


# --- sleep --------------------------------------------------------------------------------------


async def test_a_sleep_is_one_row(ctx: Context[Empty, None]) -> None:
    with pytest.raises(Suspended) as caught:
        await ctx.sleep(timedelta(minutes=5))
    assert caught.value.waiting.ending == Wait(
        until=DueBy(after=Millis(300_000)), timer_key="2:sleep"
    )
    assert caught.value.waiting.events == ()
    assert caught.value.waiting.ledger == ()


async def test_a_sleep_until_a_time(ctx: Context[Empty, None]) -> None:
    with pytest.raises(Suspended) as caught:
        await ctx.sleep(datetime(2030, 1, 1, tzinfo=UTC), key="new-year")
    at = Millis(int(datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1000))
    assert caught.value.waiting.ending == Wait(until=DueBy(at=at), timer_key="2:sleep:new-year")


async def test_a_sleep_that_is_over_already_is_a_sleep_all_the_same(
    ctx: Context[Empty, None],
) -> None:
    with pytest.raises(Suspended) as caught:
        await ctx.sleep(timedelta(minutes=-5))
    assert caught.value.waiting.ending == Wait(until=DueBy(after=Millis(0)), timer_key="2:sleep")


@pytest.mark.parametrize("woken", [-1, 0, 1])
async def test_a_run_passes_a_timer_that_was_due_at_its_claim(woken: int) -> None:
    session = fake_session("{}")
    due = Millis(NOW + 300_000)
    kept = Kept(key="2:sleep", kind=LedgerKind.TIMER, result=json.dumps(due))
    session._apply(kept, WriteNo(1), {})
    session.again(at=Millis(due + woken))
    ctx = context_of(session, flow)
    if woken >= 0:
        await ctx.sleep(timedelta(minutes=5))
        return
    with pytest.raises(Suspended) as caught:
        await ctx.sleep(timedelta(minutes=5))
    assert caught.value.waiting.ending == Wait(until=DueBy(at=due))


# --- answers ------------------------------------------------------------------------------------


def schema_of(type_: Any) -> dict[str, Any]:
    return TypeAdapter(type_).json_schema()


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (bool, "true", True),
        (bool, " Yes ", True),
        (bool, "No", False),
        (str, "plain words", "plain words"),
        (str, "12", "12"),
        (str, '"quoted"', "quoted"),
        (str | bool, "true", True),
        (int, " 12 ", 12),
        (Literal["red", "green"], " red\n", "red"),
        (Literal["red", "green"] | None, "null", None),
        (Approval, '{"approved": ["a"]}', {"approved": ["a"]}),
        (list[str], '["a"]', ["a"]),
    ],
)
def test_text_as_an_answer(type_: Any, text: str, value: Any) -> None:
    found = read_answer(schema_of(type_), Message.user(text))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("type_", "message", "path", "said"),
    [
        (Approval, Message.user("yes, all"), "message.parts[0].text", '"approved"'),
        (bool, Message.user("perhaps"), "message.parts[0].text", '{"type":"boolean"}'),
        (int, Message.user(Text("1.5")), "message.parts[0].text", "integer"),
        (Approval, Message.user('{"approved": [1]}'), "message.parts[0].text.approved.0", "string"),
        (
            Approval,
            Message.user("see", Data({"approved": ["a", 2]})),
            "message.parts[1].data.approved.1",
            "2 is not of type 'string'",
        ),
        (Approval, Message.user(Data({})), "message.parts[0].data", "'approved' is a required"),
        (Approval, Message.user(File(url="https://x")), "message.parts", "JSON Schema"),
        (str, Message(role="user", parts=()), "message.parts", "JSON Schema"),
    ],
)
def test_what_is_no_answer(type_: Any, message: Message, path: str, said: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        read_answer(schema_of(type_), message)
    assert caught.value.path == path
    assert said in str(caught.value)


def test_data_wins_over_text() -> None:
    assert read_answer(schema_of(bool), Message.user("true", Data(False))) is False


def test_an_answer_survives_the_ledger() -> None:
    caller = Caller(subject="alice", tenant="acme", scopes=("approve",), claims={"mail": "a@x"})
    record = AnswerRecord.read(schema_of(bool), Message.user("yes"), caller)
    body = json.loads(json.dumps(record.to_json()))
    assert AnswerRecord.from_json(body) == record
    assert set(body) == {"text", "data", "message", "caller", "value"}
    assert (body["text"], body["value"]) == ("yes", True)
    assert AnswerRecord.read(None, Message.user("yes"), caller).value is None
