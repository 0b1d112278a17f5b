"""What stands around a call in JSON-RPC, read strictly and refused without a word in the log.

The SDK logs a traceback, with what the request holds, for every envelope and for all parameters
that do not parse: whoever reaches the port could fill the log, and put secrets into it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from a2a.utils.errors import InvalidParamsError, InvalidRequestError, MethodNotFoundError
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from outlast.gateway.refusals import unparsed

_MEMBERS = frozenset({"jsonrpc", "id", "method", "params"})
_SHOWN = 64


class NotJson(Exception):
    """The body of a request is no JSON."""


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """A call as JSON-RPC has it. An id of None: nobody can tell the answer from others."""

    id: str | int | None
    method: str
    params: Any


def json_of(text: bytes) -> Any:
    """The value that a body is. Raises NotJson."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also for numbers of thousands of digits
        raise NotJson(f"the body is not JSON: {error}") from error


def id_of(body: Any) -> str | int | None:
    """The id of a request, as far as an answer can carry it: half a character has no bytes."""
    said = body.get("id") if isinstance(body, dict) else None
    if isinstance(said, str):
        return said if said.isascii() or _is_text(said) else None
    return said if isinstance(said, int) and not isinstance(said, bool) else None


def envelope_of(body: Any) -> Envelope:
    """The envelope that a body is. Raises InvalidRequestError."""
    if isinstance(body, list):
        raise InvalidRequestError("batches are not supported: send one request at a time")
    if not isinstance(body, dict):
        raise InvalidRequestError("a request must be an object")
    if strange := sorted(body.keys() - _MEMBERS):
        raise InvalidRequestError(f"a request has no member {strange[0][:_SHOWN]!a}")
    if body.get("jsonrpc") != "2.0":
        raise InvalidRequestError("jsonrpc: must be exactly '2.0'")
    if id_of(body) != body.get("id") or isinstance(body.get("id"), bool):
        raise InvalidRequestError("id: must be a text, a whole number or null")
    method = body.get("method")
    if not isinstance(method, str) or not method:
        raise InvalidRequestError("method: is required, and must be a text")
    params = body.get("params", {})
    if params is not None and not isinstance(params, (dict, list)):
        raise InvalidRequestError("params: must be an object")
    return Envelope(id=body.get("id"), method=method, params=params)


def params_of(envelope: Envelope, kinds: Mapping[str, type]) -> Any:
    """The parameters of a call as what its method takes. Raises MethodNotFoundError, and
    InvalidParamsError for what does not parse."""
    kind = kinds.get(envelope.method)
    if kind is None:
        raise MethodNotFoundError(f"there is no method {envelope.method[:_SHOWN]!a}")
    if not isinstance(envelope.params, dict):
        raise InvalidParamsError("params: must be an object")
    params: Message = kind()
    try:
        # Unknown fields are for later versions of the protocol to have.
        ParseDict(envelope.params, params, ignore_unknown_fields=True)
    except Exception as error:  # protobuf has no one error for all that it cannot read
        raise InvalidParamsError(unparsed(error)) from error
    return params


def _is_text(said: str) -> bool:
    try:
        said.encode()
    except UnicodeEncodeError:
        return False
    return True
