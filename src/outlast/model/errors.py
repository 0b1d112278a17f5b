"""Every error of Outlast, split by who must act.

::

    Exception
    └── OutlastError
        ├── CallerError             the caller sent something that cannot be done
        │   ├── TaskNotFound        no such task for this caller, or it expired
        │   │   └── WebhookNotFound  the task has no push notification config of this id
        │   ├── TaskNotCancelable   it has already ended otherwise
        │   ├── LogTrimmed          what was asked for is no longer in the task's log
        │   ├── UnsupportedOperation  the task's state does not take this
        │   ├── GenerationMismatch  the task has gone on since the caller looked at it
        │   ├── InvalidParams       a field is wrong; says which, and what would be right
        │   │   └── KeyReused       other content under an idempotency key in use
        │   ├── ContentTypeNotSupported  the agent does not read, or does not say, this media type
        │   ├── TooMany             a limit of this caller is reached; says when to come again
        │   ├── Unauthenticated     no credential, or one that is not valid
        │   └── Forbidden           the credential is valid and does not allow this
        ├── AuthorError             the author broke a rule; names the rule and the fix
        ├── ConfigError             the operator must change the configuration
        │   └── SchemaMismatch      this binary and the store's schema do not fit
        ├── StoreUnavailable        the database did not answer in time; try again
        │   └── KeysUnavailable     nor did the identity provider, which has a token's key
        ├── StoreRestored           the store is in another epoch than this process began in
        └── CallFailed              what a Client meets when it calls an agent
            ├── Unreachable         the agent did not answer for as long as the client is patient
            ├── Uncertain           the message may have been taken, or not
            ├── Refused             the agent, or what stands before it, says no
            └── NotCompleted        the task has ended, but not well
                ├── TaskFailed      it failed
                ├── TaskCanceled    it was canceled
                └── TaskRejected    the agent did not take it on

    What an author raises (and what the runtime raises into author's code):

        ├── Failed                  end the task as FAILED with this text
        ├── Rejected                end the task as REJECTED with this text
        ├── Permanent               fail the step without further attempts
        ├── RetryAfter              try the step again after this delay
        ├── NotDone                 an effect certainly did not happen
        └── DeadlinePassed          nobody answered in time (on_deadline="resume")

    BaseException
    └── Stopped                     a run is stopped from outside; no `except Exception` eats it
        ├── LeaseLost               another worker may own the task: write nothing more
        ├── CancelRequested         the caller wants the task canceled
        ├── ShuttingDown            the worker stops; the step will start over elsewhere
        └── Suspended               the step waits: an answer, a timer
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta


class OutlastError(Exception):
    """The root of every error that is not a `Stopped`."""


class CallerError(OutlastError):
    """The caller asked for something that cannot be done. The text is for the caller."""


class TaskNotFound(CallerError):
    """No task of this id exists for this caller; `expired` tells its owner that it did."""

    def __init__(self, task_id: str, *, expired: bool = False) -> None:
        self.task_id = task_id
        self.expired = expired
        super().__init__(
            f"task {task_id} has expired and can no longer be read"
            if expired
            else f"there is no task {task_id}"
        )


class WebhookNotFound(TaskNotFound):
    """The task has no push notification config of this id. For the protocol that is a task which
    is not found."""

    def __init__(self, task_id: str, config_id: str) -> None:
        self.task_id = task_id
        self.expired = False
        self.config_id = config_id
        text = f"task {task_id} has no push notification config {config_id}"
        CallerError.__init__(self, text)


class LogTrimmed(CallerError):
    """The next event is no longer in the log: the task ended some time ago, and only what it has
    become can still be read."""

    def __init__(self, task_id: str) -> None:
        super().__init__(
            f"task {task_id} ended so long ago that its events can no longer be read; get it as it"
            " is with GetTask"
        )


class TaskNotCancelable(CallerError):
    """The task has already ended, and not by a cancel."""


class UnsupportedOperation(CallerError):
    """The task is in a state that does not take this operation."""


class GenerationMismatch(CallerError):
    """The caller insisted on a generation of the task, and it has another one: something has
    happened since the caller looked."""

    def __init__(self, task_id: str, *, expected: int, current: int) -> None:
        self.task_id = task_id
        self.expected = expected
        self.current = current
        super().__init__(
            f"the message insists on generation {expected} of task {task_id}, which is at"
            f" {current}; read the task, and send again if the message still fits"
        )


class InvalidParams(CallerError):
    """A field of the request is wrong. `path` says which, in the words of the request."""

    def __init__(self, text: str, *, path: str | None = None) -> None:
        self.path = path
        super().__init__(f"{path}: {text}" if path else text)


class KeyReused(InvalidParams):
    """A request under an idempotency key that already stands for other content."""


class ContentTypeNotSupported(CallerError):
    """The agent does not read what the caller sends, or says nothing that the caller accepts.
    `supported` are the media types that would do."""

    def __init__(self, text: str, *, supported: Sequence[str]) -> None:
        self.supported = tuple(supported)
        super().__init__(text)


class TooMany(CallerError):
    """The caller has reached a limit of its own; `retry_after` says in how many seconds a repeat
    may go through."""

    def __init__(self, text: str, *, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(text)


class Unauthenticated(CallerError):
    """Nobody knows the caller: a credential is missing, or is not valid. The text says what is
    wrong with it and never repeats it. `is_missing`: there was none at all."""

    def __init__(self, text: str, *, is_missing: bool = False) -> None:
        self.is_missing = is_missing
        super().__init__(text)


class Forbidden(CallerError):
    """The caller is known and may not do this. `scope` is what its credential would need."""

    def __init__(self, text: str, *, scope: str | None = None) -> None:
        self.scope = scope
        super().__init__(text)


class AuthorError(OutlastError):
    """The author of a workflow broke a rule.

    Found at import where it can be seen there, else at the first call; a running task
    is then held, not failed: deploy the fix, `outlast unhold`, and nothing is lost.
    """

    def __init__(self, rule: str, fix: str) -> None:
        self.rule = rule
        self.fix = fix
        super().__init__(f"{rule} Fix: {fix}")


class ConfigError(OutlastError):
    """The configuration does not work. The text says what would."""


class SchemaMismatch(ConfigError):
    """The store's schema and this binary do not fit together."""


class StoreRestored(OutlastError):
    """An older copy of the store was put in place while this process went on. Start it anew."""


class StoreUnavailable(OutlastError):
    """The database did not answer within the call's deadline.

    Whether the write happened is unknown unless `happened` is False: repeat it with the
    same content. Never reaches a step: the verbs of a context wait, within the lease.
    """

    def __init__(self, text: str, *, happened: bool | None = None) -> None:
        self.happened = happened
        super().__init__(text)


class KeysUnavailable(StoreUnavailable):
    """The identity provider did not answer, so nobody can say whether a token is valid. The same
    call may succeed later."""


class CallFailed(OutlastError):
    """A call of an agent, made by a Client, did not bring what it asked for."""


class Unreachable(CallFailed):
    """The agent did not answer for as long as the client is patient. Its tasks go on."""


class Uncertain(CallFailed):
    """The connection was lost while a message was under way, to an agent that does not recognise
    a repeat: the message may have been taken, or not. It is sent again only by you."""


class Refused(CallFailed):
    """The agent, or what stands before it, says no, in a way that has no error of its own here:
    credentials, versions, content types."""


class NotCompleted(CallFailed):
    """The task has ended, but is not COMPLETED."""

    def __init__(self, task_id: str, text: str) -> None:
        self.task_id = task_id
        self.text = text
        super().__init__(
            f"task {task_id} {self._ended}: {text}" if text else f"task {task_id} {self._ended}"
        )

    _ended = "has not completed"


class TaskFailed(NotCompleted):
    """The task has failed; `text` is what the agent said."""

    _ended = "has failed"


class TaskCanceled(NotCompleted):
    """The task was canceled."""

    _ended = "was canceled"


class TaskRejected(NotCompleted):
    """The agent did not take the task on; `text` is what it said."""

    _ended = "was rejected"


class Failed(OutlastError):
    """End the task as FAILED; the caller sees this text."""


class Rejected(OutlastError):
    """End the task as REJECTED; the caller sees this text."""


class Permanent(OutlastError):
    """The step failed for good: no further attempt. The text is for operators."""


class RetryAfter(OutlastError):
    """The step failed and should be tried again after `delay`, within its attempts."""

    def __init__(self, delay: timedelta | float, text: str = "") -> None:
        self.delay = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
        super().__init__(text or f"try again after {self.delay.total_seconds():g} s")


class NotDone(OutlastError):
    """An effect certainly did not happen: it may be called again."""


class DeadlinePassed(OutlastError):
    """Nobody answered before the deadline of a question asked with on_deadline="resume"."""


class Stopped(BaseException):
    """A run is stopped from outside. Let it pass: every verb raises it again."""


class LeaseLost(Stopped):
    """Another worker may own the task by now; nothing that this run writes will count."""


class CancelRequested(Stopped):
    """The task is marked for cancel: leave the step, the cancel step runs next."""


class ShuttingDown(Stopped):
    """The worker is stopping; the step starts over from its last commit elsewhere."""
