"""Artifacts folded from their events (specification §4.2.2): what readers hold after each one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from outlast.model.commit import Event, EventKind, LoggedEvent

ArtifactJson = dict[str, Any]


def artifact_event(artifact: Mapping[str, Any], *, append: bool, last_chunk: bool) -> Event:
    return Event(
        kind=EventKind.ARTIFACT,
        body={"artifact": artifact, "append": append, "lastChunk": last_chunk},
    )


def apply(artifacts: dict[str, ArtifactJson], body: Mapping[str, Any]) -> None:
    """One artifact event: `append` adds parts, or creates; otherwise the artifact is replaced."""
    update = body["artifact"]
    held = artifacts.get(update["artifactId"])
    if held is None or not body.get("append"):
        artifacts[update["artifactId"]] = {**update, "parts": list(update["parts"])}
        return
    held["parts"].extend(update["parts"])
    if "metadata" in update:
        held["metadata"] = {**held.get("metadata", {}), **update["metadata"]}
    held |= {key: update[key] for key in ("name", "description") if update.get(key)}


def fold_artifacts(events: Iterable[LoggedEvent]) -> dict[str, ArtifactJson]:
    """The artifacts after these events, in the order in which they first appeared."""
    artifacts: dict[str, ArtifactJson] = {}
    for event in events:
        if event.kind is EventKind.ARTIFACT:
            apply(artifacts, event.body)
    return artifacts
