"""The door of every binding: who comes in, from what was sent and from where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import structlog

from outlast.gateway.auth.principal import Authenticator, Principal
from outlast.model.errors import Unauthenticated

log = structlog.get_logger("outlast.gateway")


class SentHeaders(Mapping[str, str]):
    """Headers, or gRPC metadata, with names in lower case, for those who look for credentials.

    Looking at one that was sent more than once raises Unauthenticated: whoever took another of
    its values than a proxy in front did would take one caller for another.
    """

    def __init__(self, sent: Iterable[tuple[str, str]]) -> None:
        self._values: dict[str, str] = {}
        self._repeated: set[str] = set()
        for name, value in sent:
            name = name.lower()
            if name in self._values:
                self._repeated.add(name)
            self._values[name] = value

    def __getitem__(self, name: str) -> str:
        if name in self._repeated:
            raise Unauthenticated(f"the header {name} was sent more than once")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


async def admitted(
    authenticator: Authenticator, sent: Iterable[tuple[str, str]], peer: str | None
) -> Principal:
    """Who sends this from the address `peer`. Raises Unauthenticated, and StoreUnavailable."""
    try:
        return await authenticator.authenticate(SentHeaders(sent), peer)
    except Unauthenticated as error:
        log.info("caller.refused", source=peer, reason=str(error))
        raise
