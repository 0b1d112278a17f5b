"""How commands show a task and what happens to it, in plain lines or as JSON."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from types import TracebackType
from typing import Any, Protocol, Self, assert_never

import typer

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

LF = "\n"
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Without what moves the cursor, rings or renames the window: agents are strangers."""
    return _CONTROLS.sub("", text) if sys.stdout.isatty() else text


def as_json(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def how_to_answer(agent: Agent, task_id: str, question: Question, state: State) -> str:
    """The command that answers this question and no later one."""
    pause = [] if question.pause is None else ["--pause", question.pause]
    if state is State.AUTH_REQUIRED:
        beside = ["outlast", "authorize", task_id, *pause, "--url", agent.url]
        return shlex.join([*beside, *(["--trust-card"] if agent.trust_card else [])])
    return agent.command("answer", task_id, "ANSWER", *pause)


def show_task(snapshot: Snapshot, agent: Agent, *, json_: bool = False) -> None:
    """A task at one moment."""
    if json_:
        typer.echo(as_json(snapshot.to_json()))
        return
    head = f"{snapshot.task_id} {snapshot.state.value} {snapshot.text}"
    typer.echo(printable(head).rstrip())
    for _, name, text in snapshot.written:
        typer.echo(printable(f"--- {name}\n{text.removesuffix(LF)}"))
    if (question := snapshot.question) is not None:
        show_question(question, agent, snapshot.task_id, snapshot.state)


def show_question(question: Question, agent: Agent, task_id: str, state: State) -> None:
    """What its text leaves open: what it is about, and how it is answered."""
    for data in question.data:
        typer.echo(printable(as_json(data)))
    due = question.deadline
    until = "" if due is None else f" until {due.astimezone():%Y-%m-%d %H:%M}"
    fits = f", with JSON that fits {wanted}" if (wanted := answer_wanted(question)) else ""
    how = how_to_answer(agent, task_id, question, state)
    say(f"it waits{until}{fits}; answer with: {how}")


def answer_wanted(question: Question) -> str:
    """The schema of its answer, in short."""
    text = "" if question.schema is None else as_json(question.schema)
    return f"{text[:300]}…" if len(text) > 300 else text


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
                    show_question(event.question, self._agent, self._task_id, event.state)
            case ArtifactChanged():
                if event.artifact_id != self._writing or not event.appends:
                    self._end_line()
                    typer.echo(printable(f"--- {event.name}"))
                    self._writing = event.artifact_id
                typer.echo(printable(event.shown), nl=False)
                if event.shown:
                    self._is_mid_line = not event.shown.endswith("\n")
            case _ as unreachable:
                assert_never(unreachable)

    def _end_line(self) -> None:
        if self._is_mid_line:
            typer.echo()
        self._is_mid_line = False
