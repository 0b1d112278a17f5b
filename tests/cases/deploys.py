"""Builds of an agent, written out as source: what a deploy changes under running tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

MODULE = "deployed"
AGENT = f"{MODULE}:agent"

_HEAD = """\
import asyncio
from pydantic import BaseModel
from examples.probe.agent import Sink, open_sink
from outlast import Agent, Context, Message, Workflow

class Notes(BaseModel):
    key: str
"""

_WORKFLOW = """
v{version} = Workflow("deployed", version={version}, checkpoint=Notes)

@v{version}.start
async def begin(message: Message) -> Notes:
    return Notes(key=message.text)
"""

_EFFECT = """
@v{version}.step
async def {name}(ctx: Context[Notes, Sink]) -> None:
    {comment}
    key = f"{name}-{{ctx.checkpoint.key}}"
    await ctx.once(key, ctx.resources.post, key)
"""

_ASK = """
@v{version}.step
async def ask(ctx: Context[Notes, Sink]) -> None:
    {comment}
    await ctx.ask("Go on?")
"""

_LINGER = """
@v{version}.step
async def linger(ctx: Context[Notes, Sink]) -> None:
    {comment}
    await asyncio.sleep(0.5)
"""

_SPECIAL = {"ask": _ASK, "linger": _LINGER}

_AGENT = """
agent = Agent("deployed", description="A build.", skills=[], workflows=[{workflows}],
              resources=open_sink)
"""


def deploy(folder: Path, *, comment: str = "# the first build", **versions: Sequence[str]) -> None:
    """Put a build into the folder: for each version its steps. The step `ask` asks, `linger`
    takes half a second, every other one has an effect of its name, once per task."""
    source = _HEAD
    for name, steps in versions.items():
        version = name.removeprefix("v")
        source += _WORKFLOW.format(version=version)
        for step in steps:
            template = _SPECIAL.get(step, _EFFECT)
            source += template.format(version=version, name=step, comment=comment)
    source += _AGENT.format(workflows=", ".join(versions))
    folder.mkdir(exist_ok=True)
    (folder / f"{MODULE}.py").write_text(source)
