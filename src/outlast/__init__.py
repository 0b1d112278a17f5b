"""Outlast: a durable runtime for A2A agents. What an author imports."""

from typing import TYPE_CHECKING

from outlast.model.content import Artifact, Data, File, Message, Text
from outlast.model.errors import (
    AuthorError,
    DeadlinePassed,
    Failed,
    NotDone,
    Permanent,
    Rejected,
    RetryAfter,
)
from outlast.model.retry import Retry
from outlast.model.task import Caller
from outlast.workflow.agent import Agent, Skill
from outlast.workflow.answers import Answer
from outlast.workflow.context import Context
from outlast.workflow.mapping import ItemError
from outlast.workflow.next import Next
from outlast.workflow.workflow import Workflow

if TYPE_CHECKING:
    from outlast.client import Client
else:
    # A type checker must not see this function: it would take every name for one of this module.
    def __getattr__(name: str) -> object:
        # The client brings httpx and half of the SDK, and an agent that calls none needs neither.
        if name == "Client":
            from outlast.client import Client

            return Client
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Answer",
    "Artifact",
    "AuthorError",
    "Caller",
    "Client",
    "Context",
    "Data",
    "DeadlinePassed",
    "Failed",
    "File",
    "ItemError",
    "Message",
    "Next",
    "NotDone",
    "Permanent",
    "Rejected",
    "Retry",
    "RetryAfter",
    "Skill",
    "Text",
    "Workflow",
    "__version__",
]
