"""How much of this process one owner may have, so that the others find something left.

Counted here and not in the store: a refusal must cost nothing, and no caller would notice that two
gateways let in twice as much. What lasts, the open tasks, the store counts.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from outlast.gateway.config import GatewayConfig
from outlast.model.errors import TooMany
from outlast.model.task import Scope

_MINUTE_S = 60.0
_RETRY_STREAM_S = 10.0


class Quotas:
    """What is open of each owner's, and how often each has sent of late."""

    def __init__(
        self, config: GatewayConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._clock = clock
        self._open: Counter[Scope] = Counter()
        # What is left of an owner's sends, and since when; the one that has sent last is last.
        self._left: OrderedDict[Scope, tuple[float, float]] = OrderedDict()

    @contextmanager
    def open(self, scope: Scope) -> Iterator[None]:
        """Something that stays open: a stream, a call that waits for its task, or one that may
        take much memory while it is answered.

        Raises TooMany while the owner has `max_open_calls` of them.
        """
        limit = self._config.max_open_calls
        if limit is not None and self._open[scope] >= limit:
            raise TooMany(
                f"{limit} of your streams, lists and waiting calls are open here, and that is the"
                " limit;"
                " close some",
                retry_after=_RETRY_STREAM_S,
            )
        with self.keep_open(scope):
            yield

    @contextmanager
    def keep_open(self, scope: Scope) -> Iterator[None]:
        """What was opened under `open` stays open: it counts, and is not refused."""
        self._open[scope] += 1
        try:
            yield
        finally:
            self._open[scope] -= 1
            if not self._open[scope]:
                del self._open[scope]

    def send(self, scope: Scope) -> None:
        """One send. A minute's worth may come at once; what is refused does not count. Raises
        TooMany, which says when the next one may come."""
        limit = self._config.max_sends
        if limit is None:
            return
        now = self._clock()
        left, since = self._left.get(scope, (float(limit), now))
        left = min(limit, left + (now - since) * limit / _MINUTE_S)
        if left < 1:
            raise TooMany(
                f"{limit} sends a minute are the limit, and you have made them",
                retry_after=(1 - left) * _MINUTE_S / limit,
            )
        self._left[scope] = (left - 1, now)
        self._left.move_to_end(scope)
        self._forget(now - _MINUTE_S)

    def _forget(self, before: float) -> None:
        """Whoever has not sent for a minute has everything left, as if never seen."""
        while self._left:
            scope = next(iter(self._left))
            if self._left[scope][1] > before:
                return
            del self._left[scope]
