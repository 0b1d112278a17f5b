"""The command.

    python -m examples.access_review.demo [--db sqlite|postgres] [--folder demo-data] [--seed N]

Exits with 0 when the review came through and the checker found nothing, with 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console

from examples.access_review.account import Account, read_account
from examples.access_review.demo.caller import open_caller
from examples.access_review.demo.children import Children
from examples.access_review.demo.directory import open_desk
from examples.access_review.demo.folder import DemoFolder, FolderInUse, open_folder
from examples.access_review.demo.setting import (
    Kind,
    open_database,
    raise_setting,
    set_unfinished_aside,
)
from examples.access_review.demo.stage import Stage
from examples.access_review.demo.story import Play
from examples.access_review.demo.telling import tell
from examples.access_review.records import DATA, read_records

DEADLINE_S = 120.0
NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
_WIDTH = 100


@dataclass(frozen=True, kw_only=True)
class Options:
    kind: Kind
    root: Path
    seed: int


def main() -> int:
    options = _options()
    console = Console()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        with open_folder(options.root, options.kind) as folder:
            return _run(options, folder, console)
    except FolderInUse as error:
        console.print(f"[bold red]demo:[/] {error}")
        return 1


def _run(options: Options, folder: DemoFolder, console: Console) -> int:
    """One demo. Whatever happens, no process is left behind."""
    console.print(
        f"An access review on {NAMES[options.kind]}, with a directory, a gateway and two workers"
        f" in processes of their own. Their logs: {folder.run}",
        soft_wrap=True,
    )
    with ExitStack() as stack:
        url = stack.enter_context(open_database(options.kind, folder))
        settings = {"database": url, "port": "0", "log_style": "json"}
        children = stack.enter_context(
            Children(folder.run, inherits=[folder.lock], settings=settings)
        )
        try:
            account = asyncio.run(_perform(options, children, url, folder, console))
        except KeyboardInterrupt:
            console.print("[bold]demo:[/] stopped; every process of it is ended")
            return 128 + signal.SIGINT
        except Exception as error:
            console.print(f"[bold red]demo:[/] {type(error).__name__}: {error}", soft_wrap=True)
            return 1
    return _report(account, options, folder, console)


async def _perform(
    options: Options, children: Children, url: str, folder: DemoFolder, console: Console
) -> Account:
    systems = [system.name for system in read_records(DATA).register.systems]
    with Stage(console, systems) as stage:
        async with asyncio.timeout(DEADLINE_S):
            ...
    raise NotImplementedError


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
