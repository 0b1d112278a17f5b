"""The directory, as the agent calls it."""

from __future__ import annotations

from datetime import date
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter

from examples.access_review.records import Grant, Register, Revocation, User

_USERS: TypeAdapter[list[User]] = TypeAdapter(list[User])
_GRANTS: TypeAdapter[list[Grant]] = TypeAdapter(list[Grant])


class Directory:
    """Calls over one `httpx.AsyncClient`, whose base URL is the directory's.

    Nothing is tried again here: that is the step's to decide. A status other than 2xx and a cut
    connection raise httpx's errors.
    """

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def systems(self) -> Register:
        return Register.model_validate_json(await self._get("/systems"))

    async def leavers(self, by: date) -> dict[str, date]:
        """Return the day on which a user left, for those who had left by then."""
        users = _USERS.validate_json(await self._get(f"/users?left_by={by}"))
        return {user.id: user.left_at for user in users if user.left_at is not None}

    async def grants(self, system: str) -> list[Grant]:
        return _GRANTS.validate_json(await self._get(f"/systems/{quote(system, safe='')}/grants"))

    async def revoke(self, grant: str, *, idempotency_key: str) -> Revocation:
        """Revoke a grant. The directory does it once per key, however often it is asked."""
        answer = await self._http.post(
            f"/grants/{quote(grant, safe='')}/revoke",
            headers={"Idempotency-Key": idempotency_key},
        )
        answer.raise_for_status()
        return Revocation.model_validate_json(answer.content)

    async def _get(self, path: str) -> bytes:
        answer = await self._http.get(path)
        answer.raise_for_status()
        return answer.content
