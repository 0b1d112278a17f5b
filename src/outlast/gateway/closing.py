"""That a gateway stops."""

from __future__ import annotations

from collections.abc import Callable


class Closing:
    """Whether this gateway stops. Whoever waits for a task then answers with what there is."""

    def __init__(self) -> None:
        self.is_closed = False
        self._calls: list[Callable[[], None]] = []

    def close(self) -> None:
        """Begin to stop. A second time changes nothing."""
        if not self.is_closed:
            self.is_closed = True
            for call in self._calls:
                call()

    def on_close(self, call: Callable[[], None]) -> None:
        """Have this called when the gateway begins to stop."""
        self._calls.append(call)
