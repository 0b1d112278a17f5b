"""Names for the numbers and strings that must not be mixed up, and how ids are made."""

from __future__ import annotations

import os
import time
import uuid
from typing import NewType

TaskId = NewType("TaskId", str)
ContextId = NewType("ContextId", str)
LedgerId = NewType("LedgerId", str)
WorkerId = NewType("WorkerId", str)
StepName = NewType("StepName", str)

Seq = NewType("Seq", int)
"""The place of an event in its task's log: 1, 2, 3 … without a gap."""

BEFORE_ALL = Seq(0)
"""Before the first event of any log."""

Fence = NewType("Fence", int)
"""Raised by every grant of a lease and by every write that ends one."""

WriteNo = NewType("WriteNo", int)
"""How many writes a run has made under its fence."""

Visit = NewType("Visit", int)
"""How often the task has arrived at a step; rises with every change of step."""

Millis = NewType("Millis", int)
"""Milliseconds: since the Unix epoch for a time, else a length of time."""

NOBODY = WorkerId("")


def uuid7() -> uuid.UUID:
    """A time-ordered UUID (RFC 9562, section 5.7).

    Ids made in one process within one millisecond are in random order: nothing in
    the store relies on more than "roughly by age", which keeps B-tree inserts local.
    """
    millis = time.time_ns() // 1_000_000
    tail = int.from_bytes(os.urandom(10), "big")
    value = (millis & (1 << 48) - 1) << 80
    value |= 0x7 << 76 | (tail >> 68 & 0xFFF) << 64
    value |= 0b10 << 62 | tail & (1 << 62) - 1
    return uuid.UUID(int=value)


def new_task_id() -> TaskId:
    return TaskId(str(uuid7()))


def new_message_id() -> str:
    return str(uuid7())
