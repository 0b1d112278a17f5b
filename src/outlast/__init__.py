"""Outlast: a durable runtime for A2A agents. What an author imports."""

from outlast.client import Client
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
