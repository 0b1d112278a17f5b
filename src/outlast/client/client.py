"""The client: what a caller of an agent holds."""

from __future__ import annotations

import builtins
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self

import httpx
from a2a.types import a2a_pb2 as pb

from outlast.client.calls import Calls, Patience, card_at, repeated
from outlast.client.following import Following
from outlast.client.snapshot import Event, Link, Sent, Snapshot
from outlast.model.content import Data, Message
from outlast.model.errors import (
    NotCompleted,
    Refused,
    TaskCanceled,
    TaskFailed,
    TaskNotFound,
    TaskRejected,
    UnsupportedOperation,
)
from outlast.model.task import State
from outlast.wire.extension import EXTENSION_URI, IF_GENERATION
from outlast.wire.messages import to_proto
from outlast.wire.updates import under_uri

_ENDED: Mapping[State, type[NotCompleted]] = {
    State.FAILED: TaskFailed,
    State.CANCELED: TaskCanceled,
    State.REJECTED: TaskRejected,
}
_PAGE = 50


class Client:
    """Calls one A2A agent, over connections that may be cut at any time.

        async with Client("https://agent.example.com", auth=token) as client:
            sent = await client.send("Order three lamps")

    Works with any agent of A2A 1.0. One that speaks Outlast's extension also recognises repeats,
    so that a message is never taken twice, and lets streams go on where they were cut.
    """

    def __init__(
        self,
        agent: str | pb.AgentCard,
        *,
        auth: str | httpx.Auth | None = None,
        headers: Mapping[str, str] | None = None,
        tenant: str = "",
        patience: Patience | None = None,
        http: httpx.AsyncClient | None = None,
        trust_card: bool = False,
    ) -> None:
        """agent: its URL, or its card. auth: a bearer token, or what httpx takes. headers: go with
        every request. http: a client of your own, with its own credentials and limits, which you
        close. trust_card: send credentials wherever the card at the URL points, and not to the
        URL's own scheme, host and port alone; from https to http they never go."""
        self._agent = agent
        self._trust_card = trust_card
        self._tenant = tenant
        self._patience = patience or Patience()
        self._owned = http is None
        self._http = http or httpx.AsyncClient(
            auth=_Bearer(auth) if isinstance(auth, str) else auth,
            headers=dict(headers or {}),
            timeout=httpx.Timeout(60, connect=10),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        )
        self._calls: Calls | None = None

    async def __aenter__(self) -> Self:
        """Find the agent by its card. Raises ConfigError, also for a card that points where its
        caller's credentials must not go; and Unreachable."""
        try:
            card, url = self._agent, None
            if isinstance(card, str):
                url = given = card
                card = await repeated(lambda: card_at(given, self._http), self._patience)
            self._calls = Calls(
                card, self._http, self._patience, given=url, trust_card=self._trust_card
            )
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._owned:
            await self._http.aclose()

    @property
    def card(self) -> pb.AgentCard:
        """The agent's card."""
        return self._agent_calls.card

    @property
    def numbers_events(self) -> bool:
        """Whether the agent numbers its events, so that a cut stream goes on after the last one."""
        return self._agent_calls.is_ours

    # --- sending ------------------------------------------------------------------------------

    async def send(
        self,
        message: str | Message,
        *,
        task_id: str | None = None,
        context_id: str | None = None,
        wait: bool = True,
        key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        if_generation: int | None = None,
    ) -> Sent:
        """Send a message: it starts a task, or goes to one that exists.

        With `wait` it returns when the task has ended or asks something; else at once. All tries
        carry one message id and one key, so an agent that recognises repeats takes the message
        once; to any other agent it is sent again only when it certainly was not taken.

        key: the key, for repeats of your own, from another process too. if_generation: the
        generation of the task as you saw it; when something has happened since, the message is
        refused with GenerationMismatch, by an agent that speaks our extension.

        Raises Uncertain when nobody can say whether the message was taken, Unreachable, and what
        the agent refuses.
        """
        calls = self._agent_calls
        body = _message(message, task_id, context_id)
        if if_generation is not None:
            said = {**under_uri(body), IF_GENERATION: if_generation}
            body.metadata.update({EXTENSION_URI: said})
        request = pb.SendMessageRequest(message=body, tenant=self._tenant)
        if metadata:
            request.metadata.update(dict(metadata))
        # Ours start at once and are followed: nothing is lost with a long reply. An agent that
        # knows no generations might show a state from before the message.
        immediately = not wait or calls.is_ours
        request.configuration.return_immediately = immediately
        context = calls.context({"Idempotency-Key": key or body.message_id}, timeout=650)
        response = await calls.repeated(
            lambda: calls.send(request, context),
            task_id=task_id or "",
            repeatable=calls.recognises_repeats,
        )
        if response.HasField("message"):
            return Sent(reply=response.message)
        snapshot = Snapshot(response.task)
        if wait and not _is_settled(snapshot):
            snapshot = await self._settled(snapshot.task_id)
        return Sent(snapshot=snapshot)

    async def answer(
        self, task_id: str, answer: Any, *, pause: str | None = None, wait: bool = False
    ) -> Snapshot:
        """Answer the question that a task asks.

        answer: a text, a Message, or any JSON value. pause: the question that is meant, by its
        name; without it, the one that the task asks right now. An answer whose question is over by
        the time it arrives is refused, where the agent names its questions.

        Raises UnsupportedOperation when the task does not ask, or no longer that.
        """
        if pause is None:
            now = await self.get(task_id)
            if (question := now.question) is None:
                raise UnsupportedOperation(f"task {task_id} asks nothing: it is {now.state.value}")
            pause = question.pause
        message = answer if isinstance(answer, (str, Message)) else Message.user(Data(answer))
        if isinstance(message, str):
            message = Message.user(message)
        if pause is not None:
            said = dict(message.metadata or {})
            named = {**said, EXTENSION_URI: {**said.get(EXTENSION_URI, {}), "pause": pause}}
            message = replace(message, metadata=named)
        sent = await self.send(message, task_id=task_id, wait=wait)
        return sent.snapshot or await self.get(task_id)

    async def authorize(self, task_id: str, value: Any, *, pause: str | None = None) -> None:
        """Give a task that is AUTH_REQUIRED what it waits for, beside its conversation.

        An endpoint of Outlast's own. Raises UnsupportedOperation where the agent has none, before
        anything is sent to one that does not speak our extension, or when the task does not wait
        for it; TaskNotFound.
        """
        calls = self._agent_calls
        if not calls.is_ours:
            raise UnsupportedOperation("this agent takes no authorizations: it is not Outlast's")
        if pause is None:
            question = (await self.get(task_id)).question
            pause = None if question is None else question.pause
        tenant = f"/{self._tenant}" if self._tenant else ""
        url = f"{calls.http_url()}{tenant}/tasks/{task_id}:authorize"
        body = {"pause": pause, "value": value}

        async def call() -> None:
            response = await self._http.post(url, json=body, headers={"A2A-Version": "1.0"})
            if response.status_code in (429, 502, 503, 504):
                response.raise_for_status()
            if response.is_error:
                _refuse(response, task_id)

        await calls.repeated(call, task_id=task_id)

    # --- reading ------------------------------------------------------------------------------

    async def get(self, task_id: str, *, history_length: int | None = None) -> Snapshot:
        """The task as it is. Raises TaskNotFound."""
        calls = self._agent_calls
        request = pb.GetTaskRequest(id=task_id, tenant=self._tenant, history_length=history_length)
        return Snapshot(await calls.repeated(lambda: calls.get(request), task_id=task_id))

    async def list(
        self,
        *,
        context_id: str = "",
        state: State | None = None,
        changed_after: datetime | None = None,
        limit: int | None = None,
        history_length: int | None = None,
        include_artifacts: bool = False,
    ) -> builtins.list[Snapshot]:
        """The tasks that the agent shows you, those that changed last first; at most `limit`.

        changed_after: a time with a zone, by the agent's clock.
        """
        calls = self._agent_calls
        found: builtins.list[Snapshot] = []
        token = ""
        while limit is None or len(found) < limit:
            request = pb.ListTasksRequest(
                tenant=self._tenant,
                context_id=context_id,
                page_size=_PAGE if limit is None else min(_PAGE, limit - len(found)),
                page_token=token,
                history_length=history_length,
                include_artifacts=include_artifacts or None,
            )
            if state is not None:
                name = state.name
                request.status = pb.TaskState.Value(f"TASK_STATE_{name}")
            if changed_after is not None:
                request.status_timestamp_after.FromDatetime(changed_after.astimezone(UTC))
            page = await calls.repeated(partial(self._page, request))
            found += map(Snapshot, page.tasks)
            token = page.next_page_token
            if not token:
                break
        return found

    async def cancel(self, task_id: str) -> Snapshot:
        """Ask for the task to be canceled; the task as it is then. Raises TaskNotCancelable."""
        calls = self._agent_calls
        request = pb.CancelTaskRequest(id=task_id, tenant=self._tenant)
        task = await calls.repeated(
            lambda: calls.plain.cancel_task(request, context=calls.context()), task_id=task_id
        )
        return Snapshot(task)

    def follow(
        self,
        task_id: str,
        *,
        on_link: Callable[[Link], None] | None = None,
        patience: Patience | None = None,
    ) -> AsyncGenerator[Event, None]:
        """The task's events: Opened first, then each change, through pauses, until it has ended.

        Connections may be cut; the agent may restart. What is shown, applied in order, equals the
        task as `get` shows it in state, status and artifacts, and nothing is shown twice. From an
        agent that numbers its events each one is shown, as long as streams reach it at all. From
        any other, and where only looks at the task get through, what happened meanwhile is told by
        comparing: the state and the text that it led to, not the steps on the way. When not even
        that can be told, a Reset says how the task is now. Leave early through
        `contextlib.aclosing`.

        on_link: called when the connection is lost, and with what there is when it is back.
        patience: of this following, in the place of the client's.

        Raises TaskNotFound, and Unreachable when the agent stays away.
        """
        following = Following(self._agent_calls, task_id, self._tenant, on_link, patience)
        return following.events()

    async def result(self, task_id: str) -> Snapshot:
        """The task when it has completed, however long that takes, questions included.

        Raises TaskFailed, TaskCanceled or TaskRejected when it ends in another way.
        """
        async with aclosing(self.follow(task_id)) as events:
            async for _ in events:
                pass
        snapshot = await self.get(task_id)
        if (kind := _ENDED.get(snapshot.state)) is not None:
            raise kind(task_id, snapshot.text)
        return snapshot

    async def _settled(self, task_id: str) -> Snapshot:
        following = Following(self._agent_calls, task_id, self._tenant)
        async with aclosing(following.events()) as events:
            async for _ in events:
                if following.is_settled:
                    break
        return await self.get(task_id)

    async def _page(self, request: pb.ListTasksRequest) -> pb.ListTasksResponse:
        calls = self._agent_calls
        return await calls.plain.list_tasks(request, context=calls.context())

    @property
    def _agent_calls(self) -> Calls:
        if self._calls is None:
            raise RuntimeError("a Client is used within `async with Client(…) as client:`")
        return self._calls


class _Bearer(httpx.Auth):
    """A token, which no error and no `repr` shows."""

    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    def auth_flow(self, request: httpx.Request) -> Any:
        request.headers["Authorization"] = self._header
        yield request


def _message(message: str | Message, task_id: str | None, context_id: str | None) -> pb.Message:
    value = Message.user(message) if isinstance(message, str) else message
    body = to_proto(value)
    body.message_id = body.message_id or str(uuid.uuid4())
    body.task_id = task_id or body.task_id
    body.context_id = context_id or body.context_id
    return body


def _is_settled(snapshot: Snapshot) -> bool:
    return snapshot.state.is_terminal or snapshot.state.is_paused


def _refuse(response: httpx.Response, task_id: str) -> NoReturn:
    try:
        error = response.json()["error"]
        text = str(error["message"])
        reasons = {detail.get("reason") for detail in error.get("details", ())}
    except (ValueError, KeyError, TypeError, AttributeError):
        text, reasons = f"HTTP status {response.status_code}", set()
    if "TASK_NOT_FOUND" in reasons:
        raise TaskNotFound(task_id, expired="expired" in text)
    if response.status_code in (404, 405):
        raise UnsupportedOperation(f"this agent takes no authorizations: {text}")
    if response.status_code == 400:
        raise UnsupportedOperation(text)
    raise Refused(text)
