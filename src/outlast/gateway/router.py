"""What a message without a task starts: a workflow, or a direct answer."""

from __future__ import annotations

import asyncio
from typing import Any

from outlast.model.content import Message
from outlast.model.errors import InvalidParams
from outlast.model.task import Caller
from outlast.wire.extension import EXTENSION_URI, said_under_uri
from outlast.workflow.agent import Agent
from outlast.workflow.rules import authors_code
from outlast.workflow.workflow import Workflow

_PLACE = f"message.metadata['{EXTENSION_URI}']"


class Router:
    """Asks the author's router, or does what the caller named."""

    def __init__(self, agent: Agent, timeout_s: float) -> None:
        self._agent = agent
        self._timeout_s = timeout_s

    async def choose(self, message: Message, caller: Caller) -> Workflow[Any] | Message:
        """The workflow for the message, which fits its input; or the agent's direct answer.

        Raises InvalidParams for an unknown workflow and for an input that does not fit, and
        TimeoutError or whatever the author's router raises, which is not for callers.
        """
        chosen: Workflow[Any] | Message | None = self._named(message)
        if chosen is None:
            async with asyncio.timeout(self._timeout_s):
                with authors_code():
                    chosen = await self._agent.pick(message, caller)
        if isinstance(chosen, Workflow):
            chosen.check_input(message)
        return chosen

    def _named(self, message: Message) -> Workflow[Any] | None:
        said = said_under_uri(message.metadata, path="message.metadata")
        name, version = said.get("workflow"), said.get("version")
        if name is None:
            return None
        if not isinstance(name, str):
            raise InvalidParams("must be a text", path=f"{_PLACE}.workflow")
        if version is not None and (not isinstance(version, int) or isinstance(version, bool)):
            raise InvalidParams("must be a whole number", path=f"{_PLACE}.version")
        try:
            return self._agent.workflow(name, version)
        except InvalidParams:
            raise InvalidParams(
                f"there is no workflow {_called(name, version)}; there are {self._known()}",
                path=f"{_PLACE}.workflow",
            ) from None

    def _known(self) -> str:
        numbers = sorted((known.name, known.version) for known in self._agent.workflows)
        return ", ".join(_called(name, version) for name, version in numbers)


def _called(name: str, version: int | None) -> str:
    return name if version is None else f"{name} version {version}"
