"""An identity provider on a real socket, with real keys."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

AUDIENCE = "https://agent.example.com"


def key_for(algorithm: str, kid: str = "first") -> Key:
    """A new key that can sign by this algorithm."""
    named: Any = {"kid": kid}
    if algorithm.startswith("Ed"):
        return OKPKey.generate_key("Ed25519", named)
    if algorithm.startswith("ES"):
        curve: Any = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[algorithm]
        return ECKey.generate_key(curve, named)
    return RSAKey.generate_key(2048, named)


@dataclass
class Provider:
    """What it publishes, and how it behaves. `issuer` is also its address."""

    issuer: str = ""
    keys: list[Any] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    is_away: bool = False
    asked: list[str] = field(default_factory=list)
    turn: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.turn.set()

    def publish(self, *keys: Key) -> None:
        self.keys = [key.as_dict(private=False) for key in keys]

    def token(self, key: Key, algorithm: str = "ES256", **changed: Any) -> str:
        """A good token, but for what is `changed`; None leaves a claim out. `header_…` changes
        the header."""
        header = {"alg": algorithm, "kid": key.kid}
        claims = {"iss": self.issuer, "aud": AUDIENCE, "sub": "ann", "exp": int(time.time()) + 600}
        for name, value in changed.items():
            place = header if name.startswith("header_") else claims
            place[name.removeprefix("header_")] = value
        kept = [{k: v for k, v in part.items() if v is not None} for part in (header, claims)]
        return jwt.encode(kept[0], kept[1], key, algorithms=[algorithm])

    def body_at(self, path: str) -> Any:
        said = {
            "/.well-known/openid-configuration": {
                "issuer": self.issuer,
                "jwks_uri": f"{self.issuer}/keys",
            },
            "/keys": {"keys": self.keys},
        }
        return {**said, **self.answers}.get(path)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split()[1].decode()
            self.asked.append(path)
            await self.turn.wait()
            if not self.is_away:
                writer.write(_response(self.body_at(path)))
                await writer.drain()
        finally:
            writer.close()


def _response(body: Any) -> bytes:
    if isinstance(body, tuple):
        status, headers, body = body
    else:
        status, headers = 200 if body is not None else 404, {}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(data)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in _items(headers)]
    return "\r\n".join([*lines, "", ""]).encode() + data


def _items(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    return list(headers.items())


@asynccontextmanager
async def running_provider(*keys: Key) -> AsyncIterator[Provider]:
    """A provider of this machine that publishes these keys."""
    provider = Provider()
    server = await asyncio.start_server(provider.answer, "127.0.0.1", 0)
    provider.issuer = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    provider.publish(*keys)
    async with server:
        yield provider
        provider.turn.set()
