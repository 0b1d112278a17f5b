"""That the store was restored while this gateway went on."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from outlast.model.errors import StoreRestored, StoreUnavailable
from outlast.store.protocols import AdminStore

LOOK_EVERY_S = 2.0


class RestoreWatch:
    """Looks now and then whether the store is still in the epoch that this gateway began in.

    The names of pauses and events that it gives and takes are of that epoch, and calls that it has
    under way may be about a future that is lost: it has to begin anew.
    """

    def __init__(self, admin: AdminStore, epoch: str, *, every_s: float = LOOK_EVERY_S) -> None:
        self._admin = admin
        self._epoch = epoch
        self._every_s = every_s
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Return when stopped. Raises StoreRestored."""
        while not self._stopped.is_set():
            with suppress(StoreUnavailable):  # what is away has not been restored yet
                if (await self._admin.check()).epoch != self._epoch:
                    raise StoreRestored(
                        "the store was restored, so this process knows a future that is lost:"
                        " start it anew"
                    )
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._stopped.wait()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
