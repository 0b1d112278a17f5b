"""Webhooks: where a caller wants the events of a task sent."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """A push notification config of a task (specification §4.3.1).

    token: sent along with every delivery. scheme and credentials: what the Authorization of a
    delivery is made of. No `repr` shows a secret, and an address is one as often as not.
    """

    config_id: str
    url: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    scheme: str | None = None
    credentials: str | None = field(default=None, repr=False)
