"""The protocol's eleven methods, on the store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, aclosing, nullcontext
from dataclasses import replace
from functools import partial

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import a2a_pb2 as pb

from outlast.gateway.authorizing import AuthorizeRequest, Authorizing
from outlast.gateway.cards import extended_card
from outlast.gateway.closing import Closing
from outlast.gateway.config import GatewayConfig
from outlast.gateway.errors import translated
from outlast.gateway.listing import Listing
from outlast.gateway.modes import check_modes
from outlast.gateway.patience import persist
from outlast.gateway.push import PushConfigs
from outlast.gateway.quotas import Quotas
from outlast.gateway.reading import Readings, Seen
from outlast.gateway.scopes import (
    AboutTask,
    Addressed,
    Identity,
    ResolveIdentity,
    tenant_of,
    without_authentication,
)
from outlast.gateway.sending import Sends
from outlast.gateway.sends import read_send
from outlast.gateway.stream import Item, Streams, until_settled, until_terminal
from outlast.gateway.tails import Tails
from outlast.gateway.waiting import Left, Waiting, read_newer
from outlast.model.errors import (
    InvalidParams,
    TaskNotFound,
    Unauthenticated,
    UnsupportedOperation,
)
from outlast.model.ids import TaskId
from outlast.model.task import Scope
from outlast.model.topics import task_topic, work_topic
from outlast.store.database import Wakeups
from outlast.store.protocols import LogStore, Sent, TaskStore, WebhookStore
from outlast.wire.events import Update
from outlast.wire.extension import EXTENSION_URI, LAST_EVENT_ID, View, read_event_id
from outlast.wire.fold import check_history_length
from outlast.wire.messages import message_to_proto
from outlast.workflow.agent import Agent

Event = pb.Message | pb.Task | Update


class OutlastRequestHandler(RequestHandler):
    """Answers A2A calls from the store, and holds no task state.

    Whatever a method raises is one of the protocol's errors. A method that waits holds no database
    connection meanwhile; it ends when its caller leaves or the gateway closes, and the task goes
    on either way.
    """

    def __init__(
        self,
        agent: Agent,
        tasks: TaskStore,
        log: LogStore,
        wakeups: Wakeups,
        config: GatewayConfig | None = None,
        *,
        identify: ResolveIdentity | None = None,
        webhooks: WebhookStore | None = None,
    ) -> None:
        """A handler for the tasks of this agent. Without `identify` nobody is authenticated; push
        notifications want `webhooks`.

        Raises AuthorError when nothing says which of several workflows a message starts.
        """
        agent.check_routed()
        self.config = config or GatewayConfig()
        self.closing = Closing()
        self._card: pb.AgentCard | None = None
        self._agent = agent
        self._tasks = tasks
        self._wakeups = wakeups
        self._identify = identify or without_authentication(agent.name)
        self._quotas = Quotas(self.config)
        self._sends = Sends(agent, tasks, log, wakeups, self.config)
        self._push = PushConfigs(webhooks, self.config)
        self._authorizing = Authorizing(tasks, wakeups, self.config)
        self._listing = Listing(tasks, self.config)
        tails = Tails(log, wakeups, self.closing, self.config)
        self._readings = Readings(tasks, log, self.config)
        self._waiting = Waiting(tasks, tails, self.config)
        self._streams = Streams(self._readings, tails)

    def close(self) -> None:
        """End what waits: streams where they are, blocking sends with the task as it is."""
        self.closing.close()

    # --- sends --------------------------------------------------------------------------------

    async def on_message_send(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> pb.Task | pb.Message:
        with translated("SendMessage"):
            identity = self._identity(params, context)
            waits = not params.configuration.return_immediately
            with self._quotas.open(identity.scope) if waits else nullcontext():
                sent = await self._accept(params, identity, context)
                if sent.task_id is None:
                    return _reply_of(sent)
                if waits:
                    left: Left | None = context.state.get("left")
                    await self._waiting.until_settled(
                        identity.scope, sent.task_id, left, until=identity.expires_at
                    )
            return await self._read(
                identity.scope, sent.task_id, context, _history_length(params.configuration)
            )

    async def on_message_send_stream(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        async with aclosing(self.stream_of_send(params, context)) as items:
            async for item in items:
                yield item.event
                del item

    async def stream_of_send(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Item, None]:
        """SendStreamingMessage for bindings that tell readers where they are in the log."""
        with translated("SendStreamingMessage"), ExitStack() as opened:
            identity = self._identity(params, context)
            opened.enter_context(self._quotas.open(identity.scope))
            seen = self._seen(context)
            sent = await self._accept(params, identity, context)
            if sent.task_id is None:
                yield Item(_reply_of(sent))
                return
            items = self._streams.follow(
                identity.scope,
                sent.task_id,
                self.view_of(context),
                ends=until_settled,
                history_length=_history_length(params.configuration),
                seen=seen,
                answered_by=params.message.message_id,
                until=identity.expires_at,
                kept=partial(self._quotas.keep_open, identity.scope),
            )
            async with aclosing(items):
                async for item in items:
                    yield item
                    del item

    async def _accept(
        self, params: pb.SendMessageRequest, identity: Identity, context: ServerCallContext
    ) -> Sent:
        """Everything that can be refused is refused before anything is written."""
        self._quotas.send(identity.scope)
        webhook = self._push.of_send(params, identity.scope)
        check_history_length(_history_length(params.configuration))
        send = read_send(params, identity, _headers(context), self.config)
        check_modes(params, self._agent)
        return await self._sends.accept(replace(send, webhook=webhook))

    # --- tasks --------------------------------------------------------------------------------

    async def on_get_task(self, params: pb.GetTaskRequest, context: ServerCallContext) -> pb.Task:
        with translated("GetTask"):
            identity = self._identity(params, context)
            length = _history_length(params)
            check_history_length(length)
            task_id = _task_id(params.id)
            await self._until_newer(identity, task_id, context)
            return await self._read(identity.scope, task_id, context, length)

    async def _until_newer(
        self, identity: Identity, task_id: TaskId, context: ServerCallContext
    ) -> None:
        """Of plain 1.0 nobody expects a GetTask that waits: only our extension's clients do."""
        if not self.view_of(context).extended:
            return
        if (newer := read_newer(_headers(context))) is not None:
            left: Left | None = context.state.get("left")
            with self._quotas.open(identity.scope):
                await self._waiting.until_newer(
                    identity.scope, task_id, newer, left, until=identity.expires_at
                )

    async def on_subscribe_to_task(
        self, params: pb.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        async with aclosing(self.stream_of_task(params, context)) as items:
            async for item in items:
                yield item.event
                del item

    async def stream_of_task(
        self, params: pb.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Item, None]:
        """SubscribeToTask for bindings that tell readers where they are in the log."""
        with translated("SubscribeToTask"), ExitStack() as opened:
            identity = self._identity(params, context)
            opened.enter_context(self._quotas.open(identity.scope))
            items = self._streams.follow(
                identity.scope,
                _task_id(params.id),
                self.view_of(context),
                ends=until_terminal,
                seen=self._seen(context),
                refuse_ended=True,
                until=identity.expires_at,
                kept=partial(self._quotas.keep_open, identity.scope),
            )
            async with aclosing(items):
                async for item in items:
                    yield item
                    del item

    async def on_cancel_task(
        self, params: pb.CancelTaskRequest, context: ServerCallContext
    ) -> pb.Task:
        with translated("CancelTask"):
            scope = self._identity(params, context).scope
            task_id = _task_id(params.id)
            await persist(lambda: self._tasks.cancel(scope, task_id), self.config.store_patience_s)
            self._wakeups.send([task_topic(task_id), work_topic(scope.agent)])
            return await self._read(scope, task_id, context, None)

    async def on_authorize_task(
        self, task_id: str, body: bytes, context: ServerCallContext
    ) -> tuple[bool, pb.Task]:
        """Not one of the protocol's: gives a task in AUTH_REQUIRED what it waits for. False when
        this pause was authorized before."""
        with translated("AuthorizeTask"):
            request = AuthorizeRequest.from_json(body)
            scope = self._identity(request, context).scope
            first = await self._authorizing.accept(scope, _task_id(task_id), request)
            return first, await self._read(scope, TaskId(task_id), context, None)

    async def on_list_tasks(
        self, params: pb.ListTasksRequest, context: ServerCallContext
    ) -> pb.ListTasksResponse:
        with translated("ListTasks"):
            scope = self._identity(params, context).scope
            with self._quotas.open(scope):
                return await self._listing.page(params, scope, self.view_of(context))

    async def _read(
        self,
        scope: Scope,
        task_id: TaskId,
        context: ServerCallContext,
        history_length: int | None,
    ) -> pb.Task:
        reading = await self._readings.now(
            scope, task_id, self.view_of(context), history_length=history_length
        )
        return reading.task

    def _identity(self, params: Addressed, context: ServerCallContext) -> Identity:
        return self._identify(context, tenant_of(context, params))

    def view_of(self, context: ServerCallContext) -> View:
        """How the caller sees tasks."""
        return View(extended=EXTENSION_URI in context.requested_extensions, epoch=self.config.epoch)

    def _seen(self, context: ServerCallContext) -> Seen | None:
        """Up to where the caller has seen the log, if it says so."""
        said = _headers(context).get(LAST_EVENT_ID.lower())
        return None if said is None else Seen(seq=read_event_id(said, self.config.epoch))

    # --- push notification configs ------------------------------------------------------------

    async def on_create_task_push_notification_config(
        self, params: pb.TaskPushNotificationConfig, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        with translated("CreateTaskPushNotificationConfig"):
            scope, task_id = self._task_of(params, context)
            return await self._push.create(params, scope, task_id)

    async def on_get_task_push_notification_config(
        self, params: pb.GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        with translated("GetTaskPushNotificationConfig"):
            scope, task_id = self._task_of(params, context)
            return await self._push.get(scope, task_id, params.id)

    async def on_list_task_push_notification_configs(
        self, params: pb.ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> pb.ListTaskPushNotificationConfigsResponse:
        with translated("ListTaskPushNotificationConfigs"):
            scope, task_id = self._task_of(params, context)
            return await self._push.page(params, scope, task_id)

    async def on_delete_task_push_notification_config(
        self, params: pb.DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        with translated("DeleteTaskPushNotificationConfig"):
            scope, task_id = self._task_of(params, context)
            await self._push.delete(scope, task_id, params.id)

    def _task_of(self, params: AboutTask, context: ServerCallContext) -> tuple[Scope, TaskId]:
        scope = self._identity(params, context).scope
        self._push.check_supported()
        return scope, _task_id(params.task_id, path="taskId")

    # --- the card -----------------------------------------------------------------------------

    def publish(self, card: pb.AgentCard) -> None:
        """This is the public card; the extended one says more."""
        self._card = card

    async def on_get_extended_agent_card(
        self, params: pb.GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> pb.AgentCard:
        with translated("GetExtendedAgentCard"):
            identity = self._identity(params, context)
            if self._card is None or not self._card.capabilities.extended_agent_card:
                # Not ExtendedAgentCardNotConfiguredError: that is for a card which promises one
                # (§3.3.4), and ours promises what there is.
                raise UnsupportedOperation("this agent has no extended card")
            if not identity.caller.subject:
                raise Unauthenticated("the extended card is for known callers", is_missing=True)
            return extended_card(self._card, self._agent)


def _headers(context: ServerCallContext) -> Mapping[str, str]:
    headers: Mapping[str, str] = context.state.get("headers", {})
    return headers


def _reply_of(sent: Sent) -> pb.Message:
    assert sent.reply is not None, "a send stands for a task or a reply"
    return message_to_proto(sent.reply)


def _history_length(params: pb.SendMessageConfiguration | pb.GetTaskRequest) -> int | None:
    """Unset and 0 are not the same: all of the history, and none."""
    return params.history_length if params.HasField("history_length") else None


def _task_id(text: str, *, path: str = "id") -> TaskId:
    """The id of a task, which may exist. Raises InvalidParams for none, and TaskNotFound for one
    that no task can have."""
    if not text:
        raise InvalidParams("is required", path=path)
    if "\0" in text or len(text) > 255:
        raise TaskNotFound(text[:64])
    return TaskId(text)
