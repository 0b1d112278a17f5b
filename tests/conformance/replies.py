"""What came back, without the framing of its binding, and the errors that the protocol names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.conformance.matching import MISSING


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How the specification (§5.4, §9.5) maps one kind of error to each binding."""

    code: int
    http: int
    grpc: str
    reason: str


ERRORS: Final[Mapping[str, Kind]] = {
    name: Kind(code=code, http=http, grpc=grpc, reason=reason)
    for name, code, http, grpc, reason in (
        ("TaskNotFoundError", -32001, 404, "NOT_FOUND", "TASK_NOT_FOUND"),
        ("TaskNotCancelableError", -32002, 400, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE"),
        (
            "PushNotificationNotSupportedError",
            -32003,
            400,
            "FAILED_PRECONDITION",
            "PUSH_NOTIFICATION_NOT_SUPPORTED",
        ),
        ("UnsupportedOperationError", -32004, 400, "FAILED_PRECONDITION", "UNSUPPORTED_OPERATION"),
        (
            "ContentTypeNotSupportedError",
            -32005,
            400,
            "INVALID_ARGUMENT",
            "CONTENT_TYPE_NOT_SUPPORTED",
        ),
        (
            "ExtensionSupportRequiredError",
            -32008,
            400,
            "FAILED_PRECONDITION",
            "EXTENSION_SUPPORT_REQUIRED",
        ),
        ("VersionNotSupportedError", -32009, 400, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED"),
        ("InvalidParamsError", -32602, 400, "INVALID_ARGUMENT", "INVALID_PARAMS"),
        ("JSONParseError", -32700, 400, "INVALID_ARGUMENT", "INVALID_REQUEST"),
        ("MethodNotFoundError", -32601, 404, "UNIMPLEMENTED", "METHOD_NOT_FOUND"),
        ("InternalError", -32603, 500, "INTERNAL", "INTERNAL_ERROR"),
    )
}


@dataclass(frozen=True, kw_only=True)
class Error:
    """One that the server answered with. code: what the binding carries, as `Kind` has it."""

    code: int | str
    message: str
    details: Any = ()

    def view(self) -> dict[str, Any]:
        """As the expectations of a test see it."""
        body = {"code": self.names, "message": self.message}
        return {**body, "data": self.details} if self.details else body

    @property
    def names(self) -> str:
        """The specification's name for it, by its ErrorInfo where there is one: several kinds
        share an HTTP status."""
        reasons = {detail.get("reason") for detail in self.details if isinstance(detail, Mapping)}
        for name, kind in ERRORS.items():
            fits = self.code in (kind.code, kind.http, kind.grpc)
            if fits and (kind.reason in reasons or self.code == kind.code):
                return name
        return f"an error without a name ({self.code})"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer. `body` is the protocol's object, or the whole of it for a raw request."""

    status: int | str
    body: Any = MISSING
    error: Error | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Events:
    """A stream's events, in order, until it ended."""

    events: tuple[Mapping[str, Any], ...]
    status: int | str = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    ended: bool = True
