"""The client's side of A2A: send once, follow over any failure, answer what was asked."""

from outlast.client.calls import Patience
from outlast.client.client import Client
from outlast.client.snapshot import (
    ArtifactChanged,
    Event,
    Link,
    Opened,
    Question,
    Reset,
    Sent,
    Snapshot,
    StatusChanged,
)

__all__ = [
    "ArtifactChanged",
    "Client",
    "Event",
    "Link",
    "Opened",
    "Patience",
    "Question",
    "Reset",
    "Sent",
    "Snapshot",
    "StatusChanged",
]
