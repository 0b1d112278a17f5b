"""Steps: named functions, and the call of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from outlast.model.errors import AuthorError
from outlast.model.ids import StepName
from outlast.model.retry import Retry
from outlast.workflow.next import Complete, Fail, Goto, Next, Reject
from outlast.workflow.rules import authors_code

if TYPE_CHECKING:
    from outlast.workflow.context import Context

START: Final = StepName("start")
ON_CANCEL: Final = StepName("on_cancel")
ON_FAILURE: Final = StepName("on_failure")
RESERVED: Final = frozenset({START, ON_CANCEL, ON_FAILURE})

STEP_TIMEOUT = timedelta(minutes=10)
HOOK_TIMEOUT = timedelta(seconds=60)
NOT_GIVEN: Final = timedelta(-1)
"""No timeout was written. None is one that was: the step may run as long as it likes."""


@dataclass(frozen=True)
class Step:
    """One named async function: the unit of retry.

    timeout: how long a run may take, counted since its last commit; None: without end.
    parameters: how many arguments `fn` takes: a start may take the message alone.
    """

    name: StepName
    fn: Callable[..., Awaitable[Any]]
    retry: Retry
    timeout: timedelta | None
    parameters: int = 1


async def call_step(context: Context[Any, Any], step: Step) -> Next | None:
    """Run the step's function and say where the task goes from here; None: to the next step.

    The start's checkpoint is left in the context, to be committed like any other. Raises what the
    function raises, and AuthorError when it returns what it must not.
    """
    with authors_code():
        if step.name == START:
            arguments = (context.message, context)[: step.parameters]
            context.adopt(await step.fn(*arguments))
            return None
        returned = await step.fn(context)
    if returned is None or isinstance(returned, Next):
        _check_ending(step, returned)
        return returned
    raise AuthorError(
        f"Step {step.name} returned {type(returned).__name__}.",
        "return nothing, or ctx.complete(…), ctx.fail(…), ctx.reject(…) or ctx.goto(…); what the "
        "next step needs belongs in ctx.checkpoint.",
    )


def _check_ending(step: Step, returned: Next | None) -> None:
    match returned:
        case None:
            return
        case Goto() if step.name in RESERVED:
            raise AuthorError(
                f"{step.name} returned a goto: the task ends after it.",
                "return nothing; what a step should do belongs in a step.",
            )
        case Complete() | Fail() | Reject() | Goto():
            return
