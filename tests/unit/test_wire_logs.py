"""Logs for the wire's tests, written as the store and a worker write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from outlast.model.artifacts import artifact_event
from outlast.model.commit import Event, EventKind, LoggedEvent, status_event
from outlast.model.content import Artifact, Message, Text
from outlast.model.ids import ContextId, Fence, LedgerId, Millis, Seq, StepName, TaskId, Visit
from outlast.model.pause import Ask, DueBy
from outlast.model.task import Scope, State, Task

TASK_ID, CONTEXT_ID = TaskId("task-1"), ContextId("context-1")
SECRET = {"subject": "s3cret-subject", "tenant": "", "scopes": [], "claims": {"k": "s3cret-claim"}}


class Author:
    """Writes a log as the store and a worker do: one event after the other, by their rules."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.state = State.SUBMITTED
        self.question: Seq | None = None
        self.artifacts: set[str] = set()
        self.log(
            EventKind.TASK,
            {"message": Message.user("begin").to_json(), "caller": SECRET},
            is_message=True,
        )

    def log(self, kind: EventKind, body: dict[str, Any], *, is_message: bool = False) -> None:
        self.events.append(Event(kind=kind, body=body, is_message=is_message))

    def report(self, text: str | None, progress: dict[str, Any] | None) -> None:
        more = {} if progress is None else {"progress": progress}
        said = None if text is None else Message.agent(text).to_json()
        self.events.append(status_event(State.WORKING, said, **more))
        self.state = State.WORKING

    def chunk(self, name: str, text: str, *, append: bool) -> None:
        append = append and name in self.artifacts
        body = Artifact(id=name, parts=(Text(text),), name=None if append else f"{name}.md")
        self.events.append(artifact_event(body.to_json(), append=append, last_chunk=False))
        self.artifacts.add(name)

    def ask(self, text: str, schema: dict[str, Any] | None) -> None:
        due = DueBy(after=Millis(90_000))
        ask = Ask(ledger_key="s3cret-key", schema=schema, due=due).to_json()
        said = Message.agent(text).to_json()
        self.events.append(status_event(State.INPUT_REQUIRED, said, ask=ask))
        self.state, self.question = State.INPUT_REQUIRED, Seq(len(self.events))

    def remind(self) -> None:
        """The question is said again, as the sweep does it."""
        assert self.question is not None
        body = dict(self.events[self.question - 1].body)
        said_at = {"pause": self.question, "asked_at": time_of(self.question)}
        again = {**body.pop("ask"), **said_at}
        self.log(EventKind.STATUS, {**body, "again": again})

    def hear(self, text: str) -> None:
        body = {
            "state": "working",
            "message": Message.user(text).to_json(),
            "answers": self.question,
            "caller": SECRET,
        }
        self.log(EventKind.MESSAGE, body, is_message=True)
        self.state, self.question = State.WORKING, None

    def resume(self) -> None:
        """The deadline of the question passed, and the author wanted to go on."""
        self.events.append(status_event(State.WORKING))
        self.state, self.question = State.WORKING, None

    def end(self, state: State, text: str | None) -> None:
        said = None if text is None else Message.agent(text).to_json()
        self.events.append(status_event(state, said))
        self.state = state

    def logged(self) -> list[LoggedEvent]:
        return [
            LoggedEvent(
                seq=Seq(index),
                kind=event.kind,
                body=event.body,
                is_message=event.is_message,
                fence=Fence(1),
                write_no=None,
                created_at=time_of(index),
            )
            for index, event in enumerate(self.events, start=1)
        ]


def time_of(seq: int) -> Millis:
    return Millis(1_700_000_000_000 + 137 * seq)


@st.composite
def logs(draw: st.DrawFn) -> list[LoggedEvent]:
    author = Author()
    words = st.text(st.sampled_from("abc"), min_size=1, max_size=3)
    progress = st.none() | st.fixed_dictionaries({"done": st.integers(0, 9), "total": st.just(9)})
    for _ in range(draw(st.integers(0, 12))):
        verb = draw(st.sampled_from(["report", "chunk", "ask", "hear"]))
        if author.state is State.INPUT_REQUIRED and draw(st.integers(0, 3)) == 3:
            author.remind()
        elif author.state is State.INPUT_REQUIRED:
            author.hear(draw(words)) if draw(st.integers(0, 3)) else author.resume()
        elif verb == "report":
            author.report(draw(st.none() | words), draw(progress))
        elif verb == "chunk":
            author.chunk(draw(st.sampled_from("xyz")), draw(words), append=draw(st.booleans()))
        elif verb == "ask":
            author.ask(draw(words), draw(st.none() | st.just({"type": "string"})))
        else:  # a workflow with an inbox
            author.hear(draw(words))
    if draw(st.booleans()):
        ends = [State.COMPLETED, State.FAILED, State.CANCELED, State.REJECTED]
        author.end(draw(st.sampled_from(ends)), draw(st.none() | words))
    return author.logged()


def task_of(events: Sequence[LoggedEvent]) -> Task:
    """The row; its state and status must not matter to a fold."""
    return Task(
        task_id=TASK_ID,
        scope=Scope(agent="a"),
        context_id=CONTEXT_ID,
        ledger_id=LedgerId("task-1"),
        workflow="w",
        version=1,
        state=State.WORKING,
        status={"state": "working"},
        status_at=Millis(0),
        step=StepName("start"),
        visit=Visit(1),
        attempt=1,
        crashes=0,
        fence=Fence(1),
        lease_owner=None,
        ready_at=None,
        generation=Seq(len(events)),
        pause_id=None,
        pause_deadline_at=None,
        give_up_at=Millis(0),
        cancel_requested_at=None,
        held_reason=None,
        metadata={"project": "p"},
        created_at=Millis(0),
        updated_at=Millis(0),
        trimmed=Seq(0),
    )
