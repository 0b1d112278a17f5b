"""How commands show what happens to a task: live in a terminal, in plain lines, or as JSON."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from types import TracebackType
from typing import Any, Protocol, Self, assert_never

import typer
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from outlast.cli.reaching import Agent, say
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

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLOURS = {
    State.COMPLETED: "green",
    State.FAILED: "red",
    State.CANCELED: "yellow",
    State.REJECTED: "red",
    State.INPUT_REQUIRED: "magenta",
    State.AUTH_REQUIRED: "magenta",
}


def printable(text: str) -> str:
    """Without what moves the cursor, rings or renames the window: agents are strangers."""
    return _CONTROLS.sub("", text) if sys.stdout.isatty() else text


def as_json(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def how_to_answer(agent: Agent, task_id: str, question: Question, state: State) -> str:
    """The command that answers this question and no later one."""
    pause = [] if question.pause is None else ["--pause", question.pause]
    if state is State.AUTH_REQUIRED:
        beside = ["outlast", "authorize", task_id, *pause, "--value", "-", "--url", agent.url]
        return shlex.join(beside)
    return agent.command("answer", task_id, "ANSWER", *pause)


def show_task(snapshot: Snapshot, agent: Agent, *, json_: bool = False) -> None:
    """A task at one moment."""
    if json_:
        typer.echo(as_json(snapshot.to_json()))
        return
    head = f"{snapshot.task_id} {snapshot.state.value} {snapshot.text}"
    typer.echo(printable(head).rstrip())
    for name, text in snapshot.artifacts.items():
        typer.echo(printable(f"--- {name}\n{text}"))
    if (question := snapshot.question) is not None:
        say(_asked(agent, snapshot.task_id, question, snapshot.state))


def _asked(agent: Agent, task_id: str, question: Question, state: State) -> str:
    due = question.deadline
    until = "" if due is None else f" until {due.astimezone():%Y-%m-%d %H:%M}"
    return f"it waits{until}; answer with: {how_to_answer(agent, task_id, question, state)}"


class View(Protocol):
    """Shows events as they come, and what becomes of the connection."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def show(self, event: Event) -> None: ...

    def linked(self, link: Link) -> None: ...


def view_of(agent: Agent, *, json_: bool, numbered: bool) -> View:
    """numbered: whether the agent numbers its events."""
    connection = Connection(numbered=numbered)
    if json_:
        return JsonView(connection)
    if sys.stdout.isatty():
        return LiveView(agent, connection)
    return PlainView(agent, connection)


class Connection:
    """What is said of a connection that is lost and comes back."""

    def __init__(self, *, numbered: bool) -> None:
        self.link = Link(by="nothing")
        self._numbered = numbered
        self._lost_at: float | None = None

    def told(self, link: Link) -> str:
        """What is to be said now; nothing while it stays as it was."""
        before, self.link = self.link, link
        if link.by == "nothing":
            if self._lost_at is not None:
                return ""
            self._lost_at = time.monotonic()
            return f"{link.why}; trying again"
        lost_at, self._lost_at = self._lost_at, None
        if link.by == "looks":
            return "" if before.by == "looks" else "no stream comes through: the task is looked at"
        if lost_at is None:
            return ""
        away = f"connected again after {time.monotonic() - lost_at:.1f} s"
        if self._numbered:
            return f"{away}; nothing is missing"
        return f"{away}; this agent numbers no events: what was missed is told by comparing"


class _Lines:
    """A view that needs no beginning and no end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def linked(self, link: Link) -> None:
        if told := self._connection.told(link):
            say(told)


class JsonView(_Lines):
    """One StreamResponse a line. A `task` after the first one begins anew."""

    def show(self, event: Event) -> None:
        typer.echo(as_json(event.to_json()))


class PlainView(_Lines):
    """Lines, and artifacts as they are written."""

    def __init__(self, agent: Agent, connection: Connection) -> None:
        super().__init__(connection)
        self._agent = agent
        self._task_id = ""
        self._writing = ""
        self._is_mid_line = False

    def show(self, event: Event) -> None:
        match event:
            case Opened(snapshot) | Reset(snapshot):
                if isinstance(event, Reset):
                    say("what happened meanwhile cannot be told: this is the task now")
                self._task_id, self._writing = snapshot.task_id, ""
                self._end_line()
                show_task(snapshot, self._agent)
            case StatusChanged():
                self._end_line()
                typer.echo(printable(f"{event.state.value} {event.text}").rstrip())
                self._writing = ""
                if event.question is not None:
                    say(_asked(self._agent, self._task_id, event.question, event.state))
            case ArtifactChanged():
                if event.artifact_id != self._writing or not event.appends:
                    self._end_line()
                    typer.echo(printable(f"--- {event.name}"))
                    self._writing = event.artifact_id
                typer.echo(printable(event.text), nl=False)
                self._is_mid_line = not event.text.endswith("\n") if event.text else False
            case _ as unreachable:
                assert_never(unreachable)

    def _end_line(self) -> None:
        if self._is_mid_line:
            typer.echo()
        self._is_mid_line = False


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
                    counted = f"{done:g}/{total:g}" if done and total else ""
                    self._says = " · ".join(filter(None, [self._says, counted]))
            case ArtifactChanged():
                self._write(event.artifact_id, event.name, event.text, appends=event.appends)
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
