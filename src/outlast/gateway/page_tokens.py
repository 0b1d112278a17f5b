"""Page tokens: a place in one list, as callers carry it to their next call.

A token is bound to the list that it was made for and grants nothing: every page is read within the
caller's own scope, whatever the token says.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from outlast.model.ledger import digest_of


def bound_to(*list_of: Any) -> str:
    """What stands in the tokens of one list and of no other."""
    return digest_of(json.dumps(list_of))[:32]


def pack(*values: Any) -> str:
    """The token that holds these values."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def unpack(token: str) -> Any:
    """What a token holds, or None for what was never made."""
    try:
        text = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        return json.loads(text)
    except (binascii.Error, ValueError, RecursionError):
        return None
