"""Sends: a caller's message becomes a task, a direct answer, or the answer to a question.

A send is made under a key. Whoever repeats it, the caller after a lost reply or this gateway after
a lost commit, gets what the first one got.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outlast.gateway.config import GatewayConfig
from outlast.gateway.follow_up import FollowUps
from outlast.gateway.patience import persist
from outlast.gateway.router import Router
from outlast.gateway.sends import Send, of_task
from outlast.model.content import Message
from outlast.model.ids import ContextId, Millis, new_message_id, new_task_id, uuid7
from outlast.model.topics import task_topic, work_topic
from outlast.store.database import Wakeups
from outlast.store.protocols import LogStore, NewTask, Sent, TaskStore
from outlast.workflow.agent import Agent
from outlast.workflow.workflow import Workflow


class Sends:
    """Takes sends to the store."""

    def __init__(
        self,
        agent: Agent,
        tasks: TaskStore,
        log: LogStore,
        wakeups: Wakeups,
        config: GatewayConfig,
    ) -> None:
        self._router = Router(agent, config.router_timeout_s)
        self._tasks = tasks
        self._wakeups = wakeups
        self._config = config
        self._follow_ups = FollowUps(agent, tasks, log, config)

    async def accept(self, send: Send) -> Sent:
        """What the send stands for, now or since its first time: a task, or a direct Message.

        Raises CallerError for what cannot be done, StoreUnavailable when the store stays away,
        and what the author's router raises.
        """
        if send.message.task_id:
            sent = await self._follow_ups.accept(send)
        else:
            sent = await self._recall(send) or await self._start(send)
        if sent.task_id is not None:
            # After the commit; also for a repeat, whose first may have died before it rang.
            agent = send.identity.scope.agent
            self._wakeups.send([work_topic(agent), task_topic(sent.task_id)])
        return sent

    async def _recall(self, send: Send) -> Sent | None:
        """What an earlier send under this key got: the router is asked once, not once per try."""
        if not send.key.is_callers:
            return None
        return await persist(
            lambda: self._tasks.recall(send.identity.scope, send.key.text, send.digest),
            self._config.store_patience_s,
        )

    async def _start(self, send: Send) -> Sent:
        chosen = await self._router.choose(send.message, send.identity.caller)
        if isinstance(chosen, Message):
            reply = _direct(chosen, send.message)
            return await persist(
                lambda: self._tasks.reply(
                    send.identity.scope, send.key.text, send.digest, reply.to_json()
                ),
                self._config.store_patience_s,
            )
        new = _new_task(send, chosen, self._config.max_open_tasks)
        return await persist(lambda: self._tasks.create(new), self._config.store_patience_s)


def _new_task(send: Send, workflow: Workflow[Any], max_open: int | None) -> NewTask:
    task_id = new_task_id()
    context_id = ContextId(send.message.context_id or str(uuid7()))
    return NewTask(
        task_id=task_id,
        scope=send.identity.scope,
        context_id=context_id,
        workflow=workflow.name,
        version=workflow.version,
        first_step=workflow.steps[0].name,
        max_age=Millis(int(workflow.max_age.total_seconds() * 1000)),
        message=of_task(send.body, task_id, context_id),
        caller=send.identity.caller.to_json(),
        metadata=send.metadata,
        send_key=send.key.text,
        digest=send.digest,
        webhook=send.webhook,
        max_open=max_open,
    )


def _direct(answer: Message, to: Message) -> Message:
    """The author's direct answer, in the caller's conversation if there is one."""
    return replace(
        answer,
        role="agent",
        message_id=answer.message_id or new_message_id(),
        context_id=answer.context_id or to.context_id,
    )
