"""Workflows: a named, numbered list of steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from itertools import pairwise
from typing import Any, Generic, TypeVar, overload

from pydantic import TypeAdapter

from outlast.model.content import Message
from outlast.model.errors import AuthorError, InvalidParams, Rejected
from outlast.model.ids import StepName
from outlast.model.ledger import digest_of
from outlast.model.retry import Retry
from outlast.workflow.checkpoint import CheckpointType
from outlast.workflow.context import Context
from outlast.workflow.inputs import InputType, first_checkpoint
from outlast.workflow.limits import check_duration, check_name
from outlast.workflow.next import Next
from outlast.workflow.registration import (
    check_start,
    check_step,
    check_timeout,
    effective_retry,
)
from outlast.workflow.signatures import name_of
from outlast.workflow.steps import (
    HOOK_TIMEOUT,
    NOT_GIVEN,
    ON_CANCEL,
    ON_FAILURE,
    RESERVED,
    START,
    STEP_TIMEOUT,
    Step,
)

C = TypeVar("C")
R = TypeVar("R")

AnyFn = Callable[..., Awaitable[Any]]
StepFn = Callable[[Context[C, R]], Coroutine[Any, Any, Next | None]]
StartOfMessage = Callable[[Message], Coroutine[Any, Any, C]]
StartWithContext = Callable[[Message, Context[C, R]], Coroutine[Any, Any, C]]


class Workflow(Generic[C]):
    """A named, numbered list of steps that share one type of checkpoint.

    A task runs on the version that it started with. Names and order of the steps are fixed under
    a number; what the steps do may change freely.
    """

    def __init__(
        self,
        name: str,
        version: int,
        *,
        checkpoint: type[C] | TypeAdapter[C],
        input: type[Any] | TypeAdapter[Any] | None = None,
        retry: Retry = Retry(),
        max_age: timedelta = timedelta(days=30),
        longest_pause: timedelta = timedelta(days=7),
        inbox: bool = False,
    ) -> None:
        """A workflow without steps yet: `start`, `step`, `on_cancel` and `on_failure` add them.

        input: what the first data part of the caller's message must be. retry: for steps that do
        not bring their own. max_age: the longest life of a task. longest_pause: the longest
        deadline that a question may have, and the one it has when none is given. inbox: callers may
        send messages while the task works, and its steps read them with `ctx.inbox()`.
        Raises AuthorError for a value that cannot work.
        """
        self.name = check_name(name, of="a workflow")
        if type(version) is not int or version < 1:
            raise AuthorError(
                f"{version!r} cannot be a version of {name}.", "count from 1: version=1."
            )
        self.version = version
        self.checkpoint = CheckpointType(checkpoint, workflow=name)
        self.retry = effective_retry(retry)
        self.max_age = check_duration(max_age, of=f"max_age of {name}")
        self.inbox = inbox
        self.longest_pause = check_duration(longest_pause, of=f"longest_pause of {name}")
        self._input = None if input is None else InputType(input, workflow=name)
        self._start: Step | None = None
        self._steps: dict[StepName, Step] = {}
        self._hooks: dict[StepName, Step] = {}

    def __repr__(self) -> str:
        return f"<Workflow {self.name} version {self.version}>"

    # --- what an author writes ----------------------------------------------------------------

    @overload
    def start(self, fn: StartOfMessage[C], /) -> StartOfMessage[C]: ...

    @overload
    def start(self, fn: StartWithContext[C, R], /) -> StartWithContext[C, R]: ...

    def start(self, fn: Callable[..., Awaitable[C]], /) -> Callable[..., Awaitable[C]]:
        """Step 0: makes the first checkpoint of the caller's message.

        `start(message)` or `start(message, ctx)`; may raise Rejected. Without one, the message's
        first data part is the checkpoint. Raises AuthorError, as every decorator here does, when
        the function cannot be called as a step or is the second of its kind.
        """
        if self._start is not None:
            raise self._second("start", self._start, fn)
        count = check_start(fn, self.checkpoint.type)
        self._start = Step(START, fn, self.retry, STEP_TIMEOUT, parameters=count)
        return fn

    @overload
    def step(self, fn: StepFn[C, R]) -> StepFn[C, R]: ...

    @overload
    def step(
        self, fn: None = None, *, retry: Retry | None = None, timeout: timedelta | None = NOT_GIVEN
    ) -> Callable[[StepFn[C, R]], StepFn[C, R]]: ...

    def step(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        retry: Retry | None = None,
        timeout: timedelta | None = NOT_GIVEN,
    ) -> Any:
        """The next step, named like the function.

        timeout: counted since the step's last commit; 10 minutes when not given, None for a step
        that may run as long as it likes.
        """

        def add(fn: AnyFn) -> AnyFn:
            step = self._made(fn, retry, check_timeout(timeout, STEP_TIMEOUT, of=name_of(fn)))
            if step.name in RESERVED:
                raise AuthorError(
                    f"{self.name} has a step named {step.name}, a name of the runtime's own.",
                    f"rename it, or decorate it with @{self.name.replace('-', '_')}.{step.name}.",
                )
            if step.name in self._steps:
                raise AuthorError(
                    f"{self.name} has two steps named {step.name}.",
                    "rename one of them: a task remembers its step by name.",
                )
            self._steps[step.name] = step
            return fn

        return add if fn is None else add(fn)

    @overload
    def on_cancel(self, fn: StepFn[C, R]) -> StepFn[C, R]: ...

    @overload
    def on_cancel(
        self, fn: None = None, *, retry: Retry | None = None, timeout: timedelta = NOT_GIVEN
    ) -> Callable[[StepFn[C, R]], StepFn[C, R]]: ...

    def on_cancel(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        retry: Retry | None = None,
        timeout: timedelta = NOT_GIVEN,
    ) -> Any:
        """Runs before a task is CANCELED; may use effects, may not wait; 60 s when not given."""

        def add(fn: AnyFn) -> AnyFn:
            return self._add_hook(ON_CANCEL, fn, retry, timeout)

        return add if fn is None else add(fn)

    @overload
    def on_failure(self, fn: StepFn[C, R]) -> StepFn[C, R]: ...

    @overload
    def on_failure(
        self, fn: None = None, *, retry: Retry | None = None, timeout: timedelta = NOT_GIVEN
    ) -> Callable[[StepFn[C, R]], StepFn[C, R]]: ...

    def on_failure(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        retry: Retry | None = None,
        timeout: timedelta = NOT_GIVEN,
    ) -> Any:
        """Runs before a task has FAILED; may use effects, may not wait; 60 s when not given."""

        def add(fn: AnyFn) -> AnyFn:
            return self._add_hook(ON_FAILURE, fn, retry, timeout)

        return add if fn is None else add(fn)

    # --- what the roles ask -------------------------------------------------------------------

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order, the start first. Hooks are not among them."""
        return (self._start or self._implicit_start(), *self._steps.values())

    @property
    def fingerprint(self) -> str:
        """Equal for equal names in equal order, and with the inbox as it was: a version that has
        one must not meet a worker that does not read it."""
        names = [step.name for step in self.steps]
        return digest_of("\n".join([*names, "+inbox"] if self.inbox else names))

    @property
    def cancel_step(self) -> Step | None:
        """What runs before the task is CANCELED."""
        return self._hooks.get(ON_CANCEL)

    @property
    def failure_step(self) -> Step | None:
        """What runs before the task has FAILED."""
        return self._hooks.get(ON_FAILURE)

    def step_named(self, name: StepName) -> Step:
        """The step or hook of this name. Raises AuthorError when there is none."""
        known = {step.name: step for step in self.steps} | self._hooks
        if name not in known:
            raise AuthorError(
                f"{self.name} version {self.version} has no step {name}: it has "
                f"{', '.join(known)}.",
                "use the name of a step; a renamed step needs a new version.",
            )
        return known[name]

    def step_after(self, name: StepName) -> StepName | None:
        """What follows the step of this name; None after the last, and after hooks."""
        names = [step.name for step in self.steps]
        following = dict(pairwise(names))
        return following.get(name)

    def name_of_step(self, step: str | Callable[..., Any]) -> StepName:
        """The name of a step given by name or as the decorated function. Raises AuthorError."""
        if isinstance(step, str):
            target = self.step_named(StepName(step))
        else:
            found = [known for known in self.steps if known.fn is step]
            target = found[0] if found else self.step_named(StepName(name_of(step)))
            if not found:
                raise AuthorError(
                    f"{name_of(step)} is a function, but not the step of {self.name}.",
                    "name the decorated function or its name.",
                )
        if target.name in self._hooks:
            raise AuthorError(
                f"{target.name} is no step that a task can go to.",
                "return ctx.fail(…), or put what both need into a function that both call.",
            )
        return target.name

    def check_input(self, message: Message) -> None:
        """Refuse a message that no task of this workflow can start from.

        Checked are what `input` says and, without a start, that the first data part is a
        checkpoint. Raises InvalidParams with the path of the fault.
        """
        if self._input is not None:
            self._input.read(message)
        if self._start is None:
            first_checkpoint(self.checkpoint, message)

    def check_complete(self) -> None:
        """Raise AuthorError for a workflow without steps."""
        if not self._steps:
            raise AuthorError(
                f"{self.name} version {self.version} has no steps.",
                f"decorate at least one function with @{self.name.replace('-', '_')}.step.",
            )

    # --- within ---------------------------------------------------------------------------------

    def _made(
        self, fn: Callable[..., Awaitable[Any]], retry: Retry | None, timeout: timedelta | None
    ) -> Step:
        check_step(fn, self.checkpoint.type, role="step")
        policy = self.retry if retry is None else effective_retry(retry)
        return Step(StepName(check_name(fn.__name__, of="a step")), fn, policy, timeout)

    def _add_hook(
        self, name: StepName, fn: AnyFn, retry: Retry | None, timeout: timedelta
    ) -> AnyFn:
        check_step(fn, self.checkpoint.type, role=name)
        if name in self._hooks:
            raise self._second(name, self._hooks[name], fn)
        limit = HOOK_TIMEOUT
        if timeout is not NOT_GIVEN:
            limit = check_duration(timeout, of=f"the timeout of {name}")
        policy = self.retry if retry is None else effective_retry(retry)
        self._hooks[name] = Step(name, fn, policy, limit)
        return fn

    def _second(self, kind: str, first: Step, fn: Callable[..., Any]) -> AuthorError:
        return AuthorError(
            f"{self.name} has a second {kind}: {name_of(first.fn)} and {name_of(fn)}.",
            "keep one of them.",
        )

    def _implicit_start(self) -> Step:
        async def start(message: Message) -> C:
            try:
                return first_checkpoint(self.checkpoint, message)
            except InvalidParams as error:  # the gateway let it in under an older type
                raise Rejected(str(error)) from error

        return Step(START, start, self.retry, STEP_TIMEOUT)
