"""How a terminal shows what happens to a task, as it happens."""

from __future__ import annotations

import json
import time
from typing import Self, assert_never

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from outlast.cli.reaching import Agent
from outlast.cli.views import Connection, answer_wanted, how_to_answer, printable
from outlast.client import (
    ArtifactChanged,
    Event,
    Link,
    Opened,
    Question,
    Reset,
    Snapshot,
    StatusChanged,
)
from outlast.model.task import State

_COLOURS = {
    State.COMPLETED: "green",
    State.FAILED: "red",
    State.CANCELED: "yellow",
    State.REJECTED: "red",
    State.INPUT_REQUIRED: "magenta",
    State.AUTH_REQUIRED: "magenta",
}


class LiveView:
    """What is over scrolls up as text; below it one line says how the task is."""

    def __init__(self, agent: Agent, connection: Connection) -> None:
        self._agent = agent
        self._connection = connection
        self._console = Console(highlight=False, markup=False)
        self._live = Live(self, console=self._console, refresh_per_second=8, transient=True)
        self._spinner = Spinner("dots")
        self._task_id = ""
        self._state = State.SUBMITTED
        self._says = ""
        self._since = time.monotonic()
        self._names: dict[str, str] = {}
        self._writing = ""
        self._line = ""

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._flush()
        self._live.stop()
        if self._state.is_terminal:
            self._print(self._named().append(f"  {printable(self._says)}"))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        status = self._status()
        self._spinner.update(text=status)
        below = status if self._state.is_paused else self._spinner
        yield Group(Text(self._line), below) if self._line else below

    def show(self, event: Event) -> None:
        match event:
            case Opened(snapshot) | Reset(snapshot):
                self._begin(snapshot, again=isinstance(event, Reset))
            case StatusChanged():
                self._is_now(event.state, event.text, event.question)
                if progress := event.progress:
                    done, total = progress.get("done"), progress.get("total")
                    is_counted = isinstance(done, float) and isinstance(total, float)
                    counted = f"{done:g}/{total:g}" if is_counted else ""
                    self._says = " · ".join(filter(None, [self._says, counted]))
            case ArtifactChanged():
                self._write(event.artifact_id, event.name, event.shown, appends=event.appends)
            case _ as unreachable:
                assert_never(unreachable)

    def linked(self, link: Link) -> None:
        if (told := self._connection.told(link)) and link.by != "nothing":
            self._say(told)

    def _begin(self, snapshot: Snapshot, *, again: bool) -> None:
        self._flush()
        if again:
            self._say("what happened meanwhile cannot be told: this is the task now")
        else:
            self._say(f"task {snapshot.task_id}")
        self._task_id = snapshot.task_id
        self._names.clear()
        self._writing = ""
        for artifact_id, name, text in snapshot.written:
            self._write(artifact_id, name, text, appends=False)
        self._is_now(snapshot.state, snapshot.text, snapshot.question)

    def _is_now(self, state: State, text: str, question: Question | None) -> None:
        if text or state is not self._state:
            self._says = text
        self._state = state
        if question is None:
            return
        self._flush()
        self._print(Text.assemble(("? ", "bold magenta"), (printable(question.text), "bold")))
        for data in question.data:
            self._print(Text(printable(json.dumps(data, indent=2, ensure_ascii=False))))
        if wanted := answer_wanted(question):
            self._say(f"  its answer is JSON that fits {wanted}")
        told = [] if question.pause is None else [f"pause {question.pause}"]
        if question.deadline is not None:
            told.append(f"until {question.deadline.astimezone():%a %d %b %H:%M}")
        self._say("  " + " · ".join(told) if told else "")
        self._say(f"  {how_to_answer(self._agent, self._task_id, question, state)}")
        self._says = ""

    def _write(self, artifact_id: str, name: str, text: str, *, appends: bool) -> None:
        """Whole lines scroll up; the last, while it grows, stands above the status."""
        if not appends:
            self._names[artifact_id] = name
        if artifact_id != self._writing or not appends:
            self._flush()
            self._print(Text(f"── {printable(self._names.get(artifact_id, name))} ──", "cyan"))
            self._writing = artifact_id
        *whole, self._line = (self._line + printable(text)).split("\n")
        if whole:
            self._print(Text("\n".join(whole)))

    def _flush(self) -> None:
        if self._line:
            self._print(Text(self._line))
        self._line = ""

    def _status(self) -> Text:
        line = self._named()
        if not self._state.is_terminal:
            line.append(f"  {time.monotonic() - self._since:.0f} s", "dim")
        if self._connection.link.by == "nothing" and self._task_id:
            line.append(f"  {self._connection.link.why}; trying again", "yellow")
        elif self._says:
            line.append(f"  {printable(' '.join(self._says.split()))}")
        return line

    def _named(self) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        return line.append(self._state.value, f"bold {_COLOURS.get(self._state, 'blue')}")

    def _say(self, text: str) -> None:
        if text:
            self._print(Text(text, "dim"))

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)
