"""Under which key a send is remembered, and what a repeat must equal."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlast.gateway.config import Idempotency
from outlast.model.errors import InvalidParams
from outlast.model.ids import uuid7
from outlast.model.ledger import digest_of
from outlast.wire.extension import EXTENSION_URI, IF_GENERATION

HEADER = "idempotency-key"
_LONGEST = 255

# Versions whose values nobody meets twice. Those made of a name (3, 5) and those of anybody's own
# making (8) are as unique as what they are made of.
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[1467][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


@dataclass(frozen=True, kw_only=True)
class SendKey:
    """The key of a send. `is_callers`: the caller can send it again, so a repeat is looked for."""

    text: str
    is_callers: bool


def key_of(message_id: str, header: str | None, mode: Idempotency) -> SendKey:
    """The key of a send: the caller's own, or one made here so that the gateway's own repeat of
    an uncertain write finds the first. Raises InvalidParams for a header that cannot be a key."""
    if header is not None and mode is not Idempotency.OFF:
        if not 0 < len(header.strip()) <= _LONGEST:
            raise InvalidParams(f"must have 1 to {_LONGEST} characters", path="Idempotency-Key")
        return SendKey(text=header.strip(), is_callers=True)
    if mode is Idempotency.ALWAYS or (mode is Idempotency.AUTO and is_unique(message_id)):
        return SendKey(text=message_id, is_callers=True)
    return SendKey(text=str(uuid7()), is_callers=False)


def is_unique(message_id: str) -> bool:
    """Whether an id is unique by construction: a UUID or ULID, not `msg-1`."""
    return bool(_UUID.fullmatch(message_id.lower()) or _ULID.fullmatch(message_id.upper()))


def digest_of_message(body: Mapping[str, Any]) -> str:
    """What a repeat under the same key must equal: the message's content, whatever its id. How
    the caller wants to be answered (the configuration) may differ, and the generation on which it
    insists: one who does not know whether the first was taken has seen a newer one by now."""
    content = {name: value for name, value in body.items() if name != "messageId"}
    match content.get("metadata"):
        case {**metadata} if isinstance(said := metadata.get(EXTENSION_URI), Mapping):
            kept = {name: value for name, value in said.items() if name != IF_GENERATION}
            content["metadata"] = {**metadata, EXTENSION_URI: kept}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return digest_of(text)
