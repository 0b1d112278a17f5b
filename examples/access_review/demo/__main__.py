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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.markup import escape

from examples.access_review.account import Account, read_account
from examples.access_review.demo import DemoFailed
from examples.access_review.demo.caller import open_caller
from examples.access_review.demo.children import Children
from examples.access_review.demo.directory import open_desk
from examples.access_review.demo.folder import DemoFolder, open_folder
from examples.access_review.demo.setting import (
    Kind,
    Setting,
    open_database,
    raise_setting,
    set_unfinished_aside,
)
from examples.access_review.demo.stage import Stage
from examples.access_review.demo.story import Play
from examples.access_review.demo.telling import tell
from examples.access_review.records import DATA, read_records
from outlast.model.errors import OutlastError

DEADLINE_S = 120.0
NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
WIDTH = 100


@dataclass(frozen=True, kw_only=True)
class Options:
    kind: Kind
    root: Path
    seed: int


def main() -> int:
    options = _options()
    console = Console(highlight=False)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        with open_folder(options.root, options.kind) as folder:
            return _run(options, folder, console)
    except KeyboardInterrupt:
        console.print("[bold]demo:[/] stopped, and every process of it with it")
        return 128 + signal.SIGINT
    except (DemoFailed, OutlastError) as error:
        console.print(f"[bold red]demo:[/] {escape(str(error))}", soft_wrap=True)
        return 1


def _run(options: Options, folder: DemoFolder, console: Console) -> int:
    """One demo. However it ends, none of its processes is left."""
    console.print(
        f"An access review on {NAMES[options.kind]}: a directory, a gateway and two workers, each"
        f" a process of its own. Their logs are in {folder.run}. (--seed {options.seed})",
    )
    with open_database(options.kind, folder) as url:
        settings = {"database": url, "port": "0", "log_style": "json"}
        with Children(folder.run, inherits=[folder.lock], settings=settings) as children:
            account = asyncio.run(_perform(options, folder, children, url, console))
    _show(account, options, folder, console)
    return 1 if account.broken else 0


async def _perform(
    options: Options, folder: DemoFolder, children: Children, url: str, console: Console
) -> Account:
    systems = [system.name for system in read_records(DATA).register.systems]
    with Stage(console, systems) as stage:
        try:
            async with asyncio.timeout(DEADLINE_S):
                stage.wait_for("the processes start")
                if options.kind == "sqlite" and (aside := await set_unfinished_aside(url, folder)):
                    stage.say(aside)
                async with raise_setting(children, url, folder) as setting:
                    return await _play(options, setting, stage, systems)
        except TimeoutError:
            raise DemoFailed(
                f"the review did not end within {DEADLINE_S:g} s; see the logs in {folder.run}"
            ) from None


async def _play(
    options: Options, setting: Setting, stage: Stage, systems: Sequence[str]
) -> Account:
    stores = setting.stores
    async with open_desk(setting.directory_url) as desk:
        async with open_caller(setting.gateway_url, stage.show) as caller:
            play = Play(
                stage=stage,
                dice=random.Random(options.seed),
                stores=stores,
                desk=desk,
                caller=caller,
                workers=setting.workers,
                systems=systems,
            )
            witness = await play.perform()
        await setting.stop_outlast()
        counters = await desk.counters()
        return await read_account(stores.inspect, stores.log, stores.work, counters, witness)


def _show(account: Account, options: Options, folder: DemoFolder, console: Console) -> None:
    """Print the account, and keep it beside the report."""
    report = folder.save_artifacts(account.witness.held)
    told = tell(account, database=NAMES[options.kind], report=report)
    console.print(told)
    with (folder.run / "account.txt").open("w", encoding="utf-8") as file:
        Console(file=file, width=WIDTH, highlight=False).print(told)


def _options() -> Options:
    parser = argparse.ArgumentParser(
        prog="demo", description="An access review that survives everything."
    )
    parser.add_argument("--db", choices=sorted(NAMES), default="sqlite", help="the database")
    parser.add_argument(
        "--folder", type=Path, default=Path("demo-data"), help="database, logs and reports go here"
    )
    parser.add_argument("--seed", type=int, help="chooses the moments of the kill and of the cut")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    return Options(kind=given.db, root=given.folder, seed=seed)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """SIGTERM ends the demo as Ctrl-C does: by an exception, so that all contexts are left."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
