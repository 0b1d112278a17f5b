"""Faults that a test asks a service for: refuse, stall, or cut the connection."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from examples.services.serving import cut

Moment = Literal["before", "after"]


class Fault(BaseModel):
    """What shall happen to some of the calls of one kind.

    action: `status` answers with that status; `hang` stalls for `seconds` and then goes on; `drop`
        resets the connection.
    when: before or after the service has done what the call asks for.
    skip: calls that pass unharmed first. `skip=9, when="after"` drops the answer to the tenth
        revocation.
    times: how many calls meet the fault; None is all of them until the faults are cleared.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    action: Literal["status", "hang", "drop"]
    when: Moment = "before"
    skip: int = Field(default=0, ge=0)
    times: int | None = Field(default=1, ge=1)
    status: int = Field(default=503, ge=400, le=599)
    seconds: float = Field(default=0, ge=0)


@dataclass
class _Armed:
    fault: Fault
    seen: int = 0

    def strikes(self) -> bool:
        """Count one call; say whether it meets the fault."""
        self.seen += 1
        past = self.seen - self.fault.skip
        return past > 0 and (self.fault.times is None or past <= self.fault.times)


@dataclass
class Faults:
    """The faults in force. `kinds` are the calls that the service knows."""

    kinds: frozenset[str]
    _armed: list[_Armed] = field(default_factory=list)

    async def meet(self, request: Request, kind: str, when: Moment) -> Response | None:
        """Let a call meet what is in force; a response is to be returned instead of its own.

        Every fault of this kind and moment counts the call; of those that strike, the oldest acts.
        """
        struck = [
            armed.fault
            for armed in self._armed
            if (armed.fault.kind, armed.fault.when) == (kind, when) and armed.strikes()
        ]
        return await _act(struck[0], request) if struck else None

    def clear(self) -> None:
        self._armed.clear()

    def routes(self) -> list[Route]:
        """`POST /faults` adds one fault or a list of them, `DELETE /faults` clears all."""
        return [
            Route("/faults", self._add, methods=["POST"]),
            Route("/faults", self._clear, methods=["DELETE"]),
        ]

    async def _add(self, request: Request) -> Response:
        try:
            faults = _FAULTS.validate_json(await request.body())
        except ValidationError as error:
            faulty = error.errors(include_url=False, include_context=False)
            return JSONResponse({"error": faulty}, status_code=400)
        if unknown := sorted({fault.kind for fault in faults} - self.kinds):
            text = f"no such kind of call: {', '.join(unknown)}; there are {sorted(self.kinds)}"
            return JSONResponse({"error": text}, status_code=400)
        self._armed += [_Armed(fault) for fault in faults]
        return JSONResponse({"in_force": len(self._armed)})

    async def _clear(self, _request: Request) -> Response:
        self.clear()
        return JSONResponse({"in_force": 0})


_OneOrMore = BeforeValidator(lambda value: value if isinstance(value, list) else [value])
_FAULTS: TypeAdapter[list[Fault]] = TypeAdapter(Annotated[list[Fault], _OneOrMore])


async def _act(fault: Fault, request: Request) -> Response | None:
    match fault.action:
        case "status":
            return JSONResponse({"error": "as a test asked for"}, status_code=fault.status)
        case "hang":
            await asyncio.sleep(fault.seconds)
            return None
        case "drop":
            cut(request)
            # The reset reaches the connection in the loop's next turn; what is sent after that
            # goes nowhere.
            await asyncio.sleep(0)
            return Response()
