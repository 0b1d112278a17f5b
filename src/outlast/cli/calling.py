"""Commands of the caller, for any A2A 1.0 agent.

Exit codes: 0 done, 1 anything else that went wrong, 3 failed, 4 canceled, 5 rejected, 6 the task
waits for an answer, 7 no such task, 8 the agent cannot be reached.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, NoReturn

import typer

from outlast.client import ArtifactChanged, Client, Event, Opened, Reset, Snapshot, StatusChanged
from outlast.model.errors import OutlastError, TaskNotFound, Unreachable
from outlast.model.task import State

Url = Annotated[str, typer.Argument(metavar="URL", help="Where the agent is.")]
TaskId = Annotated[str, typer.Argument(metavar="TASK", help="The id of the task.")]
_CODES = {
    State.FAILED: 3,
    State.CANCELED: 4,
    State.REJECTED: 5,
    State.INPUT_REQUIRED: 6,
    State.AUTH_REQUIRED: 6,
}


def send(
    url: Url,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say.")],
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Say the task's id and leave at once.")
    ] = False,
    context: Annotated[
        str | None, typer.Option("--context", help="The conversation that it belongs to.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The same key again starts nothing again.")
    ] = None,
) -> None:
    """Send a message to an agent, and wait until its task has ended or asks something."""

    async def call(client: Client) -> int:
        sent = await client.send(text, context_id=context, key=key, wait=not no_wait)
        if sent.snapshot is None:
            typer.echo(sent.text)
            return 0
        return _show(sent.snapshot)

    _call(url, call)


def watch(url: Url, task: TaskId) -> None:
    """Follow a task until it has ended, over cut connections; leaving does not stop the task."""

    async def call(client: Client) -> int:
        state = State.SUBMITTED
        async with aclosing(client.follow(task)) as events:
            async for event in events:
                state = _shown(event) or state
        return _CODES.get(state, 0)

    _call(url, call, interrupted=f"the task goes on; outlast watch {url} {task} shows it again")


def answer(
    url: Url,
    task: TaskId,
    text: Annotated[str, typer.Argument(metavar="ANSWER", help="A text, or JSON.")],
    pause: Annotated[
        str | None, typer.Option("--pause", help="The question that is meant, by its name.")
    ] = None,
) -> None:
    """Answer the question that a task asks; one that is over takes no answer."""

    async def call(client: Client) -> int:
        _show(await client.answer(task, text, pause=pause))
        return 0

    _call(url, call)


def cancel(url: Url, task: TaskId) -> None:
    """Ask for a task to be canceled."""

    async def call(client: Client) -> int:
        _show(await client.cancel(task))
        return 0

    _call(url, call)


def get(url: Url, task: TaskId) -> None:
    """Print a task as A2A's JSON."""

    async def call(client: Client) -> int:
        snapshot = await client.get(task)
        typer.echo(json.dumps(snapshot.to_json(), indent=2, ensure_ascii=False))
        return _CODES.get(snapshot.state, 0)

    _call(url, call)


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (send, watch, answer, cancel, get):
        app.command()(command)


def _show(snapshot: Snapshot) -> int:
    typer.echo(f"{snapshot.task_id} {snapshot.state.value} {snapshot.text}".rstrip())
    for name, text in snapshot.artifacts.items():
        typer.echo(f"--- {name}\n{text}")
    return _CODES.get(snapshot.state, 0)


def _shown(event: Event) -> State | None:
    match event:
        case Opened(snapshot) | Reset(snapshot):
            _show(snapshot)
            return snapshot.state
        case StatusChanged():
            typer.echo(f"{event.state.value} {event.text}".rstrip())
            return event.state
        case ArtifactChanged():
            typer.echo(event.text, nl=False)
            return None


def _call(url: str, work: Callable[[Client], Awaitable[int]], *, interrupted: str = "") -> None:
    async def run() -> int:
        # The token comes from the environment alone: an argument shows in lists of processes.
        async with Client(url, auth=os.environ.get("OUTLAST_TOKEN") or None) as client:
            return await work(client)

    try:
        code = asyncio.run(run())
    except OutlastError as error:
        _stop(str(error), {TaskNotFound: 7, Unreachable: 8}.get(type(error), 1))
    except KeyboardInterrupt:
        _stop(interrupted or "interrupted", 130)
    raise typer.Exit(code)


def _stop(text: str, code: int) -> NoReturn:
    typer.echo(f"outlast: {text}", err=True)
    raise typer.Exit(code)
