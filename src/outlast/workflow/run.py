"""One run of one step: what its verbs share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import structlog

from outlast.model.commit import Event, Move
from outlast.model.content import Data, Message, Part, Text
from outlast.model.errors import AuthorError
from outlast.model.ids import Visit
from outlast.model.lease import Lease
from outlast.model.ledger import LedgerEntry, visit_key
from outlast.workflow.checkpoint import changed_fields
from outlast.workflow.jsontype import shown
from outlast.workflow.outbox import Outbox
from outlast.workflow.parts import part_json
from outlast.workflow.session import Session
from outlast.workflow.steps import Step

if TYPE_CHECKING:
    from outlast.workflow.workflow import Workflow

C = TypeVar("C")


@dataclass(eq=False)
class Call:
    """An effect that this run calls or has called. `waiters` are the verbs that want its result;
    `is_outside` tells that the call has left, so that nothing may interrupt it."""

    digest: str
    task: asyncio.Task[str] | None = None
    waiters: int = 0
    is_outside: bool = False


class Run(Generic[C]):
    """What the verbs of one context share. The checkpoint is None until a start has made one."""

    def __init__(self, session: Session, workflow: Workflow[C], step: Step) -> None:
        self.session = session
        self.workflow = workflow
        self.step = step
        self.attempt = session.lease.attempt
        self.outbox = Outbox(session)
        self.calls: dict[str, Call] = {}
        self.passed: set[str] = set()
        self.waiting: str | None = None
        self.checkpoint: C | None = None
        self.read = session.lease.read_seq
        self.reads_inbox = False
        self._committed: str | None = None
        self._used: set[str] = set()
        if session.lease.checkpoint is not None:
            self.checkpoint = workflow.checkpoint.decode(session.lease.checkpoint)
            # Not the stored text: a type with a new default writes it otherwise.
            self._committed = workflow.checkpoint.as_written(self.checkpoint)

    @property
    def lease(self) -> Lease:
        return self.session.lease

    @property
    def log(self) -> Any:
        """A logger bound with all that tells this run from others."""
        lease = self.lease
        return structlog.get_logger("outlast.step").bind(
            task_id=lease.task_id,
            context_id=lease.context_id,
            workflow=lease.workflow,
            version=lease.version,
            step=lease.step,
            visit=lease.visit,
            attempt=self.attempt,
        )

    # --- keys ---------------------------------------------------------------------------------

    def key(self, verb: str, key: str | None = None) -> str:
        """The ledger's key of something that belongs to this visit."""
        return visit_key(Visit(self.lease.visit), verb, key)

    @contextmanager
    def using(self, verb: str, key: str, ledger_key: str) -> Iterator[None]:
        """The key is used up for this run, unless the verb fails and so keeps nothing.

        Raises AuthorError when the run has used it before.
        """
        if ledger_key in self._used:
            raise AuthorError(
                f"{verb} got the key {key!r} twice in one run of step {self.step.name}: the second "
                "call would get the first one's value.",
                f"make the key tell them apart, for example {key!r} with an id or a counter.",
            )
        self._used.add(ledger_key)
        try:
            yield
        except BaseException:
            self._used.discard(ledger_key)
            raise

    def check_digest(
        self, entry: LedgerEntry, digest: str, request: str, *, verb: str, key: str
    ) -> None:
        """Raise AuthorError when the ledger's entry stands for another request."""
        if entry.digest is None or entry.digest == digest:
            return
        before = "another one" if entry.request is None else shown(entry.request)
        raise AuthorError(
            f"{verb} {key!r} asks for something else than the same key did before: "
            f"{before}, now {shown(request)}.",
            "use another key for another request; a request that is computed comes from ctx.memo.",
        )

    # --- the checkpoint -----------------------------------------------------------------------

    def encoded(self) -> str | None:
        """The checkpoint as it is now. Raises AuthorError when it cannot be kept."""
        return None if self.checkpoint is None else self.workflow.checkpoint.encode(self.checkpoint)

    def changed(self) -> list[str]:
        """The fields in which the checkpoint differs from the committed one."""
        if self.checkpoint is None or self._committed is None:
            return []
        now = self.workflow.checkpoint.as_written(self.checkpoint)
        return [] if now == self._committed else changed_fields(self._committed, now)

    async def commit(self, status: Event | None) -> None:
        """Write the checkpoint, as it is when this is called, and everything said since."""
        checkpoint = self.encoded()
        lease = self.lease
        move = Move(
            checkpoint=checkpoint,
            step=lease.step,
            visit=lease.visit,
            ending_as=lease.ending_as,
            read=self.read,
        )
        events = await self.outbox.take()
        await self.session.write(events=events if status is None else [*events, status], move=move)
        self._committed = checkpoint
        self.attempt = 1

    # --- messages -----------------------------------------------------------------------------

    def message(self, text: str | None, data: Any, *more: Part) -> dict[str, Any] | None:
        """A message of the agent in this task, as A2A's JSON; None when there is nothing in it."""
        parts: list[Part] = [] if text is None else [Text(text)]
        parts += [] if data is None else [Data(data)]
        parts += more
        if not parts:
            return None
        lease = self.lease
        body = Message.agent().to_json()
        body["parts"] = [part_json(part, what="the message") for part in parts]
        return body | {"contextId": lease.context_id, "taskId": lease.task_id}


def checkpoint_of(run: Run[C]) -> C:
    """The run's checkpoint. Raises AuthorError in a start, which has yet to make it."""
    if run.checkpoint is None:
        raise AuthorError(
            f"{run.step.name} uses ctx.checkpoint, and there is none yet.",
            "a start returns the first checkpoint; what it has to go by is ctx.message.",
        )
    return run.checkpoint
