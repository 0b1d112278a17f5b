"""`require_auth`: what suspends a run, and what the next one meets."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from outlast import Context, Message, Next, Retry, Workflow
from outlast.model.commit import Pause
from outlast.model.ids import Millis
from outlast.model.ledger import Intent, LedgerKind, digest_of
from outlast.model.pause import Ask, DueBy, authorization
from outlast.model.task import State
from outlast.testing import run_workflow
from outlast.workflow.suspend import BrokenRule, Suspended
from tests.unit.fake_session import FakeSession, context_of, fake_session

DAY = 86_400_000


class Login(BaseModel):
    done: list[str] = []


flow = Workflow("login", 1, checkpoint=Login)


@flow.step
async def work(ctx: Context[Login, None]) -> None: ...


@pytest.fixture
def session() -> FakeSession:
    return fake_session("{}")


@pytest.fixture
def ctx(session: FakeSession) -> Context[Login, None]:
    return context_of(session, flow)


async def required(session: FakeSession, ctx: Context[Login, None], **more: Any) -> Suspended:
    with pytest.raises(Suspended) as caught:
        await ctx.require_auth("Log in", **more)
    assert session.suspend() is caught.value
    return caught.value


def authorize(session: FakeSession, value: Any) -> Context[Login, None]:
    """As the store does it; and the next run."""
    key = session.log[-1].body["ask"]["key"]
    session.finish(key, json.dumps(authorization(value)))
    session.again()
    return context_of(session, flow)


async def test_a_requirement_is_one_write(session: FakeSession, ctx: Context[Login, None]) -> None:
    suspended = await required(
        session, ctx, scheme="oauth", deadline=timedelta(days=1), in_band=True
    )
    waiting = suspended.waiting
    assert waiting.ending == Pause(state=State.AUTH_REQUIRED, deadline=DueBy(after=Millis(DAY)))
    (event,) = waiting.events
    assert (event.is_message, event.body["state"]) == (True, "auth-required")
    assert Ask.from_json(event.body["ask"]) == Ask(
        ledger_key="2:require_auth", in_band=True, due=DueBy(after=Millis(DAY))
    )
    assert event.body["message"]["parts"] == [{"text": "Log in"}, {"data": {"scheme": "oauth"}}]
    request = '["Log in","oauth"]'
    assert waiting.ledger == (
        Intent(
            key="2:require_auth",
            kind=LedgerKind.ANSWER,
            digest=digest_of(request),
            request=request,
        ),
    )


async def test_out_of_band_and_the_longest_pause_unless_said(
    session: FakeSession, ctx: Context[Login, None]
) -> None:
    waiting = (await required(session, ctx)).waiting
    assert waiting.events[0].body["message"]["parts"] == [{"text": "Log in"}]
    assert "in_band" not in waiting.events[0].body["ask"]
    assert waiting.ending == Pause(state=State.AUTH_REQUIRED, deadline=DueBy(after=Millis(7 * DAY)))


@pytest.mark.parametrize("value", ["token", {"token": "t"}, None, False, ["a", 1]])
async def test_the_value_comes_back_as_it_was_given(
    session: FakeSession, ctx: Context[Login, None], value: Any
) -> None:
    await required(session, ctx)
    again = authorize(session, value)
    assert await again.require_auth("Log in") == value


async def test_two_of_them_need_keys(session: FakeSession, ctx: Context[Login, None]) -> None:
    await required(session, ctx, key="mail")
    again = authorize(session, "one")
    assert await again.require_auth("Log in", key="mail") == "one"
    await required(session, again, key="files")
    assert session.log[-1].body["ask"]["key"] == "2:require_auth:files"
    last = authorize(session, "two")
    assert await last.require_auth("Log in", key="mail") == "one"
    assert await last.require_auth("Log in", key="files") == "two"


async def test_another_requirement_under_the_same_key_is_refused(
    session: FakeSession, ctx: Context[Login, None]
) -> None:
    await required(session, ctx, scheme="oauth")
    again = authorize(session, "s3cret")
    with pytest.raises(BrokenRule, match="require_auth") as caught:
        await again.require_auth("Log in", scheme="basic")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"text": " "}, "say what has to be authorized"),
        ({"text": "x", "deadline": timedelta(days=8)}, "deadline of require_auth"),
        ({"text": "x", "deadline": timedelta(0)}, "still to come"),
        ({"text": "x", "deadline": 7}, "timedelta"),
        ({"text": "x", "key": ""}, "require_auth"),
    ],
)
async def test_what_an_author_gets_wrong(
    ctx: Context[Login, None], arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(BrokenRule, match=said):
        await ctx.require_auth(**arguments)


async def test_a_changed_checkpoint_is_not_lost(ctx: Context[Login, None]) -> None:
    ctx.checkpoint.done.append("x")
    with pytest.raises(BrokenRule, match="require_auth would lose a changed checkpoint"):
        await ctx.require_auth("Log in")


# --- on the real store, dropped after every commit and every wait --------------------------------

real = Workflow("login", 1, checkpoint=Login)


@real.start
async def begin(message: Message) -> Login:
    return Login()


@real.step(retry=Retry(attempts=1))
async def log_in(ctx: Context[Login, None]) -> Next:
    first = await ctx.require_auth("Mail?", key="mail")
    if not ctx.checkpoint.done:
        ctx.checkpoint.done.append("mail")
        await ctx.commit("in")
    second = await ctx.require_auth("Files?", key="files", deadline=timedelta(hours=1))
    return ctx.complete(f"{first} {second['token']}")


async def test_an_author_tests_it() -> None:
    run = await run_workflow(real, "go", answers={"Mail?": "a", "Files?": [{"token": "b"}]})
    assert (run.state, run.text) == ("completed", "a b")
    assert run.questions == ["Mail?", "Files?"]
    assert [event.kind for event in run.events if event.kind == "message"] == []


async def test_without_it_the_task_fails_at_the_deadline() -> None:
    run = await run_workflow(real, "go", answers={"Mail?": "a"})
    assert (run.state, run.text) == ("failed", "nobody gave the authorization before its deadline")
