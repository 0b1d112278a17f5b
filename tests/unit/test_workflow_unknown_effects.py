"""A cancel or failure step can see which effects may have happened."""

from __future__ import annotations

from pydantic import BaseModel

from outlast import Context, Message, Workflow
from outlast.testing import run_workflow


class Order(BaseModel):
    paid: bool = False


class Lost(Exception):
    """The reply to the payment never came."""


async def pay(amount: int, *, idempotency_key: str) -> str:
    raise Lost


async def notify(text: str, *, idempotency_key: str) -> str:
    return text


async def test_a_failure_step_sees_the_effects_of_unknown_outcome() -> None:
    order = Workflow("order", version=1, checkpoint=Order)
    seen: list[list[str]] = []

    @order.start
    async def begin(message: Message) -> Order:
        return Order()

    @order.step
    async def charge(ctx: Context[Order, None]) -> None:
        await ctx.once("notify", notify, "about to charge")
        await ctx.once("pay", pay, 3)

    @order.on_failure
    async def undo(ctx: Context[Order, None]) -> None:
        seen.append(await ctx.unknown_effects())

    run = await run_workflow(order, "go")

    assert run.state == "failed"
    assert seen[-1] == ["pay"]
