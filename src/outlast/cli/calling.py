"""Commands of the caller, for any A2A 1.0 agent."""

from __future__ import annotations

import sys
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlast.cli.live import LiveView
from outlast.cli.reaching import (
    ENDS,
    EXITS,
    Agent,
    Calling,
    Headers,
    Json,
    TaskId,
    Tenant,
    TrustCard,
    Url,
    call,
    say,
)
from outlast.cli.views import Connection, JsonView, PlainView, View, as_json, printable, show_task
from outlast.client import Client, Link, Patience, Snapshot
from outlast.model.errors import ConfigError
from outlast.model.task import State

_AWAY = Patience(total=600.0)
"""How long a follower goes on while the agent is away: longer than a deploy takes."""


def send(
    *,
    url: Url = "",
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say; - reads stdin.")],
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the task's events until it has ended.")
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Say the task's id and leave at once.")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option("--task", help="To this task, which must take messages as it works."),
    ] = None,
    context: Annotated[
        str | None, typer.Option("--context", help="The conversation that it belongs to.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help="Sent again under the same key, it starts nothing again."),
    ] = None,
    json_: Json = False,
    tenant: Tenant = "",
    header: Headers = None,
    trust_card: TrustCard = False,
) -> None:
    """Send a message to an agent, and wait until its task has ended or asks something."""
    agent = Agent(url=url, tenant=tenant, headers=header or (), trust_card=trust_card)
    known = task

    async def work(client: Client) -> int:
        nonlocal known
        # Without the wait its id is known at once, so that whoever leaves can come back.
        sent = await client.send(
            _said(text),
            task_id=task,
            context_id=context,
            key=key,
            wait=task is not None and not no_wait,
        )
        if sent.snapshot is None:
            typer.echo(as_json(sent.to_json()) if json_ else printable(sent.text))
            return 0
        known = sent.snapshot.task_id
        if watch:
            return await _watched(client, known, agent, json_=json_)
        snapshot = sent.snapshot if no_wait else await _settled(client, known)
        if json_:
            typer.echo(as_json({"task": snapshot.to_json()}))
        else:
            show_task(snapshot, agent)
        return ENDS.get(snapshot.state, 0)

    def interrupted() -> str:
        if known is None:
            return f"interrupted; whether the message was taken shows {agent.command('list')}"
        return _goes_on(agent, known)

    if watch and no_wait:
        raise typer.BadParameter("--watch waits, and --no-wait does not: give one of them")
    call(agent, work, interrupted=interrupted)


def watch(
    *,
    url: Url = "",
    task: TaskId,
    json_: Json = False,
    tenant: Tenant = "",
    header: Headers = None,
    trust_card: TrustCard = False,
) -> None:
    """Show a task's events until it has ended, over cut connections. Ctrl-C leaves it running."""
    agent = Agent(url=url, tenant=tenant, headers=header or (), trust_card=trust_card)

    async def work(client: Client) -> int:
        return await _watched(client, task, agent, json_=json_)

    call(agent, work, interrupted=lambda: _goes_on(agent, task))


def answer(
    *,
    url: Url = "",
    task: TaskId,
    text: Annotated[
        str, typer.Argument(metavar="ANSWER", help="A text, or JSON as asked; - reads stdin.")
    ],
    pause: Annotated[
        str | None, typer.Option("--pause", help="The question that is meant, by its name.")
    ] = None,
    json_: Json = False,
    tenant: Tenant = "",
    header: Headers = None,
    trust_card: TrustCard = False,
) -> None:
    """Answer the question that a task asks; one that is over takes no answer."""
    agent = Agent(url=url, tenant=tenant, headers=header or (), trust_card=trust_card)

    async def work(client: Client) -> int:
        show_task(await client.answer(task, _said(text), pause=pause), agent, json_=json_)
        return 0

    call(agent, work)


def cancel(
    *,
    url: Url = "",
    task: TaskId,
    json_: Json = False,
    tenant: Tenant = "",
    header: Headers = None,
    trust_card: TrustCard = False,
) -> None:
    """Ask for a task to be canceled."""
    agent = Agent(url=url, tenant=tenant, headers=header or (), trust_card=trust_card)

    async def work(client: Client) -> int:
        show_task(await client.cancel(task), agent, json_=json_)
        return 0

    call(agent, work)


def get(
    *,
    url: Url = "",
    task: TaskId,
    json_: Json = False,
    tenant: Tenant = "",
    header: Headers = None,
    trust_card: TrustCard = False,
) -> None:
    """Show a task as it is."""
    agent = Agent(url=url, tenant=tenant, headers=header or (), trust_card=trust_card)

    async def work(client: Client) -> int:
        snapshot = await client.get(task)
        show_task(snapshot, agent, json_=json_)
        return ENDS.get(snapshot.state, 0)

    call(agent, work)


def list_(
    *,
    url: Url = "",
    state: Annotated[
        State | None,
        typer.Option("--state", metavar="STATE", help=f"Those in this state: {', '.join(State)}."),
    ] = None,
    context: Annotated[str, typer.Option("--context", help="Those of this conversation.")] = "",
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Those whose status changed after this time."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="So many at most.")] = 50,
    all_: Annotated[bool, typer.Option("--all", help="All of them, page by page.")] = False,
    json_: Json = False,
    tenant: Tenant = "",
    header: Headers = None,
    trust_card: TrustCard = False,
) -> None:
    """List your tasks, those that changed last first."""
    agent = Agent(url=url, tenant=tenant, headers=header or (), trust_card=trust_card)

    async def work(client: Client) -> int:
        found = await client.list(
            state=state,
            context_id=context,
            changed_after=None if since is None else _time(since),
            limit=None if all_ else limit + 1,
            history_length=None if json_ else 0,
            include_artifacts=json_,
        )
        shown = found if all_ else found[:limit]
        _listed(shown, json_=json_)
        if len(shown) < len(found):
            say(f"there are more than these {limit}: --limit N shows N, --all shows all")
        return 0

    call(agent, work)


def authorize(url: str, task: str, pause: str, value: Any, *, trust_card: bool = False) -> NoReturn:
    """What `outlast authorize --url` does."""

    async def work(client: Client) -> int:
        await client.authorize(task, value, pause=pause)
        typer.echo(f"task {task} is authorized")
        return 0

    call(Agent(url=url, trust_card=trust_card), work)


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for name, command in (
        ("send", send),
        ("watch", watch),
        ("answer", answer),
        ("cancel", cancel),
        ("get", get),
        ("list", list_),
    ):
        app.command(name, cls=Calling, epilog=EXITS, rich_help_panel="Calling an agent")(command)


async def _watched(client: Client, task_id: str, agent: Agent, *, json_: bool) -> int:
    state = State.SUBMITTED
    with _view(agent, Connection(numbered=client.numbers_events), json_=json_) as view:
        follow = client.follow(task_id, on_link=view.linked, patience=_AWAY)
        async with aclosing(follow) as events:
            async for event in events:
                view.show(event)
                state = event.state or state
    return ENDS.get(state, 0)


def _view(agent: Agent, connection: Connection, *, json_: bool) -> View:
    if json_:
        return JsonView(connection)
    if sys.stdout.isatty():
        return LiveView(agent, connection)
    return PlainView(agent, connection)


async def _settled(client: Client, task_id: str) -> Snapshot:
    connection = Connection(numbered=client.numbers_events)

    def linked(link: Link) -> None:
        if told := connection.told(link):
            say(told)

    follow = client.follow(task_id, on_link=linked, patience=_AWAY)
    async with aclosing(follow) as events:
        async for event in events:
            if event.state is not None and (event.state.is_terminal or event.state.is_paused):
                break
    return await client.get(task_id)


def _goes_on(agent: Agent, task_id: str) -> str:
    return f"the task goes on; come back with: {agent.command('watch', task_id)}"


def _listed(tasks: list[Snapshot], *, json_: bool) -> None:
    if json_:
        for task in tasks:
            typer.echo(as_json(task.to_json()))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        for task in tasks:
            typer.echo("\t".join((task.task_id, task.state.value, _when(task), _line(task.text))))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("task", overflow="fold", min_width=36)
    for name in ("state", "changed", "says"):
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    for task in tasks:
        cells = (task.task_id, task.state.value, _when(task), printable(_line(task.text)))
        table.add_row(*map(Text, cells))
    console.print(table)


def _said(text: str) -> str:
    return sys.stdin.read() if text == "-" else text


def _line(text: str) -> str:
    return " ".join(text.split())


def _when(task: Snapshot) -> str:
    at = task.changed_at
    return "" if at is None else at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"--since takes a time such as 2026-12-07T11:40:00Z, not {text!r}"
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
