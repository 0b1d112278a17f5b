"""Rules that are broken at run time: the run stops, whatever the step makes of it, so that the
task is held. Each says which rule, and the fix."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from outlast import Artifact, AuthorError, Context, Data, File, Message, Next, Text, Workflow
from outlast.model.ids import StepName, WriteNo
from outlast.model.ledger import Kept, LedgerKind
from outlast.workflow.steps import ON_CANCEL, call_step
from outlast.workflow.suspend import BrokenRule, Suspended
from tests.unit.fake_session import FakeSession, context_of, fake_session


class Review(BaseModel):
    count: int = 0
    names: list[str] = []
    anything: Any = None


review = Workflow("review", 1, checkpoint=Review)


@review.start
async def begin(message: Message, ctx: Context[Review, None]) -> Review:
    return Review()


@review.step
async def work(ctx: Context[Review, None]) -> None: ...


@review.step
async def later(ctx: Context[Review, None]) -> None: ...


@review.on_cancel
async def clean(ctx: Context[Review, None]) -> None: ...


@pytest.fixture
def session() -> FakeSession:
    return fake_session("{}")


@pytest.fixture
def ctx(session: FakeSession) -> Context[Review, None]:
    return context_of(session, review)


async def broken(rule: str, fix: str, act: Callable[[], Awaitable[Any]]) -> AuthorError:
    """Acting stops the run with a broken rule, which no `except Exception` catches."""
    with pytest.raises(BrokenRule) as caught:
        await act()
    assert not isinstance(caught.value, Exception)
    assert rule in caught.value.error.rule
    assert fix in caught.value.error.fix
    return caught.value.error


async def send(grant: object, *, idempotency_key: str) -> str:
    return f"sent {grant}"


async def double(number: int) -> int:
    return 2 * number


# --- the run is over ----------------------------------------------------------------------------


async def test_every_verb_raises_the_broken_rule_again(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    with pytest.raises(BrokenRule) as first:
        await ctx.memo("", double, 1)
    verbs: list[Callable[[], Awaitable[Any]]] = [
        ctx.commit,
        partial(ctx.report, "…"),
        partial(ctx.ask, "?"),
        partial(ctx.sleep, timedelta(1)),
        partial(ctx.once, "k", send, 1),
        partial(ctx.memo, "k", double, 1),
        partial(ctx.map, [1], double, key="k"),
        partial(ctx.stream, "a", lambda: None),
        partial(ctx.artifact, "a", "text"),
        partial(ctx.thread, int),
        ctx.history,
    ]
    for verb in verbs:
        with pytest.raises(BrokenRule) as again:
            await verb()
        assert again.value is first.value
    for ending in (ctx.complete, ctx.fail, ctx.reject, ctx.goto):
        with pytest.raises(BrokenRule):
            ending("work")
    assert session.writes == []


# --- rule 1: waiting with what no commit has followed -------------------------------------------


@pytest.mark.parametrize("wait", ["ask", "sleep"])
async def test_waiting_with_a_changed_checkpoint(ctx: Context[Review, None], wait: str) -> None:
    ctx.checkpoint.count = 1
    ctx.checkpoint.names.append("a")
    await broken(
        f"{wait} would lose a changed checkpoint: count, names.",
        f"`await ctx.commit()` before {wait}, or change it after",
        waiting(ctx, wait),
    )


async def test_a_checkpoint_changed_and_changed_back_is_not_changed(
    ctx: Context[Review, None],
) -> None:
    ctx.checkpoint.count = 1
    ctx.checkpoint.count = 0
    with pytest.raises(Suspended):
        await ctx.ask("?")


async def test_a_checkpoint_of_an_older_type_is_not_changed() -> None:
    session = fake_session('{"names": ["a"], "gone": 1}')
    with pytest.raises(Suspended):
        await context_of(session, review).ask("?")


@pytest.mark.parametrize("wait", ["ask", "sleep"])
async def test_waiting_with_artifacts_that_were_only_said(
    ctx: Context[Review, None], wait: str
) -> None:
    await ctx.artifact("report.md", "text")
    await broken("artifact report.md", "`await ctx.commit()`", waiting(ctx, wait))


@pytest.mark.parametrize("wait", ["ask", "sleep"])
async def test_waiting_with_provisional_chunks(ctx: Context[Review, None], wait: str) -> None:
    async with ctx.open_stream("log.txt") as out:
        await out.write("a")
    await broken("artifact log.txt", "`await ctx.commit()`", waiting(ctx, wait))


async def test_waiting_after_a_commit_loses_nothing(ctx: Context[Review, None]) -> None:
    ctx.checkpoint.count = 1
    await ctx.artifact("report.md", "text")
    await ctx.commit()
    with pytest.raises(Suspended):
        await ctx.ask("?")


# --- keys ---------------------------------------------------------------------------------------


async def test_a_memo_key_twice_in_a_run(ctx: Context[Review, None]) -> None:
    await ctx.memo("draft", double, 1)
    await ctx.commit()
    await broken(
        "'draft' twice in one run", "tell them apart", partial(ctx.memo, "draft", double, 1)
    )


async def test_a_map_key_twice_in_a_run(ctx: Context[Review, None]) -> None:
    await ctx.map([1], double, key="n")
    await broken("twice in one run", "tell them apart", partial(ctx.map, [1], double, key="n"))


async def test_a_stream_key_twice_in_a_run(ctx: Context[Review, None]) -> None:
    await ctx.stream("answer", pieces("a"))
    await broken("twice in one run", "tell them apart", partial(ctx.stream, "answer", pieces("a")))


async def test_two_items_of_one_key(ctx: Context[Review, None]) -> None:
    await broken(
        "the key 'same' for two items, numbers 0 and 1",
        "its id",
        partial(ctx.map, [1, 2], double, key=lambda item: "same"),
    )


@pytest.mark.parametrize("key", ["", "a\0b", "x" * 513, 7])
async def test_what_cannot_be_a_key(ctx: Context[Review, None], key: Any) -> None:
    await broken("got the key", "an id", partial(ctx.once, key, send, 1))


async def test_one_effect_with_different_arguments_in_one_run(ctx: Context[Review, None]) -> None:
    await ctx.once("revoke", send, 1)
    await broken("different arguments", "one key for one", partial(ctx.once, "revoke", send, 2))


async def test_a_kept_effect_with_different_arguments(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    await ctx.once("revoke", send, "alice")
    session.again()
    error = await broken(
        "asks for something else",
        "another key",
        partial(context_of(session, review).once, "revoke", send, "bob"),
    )
    assert '["alice"], now ["bob"]' in error.rule


async def test_an_open_effect_with_different_arguments(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    async def fails(grant: str, *, idempotency_key: str) -> str:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await ctx.once("revoke", fails, "alice")
    session.again()
    again = context_of(session, review)
    await broken("something else", "another key", partial(again.once, "revoke", fails, "bob"))


async def test_a_kept_memo_and_a_kept_item_with_different_arguments(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    await ctx.memo("m", double, 1)
    await ctx.map([1], double, key="n")
    for verb in ("memo", "map"):
        session.again()
        again = context_of(session, review)
        act = {
            "memo": partial(again.memo, "m", double, 2),
            "map": partial(again.map, [2], double, key="n"),
        }[verb]
        await broken(f"{verb} ", "a request that is computed comes from ctx.memo", act)


async def test_another_question_under_the_same_key(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    await answered(session, ctx, "Revoke 2?", "yes")
    again = context_of(session, review)
    error = await broken("something else", "another key", partial(again.ask, "Revoke 3?"))
    assert '"Revoke 2?"' in error.rule
    assert '"Revoke 3?"' in error.rule


@pytest.mark.parametrize("verb", ["ask", "sleep"])
async def test_a_second_wait_of_a_visit_needs_a_key(
    session: FakeSession, ctx: Context[Review, None], verb: str
) -> None:
    if verb == "ask":
        await answered(session, ctx, "?", "yes")
    else:
        slept(session)
    again = context_of(session, review)
    await waiting(again, verb)()
    again.checkpoint.count = 1
    await again.commit()
    await broken("a second time in one visit of step work", 'key="…"', waiting(again, verb))


async def test_a_keyed_wait_is_told_from_the_others(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    await answered(session, ctx, "?", "yes")
    again = context_of(session, review)
    await again.ask("?")
    with pytest.raises(Suspended):
        await again.ask("?", key="second")


@pytest.mark.parametrize("in_helper", [False, True])
async def test_interleaving_12_a_question_in_a_loop_needs_a_key_before_its_first_answer(
    in_helper: bool,
) -> None:
    looping = Workflow("review", 1, checkpoint=Review)

    async def confirm(ctx: Context[Review, None]) -> None:
        await ctx.ask("Revoke this one?")

    @looping.step
    async def work(ctx: Context[Review, None]) -> None:
        for number in range(ctx.checkpoint.count, 3):
            if in_helper:
                await confirm(ctx)
            else:
                await ctx.ask("Revoke this one?")
            ctx.checkpoint.count = number + 1
            await ctx.commit()

    await broken("ask stands in a loop of step work", 'key="…"', run_of(looping))


async def test_a_sleep_in_a_loop() -> None:
    looping = Workflow("review", 1, checkpoint=Review)

    @looping.step
    async def work(ctx: Context[Review, None]) -> None:
        while ctx.checkpoint.count == 0:
            await ctx.sleep(timedelta(minutes=5))

    await broken("sleep stands in a loop", 'key="…"', run_of(looping))


async def test_a_question_in_a_comprehension() -> None:
    gathering = Workflow("review", 1, checkpoint=Review)

    @gathering.step(timeout=None)
    async def work(ctx: Context[Review, None]) -> None:
        _ = [await ctx.ask("Yes?") for _ in range(2)]

    await broken("ask stands in a loop", 'key="…"', run_of(gathering))


async def test_what_is_beside_a_loop_may_wait() -> None:
    beside = Workflow("review", 1, checkpoint=Review)

    @beside.step
    async def work(ctx: Context[Review, None]) -> None:
        for _ in range(2):
            try:
                ctx.checkpoint.names.index("a")
            except ValueError:
                continue
        else:
            await ctx.ask("Yes?")

    with pytest.raises(Suspended):
        await run_of(beside)()


async def test_what_has_a_key_may_wait_in_a_loop() -> None:
    keyed = Workflow("review", 1, checkpoint=Review)

    @keyed.step
    async def work(ctx: Context[Review, None]) -> None:
        for number in range(2):
            await ctx.ask("Yes?", key=str(number))

    with pytest.raises(Suspended):
        await run_of(keyed)()


# --- where one may not wait ---------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["ask", "sleep"])
async def test_two_waits_at_once(ctx: Context[Review, None], verb: str) -> None:
    async def both() -> None:
        if verb == "ask":
            await asyncio.gather(ctx.ask("One?", key="one"), ctx.ask("Two?", key="two"))
        hour = timedelta(hours=1)
        await asyncio.gather(ctx.sleep(hour, key="one"), ctx.sleep(hour, key="two"))

    await broken("two waits at once", "one after the other", both)


@pytest.mark.parametrize("wait", ["ask", "sleep"])
async def test_a_hook_may_not_wait(wait: str) -> None:
    session = fake_session("{}", step="on_cancel", in_hook=True)
    ctx = context_of(session, review)
    await broken("before the task ends may not wait", "ctx.checkpoint", waiting(ctx, wait))


@pytest.mark.parametrize("around", ["once", "memo", "map", "effect map", "stream"])
async def test_the_functions_of_other_verbs_may_not_wait(
    ctx: Context[Review, None], around: str
) -> None:
    async def fn(item: int = 0, *, idempotency_key: str = "") -> None:
        await ctx.ask("?")

    async def chunks() -> AsyncIterator[str]:
        await ctx.ask("?")
        yield "never"

    verbs: dict[str, Callable[[], Awaitable[Any]]] = {
        "once": partial(ctx.once, "k", fn),
        "memo": partial(ctx.memo, "k", fn),
        "map": partial(ctx.map, [1], fn, key="k"),
        "effect map": partial(ctx.map, [1], fn, key="k", effect=True),
        "stream": partial(ctx.stream, "k", chunks),
    }
    await broken("may not wait", "in the step itself", verbs[around])


# --- questions and times ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "rule", "fix"),
    [
        ({"deadline": timedelta(days=8)}, "longest pause of review", "longest_pause="),
        ({"deadline": datetime(2100, 1, 1, tzinfo=UTC)}, "longest pause", "longest_pause="),
        ({"deadline": datetime(2030, 1, 1)}, "without a time zone", "datetime.now(UTC)"),
        ({"deadline": timedelta(0)}, "the deadline of ask", "still to come"),
        ({"deadline": 60}, "the deadline of ask is 60", "timedelta"),
        ({"remind": timedelta(0)}, "remind of ask", "still to come"),
        ({"on_deadline": "explode"}, "on_deadline='explode'", '"resume"'),
        ({"answer": Callable[[int], int]}, "the answer of ask", "by name"),
        ({"data": object()}, "ask is not JSON", "functools.partial"),
        ({"text": " "}, "the text ' '", "ask something"),
        ({"text": "a\0b"}, "NUL", "replace"),
        ({"key": ""}, "got the key", "an id"),
    ],
)
async def test_questions_that_cannot_be_asked(
    ctx: Context[Review, None], wrong: dict[str, Any], rule: str, fix: str
) -> None:
    await broken(rule, fix, partial(ctx.ask, **{"text": "?", **wrong}))


async def test_times_to_sleep_until(ctx: Context[Review, None]) -> None:
    naive = datetime(2030, 1, 1)
    await broken("without a time zone", "datetime.now(UTC)", partial(ctx.sleep, naive))


# --- calls --------------------------------------------------------------------------------------


class Handle:
    """No JSON, and nothing that pydantic could make of it."""


def plain(grant: int, *, idempotency_key: str) -> str:
    return "sent"


async def keyless(grant: int) -> str:
    return "sent"


async def unread(grant: int, *, idempotency_key: str) -> Missing:  # type: ignore[name-defined]  # noqa: F821
    return "sent"


@pytest.mark.parametrize(
    ("fn", "more", "rule", "fix"),
    [
        (plain, {}, "a plain function", "ctx.thread"),
        (lambda grant, idempotency_key: send(grant, idempotency_key=""), {}, "plain", "async def"),
        (keyless, {}, "takes no idempotency_key", "key_param=None"),
        (send, {"key_param": "other"}, "takes no other", "key_param="),
        (partial(send, 1), {}, "cannot call", "the arguments"),
        (unread, {}, "cannot be resolved", "result="),
        (send, {"timeout": timedelta(0)}, "the timeout of once", "above zero"),
        (send, {"timeout": None}, "the timeout of once", "above zero"),
        (send, {"reconcile": plain}, "plain function for reconcile", "NotDone"),
        (send, {"result": Handle}, "the result of once", "by name"),
    ],
)
async def test_effects_that_would_not_work(
    session: FakeSession,
    ctx: Context[Review, None],
    fn: Any,
    more: dict[str, Any],
    rule: str,
    fix: str,
) -> None:
    await broken(rule, fix, partial(ctx.once, "k", fn, 1, **more))
    assert session.writes == []


@pytest.mark.parametrize("argument", [object(), iter([1]), float("inf"), (n for n in [1]), print])
async def test_arguments_that_are_no_json(ctx: Context[Review, None], argument: Any) -> None:
    await broken("an argument of", "functools.partial", partial(ctx.once, "k", send, argument))


async def test_an_argument_with_a_nul(ctx: Context[Review, None]) -> None:
    await broken("NUL", "replace", partial(ctx.memo, "k", double, "a\0"))


async def a_large_text(*_: Any, idempotency_key: str = "") -> str:
    return "x" * 1024 * 1024


async def a_wrong_type(*_: Any, idempotency_key: str = "") -> int:
    return "many"  # type: ignore[return-value]


async def an_object(*_: Any, idempotency_key: str = "") -> Any:
    return object()


async def a_nul(*_: Any, idempotency_key: str = "") -> str:
    return "a\0b"


@pytest.mark.parametrize("verb", ["once", "memo", "map"])
@pytest.mark.parametrize(
    ("fn", "rule", "fix"),
    [
        (a_large_text, "1 MiB; the limit is 1 MiB", "an id or an address"),
        (a_wrong_type, "does not fit its type", "the annotation"),
        (an_object, "cannot be written as JSON", "serializer"),
        (a_nul, "NUL", "replace"),
    ],
)
async def test_results_that_cannot_be_kept(
    ctx: Context[Review, None], verb: str, fn: Any, rule: str, fix: str
) -> None:
    act: Callable[[], Awaitable[Any]] = {
        "once": partial(ctx.once, "k", fn, 1),
        "memo": partial(ctx.memo, "k", fn, 1),
        "map": partial(ctx.map, [1], fn, key="k"),
    }[verb]
    await broken(rule, fix, act)


async def test_an_effect_that_happened_is_recorded_even_if_its_result_does_not_fit(
    session: FakeSession, ctx: Context[Review, None]
) -> None:
    await broken("does not fit", "annotation", partial(ctx.once, "k", a_wrong_type, 1))
    assert session.ledger["effect:k"].result == '"many"'


@pytest.mark.parametrize(
    ("wrong", "rule", "fix"),
    [({"limit": 0}, "limit=0", "limit=1"), ({"errors": "ignore"}, "errors='ignore'", '"return"')],
)
async def test_maps_that_cannot_run(
    ctx: Context[Review, None], wrong: dict[str, Any], rule: str, fix: str
) -> None:
    await broken(rule, fix, partial(ctx.map, [1], double, key="k", **wrong))


async def test_a_thread_for_an_async_function(ctx: Context[Review, None]) -> None:
    await broken("double, an async function", "await it", partial(ctx.thread, double, 1))


async def test_a_negative_history(ctx: Context[Review, None]) -> None:
    await broken("last=-1", "number of messages", partial(ctx.history, -1))


# --- artifacts and streams ----------------------------------------------------------------------

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("parts", "rule", "fix"),
    [
        ((), "has no parts", "its content"),
        ((7,), "got int for a part", "Text(…)"),
        (("a\0b",), "NUL", "replace"),
        (("\ud800",), "lone surrogate", "remove it"),
        (("x" * (MIB + 1),), "the limit is 1 MiB", "File(url=…)"),
        ((Data("x" * MIB),), "the limit is 1 MiB", "File(url=…)"),
        ((File(raw=bytes(MIB)),), "the limit is 1 MiB", "File(url=…)"),
        ((Data(object()),), "is not JSON", "JSON can hold"),
        ((Text("x" * MIB),) * 17, "the limit is 16 MiB", "File(url=…)"),
    ],
)
async def test_artifacts_that_cannot_be_kept(
    ctx: Context[Review, None], parts: tuple[Any, ...], rule: str, fix: str
) -> None:
    await broken(rule, fix, partial(ctx.artifact, "report", *parts))


async def test_what_cannot_be_an_artifact(ctx: Context[Review, None]) -> None:
    await broken("got the key ''", "an id", partial(ctx.artifact, "", "text"))


async def test_a_stream_of_an_artifact_with_parts(ctx: Context[Review, None]) -> None:
    full = Artifact(id="a", parts=(Text("b"),))
    await broken("has parts already", "parts=()", ctx.open_stream(full).__aenter__)


async def test_a_stream_that_grows_too_large(ctx: Context[Review, None]) -> None:
    async def act() -> None:
        async with ctx.open_stream("log") as out:
            for _ in range(17):
                await out.write("x" * MIB)

    await broken("Artifact log has", "File(url=…)", act)


async def test_a_write_after_the_stream_has_ended(ctx: Context[Review, None]) -> None:
    async with ctx.open_stream("log") as out:
        await out.write("a")
    await broken("after its stream has ended", "async with", partial(out.write, "b"))


@pytest.mark.parametrize(
    ("chunks", "rule", "fix"),
    [
        (iter("ab"), "has begun already", "the function"),
        (lambda: ["a"], "gives list", "async generator"),
        (lambda: "ab", "gives str", "async generator"),
    ],
)
async def test_what_is_no_stream(
    ctx: Context[Review, None], chunks: Any, rule: str, fix: str
) -> None:
    await broken(rule, fix, partial(ctx.stream, "a", chunks))


# --- checkpoints and endings --------------------------------------------------------------------


async def test_a_commit_of_what_cannot_be_kept(ctx: Context[Review, None]) -> None:
    ctx.checkpoint.anything = {"text": "x" * MIB}
    await broken("the checkpoint of review has 1 MiB", "an artifact", ctx.commit)


async def test_a_return_of_what_cannot_be_kept(ctx: Context[Review, None]) -> None:
    ctx.checkpoint.anything = Review()
    await broken("does not survive JSON: anything", "the type", ctx.take_commit)


async def test_a_start_has_no_checkpoint_yet() -> None:
    ctx = context_of(fake_session(None, step="start"), review)

    async def read() -> None:
        _ = ctx.checkpoint

    async def write() -> None:
        ctx.checkpoint = Review()

    await broken("there is none yet", "returns the first checkpoint", read)
    ctx = context_of(fake_session(None, step="start"), review)
    await broken("there is none yet", "returns the first checkpoint", write)


async def test_a_checkpoint_of_another_type(ctx: Context[Review, None]) -> None:
    async def write() -> None:
        ctx.checkpoint = Artifact(id="a", parts=())  # type: ignore[assignment]

    await broken("returned Artifact where Review is wanted", "Review(…)", write)


async def test_going_where_there_is_no_step(ctx: Context[Review, None]) -> None:
    async def go() -> None:
        ctx.goto("missing")

    await broken("has no step missing", "renamed", go)


async def test_completing_with_what_is_no_json(ctx: Context[Review, None]) -> None:
    async def complete() -> None:
        ctx.complete(data=object())

    await broken("is not JSON", "JSON can hold", complete)


@pytest.mark.parametrize("returned", [True, "done", Review(), 0, ""])
async def test_a_step_that_returns_something_else(
    ctx: Context[Review, None], returned: Any
) -> None:
    async def fn(ctx: Any) -> Any:
        return returned

    with pytest.raises(AuthorError) as caught:
        await call_step(ctx, step_of(fn))
    assert "returned" in caught.value.rule
    assert "ctx.complete(…)" in caught.value.fix


async def test_a_start_that_returns_something_else() -> None:
    ctx = context_of(fake_session(None, step="start"), review)

    async def fn(message: Message) -> Any:
        return {"count": 1}

    with pytest.raises(AuthorError) as caught:
        await call_step(ctx, step_of(fn, "start"))
    assert "start returned dict where Review is wanted" in caught.value.rule
    assert "`return Review(…)`" in caught.value.fix


async def test_a_hook_that_goes_on() -> None:
    ctx = context_of(fake_session("{}", step="on_cancel", in_hook=True), review)

    async def fn(ctx: Context[Review, None]) -> Next:
        return ctx.goto(later)

    with pytest.raises(AuthorError) as caught:
        await call_step(ctx, step_of(fn, ON_CANCEL))
    assert "the task ends after it" in caught.value.rule
    assert "return nothing" in caught.value.fix


# --- the tests' own words -----------------------------------------------------------------------


def step_of(fn: Any, name: str = "work") -> Any:
    return replace(review.step_named(StepName(name)), fn=fn, parameters=1)


def waiting(ctx: Context[Review, None], verb: str) -> Callable[[], Awaitable[Any]]:
    return partial(ctx.ask, "?") if verb == "ask" else partial(ctx.sleep, timedelta(hours=1))


def run_of(workflow: Workflow[Review]) -> Callable[[], Awaitable[Any]]:
    ctx = context_of(fake_session("{}"), workflow)
    return partial(call_step, ctx, ctx.step)


async def answered(
    session: FakeSession, ctx: Context[Review, None], question: str, text: str
) -> None:
    with pytest.raises(Suspended):
        await ctx.ask(question)
    session.suspend()
    session.answer(Message.user(text))


def slept(session: FakeSession) -> None:
    kept = Kept(key="2:sleep", kind=LedgerKind.TIMER, result=str(session.lease.claimed_at))
    session._apply(kept, WriteNo(1), {})
    session.again()


def pieces(*texts: str) -> Callable[[], AsyncIterator[str]]:
    async def chunks() -> AsyncIterator[str]:
        for text in texts:
            yield text

    return chunks
