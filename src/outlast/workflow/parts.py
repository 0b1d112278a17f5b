"""Parts of messages and artifacts as JSON, within the limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.model.content import Data, File, Part, Text, as_part
from outlast.model.errors import AuthorError
from outlast.workflow.jsontype import canonical, plain, refuse_nul
from outlast.workflow.limits import ARTIFACT_LIMIT, PART_LIMIT, check_size, size_of

_ELSEWHERE = "keep it in your own store and send its address: File(url=…)."


def part_json(part: Part | str, *, what: str) -> dict[str, Any]:
    """The part as A2A's JSON.

    Raises AuthorError, naming `what`, for something that is no part, is no JSON, holds a NUL
    character or is larger than a part may be.
    """
    if not isinstance(part, (str, Text, Data, File)):
        raise AuthorError(
            f"{what} got {type(part).__name__} for a part.",
            "pass text, Text(…), Data(…) or File(…).",
        )
    body = json_object(as_part(part).to_json(), what=f"a part of {what}")
    check_size(body_size(body), PART_LIMIT, what=f"A part of {what}", fix=_ELSEWHERE)
    return body


def json_object(body: Mapping[str, Any], *, what: str) -> dict[str, Any]:
    """The object made of JSON's own. Raises AuthorError, naming `what`, if it cannot be."""
    made: dict[str, Any] = plain(body, what=what)
    for name, value in made.items():
        # `raw` is base64 by construction, and may be large.
        if name != "raw":
            refuse_nul(value, what=what)
    return made


def body_size(body: Mapping[str, Any]) -> int:
    """Bytes of a part's JSON."""
    if set(body) == {"text"}:
        return size_of(body["text"])
    return size_of(canonical(body))


def check_artifact_size(size: int, *, artifact: str) -> None:
    """Raise AuthorError for an artifact that has grown too large."""
    check_size(size, ARTIFACT_LIMIT, what=f"Artifact {artifact}", fix=_ELSEWHERE)
