"""Rules that are broken at import: each says which, and the fix."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import pytest
import structlog
from pydantic import BaseModel, TypeAdapter
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from outlast import Agent, AuthorError, Context, Message, Next, Retry, Skill, Workflow
from outlast.workflow.checkpoint import CheckpointType, changed_fields
from outlast.workflow.registration import AUTHOR_BUGS


class Review(BaseModel):
    approved: list[str] = []


class Other(BaseModel):
    pass


class Clients:
    pass


T = TypeVar("T")


def broken(rule: str, fix: str, act: Callable[[], Any]) -> None:
    """Acting breaks the rule, and the error names it and the fix."""
    with pytest.raises(AuthorError) as caught:
        act()
    assert rule in caught.value.rule
    assert fix in caught.value.fix
    assert str(caught.value) == f"{caught.value.rule} Fix: {caught.value.fix}"


def a_workflow(name: str = "review", version: int = 1, *, steps: int = 1) -> Workflow[Review]:
    workflow = Workflow(name, version, checkpoint=Review)
    for _ in range(steps):

        @workflow.step
        async def work(ctx: Context[Review, Clients]) -> None: ...

    return workflow


def an_agent(*workflows: Workflow[Any], **more: Any) -> Agent:
    return Agent("compliance", description="…", skills=[], workflows=workflows, **more)


# --- steps --------------------------------------------------------------------------------------


def test_two_steps_of_one_name() -> None:
    broken("two steps named work", "rename one", lambda: a_workflow(steps=2))


def test_a_plain_function() -> None:
    def work(ctx: Any) -> None: ...

    broken("step work is a plain function", "async def", adding(work))


def test_an_async_generator() -> None:
    async def work(ctx: Any) -> AsyncIterator[str]:
        yield "…"

    broken("async generator", "ctx.open_stream", adding(work))


def test_a_context_of_another_checkpoint() -> None:
    async def other(ctx: Context[Other, Clients]) -> None: ...

    broken(
        "Context[Other, …], the workflow's checkpoint is Review",
        "Context[Review, …]",
        adding(other),
    )


def test_a_context_of_another_checkpoint_in_the_start() -> None:
    async def begin(message: Message, ctx: Context[Other, Clients]) -> Review:
        return Review()

    broken("start", "Context[Review, …]", starting(begin))


@pytest.mark.parametrize(
    "signature", ["(ctx)", "(ctx: Context)", "(ctx: Context[T, Any])", "(ctx: Missing) -> Gone"]
)
def test_annotations_that_say_less_are_accepted(signature: str) -> None:
    source = f"from __future__ import annotations\nasync def more{signature}: ..."
    fn = _defined(source, Context=Context, T=T, Any=Any)
    workflow = a_workflow()
    workflow.step(fn)
    assert [step.name for step in workflow.steps] == ["start", "work", "more"]


@pytest.mark.parametrize(
    "signature", ["()", "(ctx, more)", "(*, ctx)", "(ctx, *, more)", "(first, second, third=1)"]
)
def test_wrong_parameters(signature: str) -> None:
    work = _defined(f"async def work{signature}: ...")
    broken(f"work{signature} cannot be called", "one parameter, ctx", adding(work))


@pytest.mark.parametrize("signature", ["()", "(message, ctx, more)", "(message, *, ctx)"])
def test_wrong_parameters_of_a_start(signature: str) -> None:
    begin = _defined(f"async def begin{signature}: ...")
    broken("cannot be called", "(message) or (message, ctx)", starting(begin))


def test_wrong_parameters_of_a_router() -> None:
    pick = _defined("async def pick(message): ...")
    broken("cannot be called", "(message, caller)", lambda: an_agent(a_workflow()).route(pick))


def test_parameters_with_defaults_are_the_authors_own() -> None:
    workflow = a_workflow()
    workflow.step(_defined("async def more(ctx, retries=3, **named): ..."))
    workflow.start(_defined("async def begin(message, retries=3): ..."))
    assert workflow.steps[0].parameters == 1


def test_a_return_annotation_that_is_no_next() -> None:
    async def work(ctx: Context[Review, Clients]) -> Review:
        return Review()

    broken("annotated to return Review", "None or Next", adding(work))


def test_next_in_all_its_forms_may_be_returned() -> None:
    workflow = a_workflow()

    @workflow.step
    async def one(ctx: Context[Review, Clients]) -> Next:
        return ctx.complete()

    @workflow.step
    async def two(ctx: Context[Review, Clients]) -> Next | None:
        return None

    assert [step.name for step in workflow.steps] == ["start", "work", "one", "two"]


def test_a_start_that_returns_something_else() -> None:
    async def begin(message: Message) -> Other:
        return Other()

    broken("annotated to return Other", "return the first Review", starting(begin))


def test_a_start_that_returns_nothing() -> None:
    async def begin(message: Message) -> None: ...

    broken("annotated to return None", "return the first Review", starting(begin))


@pytest.mark.parametrize("name", ["start", "on_cancel", "on_failure"])
def test_reserved_names(name: str) -> None:
    fn = _defined(f"async def {name}(ctx): ...")
    broken(f"a step named {name}", f"@review.{name}", lambda: a_workflow().step(fn))


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(seconds=-2), 60])
def test_a_timeout_that_is_none(timeout: Any) -> None:
    async def late(ctx: Context[Review, Clients]) -> None: ...

    broken("the timeout of late", "above zero", lambda: a_workflow().step(timeout=timeout)(late))


@pytest.mark.parametrize("timeout", [timedelta(0), None])
def test_a_hook_needs_an_end(timeout: Any) -> None:
    async def clean(ctx: Context[Review, Clients]) -> None: ...

    hook = a_workflow().on_cancel(timeout=timeout)
    broken("the timeout of on_cancel", "above zero", lambda: hook(clean))


def test_a_second_start() -> None:
    workflow = a_workflow()

    @workflow.start
    async def begin(message: Message) -> Review:
        return Review()

    broken("second start: begin and begin", "keep one", lambda: workflow.start(begin))


@pytest.mark.parametrize("hook", ["on_cancel", "on_failure"])
def test_a_second_hook(hook: str) -> None:
    workflow = a_workflow()

    async def clean(ctx: Context[Review, Clients]) -> None: ...

    getattr(workflow, hook)(clean)
    broken(f"second {hook}", "keep one", lambda: getattr(workflow, hook)(clean))


# --- workflows ----------------------------------------------------------------------------------


def test_a_workflow_without_steps() -> None:
    broken("has no steps", "@review.step", lambda: an_agent(a_workflow(steps=0)))


@pytest.mark.parametrize("name", ["", "a b", "a/b", "-a", "x" * 101, None])
def test_names_that_would_not_survive(name: Any) -> None:
    broken("cannot be the name of a workflow", "letters", lambda: a_workflow(name))


@pytest.mark.parametrize("version", [0, -1, True, "1", 1.0])
def test_versions_are_counted_from_one(version: Any) -> None:
    broken("cannot be a version", "version=1", lambda: a_workflow("review", version))


@pytest.mark.parametrize("name", ["max_age", "longest_pause"])
def test_lengths_of_time(name: str) -> None:
    wrong: dict[str, Any] = {name: timedelta(0)}
    broken(name, "above zero", lambda: Workflow("review", 1, checkpoint=Review, **wrong))


@pytest.mark.parametrize("checkpoint", [Clients, Callable[[int], int] | Clients])
def test_a_checkpoint_that_is_no_json(checkpoint: Any) -> None:
    broken(
        "the checkpoint of review",
        "defined at the top of its module",
        lambda: Workflow("review", 1, checkpoint=checkpoint),
    )


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"factor": 0.5}, {"first": timedelta(minutes=9)}]
)
def test_retries_that_cannot_work(wrong: dict[str, Any]) -> None:
    broken("", "use" if "attempts" in wrong else "choose", lambda: Retry(**wrong))


def test_data_that_does_not_fit_is_a_bug_unless_the_author_lists_bugs() -> None:
    workflow = a_workflow()

    @workflow.step(retry=Retry(attempts=5))
    async def five(ctx: Context[Review, Clients]) -> None: ...

    @workflow.step(retry=Retry(unless=(KeyError,)))
    async def listed(ctx: Context[Review, Clients]) -> None: ...

    policies = [step.retry.unless for step in workflow.steps[1:]]
    assert policies == [AUTHOR_BUGS, AUTHOR_BUGS, (KeyError,)]


def test_going_to_a_step_that_does_not_exist() -> None:
    workflow = a_workflow()

    async def elsewhere(ctx: Context[Review, Clients]) -> None: ...

    async def work(ctx: Context[Review, Clients]) -> None: ...

    broken("has no step missing", "renamed", lambda: workflow.name_of_step("missing"))
    broken("has no step elsewhere", "renamed", lambda: workflow.name_of_step(elsewhere))
    broken("not the step", "decorated function", lambda: workflow.name_of_step(work))


def test_going_to_a_hook() -> None:
    workflow = a_workflow()

    @workflow.on_cancel
    async def clean(ctx: Context[Review, Clients]) -> None: ...

    broken("on_cancel is no step", "ctx.fail", lambda: workflow.name_of_step("on_cancel"))
    broken("has no step clean", "renamed", lambda: workflow.name_of_step(clean))


# --- agents -------------------------------------------------------------------------------------


def test_an_agent_without_workflows() -> None:
    broken("has no workflows", "workflows=[", an_agent)


def test_one_version_twice() -> None:
    broken(
        "two workflows review version 1",
        "raise the version",
        lambda: an_agent(a_workflow(), a_workflow()),
    )


def test_several_workflows_need_a_router() -> None:
    agent = an_agent(a_workflow("one"), a_workflow("two"))
    broken("several workflows", "@agent.route", agent.check_routed)
    broken("one, two", "@agent.route", lambda: agent.default_workflow)

    @agent.route
    async def pick(message: Message, caller: Any) -> Workflow[Any] | Message:
        return agent.workflow("one")

    agent.check_routed()


def test_a_second_router() -> None:
    agent = an_agent(a_workflow())

    @agent.route
    async def pick(message: Message, caller: Any) -> Workflow[Any] | Message:
        return Message.agent("no")

    broken("second router", "keep one", lambda: agent.route(pick))


def test_a_router_that_is_a_plain_function() -> None:
    pick = _defined("def pick(message, caller): ...")
    broken("plain function", "async def", lambda: an_agent(a_workflow()).route(pick))


@pytest.mark.parametrize("modes", [[], ["text"], ["text/plain", "no type"], "*/plain"])
def test_a_mode_that_is_no_media_type(modes: Any) -> None:
    for name in ("input_modes", "output_modes"):
        act = partial(an_agent, a_workflow(), **{name: modes})
        broken("has the modes", "name media types", act)


def test_resources_that_are_made_already() -> None:
    broken("already made", "pass the function", lambda: an_agent(a_workflow(), resources=Clients()))


def test_an_agent_has_a_name_and_skills() -> None:
    skill = Skill("review", "Review", "Reviews.", tags=("compliance",))
    agent = Agent("compliance", description="…", skills=[skill], workflows=[a_workflow()])
    assert agent.skills == (skill,)
    assert repr(agent) == "<Agent compliance>"


# --- checkpoints --------------------------------------------------------------------------------


class Base(BaseModel):
    kind: str = "base"


class Derived(Base):
    extra: int = 0


class Loose(BaseModel):
    anything: Any = None
    base: Base = Base()
    amount: float = 0
    names: set[str] = set()
    listed: list[int] = []
    raw: bytes = b""


class Counted(TypedDict):
    count: int


@dataclass
class Plain:
    count: int = 0
    inner: Base | None = None


LOOSE = CheckpointType(Loose, workflow="review")


@pytest.mark.parametrize(
    ("checkpoint", "path"),
    [
        (Loose(anything=Base()), "anything"),
        (Loose(anything={"at": [timedelta(1)]}), "anything.at.0"),
        (Loose(base=Derived(extra=3)), "base"),
        (Loose(anything=float("nan")), "anything"),
        (Loose.model_construct(amount="many"), "amount"),
        (Loose.model_construct(names=["a"]), "names"),
        (Loose(anything={1: "one"}), "anything.1"),
    ],
)
def test_what_does_not_survive_json(checkpoint: Loose, path: str) -> None:
    broken(
        f"does not survive JSON: {path}",
        "the type of what it holds",
        lambda: LOOSE.encode(checkpoint),
    )


@pytest.mark.parametrize(
    "checkpoint",
    [
        Loose.model_construct(amount=1),
        Loose.model_construct(listed=(1, 2)),
        Loose(names={"b", "a", "c"}, raw=b"abc", anything={"a": [None, 1.5, True]}),
    ],
)
def test_what_survives_json(checkpoint: Loose) -> None:
    text = LOOSE.encode(checkpoint)
    assert LOOSE.encode(LOOSE.decode(text)) is not None


def test_any_type_that_pydantic_takes_can_be_a_checkpoint() -> None:
    plain = CheckpointType(Plain, workflow="review")
    assert plain.decode(plain.encode(Plain(2, Base()))) == Plain(2, Base())
    numbers = CheckpointType(TypeAdapter(dict[str, list[int]]), workflow="review")
    assert numbers.decode(numbers.encode({"a": [1]})) == {"a": [1]}


def test_a_typed_dict_can_be_a_checkpoint() -> None:
    workflow = Workflow("review", 1, checkpoint=Counted)

    @workflow.start
    async def begin(message: Message) -> Counted:
        return {"count": 1}

    workflow.checkpoint.check_instance({"count": 1}, of="start")
    assert workflow.checkpoint.decode(workflow.checkpoint.encode({"count": 1})) == {"count": 1}


def test_a_large_checkpoint_is_warned_of() -> None:
    with structlog.testing.capture_logs() as logs:
        LOOSE.encode(Loose(anything="x" * 256 * 1024))
        LOOSE.encode(Loose(anything="x" * 255 * 1024))
    assert [line["event"] for line in logs] == ["checkpoint.large"]


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ('{"a": 1, "b": [1]}', '{"a": 1, "b": [2]}', ["b"]),
        ('{"a": 1}', '{"a": 1, "b": null}', ["b"]),
        ('{"a": {"x": 1, "y": 2}}', '{"a": {"y": 2, "x": 1}}', []),
        ("[1]", "[2]", ["(the whole value)"]),
    ],
)
def test_changed_fields_are_named(before: str, after: str, names: list[str]) -> None:
    assert changed_fields(before, after) == names


def test_a_checkpoint_that_is_too_large() -> None:
    broken(
        "the checkpoint of review has 1 MiB",
        "an artifact",
        lambda: LOOSE.encode(Loose(anything="x" * 1024 * 1024)),
    )


def test_a_nul_character() -> None:
    broken(
        "NUL character or a lone surrogate at anything.names.1",
        "replace",
        lambda: LOOSE.encode(Loose(anything={"names": ["a", "b\0c"]})),
    )


def test_a_text_that_is_no_unicode() -> None:
    broken(
        "cannot be written as JSON", "serializer", lambda: LOOSE.encode(Loose(anything="\ud800"))
    )


def test_a_value_without_a_json_form() -> None:
    broken(
        "cannot be written as JSON", "serializer", lambda: LOOSE.encode(Loose(anything=object()))
    )


def test_a_stored_checkpoint_that_no_longer_fits() -> None:
    broken(
        "no longer fits Loose: amount",
        "a default",
        lambda: LOOSE.decode('{"amount": "many"}'),
    )


def adding(fn: Any) -> Callable[[], Any]:
    """Make `fn`, which mypy would refuse before we can, a step."""
    return lambda: a_workflow().step(fn)


def starting(fn: Any) -> Callable[[], Any]:
    return lambda: a_workflow().start(fn)


def _defined(source: str, **scope: Any) -> Any:
    exec(source, scope)
    return scope[source.split("def ")[1].split("(")[0]]
