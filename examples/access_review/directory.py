"""The directory: a service that knows who may do what, and revokes it.

A stand-in for the service a company has, with two things that such a service should have and a
third that only tests want: it honours `Idempotency-Key`, it counts every call, and it can be told
to fail.

    python -m examples.access_review.directory [--port 0] [--data FOLDER] [--state FILE]

| request | answer |
|---|---|
| `GET /systems` | the systems, and the day the data was drawn |
| `GET /systems/{name}/grants` | the grants in a system that are not revoked |
| `GET /users[?left_by=DAY]` | the users, or those who had left by that day |
| `POST /grants/{id}/revoke` | the revocation; a repeat under a key gets the first answer |
| `GET /counters` | what was called and applied, and how often |
| `POST /reset` | forgets calls, revocations and faults |
| `POST /faults`, `DELETE /faults` | see `examples.services.faults`: systems, users, fetch, revoke |
"""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from pathlib import Path

from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from examples.access_review.records import DATA, Grant, Records, User, read_records
from examples.access_review.state import KeyReused, State
from examples.services.faults import Faults
from examples.services.serving import serve

KINDS = frozenset({"systems", "users", "fetch", "revoke"})

_USERS: TypeAdapter[list[User]] = TypeAdapter(list[User])
_GRANTS: TypeAdapter[list[Grant]] = TypeAdapter(list[Grant])


@dataclass(frozen=True)
class Service:
    """The handlers. Each counts the call first, so that a call which then fails is counted too."""

    records: Records
    state: State
    faults: Faults

    async def list_systems(self, request: Request) -> Response:
        self.state.note_listing("list_systems")
        if (refusal := await self.faults.meet(request, "systems", "before")) is not None:
            return refusal
        return _json(self.records.register.model_dump_json().encode())

    async def list_users(self, request: Request) -> Response:
        self.state.note_listing("list_users")
        if (refusal := await self.faults.meet(request, "users", "before")) is not None:
            return refusal
        users = list(self.records.users)
        if "left_by" in request.query_params:
            day = _day(request.query_params["left_by"])
            users = [user for user in users if user.left_at is not None and user.left_at <= day]
        return _json(_USERS.dump_json(users))

    async def list_grants(self, request: Request) -> Response:
        system = request.path_params["name"]
        if system not in self.records.grants:
            raise HTTPException(404, f"there is no system {system}")
        self.state.note_fetch(system)
        if (refusal := await self.faults.meet(request, "fetch", "before")) is not None:
            return refusal
        grants = [g for g in self.records.grants[system] if not self.state.is_revoked(g.id)]
        return _json(_GRANTS.dump_json(grants))

    async def revoke(self, request: Request) -> Response:
        grant, key = request.path_params["id"], request.headers.get("idempotency-key")
        content = sha256(request.url.path.encode() + b"\n" + await request.body()).hexdigest()
        self.state.note_call(grant, key)
        if (refusal := await self.faults.meet(request, "revoke", "before")) is not None:
            return refusal
        if grant not in {g.id for g in self.records.grants.get(grant.rpartition("-")[0], ())}:
            raise HTTPException(404, f"there is no grant {grant}")
        try:
            revocation = self.state.revoke(grant, key, content)
        except KeyReused:
            raise HTTPException(422, f"the key {key} stands for another request") from None
        if (refusal := await self.faults.meet(request, "revoke", "after")) is not None:
            return refusal
        return _json(revocation.model_dump_json().encode())

    async def read_counters(self, _request: Request) -> Response:
        return JSONResponse(self.state.counters())

    async def reset(self, request: Request) -> Response:
        self.faults.clear()
        self.state.forget()
        return await self.read_counters(request)


def build_app(records: Records, state: State) -> Starlette:
    faults = Faults(KINDS)
    service = Service(records, state, faults)
    return Starlette(
        routes=[
            Route("/systems", service.list_systems),
            Route("/systems/{name}/grants", service.list_grants),
            Route("/users", service.list_users),
            Route("/grants/{id}/revoke", service.revoke, methods=["POST"]),
            Route("/counters", service.read_counters),
            Route("/reset", service.reset, methods=["POST"]),
            *faults.routes(),
        ],
        exception_handlers={HTTPException: _say},
    )


async def _say(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, status_code=error.status_code)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise HTTPException(400, "left_by is a day, such as 2025-09-30") from None


def main() -> None:
    parser = argparse.ArgumentParser(prog="directory", description="The access review's directory.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8800, help="0 takes a free one")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with its files")
    parser.add_argument("--state", type=Path, help="a file that keeps what it did over restarts")
    options = parser.parse_args()
    with closing(State.open(options.state)) as state:
        app = build_app(read_records(options.data), state)
        serve(app, name="directory", host=options.host, port=options.port)


if __name__ == "__main__":
    main()
