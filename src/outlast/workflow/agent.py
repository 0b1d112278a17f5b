"""Agents: a stable name, what it offers, and the workflows that do it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from outlast.model.content import Message
from outlast.model.errors import AuthorError, InvalidParams
from outlast.model.media import is_media_range
from outlast.model.task import Caller
from outlast.workflow.limits import check_name
from outlast.workflow.signatures import check_async, check_takes, name_of
from outlast.workflow.workflow import Workflow

Route = Callable[[Message, Caller], Coroutine[Any, Any, "Workflow[Any] | Message"]]
Resources = Callable[[], AbstractAsyncContextManager[Any]]

MODES = ("text/plain", "application/json")
"""What text and data are."""


@dataclass(frozen=True)
class Skill:
    """Something that the agent can do, as its card tells it (specification §4.4.5)."""

    id: str
    name: str
    description: str
    tags: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()


class Agent:
    """What a process runs: the first part of every scope, so never rename one in use."""

    def __init__(
        self,
        name: str,
        *,
        description: str,
        skills: Sequence[Skill],
        workflows: Sequence[Workflow[Any]],
        resources: Resources | None = None,
        input_modes: Sequence[str] = MODES,
        output_modes: Sequence[str] = MODES,
        extended_skills: Sequence[Skill] = (),
    ) -> None:
        """An agent of these workflows; several versions of one name may stand side by side.

        resources: makes an async context manager, entered once per worker process; what it gives
        is `ctx.resources`. input_modes: the media types of parts that the agent reads (`image/*`
        is all of a kind): others are refused before a task begins. output_modes: those that it
        says: a caller who accepts none of them is refused. extended_skills: what the card shows
        beside `skills` to callers who have authenticated; it keeps nobody from using them.

        Raises AuthorError for a workflow without steps, for two with the same name and version,
        for an agent without any, and for a mode that is no media type.
        """
        self.name = check_name(name, of="an agent")
        self.description = description
        self.skills = tuple(skills)
        self.extended_skills = tuple(extended_skills)
        self.input_modes = _modes(input_modes, name)
        self.output_modes = _modes(output_modes, name)
        self.router: Route | None = None
        self._resources = resources
        self._workflows: dict[tuple[str, int], Workflow[Any]] = {}
        for workflow in workflows:
            self._add(workflow)
        if not self._workflows:
            raise AuthorError(
                f"Agent {name} has no workflows.", "pass at least one: workflows=[review]."
            )
        if resources is not None and not callable(resources):
            raise AuthorError(
                f"The resources of agent {name} are {type(resources).__name__}, already made.",
                "pass the function: resources=open_clients, decorated with @asynccontextmanager; "
                "each worker process calls it once.",
            )

    def __repr__(self) -> str:
        return f"<Agent {self.name}>"

    def route(self, fn: Route) -> Route:
        """Choose the workflow of a message that has no task yet, or answer it with a Message.

        `async def pick(message, caller)`, run in the gateway. Raises AuthorError for a second
        router and for one that cannot be called so.
        """
        if self.router is not None:
            raise AuthorError(
                f"Agent {self.name} has a second router: {name_of(self.router)} and {name_of(fn)}.",
                "keep one, and choose inside it.",
            )
        check_async(fn, role="route")
        check_takes(fn, 2, role="route", parameters="(message, caller)")
        self.router = fn
        return fn

    # --- what the roles ask -------------------------------------------------------------------

    @property
    def workflows(self) -> tuple[Workflow[Any], ...]:
        """Every version of every workflow."""
        return tuple(self._workflows.values())

    @property
    def default_workflow(self) -> Workflow[Any]:
        """The newest version of the only workflow. Raises AuthorError when there are several
        names, for then a router has to choose."""
        names = {workflow.name for workflow in self.workflows}
        if len(names) > 1:
            raise AuthorError(
                f"Agent {self.name} has several workflows and none is the default: "
                f"{', '.join(sorted(names))}.",
                "choose with @agent.route.",
            )
        return self.workflow(names.pop())

    def workflow(self, name: str, version: int | None = None) -> Workflow[Any]:
        """The workflow of this name and version, the newest when none is given.

        Raises InvalidParams when there is none: names come from callers.
        """
        versions = [known for known in self.workflows if known.name == name]
        if version is not None:
            versions = [known for known in versions if known.version == version]
        if not versions:
            number = "" if version is None else f" version {version}"
            raise InvalidParams(f"agent {self.name} has no workflow {name!r}{number}")
        return max(versions, key=lambda known: known.version)

    def runs(self, name: str, version: int) -> bool:
        """Whether the agent has this version of this workflow."""
        return (name, version) in self._workflows

    def has_inbox(self, name: str, version: int) -> bool:
        """Whether tasks of this version of this workflow take messages while they work."""
        return self.runs(name, version) and self._workflows[name, version].inbox

    def check_routed(self) -> None:
        """Raise AuthorError when nothing says which of several workflows a message starts."""
        if self.router is None:
            _ = self.default_workflow

    async def pick(self, message: Message, caller: Caller) -> Workflow[Any] | Message:
        """The workflow that the message starts, or the answer to it.

        Raises AuthorError when the router returns neither, and what the router raises.
        """
        if self.router is None:
            return self.default_workflow
        picked = await self.router(message, caller)
        if isinstance(picked, Message) or picked in self.workflows:
            return picked
        raise AuthorError(
            f"The router {name_of(self.router)} of agent {self.name} returned {picked!r}.",
            "return one of the agent's workflows, or Message.agent(…).",
        )

    def open_resources(self) -> AbstractAsyncContextManager[Any]:
        """What a worker process enters before it claims, and leaves after it has drained."""
        return nullcontext() if self._resources is None else self._resources()

    def _add(self, workflow: Workflow[Any]) -> None:
        workflow.check_complete()
        number = (workflow.name, workflow.version)
        if number in self._workflows:
            raise AuthorError(
                f"Agent {self.name} has two workflows {workflow.name} version {workflow.version}.",
                "raise the version of the newer one.",
            )
        self._workflows[number] = workflow


def _modes(said: Sequence[str], agent: str) -> tuple[str, ...]:
    modes = (said,) if isinstance(said, str) else tuple(said)
    if not modes or not all(map(is_media_range, modes)):
        raise AuthorError(
            f"Agent {agent} has the modes {', '.join(modes) or 'none'}.",
            'name media types: input_modes=["text/plain", "image/*"].',
        )
    return modes
