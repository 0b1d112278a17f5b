"""Commands of the operator. Each does one thing, says what it did, and exits 0 when it did it."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.markup import escape

from outlast import __version__, compose
from outlast.cli import access, calling, policy
from outlast.cli.frame import (
    AgentPath,
    DatabaseUrl,
    configured,
    out,
    run,
    stop,
    table,
    with_stores,
)
from outlast.cli.reaching import TrustCard, read_file
from outlast.gateway.pauses import pause_named
from outlast.model.errors import ConfigError
from outlast.model.ids import Fence, TaskId, WriteNo
from outlast.store.protocols import Restored
from outlast.wire.extension import View

app = typer.Typer(
    name="outlast",
    help="Run A2A agents whose tasks outlast connections, processes and conversations.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # else [env: …] is taken for markup, and not shown
    pretty_exceptions_enable=False,
    add_completion=False,
)
Host = Annotated[str | None, typer.Option(help="Listen here. [env: OUTLAST_HOST]")]
Port = Annotated[int | None, typer.Option(help="0 takes a free port. [env: OUTLAST_PORT]")]
TaskIdArgument = Annotated[str, typer.Argument(metavar="TASK", help="The id of the task.")]


@app.command()
def serve(
    agent: AgentPath, database: DatabaseUrl = None, host: Host = None, port: Port = None
) -> None:
    """Run every role in one process: gateway, worker and sweeps, on one SQLite file."""
    settings = configured(database=database, host=host, port=port)
    run(lambda: compose.serve(compose.load_agent(agent), settings))


@app.command()
def gateway(
    agent: AgentPath, database: DatabaseUrl = None, host: Host = None, port: Port = None
) -> None:
    """Answer A2A requests: read and write the store, run nothing."""
    settings = configured(database=database, host=host, port=port)
    run(lambda: compose.answer_calls(compose.load_agent(agent), settings))


@app.command()
def worker(
    agent: AgentPath,
    database: DatabaseUrl = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Tasks run at once. [env: OUTLAST_CONCURRENCY]")
    ] = None,
) -> None:
    """Claim tasks and run their steps, until SIGTERM."""
    settings = configured(database=database, concurrency=concurrency)
    run(lambda: compose.work_tasks(compose.load_agent(agent), settings))


@app.command()
def migrate(database: DatabaseUrl = None) -> None:
    """Bring the database's schema up to this release. Safe to run anywhere, any number of times."""
    settings = configured(database=database)
    applied = run(lambda: compose.migrate(settings))
    out.print(f"applied migrations: {applied}" if applied else "the schema is up to date")


@app.command()
def held(agent: AgentPath, database: DatabaseUrl = None) -> None:
    """List the tasks that wait for an operator, and why."""

    async def read(stores: compose.Stores) -> None:
        rows = table("task", "step", "reason")
        for task in await stores.inspect.held(compose.load_agent(agent).name):
            rows.add_row(task.task_id, task.step, task.held_reason)
        out.print(rows)

    with_stores(database, read)


@app.command()
def unhold(task: TaskIdArgument, database: DatabaseUrl = None) -> None:
    """Let a held task run again, from its last commit."""

    async def write(stores: compose.Stores) -> bool:
        return await stores.admin.unhold(TaskId(task))

    if not with_stores(database, write):
        stop(f"task {task} is not held")
    out.print(f"task {task} runs again")


@app.command()
def runs(task: TaskIdArgument, database: DatabaseUrl = None) -> None:
    """Show every run of a task: who ran which step, and how it ended."""

    async def read(stores: compose.Stores) -> None:
        if await stores.inspect.find(TaskId(task)) is None:
            raise ConfigError(f"there is no task {task} in this database")
        rows = table("fence", "worker", "step", "attempt", "outcome", "error")
        for one in await stores.inspect.runs(TaskId(task)):
            rows.add_row(
                str(one["fence"]),
                one["worker_id"],
                one["step"],
                str(one["attempt"]),
                one["outcome"] or "running",
                _error_of(one["error"]),
            )
        out.print(rows)

    with_stores(database, read)


@app.command()
def versions(agent: AgentPath, database: DatabaseUrl = None) -> None:
    """Show what is in flight on which version, and whether a live worker can run it."""

    async def read(stores: compose.Stores) -> None:
        rows = table("workflow", "version", "in flight", "held", "live workers")
        for row in await stores.inspect.versions(compose.load_agent(agent).name):
            rows.add_row(*(str(row[name]) for name in row))
        out.print(rows)

    with_stores(database, read)


@app.command()
def resolve(
    task: TaskIdArgument,
    key: Annotated[str, typer.Argument(help="The key of the effect, as the hold names it.")],
    fence: Annotated[int, typer.Option(help="The fence of the call, as the hold names it.")],
    write_no: Annotated[int, typer.Option(help="Its write number, as the hold names it.")],
    result: Annotated[
        str | None, typer.Option(help="What the call brought, as JSON; it happened.")
    ] = None,
    not_done: Annotated[bool, typer.Option("--not-done", help="It did not happen.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Although its worker is not proven dead.")
    ] = False,
    database: DatabaseUrl = None,
) -> None:
    """Say what became of an effect of unknown outcome, and let its task run again."""
    if (result is None) != not_done:
        stop("say either --result JSON or --not-done")

    async def write(stores: compose.Stores) -> bool:
        resolved = await stores.admin.resolve(
            TaskId(task),
            f"effect:{key}",
            fence=Fence(fence),
            write_no=WriteNo(write_no),
            result=result,
            force=force,
        )
        return resolved and await stores.admin.unhold(TaskId(task))

    if not with_stores(database, write):
        stop("there is nothing of that call to resolve")
    out.print(f"task {task} runs again")


@app.command()
def restored(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    database: DatabaseUrl = None,
) -> None:
    """Run once after an older copy of the database was put in place, before anything starts."""
    if not yes:
        typer.confirm("Every process of Outlast on this database is stopped?", abort=True)

    async def write(stores: compose.Stores) -> Restored:
        return await stores.admin.restored()

    began = with_stores(database, write)
    out.print(
        f"epoch {began.epoch} has begun: {began.leases} leases have ended, {began.workers} workers"
        " of before can write no more"
    )


@app.command()
def authorize(
    task: TaskIdArgument,
    pause: Annotated[str, typer.Option(help="The pause, as the task's status names it.")],
    value: Annotated[
        str,
        typer.Option(
            metavar="-|@FILE",
            help="Where what it waits for is, as JSON: - is stdin, @FILE a file. It is a secret as"
            " a rule, and an argument shows in lists of processes.",
        ),
    ] = "-",
    database: DatabaseUrl = None,
    url: Annotated[
        str | None, typer.Option("--url", help="As the task's caller, through the agent there.")
    ] = None,
    trust_card: TrustCard = False,
) -> None:
    """Give a task in AUTH_REQUIRED what it waits for, and let it run again."""
    given = _given(value)
    if url is not None:
        calling.authorize(url, task, pause, given, trust_card=trust_card)

    async def write(stores: compose.Stores) -> bool:
        found = await stores.inspect.find(TaskId(task))
        if found is None:
            raise ConfigError(f"there is no task {task} in this database")
        view = View(epoch=(await stores.admin.check()).epoch)
        pause_id = pause_named(pause, view, path="--pause")
        return await stores.tasks.authorize(found.scope, TaskId(task), pause_id, given)

    first = with_stores(database, write)
    out.print(f"task {task} runs again" if first else f"task {task} was authorized before")


def _given(said: str) -> Any:
    """The value that is at the place said. No error repeats what may be a secret."""
    if said != "-" and not said.startswith("@"):
        stop(
            "--value with the value itself shows in lists of processes: give it on stdin, or write"
            " --value @FILE"
        )
    try:
        text = sys.stdin.read() if said == "-" else read_file(said[1:], "--value")
    except ConfigError as error:
        stop(escape(str(error)))
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        stop('the value is no JSON; a text needs quotes of its own: "…"')


access.add_to(app)
calling.add_to(app)
policy.add_to(app)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outlast {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version."),
    ] = False,
) -> None:
    """Never shown: the help is the program's own."""


def _sort_into_panels() -> None:
    """What runs an agent comes first in the help, and what calls one stands by itself."""
    for command in app.registered_commands:
        if not isinstance(command.rich_help_panel, str) and command.callback is not None:
            runs = command.callback.__name__ in {"serve", "gateway", "worker", "migrate"}
            command.rich_help_panel = "Running an agent" if runs else "Operating it"
    for group in app.registered_groups:
        group.rich_help_panel = "Operating it"


_sort_into_panels()


def _error_of(error: str | None) -> str:
    if error is None:
        return ""
    told = json.loads(error)
    reference = f" (reference {told['reference']})" if "reference" in told else ""
    return f"{told.get('type', 'error')}: {told.get('text', '')}{reference}"
