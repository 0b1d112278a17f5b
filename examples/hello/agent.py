from pydantic import BaseModel

from outlast import Agent, Context, Message, Next, Workflow


class Visitor(BaseModel):
    name: str


hello = Workflow("hello", version=1, checkpoint=Visitor)


@hello.start
async def arrive(message: Message) -> Visitor:
    return Visitor(name=message.text)


@hello.step
async def greet(ctx: Context[Visitor, None]) -> Next:
    await ctx.report("looking up")
    return ctx.complete(f"Hello, {ctx.checkpoint.name}.")


agent = Agent("hello", description="Says hello.", skills=[], workflows=[hello])
