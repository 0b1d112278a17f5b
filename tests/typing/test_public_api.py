"""What an author's type checker makes of the API: the README's code and the first screen are free
of errors in strict mode, values have the types that are promised, and mistakes are seen.

mypy runs once, in a folder of its own, as it would in an author's project.
"""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

TYPES = """
from collections.abc import AsyncIterator
from typing import Any, assert_type

from pydantic import BaseModel, TypeAdapter

from outlast import (
    Answer,
    Client,
    Context,
    Data,
    File,
    ItemError,
    Message,
    Next,
    Text,
    Workflow,
)
from outlast.client import Event, Sent, Snapshot


class Notes(BaseModel):
    count: int = 0


class Clients:
    async def send(self, to: str, *, idempotency_key: str) -> int:
        return 1


async def double(item: int) -> int:
    return 2 * item


async def words() -> AsyncIterator[str]:
    yield "word"


flow = Workflow("flow", version=1, checkpoint=Notes)


@flow.step
async def work(ctx: Context[Notes, Clients]) -> Next | None:
    assert_type(ctx.checkpoint, Notes)
    assert_type(ctx.checkpoint.count, int)
    assert_type(ctx.resources, Clients)
    assert_type(ctx.message, Message)
    assert_type(ctx.attempt, int)
    assert_type(await ctx.ask("Why?"), Answer)
    assert_type(await ctx.ask("How many?", answer=int, key="n"), int)
    assert_type(await ctx.ask("Which?", answer=TypeAdapter(list[str]), key="l"), list[str])
    assert_type(await ctx.once("mail", ctx.resources.send, "ann"), int)
    assert_type(await ctx.memo("double", double, 1), int)
    assert_type(await ctx.memo("plain", str, 1), str)
    assert_type(await ctx.map([1, 2], double, key="d"), list[int])
    assert_type(await ctx.map([1], double, key="e", errors="return"), list[int | ItemError])
    assert_type(await ctx.stream("a.md", words), str)
    assert_type(await ctx.stream("b.md", words, result=Notes), Notes)
    assert_type(await ctx.thread(len, "abc"), int)
    assert_type(await ctx.history(), list[Message])
    async with ctx.open_stream("log.txt") as out:
        await out.write("more")
    await ctx.artifact("all", "text", Text("t"), Data({"n": 1}), File(url="https://a.example"))
    await ctx.commit("half", data={"n": 1})
    await ctx.report("almost", done=1, total=2)
    if ctx.checkpoint.count:
        return ctx.goto(work)
    return ctx.goto("work")


@flow.on_cancel
async def undo(ctx: Context[Notes, Clients]) -> None: ...


@flow.on_failure
async def tell(ctx: Context[Notes, Clients]) -> None: ...


async def call() -> None:
    async with Client("http://localhost:8000") as client:
        assert_type(client, Client)
        assert_type(await client.send("Hello"), Sent)
        assert_type(await client.get("task"), Snapshot)
        async for event in client.follow("task"):
            assert_type(event, Event)
"""

MISTAKES = """
from pydantic import BaseModel

from outlast import Cleint  # E: no such name, though one of them is loaded when it is asked for
from outlast import Context, Message, Next, Retry, Workflow


class Notes(BaseModel):
    count: int = 0


class Other(BaseModel):
    text: str


async def send(to: str, *, idempotency_key: str) -> int:
    return 1


flow = Workflow("flow", version=1, checkpoint=Notes)


@flow.start  # E: wrong checkpoint
async def begin(message: Message) -> Other:
    return Other(text="")


@flow.step  # E: a step that returns a value
async def valued(ctx: Context[Notes, None]) -> str:
    return "done"


@flow.step  # E: a plain function
def plain(ctx: Context[Notes, None]) -> None: ...


@flow.step  # E: a foreign context
async def foreign(ctx: Context[Other, None]) -> None: ...


@flow.step
async def work(ctx: Context[Notes, None]) -> Next:
    ctx.checkpoint.cuont = 1  # E: no such field
    ctx.checkpoint = Other(text="")  # E: another type
    answer = await ctx.ask("How many?", answer=int)
    answer.approved  # E: an int has none
    await ctx.ask("When?", on_deadline="explode", key="x")  # E: no such outcome
    await ctx.map([1], str, key="k")  # E: a plain function in a map
    await ctx.once("mail", len, "ann")  # E: a plain function as an effect
    Retry(attempts="many")  # E: a number
    Retry(exhausted="explode")  # E: no such end
    ctx.complete(1)  # E: a text
    return "done"  # E: not a Next
"""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """What mypy says, by file and line."""
    folder = tmp_path_factory.mktemp("author")
    shutil.copy(HERE / "first_screen.py", folder / "first_screen.py")
    blocks = python_blocks(ROOT / "README.md")
    assert blocks
    (folder / "readme.py").write_text("\n".join(blocks))
    (folder / "types_.py").write_text(TYPES)
    (folder / "mistakes.py").write_text(MISTAKES)
    names = sorted(path.name for path in folder.iterdir())
    cache = ROOT / ".mypy_cache" / "author"
    out, error, _ = api.run(
        [
            "--strict",
            "--no-error-summary",
            "--config-file=",
            f"--cache-dir={cache}",
            *(str(folder / name) for name in names),
        ]
    )
    assert not error
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for line in out.splitlines():
        match = re.match(r"(?:.*/)?(\w+\.py):(\d+): error: (.*)", line)
        if match:
            found[match[1]].setdefault(int(match[2]), match[3])
    return found


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"^```python[^\n]*\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["readme.py", "first_screen.py", "types_.py"])
def test_what_the_documents_show_is_free_of_errors(
    faults: dict[str, dict[int, str]], name: str
) -> None:
    assert faults[name] == {}


def test_each_mistake_is_seen_and_nothing_else(faults: dict[str, dict[int, str]]) -> None:
    lines = MISTAKES.splitlines()
    expected = {number for number, line in enumerate(lines, 1) if "# E: " in line}
    found = faults["mistakes.py"]
    missed = [lines[number - 1] for number in sorted(expected - set(found))]
    extra = {number: found[number] for number in sorted(set(found) - expected)}
    assert (missed, extra) == ([], {})


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src" / "outlast" / "py.typed").exists()
