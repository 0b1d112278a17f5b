"""The task's conversation, read from the log: a checkpoint need not copy it."""

from __future__ import annotations

from outlast.model.commit import EventKind, LoggedEvent
from outlast.model.content import Message
from outlast.model.errors import AuthorError
from outlast.model.ids import Seq
from outlast.workflow.session import Session

_PAGE = 100


async def read_history(session: Session, last: int | None) -> list[Message]:
    """The newest `last` messages, all without it, in order.

    Questions are among them once they are answered. Raises AuthorError for a negative `last`.
    """
    if last is not None and last < 0:
        raise AuthorError(f"history got last={last}.", "give the number of messages wanted.")
    newest_first: list[Message] = []
    answered: set[Seq] = set()
    before: Seq | None = None
    while last is None or len(newest_first) < last:
        page = await session.messages(before=before, limit=_PAGE)
        for event in reversed(page):
            _note_answer(event, answered)
            if event.kind is not EventKind.STATUS or event.seq in answered:
                newest_first.append(Message.from_json(event.body["message"]))
        if len(page) < _PAGE:
            break
        before = page[0].seq
    wanted = newest_first if last is None else newest_first[:last]
    return wanted[::-1]


def _note_answer(event: LoggedEvent, answered: set[Seq]) -> None:
    # Backwards through the log an answer comes before its question.
    if event.kind is EventKind.MESSAGE and event.body.get("answers") is not None:
        answered.add(Seq(event.body["answers"]))
