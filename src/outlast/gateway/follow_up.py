"""Follow-ups: messages to a task that exists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.gateway.config import GatewayConfig
from outlast.gateway.limits import check_answer
from outlast.gateway.patience import persist
from outlast.gateway.pauses import pause_named
from outlast.gateway.sends import Send, of_task
from outlast.model.errors import GenerationMismatch, InvalidParams, UnsupportedOperation
from outlast.model.ids import Seq, TaskId
from outlast.model.pause import Ask, authorization
from outlast.model.task import State, Task
from outlast.store.protocols import AnswerTo, LogStore, Sent, TaskStore, ToInbox
from outlast.wire.extension import EXTENSION_URI, View, said_under_uri
from outlast.workflow.agent import Agent
from outlast.workflow.answers import AnswerRecord

_PAUSE = f"message.metadata['{EXTENSION_URI}'].pause"


class FollowUps:
    """Takes a message to its task, if the task waits for one."""

    def __init__(
        self, agent: Agent, tasks: TaskStore, log: LogStore, config: GatewayConfig
    ) -> None:
        self._agent = agent
        self._tasks = tasks
        self._log = log
        self._config = config

    async def accept(self, send: Send) -> Sent:
        """Answer the task's question with the message, or put it into the inbox of a task that
        works and has one; once, however often it is sent.

        Raises TaskNotFound; InvalidParams for another context, and for an answer that does not fit
        the question's schema, which leaves the task paused; GenerationMismatch when the task
        is not where the message insists that it is; UnsupportedOperation when it does not ask, or
        not any more what the message answers.
        """
        task = await self._task_of(send)
        # The key is looked up after the task was read: if an earlier send of this message is why
        # the task no longer asks, its key is there by now.
        if (first := await self._recall(send)) is not None:
            return first
        _check_generation(send, task)
        if self._is_for_inbox(send, task):
            sent = _to_inbox(send, task)
            return await persist(lambda: self._tasks.receive(sent), self._config.store_patience_s)
        if not task.state.is_paused or task.pause_id is None:
            raise UnsupportedOperation(_why_not(task))
        self._check_pause(send, task.pause_id)
        answer = await self._answer(send, task, task.pause_id)
        return await persist(lambda: self._tasks.answer(answer), self._config.store_patience_s)

    async def _task_of(self, send: Send) -> Task:
        task_id = TaskId(str(send.message.task_id))
        task = await persist(
            lambda: self._tasks.get(send.identity.scope, task_id), self._config.store_patience_s
        )
        if send.message.context_id not in (None, task.context_id):
            raise InvalidParams(
                "is not the task's context; leave it out, it follows from taskId",
                path="message.contextId",
            )
        return task

    async def _recall(self, send: Send) -> Sent | None:
        if not send.key.is_callers:
            return None
        return await persist(
            lambda: self._tasks.recall(send.identity.scope, send.key.text, send.digest),
            self._config.store_patience_s,
        )

    def _is_for_inbox(self, send: Send, task: Task) -> bool:
        """A message to a task that works; but one that names a pause is an answer, and late."""
        works = task.state in (State.SUBMITTED, State.WORKING)
        return (
            works and _pause_of(send) is None and self._agent.has_inbox(task.workflow, task.version)
        )

    def _check_pause(self, send: Send, pause_id: Seq) -> None:
        """A caller that names the pause which it answers never answers a later question."""
        named = _pause_of(send)
        view = View(epoch=self._config.epoch)
        if named is not None and pause_named(named, view, path=_PAUSE) != pause_id:
            raise UnsupportedOperation(
                f"the question that this answers ({named}) is over; the task asks another one now"
                f" ({view.pause_name(pause_id)})"
            )

    async def _answer(self, send: Send, task: Task, pause_id: Seq) -> AnswerTo:
        question = await persist(
            lambda: self._log.event(task.task_id, pause_id), self._config.store_patience_s
        )
        if question is None:
            raise LookupError(f"task {task.task_id} is paused at {pause_id}, which is no event")
        ask = Ask.from_json(question.body["ask"])
        if task.state is State.AUTH_REQUIRED and not ask.in_band:
            raise UnsupportedOperation(_why_not(task))
        result = _result(task.state, ask, send)
        check_answer(result.get("value"), self._config)
        return AnswerTo(
            task_id=task.task_id,
            scope=task.scope,
            pause_id=pause_id,
            ledger_key=ask.ledger_key,
            result=result,
            message=of_task(send.body, task.task_id, task.context_id),
            caller=send.identity.caller.to_json(),
            send_key=send.key.text,
            digest=send.digest,
            state=task.state,
            if_generation=send.if_generation,
            webhook=send.webhook,
        )


def _check_generation(send: Send, task: Task) -> None:
    """Before anything else is said about a task that the caller has not seen as it is. The store
    looks once more, where nothing can come in between."""
    insisted = send.if_generation
    if insisted is not None and insisted != task.generation:
        raise GenerationMismatch(task.task_id, expected=insisted, current=task.generation)


def _pause_of(send: Send) -> Any:
    return said_under_uri(send.message.metadata, path="message.metadata").get("pause")


def _to_inbox(send: Send, task: Task) -> ToInbox:
    return ToInbox(
        task_id=task.task_id,
        scope=task.scope,
        message=of_task(send.body, task.task_id, task.context_id),
        caller=send.identity.caller.to_json(),
        send_key=send.key.text,
        digest=send.digest,
        if_generation=send.if_generation,
        webhook=send.webhook,
    )


def _result(state: State, ask: Ask, send: Send) -> Mapping[str, Any]:
    """What the ledger keeps of the message: the answer, or what it authorizes with."""
    if state is State.AUTH_REQUIRED:
        said = send.message
        return authorization(said.text if said.data is None else said.data)
    return AnswerRecord.read(ask.schema, send.message, send.identity.caller).to_json()


def _why_not(task: Task) -> str:
    if task.state.is_terminal:
        return (
            f"the task has ended: it is {task.state.value}; send a message without taskId to start"
            " anew"
        )
    if task.state is State.AUTH_REQUIRED:
        return (
            "the task waits for an authorization, which no message gives: POST it to"
            f" /tasks/{task.task_id}:authorize"
        )
    return f"the task does not wait for an answer: it is {task.state.value}"
