"""What is around every command of the operator: its settings, the stores, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from outlast import compose
from outlast.configuration import Configuration, configuration
from outlast.model.errors import OutlastError
from outlast.telemetry import configure_logging

T = TypeVar("T")

out = Console()
errors = Console(stderr=True)

AgentPath = Annotated[
    str,
    typer.Argument(metavar="MODULE:AGENT", help="Where it is: hello:agent is `agent` in hello.py."),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database",
        help="sqlite:///path or postgresql://user@host/name. [env: OUTLAST_DATABASE]",
    ),
]


_WIDTHS = {"task": 36, "key": 12}


def table(*columns: str) -> Table:
    """Cells are folded, never cut: an id that is cut cannot be copied into the next command."""
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold", min_width=_WIDTHS.get(column))
    return table


def configured(**options: Any) -> Configuration:
    """The environment's settings with these options in their place; logging begins."""
    try:
        settings = configuration(**options)
    except OutlastError as error:
        stop(str(error))
    configure_logging(settings.log_level, style=settings.log_style)
    return settings


def with_stores(database: str | None, use: Callable[[compose.Stores], Coroutine[Any, Any, T]]) -> T:
    """What `use` brings, from the stores of a database that is there."""
    settings = configured(database=database)

    async def with_them() -> T:
        async with compose.open_stores(settings, create=False) as stores:
            return await use(stores)

    return run(with_them)


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What `work` brings. An error of ours ends the command with its text."""
    try:
        return asyncio.run(work())
    except OutlastError as error:
        stop(str(error))
    except BaseExceptionGroup as group:
        known = group.subgroup(OutlastError)
        if known is None:
            raise
        stop(str(next(_leaves(known))))


def _leaves(group: BaseExceptionGroup[OutlastError]) -> Iterator[OutlastError]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def stop(text: str) -> NoReturn:
    """End the command: it did not do what it says."""
    errors.print(f"[bold red]outlast:[/] {text}", highlight=False, soft_wrap=True)
    raise typer.Exit(1)
