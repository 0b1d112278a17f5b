"""The inbox: messages that callers send while the task works."""

from __future__ import annotations

from typing import Any

from outlast.model.content import Message
from outlast.model.errors import AuthorError
from outlast.workflow.run import Run


async def read_inbox(run: Run[Any]) -> list[Message]:
    """What came since the last commit, in order; the next commit counts it as read.

    Raises AuthorError in a workflow that has no inbox.
    """
    if not run.workflow.inbox:
        raise AuthorError(
            f"inbox was called in {run.workflow.name}, which has none.",
            "let it have one: Workflow(…, inbox=True).",
        )
    events = await run.session.inbox()
    run.reads_inbox = True
    if events:
        run.read = events[-1].seq
    return [Message.from_json(event.body["message"]) for event in events]
