"""What a context knows of the task, and what the worker's attempt asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from outlast.model.commit import Event
from outlast.model.content import Message
from outlast.model.ids import ContextId, Seq, TaskId
from outlast.model.task import Caller
from outlast.workflow.rules import verb
from outlast.workflow.run import Run, checkpoint_of
from outlast.workflow.session import Session
from outlast.workflow.steps import Step

if TYPE_CHECKING:
    from typing import Self

    from outlast.workflow.workflow import Workflow

C = TypeVar("C")
R = TypeVar("R")


class Facts(Generic[C, R]):
    """One run of a step, without its verbs."""

    def __init__(self, run: Run[C]) -> None:
        self._run = run

    @classmethod
    def build(cls, session: Session, workflow: Workflow[C], step: Step) -> Self:
        """The context of one run. Raises AuthorError when the stored checkpoint no longer fits."""
        return cls(Run(session, workflow, step))

    # --- what the task is -----------------------------------------------------------------------

    @property
    def checkpoint(self) -> C:
        """All that the next step needs. Change it; a commit, or the step's return, keeps it."""
        if self._run.checkpoint is not None:
            return self._run.checkpoint
        with verb(self._run.session):
            return checkpoint_of(self._run)

    @checkpoint.setter
    def checkpoint(self, value: C) -> None:
        with verb(self._run.session):
            checkpoint_of(self._run)
            self._run.workflow.checkpoint.check_instance(value, of="the assignment")
            self._run.checkpoint = value

    @property
    def resources(self) -> R:
        """What the agent's `resources` gave this worker process."""
        return cast("R", self._run.session.resources)

    @property
    def message(self) -> Message:
        """The message that created the task."""
        return Message.from_json(self._run.session.first.body["message"])

    @property
    def latest(self) -> Message:
        """The last message received."""
        return Message.from_json(self._run.session.latest.body["message"])

    @property
    def caller(self) -> Caller:
        """Who sent the last message."""
        return Caller.from_json(self._run.session.latest.body.get("caller", {}))

    @property
    def task_id(self) -> TaskId:
        """The id of the task."""
        return self._run.lease.task_id

    @property
    def context_id(self) -> ContextId:
        """The conversation that the task belongs to."""
        return self._run.lease.context_id

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the caller sent along when it created the task."""
        return self._run.lease.metadata

    @property
    def attempt(self) -> int:
        """Which run this is since the last commit, from 1."""
        return self._run.attempt

    @property
    def log(self) -> Any:
        """A structlog logger bound with the ids of the task, its step, visit and attempt."""
        return self._run.log

    # --- what the attempt asks ------------------------------------------------------------------

    @property
    def step(self) -> Step:
        """The step that this is a run of."""
        return self._run.step

    def adopt(self, checkpoint: object) -> None:
        """Take what a start returned as the checkpoint. Raises AuthorError if it is none."""
        self._run.workflow.checkpoint.check_instance(checkpoint, of="start")
        self._run.checkpoint = cast("C", checkpoint)

    @property
    def has_provisional(self) -> bool:
        """Whether this run has written chunks that no commit has followed."""
        return bool(self._run.outbox.provisional)

    @property
    def read(self) -> Seq:
        """Up to where this run or a commit before it has read the inbox."""
        return self._run.read

    @property
    def reads_inbox(self) -> bool:
        """Whether this run has looked into the inbox."""
        return self._run.reads_inbox

    def encoded_checkpoint(self) -> str | None:
        """The checkpoint as text; None before the start has returned. Raises AuthorError."""
        return self._run.encoded()

    async def pending_events(self) -> Sequence[Event]:
        """What must be written with the commit, before its own event: once, for good."""
        return await self._run.outbox.take()

    async def take_commit(self) -> tuple[Sequence[Event], str | None]:
        """Events and checkpoint of the commit that the step's return is.

        A broken rule is raised as a Stopped, as from `commit`, which this is but for the write.
        """
        with verb(self._run.session):
            checkpoint = self.encoded_checkpoint()
            return await self.pending_events(), checkpoint

    def message_json(self, text: str | None, data: Any = None) -> dict[str, Any] | None:
        """A message of the agent in this task, for the event of a step's return."""
        return self._run.message(text, data)

    async def drained(self) -> None:
        """Return when no write of this run is under way any more."""
        await self._run.outbox.drained()
