"""What is to be seen while the demo runs: what happens, line by line, above two bars."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.spinner import Spinner
from rich.table import Table

from examples.access_review.account import FETCHED
from examples.access_review.demo.seen import Seen


class Stage:
    """A live display; on anything but a terminal the lines only."""

    def __init__(self, console: Console, systems: Sequence[str]) -> None:
        self._console = console
        self._places = {f"{FETCHED}{name}": place for place, name in enumerate(systems, start=1)}
        self._bars = Progress(
            TextColumn("{task.description:>16}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TextColumn("[dim]{task.fields[note]}"),
            console=console,
        )
        self._fetched = self._bars.add_task("systems fetched", total=len(systems), note="")
        self._revoked = self._bars.add_task("grants revoked", total=None, note="", visible=False)
        self._spinner = Spinner("dots", "")
        self._live = Live(
            Group(self._spinner, self._bars), console=console, transient=True, refresh_per_second=20
        )
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Something happened."""
        line = Table.grid(padding=(0, 2))
        line.add_row(f"[dim]{time.monotonic() - self._began:5.1f} s[/]", text)
        self._console.print(line)

    def wait_for(self, text: str) -> None:
        """What is awaited from now on."""
        self._spinner.update(text=f"[dim]{text}[/]")

    def show(self, seen: Seen) -> None:
        """How far the review is, as its caller has seen it."""
        latest = seen.said[-1] if seen.said else ""
        if place := self._places.get(latest):
            self._bars.update(self._fetched, completed=place, note=latest)
        if seen.progress is not None:
            done, total = seen.progress
            self._bars.update(self._revoked, completed=done, total=total, note=latest, visible=True)
