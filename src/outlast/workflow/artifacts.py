"""Artifacts that go out whole, with the next commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outlast.model.artifacts import artifact_event
from outlast.model.commit import Event
from outlast.model.content import Artifact, Part
from outlast.model.errors import AuthorError
from outlast.workflow.limits import check_key
from outlast.workflow.outbox import ArtifactJson
from outlast.workflow.parts import body_size, check_artifact_size, json_object, part_json


def whole_artifact(
    name: str,
    parts: Sequence[str | Part],
    *,
    id: str | None,
    description: str | None,
    metadata: Mapping[str, Any] | None,
) -> Event:
    """The event of a whole artifact, in place of what readers hold under the same id.

    Raises AuthorError for one without parts, and for what `part_json` refuses.
    """
    artifact_id = name if id is None else id
    head = artifact_head(
        Artifact(id=artifact_id, parts=(), name=name, description=description, metadata=metadata)
    )
    if not parts:
        raise AuthorError(
            f"Artifact {artifact_id} has no parts.", "pass its content: text, Data(…), File(…)."
        )
    bodies = [part_json(part, what=f"artifact {artifact_id}") for part in parts]
    check_artifact_size(sum(map(body_size, bodies)), artifact=artifact_id)
    return artifact_event({**head, "parts": bodies}, append=False, last_chunk=True)


def artifact_head(artifact: str | Artifact) -> ArtifactJson:
    """The artifact's JSON without its parts. A text is its id and its name.

    Raises AuthorError for what cannot be an id, and for an artifact that brings parts.
    """
    if isinstance(artifact, str):
        artifact = Artifact(id=artifact, name=artifact, parts=())
    if artifact.parts:
        raise AuthorError(
            f"Artifact {artifact.id} is opened as a stream and has parts already.",
            "leave parts=() and write them to the stream.",
        )
    check_key(artifact.id, verb="an artifact")
    body = json_object(artifact.to_json(), what=f"artifact {artifact.id}")
    del body["parts"]
    return body
