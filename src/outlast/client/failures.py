"""What went wrong with a call, and whether it may be sent again."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import time

import httpx
from a2a.client.errors import A2AClientError, AgentCardResolutionError
from a2a.utils import errors as a2a

from outlast.model.errors import (
    ConfigError,
    Forbidden,
    GenerationMismatch,
    InvalidParams,
    OutlastError,
    Refused,
    TaskNotCancelable,
    TaskNotFound,
    Unauthenticated,
    Unreachable,
    UnsupportedOperation,
)
from outlast.wire.mismatch import TaskGenerationMismatchError

_NOT_TAKEN = frozenset({429, 503})
_AWAY = frozenset({502, 503, 504, 429})
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A call that brought no answer.

    is_passing: the same call may succeed later. was_sent: the agent may have done what it asks.
    after_s: how long the other side wants to be left alone.
    """

    is_passing: bool
    was_sent: bool = True
    after_s: float | None = None


def failure_of(error: BaseException) -> Failure:
    """What an exception of the SDK's client says of the call.

    What the protocol refuses is for good: a repeat would be refused too.
    """
    cause = error.__cause__
    if isinstance(cause, httpx.HTTPStatusError):
        status = cause.response.status_code
        if status in _AWAY:
            return Failure(
                is_passing=True, was_sent=status not in _NOT_TAKEN, after_s=_after(cause.response)
            )
    if isinstance(error, a2a.InternalError):
        return Failure(is_passing=(error.data or {}).get("retryable") == "true")
    for candidate in (error, cause):
        if isinstance(candidate, _NEVER_SENT):
            return Failure(is_passing=True, was_sent=False)
        if isinstance(candidate, httpx.TransportError):
            return Failure(is_passing=not isinstance(candidate, httpx.UnsupportedProtocol))
    return Failure(is_passing=_grpc_code(cause) == "UNAVAILABLE")


def is_held_back(error: BaseException) -> bool:
    """Whether a stream was waited for in vain, as behind a proxy that passes on whole responses."""
    cause = error.__cause__
    if isinstance(cause, httpx.HTTPStatusError):
        return cause.response.status_code == 504
    return isinstance(error, httpx.ReadTimeout) or isinstance(cause, httpx.ReadTimeout)


def translated(error: Exception, task_id: str = "") -> OutlastError:
    """The SDK's exception as one of ours. No text of it holds what was sent as a credential."""
    if isinstance(error, OutlastError):
        return error
    if (response := _response_of(error)) is not None:
        return _of_response(response, error)
    text = re.sub("^Network communication error:? ", "", str(error))
    match error:
        case a2a.TaskNotFoundError():
            return TaskNotFound(task_id, expired="expired" in text)
        case a2a.TaskNotCancelableError():
            return TaskNotCancelable(text)
        case a2a.UnsupportedOperationError() | a2a.MethodNotFoundError():
            return UnsupportedOperation(text)
        case a2a.InvalidParamsError():
            return InvalidParams(text)
        case TaskGenerationMismatchError():
            return _mismatch(error, task_id)
    if failure_of(error).is_passing:
        return Unreachable(f"the agent cannot be reached: {text or type(error).__name__}")
    return Refused(text or type(error).__name__)


def _response_of(error: Exception) -> httpx.Response | None:
    """The response to blame, of one that is no error of the protocol."""
    cause = error.__cause__
    if isinstance(error, A2AClientError) and isinstance(cause, httpx.HTTPStatusError):
        return None if failure_of(error).is_passing else cause.response
    return None


def _of_response(response: httpx.Response, error: Exception) -> OutlastError:
    status = response.status_code
    where = f"HTTP {status} from {response.url}"
    try:
        said = str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError, httpx.StreamError):
        said = ""
    text = f"{where}: {said}" if said else where
    if status == 401:
        return Unauthenticated(text)
    if status == 403:
        return Forbidden(text)
    if isinstance(error, AgentCardResolutionError):
        return ConfigError(f"there is no Agent Card where the agent should be: {where}")
    return Refused(text)


def _mismatch(error: TaskGenerationMismatchError, task_id: str) -> OutlastError:
    """It may come from any agent of A2A 1.1, and its details are not ours to rely on."""
    known = error.data or {}
    try:
        expected, current = int(known["expectedGeneration"]), int(known["currentGeneration"])
    except (KeyError, TypeError, ValueError):
        return UnsupportedOperation(str(error))
    return GenerationMismatch(task_id, expected=expected, current=current)


def delay_before(attempt: int, failure: Failure, *, first: float, longest: float) -> float:
    """Seconds before the next try, spread so that clients which failed together part."""
    grown = min(longest, first * 2.0 ** min(attempt, 30))
    spread = grown * random.uniform(0.5, 1.0)
    return spread if failure.after_s is None else max(spread, min(failure.after_s, 60.0))


def _after(response: httpx.Response) -> float | None:
    said = response.headers.get("retry-after", "").strip()
    if said.isdigit():
        return float(said)
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time())
    except ValueError:
        return None


def _grpc_code(error: BaseException | None) -> str:
    code = getattr(error, "code", None)
    return str(getattr(code(), "name", "")) if callable(code) else ""
