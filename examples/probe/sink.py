"""The counter sink: counts the effects that reach it, and does nothing else.

    python -m examples.probe.sink [--port 0]

| request | what it does |
|---|---|
| `POST /effects/{key}` | counts one call under this key |
| `GET /counters` | says, by key, how many calls came and how many different idempotency keys |
| `POST /reset` | forgets calls and faults |
| `POST /faults`, `DELETE /faults` | see `examples.services.faults`: effect |

One effect under a key is one idempotency key, however many calls: the sink itself drops no repeat,
so that a test can see how often it was called.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from examples.services.faults import Faults
from examples.services.serving import serve


@dataclass
class Sink:
    faults: Faults = field(default_factory=lambda: Faults(frozenset({"effect"})))
    calls: Counter[str] = field(default_factory=Counter)
    idempotency_keys: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    async def count(self, request: Request) -> Response:
        if (refusal := await self.faults.meet(request, "effect", "before")) is not None:
            return refusal
        key = request.path_params["key"]
        self.calls[key] += 1
        self.idempotency_keys[key].add(request.headers.get("idempotency-key", ""))
        if (refusal := await self.faults.meet(request, "effect", "after")) is not None:
            return refusal
        return JSONResponse({"key": key})

    async def read_counters(self, _request: Request) -> Response:
        distinct = {key: len(keys) for key, keys in self.idempotency_keys.items()}
        return JSONResponse({"calls": dict(self.calls), "distinct": distinct})

    async def reset(self, request: Request) -> Response:
        self.faults.clear()
        self.calls.clear()
        self.idempotency_keys.clear()
        return await self.read_counters(request)


def build_app() -> Starlette:
    sink = Sink()
    return Starlette(
        routes=[
            Route("/effects/{key:path}", sink.count, methods=["POST"]),
            Route("/counters", sink.read_counters),
            Route("/reset", sink.reset, methods=["POST"]),
            *sink.faults.routes(),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="sink", description="Counts the effects that reach it.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8801, help="0 takes a free one")
    options = parser.parse_args()
    serve(build_app(), name="sink", host=options.host, port=options.port)


if __name__ == "__main__":
    main()
