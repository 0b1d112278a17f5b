"""Our errors as the protocol's. Nothing else leaves a gateway's handler.

A caller learns what it can do about an error, and no more: the texts of unexpected exceptions and
of drivers are for operators, who find them in the log under the reference that the caller got.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog
from a2a.server.jsonrpc_models import JSONRPCError
from a2a.server.request_handlers import response_helpers
from a2a.utils import errors as a2a

from outlast.model.errors import (
    CallerError,
    ContentTypeNotSupported,
    Forbidden,
    GenerationMismatch,
    InvalidParams,
    KeysUnavailable,
    LogTrimmed,
    StoreUnavailable,
    TaskNotCancelable,
    TaskNotFound,
    TooMany,
    Unauthenticated,
    UnsupportedOperation,
)
from outlast.wire.mismatch import TaskGenerationMismatchError

log = structlog.get_logger("outlast.gateway")

REFUSED_CODE = -32000
"""JSON-RPC's code of what the protocol has no error for (§3.3.2 wants one of the server's own);
the reason beside it says which. It is outside the range that the protocol keeps for itself."""


class RefusedError(a2a.A2AError):
    """A caller is refused for who it is, or for how much it wants. `headers` are for responses
    over HTTP."""

    def __init__(self, text: str, data: Mapping[str, Any] | None = None, **headers: str) -> None:
        super().__init__(text, dict(data or {}))
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class UnauthenticatedError(RefusedError):
    """401: nobody knows the caller."""


class ForbiddenError(RefusedError):
    """403: the caller is known, and may not do this."""


class TooManyError(RefusedError):
    """429: the caller has reached a limit."""

    def __init__(self, text: str, retry_after_s: float) -> None:
        self.retry_after_s = max(1, math.ceil(retry_after_s))
        said = str(self.retry_after_s)
        super().__init__(text, {"retryAfterSeconds": said}, Retry_After=said)


REFUSALS: Mapping[type[RefusedError], a2a.ErrorMapping] = {
    UnauthenticatedError: a2a.ErrorMapping(401, "UNAUTHENTICATED", "UNAUTHENTICATED"),
    ForbiddenError: a2a.ErrorMapping(403, "PERMISSION_DENIED", "PERMISSION_DENIED"),
    TooManyError: a2a.ErrorMapping(429, "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"),
}

# The SDK renders errors by its maps alone, and knows none of these.
for _kind, _mapping in REFUSALS.items():
    a2a.A2A_ERROR_MAPPING[_kind] = _mapping
    a2a.A2A_ERROR_REASONS[_kind] = _mapping.reason
    a2a.JSON_RPC_ERROR_CODE_MAP[_kind] = REFUSED_CODE
    response_helpers.EXCEPTION_MAP[_kind] = JSONRPCError


@contextmanager
def translated(method: str) -> Iterator[None]:
    """Let only the protocol's errors out of the handling of `method`."""
    try:
        yield
    except a2a.A2AError:
        raise
    except CallerError as error:
        raise of_caller(error) from error
    except StoreUnavailable as error:
        raise unavailable(error, method) from error
    except Exception as error:
        raise unexpected(error, method) from error


def of_caller(error: CallerError) -> a2a.A2AError:
    """The protocol's error for what a caller cannot have."""
    match error:
        case TaskNotFound():
            return a2a.TaskNotFoundError(str(error), {"taskId": error.task_id})
        case TaskNotCancelable():
            return a2a.TaskNotCancelableError(str(error))
        case UnsupportedOperation() | LogTrimmed():
            return a2a.UnsupportedOperationError(str(error))
        case GenerationMismatch():
            known = {
                "taskId": error.task_id,
                "expectedGeneration": str(error.expected),
                "currentGeneration": str(error.current),
            }
            return TaskGenerationMismatchError(str(error), known)
        case ContentTypeNotSupported():
            supported = ", ".join(error.supported)
            return a2a.ContentTypeNotSupportedError(str(error), {"supported": supported})
        case InvalidParams(path=str(path)):
            violation = {"field": path, "message": str(error).removeprefix(f"{path}: ")}
            return a2a.InvalidParamsError(str(error), {"errors": [violation]})
        case TooMany():
            return TooManyError(str(error), error.retry_after)
        case Unauthenticated():
            return UnauthenticatedError(str(error), WWW_Authenticate=challenge_of(error))
        case Forbidden():
            wanted = {} if error.scope is None else {"scope": error.scope}
            return ForbiddenError(str(error), wanted, WWW_Authenticate=challenge_of(error))
        case _:
            return a2a.InvalidParamsError(str(error))


def challenge_of(error: Unauthenticated | Forbidden) -> str:
    """What a response says a caller should send (RFC 6750 §3). A request without any credential
    is told no error code."""
    match error:
        case Forbidden(scope=None):
            return f'{_REALM}, error="insufficient_scope"'
        case Forbidden(scope=scope):
            return f'{_REALM}, error="insufficient_scope", scope="{scope}"'
        case Unauthenticated(is_missing=True):
            return _REALM
        case Unauthenticated():
            return f'{_REALM}, error="invalid_token"'


_REALM = 'Bearer realm="a2a"'


def unavailable(error: StoreUnavailable, method: str) -> a2a.InternalError:
    """The store is away. A repeat is safe: it finds what this call may have written."""
    if isinstance(error, KeysUnavailable):
        away = "the identity provider"  # which has been logged, once and not for every call
    else:
        away = "the agent's store"
        log.warning("request.store_away", method=method, error=str(error), happened=error.happened)
    return a2a.InternalError(
        f"{away} did not answer in time; send the same request again later",
        {"retryable": "true"},
    )


def unexpected(error: BaseException, method: str) -> a2a.InternalError:
    """Something of ours, or of the author's, is broken: the details are for operators."""
    reference = uuid.uuid4().hex[:12]
    log.error("request.failed", method=method, reference=reference, exc_info=error)
    return a2a.InternalError(
        f"the agent could not handle the request (reference {reference})",
        {"reference": reference},
    )
