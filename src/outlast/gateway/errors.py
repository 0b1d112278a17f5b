"""Our errors as the protocol's. Nothing else leaves a gateway's handler.

A caller learns what it can do about an error, and no more: the texts of unexpected exceptions and
of drivers are for operators, who find them in the log under the reference that the caller got.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from a2a.utils import errors as a2a

from outlast.model.errors import (
    CallerError,
    InvalidParams,
    StoreUnavailable,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
)

log = structlog.get_logger("outlast.gateway")


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
        case UnsupportedOperation():
            return a2a.UnsupportedOperationError(str(error))
        case InvalidParams(path=str(path)):
            violation = {"field": path, "message": str(error).removeprefix(f"{path}: ")}
            return a2a.InvalidParamsError(str(error), {"errors": [violation]})
        case _:
            return a2a.InvalidParamsError(str(error))


def unavailable(error: StoreUnavailable, method: str) -> a2a.InternalError:
    """The store is away. A repeat is safe: it finds what this call may have written."""
    log.warning("request.store_away", method=method, error=str(error), happened=error.happened)
    return a2a.InternalError(
        "the agent's store did not answer in time; send the same request again later",
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
