"""Push notification configs: what a caller may ask for, and how it is shown again.

Secrets are write-only: they are stored to be sent, and every answer has a mask in their place. No
error and no log here may hold one.
"""

from __future__ import annotations

import re

from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a

from outlast.gateway.config import GatewayConfig
from outlast.gateway.limits import check_id
from outlast.gateway.page_tokens import bound_to, pack, unpack
from outlast.gateway.patience import persist
from outlast.model.delivery import Webhook
from outlast.model.errors import InvalidParams, WebhookNotFound
from outlast.model.ids import TaskId, uuid7
from outlast.model.targets import Targets
from outlast.model.task import Scope
from outlast.store.protocols import MOST_WEBHOOKS, WebhookStore

MASK = "********"
LARGEST_PAGE = 100

_OF_SEND = "configuration.taskPushNotificationConfig"
_LONGEST_SECRET = 4096
_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")  # a token of RFC 9110
_NO_PUSH = "this agent sends no push notifications; stream, or poll with GetTask"


class PushConfigs:
    """Answers what callers ask about the webhooks of their tasks.

    Without push notifications every method raises PushNotificationNotSupportedError (§3.3.4).
    """

    def __init__(self, webhooks: WebhookStore | None, config: GatewayConfig) -> None:
        self._webhooks = webhooks if config.push_notifications else None
        self._targets = Targets.allowing(config.webhook_targets)
        self._patience_s = config.store_patience_s

    async def create(
        self, params: pb.TaskPushNotificationConfig, scope: Scope, task_id: TaskId
    ) -> pb.TaskPushNotificationConfig:
        """Keep the config; the same under the same id is kept once. Raises TaskNotFound,
        InvalidParams, and UnsupportedOperation for one too many."""
        store = self.check_supported()
        webhook = read_webhook(params, self._targets)
        await persist(lambda: store.add_webhook(scope, task_id, webhook), self._patience_s)
        return shown(task_id, webhook)

    async def get(
        self, scope: Scope, task_id: TaskId, config_id: str
    ) -> pb.TaskPushNotificationConfig:
        """One config. Raises TaskNotFound, also where the task has no such config (§3.1.8)."""
        store = self.check_supported()
        if not _can_be_id(config_id):
            raise WebhookNotFound(task_id, config_id[:64])
        webhook = await persist(lambda: store.webhook(scope, task_id, config_id), self._patience_s)
        return shown(task_id, webhook)

    async def page(
        self, params: pb.ListTaskPushNotificationConfigsRequest, scope: Scope, task_id: TaskId
    ) -> pb.ListTaskPushNotificationConfigsResponse:
        """A page of the task's configs. Raises TaskNotFound, and InvalidParams for a page that
        this list does not have."""
        store = self.check_supported()
        size = _page_size(params.page_size)
        list_ = bound_to("push", scope.agent, scope.tenant, scope.owner, task_id)
        after = _read_token(params.page_token, list_) if params.page_token else ""
        found = await persist(
            # one more tells whether there is another page
            lambda: store.webhooks(scope, task_id, limit=size + 1, after=after),
            self._patience_s,
        )
        more = len(found) > size
        return pb.ListTaskPushNotificationConfigsResponse(
            configs=[shown(task_id, webhook) for webhook in found[:size]],
            next_page_token=pack(found[size - 1].config_id, list_) if more else "",
        )

    async def delete(self, scope: Scope, task_id: TaskId, config_id: str) -> None:
        """Forget the config; deleting it again is as good. Raises TaskNotFound."""
        store = self.check_supported()
        known = config_id if _can_be_id(config_id) else ""  # no config has this one
        await persist(lambda: store.remove_webhook(scope, task_id, known), self._patience_s)

    def of_send(self, params: pb.SendMessageRequest, scope: Scope) -> Webhook | None:
        """The config that a message brings, for the task that it will be of. Raises
        InvalidParams."""
        if not params.configuration.HasField("task_push_notification_config"):
            return None
        self.check_supported()
        config = params.configuration.task_push_notification_config
        if config.task_id not in ("", params.message.task_id):
            raise InvalidParams(
                "is not the message's task; leave it out", path=f"{_OF_SEND}.taskId"
            )
        if config.tenant not in ("", scope.tenant):
            raise InvalidParams("is not the request's tenant", path=f"{_OF_SEND}.tenant")
        return read_webhook(config, self._targets, path=f"{_OF_SEND}.")

    def check_supported(self) -> WebhookStore:
        """Where configs are kept. Raises PushNotificationNotSupportedError where they are not."""
        if self._webhooks is None:
            raise a2a.PushNotificationNotSupportedError(_NO_PUSH)
        return self._webhooks


def read_webhook(
    params: pb.TaskPushNotificationConfig, targets: Targets, *, path: str = ""
) -> Webhook:
    """The webhook that a config asks for, under an id of our own where it names none. Raises
    InvalidParams, which does not say what the secrets are."""
    if params.id and not _can_be_id(params.id):
        check_id(params.id, path=f"{path}id")
        raise InvalidParams("must fit into a path: no slash, and not dots alone", path=f"{path}id")
    if not params.url:
        raise InvalidParams("is required", path=f"{path}url")
    targets.check_url(params.url, path=f"{path}url")
    authentication = params.authentication if params.HasField("authentication") else None
    if authentication is not None and not _SCHEME.fullmatch(authentication.scheme):
        raise InvalidParams(
            "must be the name of an HTTP authentication scheme, such as Bearer",
            path=f"{path}authentication.scheme",
        )
    return Webhook(
        config_id=params.id or str(uuid7()),
        url=params.url,
        token=_secret(params.token, f"{path}token"),
        scheme=None if authentication is None else authentication.scheme,
        credentials=None
        if authentication is None
        else _secret(authentication.credentials, f"{path}authentication.credentials"),
    )


def shown(task_id: TaskId, webhook: Webhook) -> pb.TaskPushNotificationConfig:
    """The config as its owner sees it again."""
    config = pb.TaskPushNotificationConfig(
        id=webhook.config_id,
        task_id=task_id,
        url=webhook.url,
        token="" if webhook.token is None else MASK,
    )
    if webhook.scheme is not None:
        config.authentication.scheme = webhook.scheme
        config.authentication.credentials = "" if webhook.credentials is None else MASK
    return config


def _secret(text: str, path: str) -> str | None:
    """What a header will hold: a line break in it would begin another one."""
    if text == MASK:
        raise InvalidParams(
            "is the mask that stands for a secret; send the secret itself", path=path
        )
    if len(text) > _LONGEST_SECRET or not all(" " <= sign <= "~" for sign in text):
        raise InvalidParams(
            f"must have at most {_LONGEST_SECRET} characters, of printable ASCII", path=path
        )
    return text or None


def _can_be_id(text: str) -> bool:
    return "\0" not in text and "/" not in text and 0 < len(text) <= 255 and text.strip(".") != ""


def _page_size(said: int) -> int:
    """0 stands for none said: this request cannot tell them apart."""
    if not 0 <= said <= LARGEST_PAGE:
        raise InvalidParams(f"must be 1 to {LARGEST_PAGE}, not {said}", path="pageSize")
    return said or MOST_WEBHOOKS


def _read_token(token: str, list_: str) -> str:
    held = unpack(token)
    if isinstance(held, list) and len(held) == 2 and held[1] == list_ and isinstance(held[0], str):
        return held[0]
    raise InvalidParams(
        "is no token of this list; take it from the last page's nextPageToken, or leave it out to"
        " begin",
        path="pageToken",
    )
