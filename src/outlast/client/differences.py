"""What happened between a Task that was shown and a later one, as far as the two can tell."""

from __future__ import annotations

from collections.abc import Sequence

from a2a.types import a2a_pb2 as pb

from outlast.client.snapshot import ArtifactChanged, Event, StatusChanged


def differences(shown: pb.Task, now: pb.Task) -> Sequence[Event] | None:
    """Events which make the one of the other; None when only a reset does: an artifact is gone.

    Artifacts that have only grown are told by their parts from those that were replaced, so that a
    reader is never shown a part twice. The status comes last: it may end the task.
    """
    events: list[Event] = []
    held = {artifact.artifact_id: artifact for artifact in shown.artifacts}
    if not held.keys() <= {artifact.artifact_id for artifact in now.artifacts}:
        return None
    for artifact in now.artifacts:
        before = held.get(artifact.artifact_id)
        if before is None:
            events.append(_artifact(now, artifact, append=False))
            continue
        count = len(before.parts)
        if list(artifact.parts[:count]) != list(before.parts):
            events.append(_artifact(now, artifact, append=False))
        elif len(artifact.parts) > count:
            grown = pb.Artifact()
            grown.CopyFrom(artifact)
            del grown.parts[:count]
            events.append(_artifact(now, grown, append=True))
        elif _named(artifact) != _named(before):
            events.append(_artifact(now, artifact, append=False))
    if now.status != shown.status:
        update = pb.TaskStatusUpdateEvent(task_id=now.id, context_id=now.context_id)
        update.status.CopyFrom(now.status)
        events.append(StatusChanged(update))
    return events


def _artifact(task: pb.Task, artifact: pb.Artifact, *, append: bool) -> ArtifactChanged:
    return ArtifactChanged(
        pb.TaskArtifactUpdateEvent(
            task_id=task.id, context_id=task.context_id, artifact=artifact, append=append
        )
    )


def _named(artifact: pb.Artifact) -> tuple[str, str, bytes]:
    said = artifact.metadata.SerializeToString(deterministic=True)
    return artifact.name, artifact.description, said
