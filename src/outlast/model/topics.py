"""What wake-ups are about. A wake-up is a hint: whoever waits for one also polls.

A cancel is announced on both: the worker that runs the task listens to the task's own topic, and
a cancel step needs a worker when nobody runs it.
"""

from __future__ import annotations

from outlast.model.ids import TaskId


def work_topic(agent: str) -> str:
    """A task of this agent has become ready to be claimed."""
    return f"work:{agent}"


def task_topic(task_id: TaskId) -> str:
    """The log of this task has grown, or its state has changed."""
    return f"task:{task_id}"
