"""The error of a send that insists on a generation, as the draft of A2A 1.1 has it.

The SDK knows the errors of 1.0 by tables. This one joins them, so that servers and clients say and
read it like any other, on every binding.
"""

from __future__ import annotations

from a2a.utils import errors as a2a

CODE = -32010


class TaskGenerationMismatchError(a2a.A2AError):
    """The task is not at the generation on which the message insists. `data` holds taskId,
    expectedGeneration and currentGeneration."""

    message = "Task generation mismatch"


_KNOWN = a2a.ErrorMapping(409, "ABORTED", "TASK_GENERATION_MISMATCH")

a2a.JSON_RPC_ERROR_CODE_MAP[TaskGenerationMismatchError] = CODE
a2a.A2A_ERROR_MAPPING[TaskGenerationMismatchError] = _KNOWN
a2a.A2A_ERROR_REASONS[TaskGenerationMismatchError] = _KNOWN.reason
a2a.A2A_REASON_TO_ERROR[_KNOWN.reason] = TaskGenerationMismatchError
