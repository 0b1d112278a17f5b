"""What callers and agents say to each other: messages, parts and artifacts.

Small frozen values. `to_json` and `from_json` use the names of A2A's JSON (specification
§4.1), so that what the log holds is what goes out; a test proves the round trip through the
protocol's own types.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from outlast.model.errors import InvalidParams
from outlast.model.ids import new_message_id

Role = Literal["user", "agent"]
_ROLES: Mapping[Role, str] = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}


@dataclass(frozen=True)
class Text:
    """A part of plain text."""

    text: str
    media_type: str | None = field(default=None, kw_only=True)
    metadata: Mapping[str, Any] | None = field(default=None, kw_only=True)

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, **_extras(self.metadata, self.media_type)}


@dataclass(frozen=True)
class Data:
    """A part of structured data: any JSON value."""

    data: Any
    media_type: str | None = field(default=None, kw_only=True)
    metadata: Mapping[str, Any] | None = field(default=None, kw_only=True)

    def to_json(self) -> dict[str, Any]:
        return {"data": self.data, **_extras(self.metadata, self.media_type)}


@dataclass(frozen=True, kw_only=True)
class File:
    """A file: its bytes (`raw`) or where they are (`url`), one of the two."""

    raw: bytes | None = None
    url: str | None = None
    name: str | None = None
    media_type: str | None = None
    metadata: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.raw is None) == (self.url is None):
            raise ValueError("a File has either raw bytes or a url")

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = (
            {"url": self.url}
            if self.raw is None
            else {"raw": base64.b64encode(self.raw).decode("ascii")}
        )
        if self.name is not None:
            body["filename"] = self.name
        return body | _extras(self.metadata, self.media_type)


Part = Text | Data | File


def part_from_json(body: Mapping[str, Any], *, path: str = "part") -> Part:
    """The part that A2A's JSON describes; InvalidParams names what is missing at `path`."""
    metadata = body.get("metadata")
    media_type = body.get("mediaType")
    if "text" in body:
        return Text(body["text"], media_type=media_type, metadata=metadata)
    if "data" in body:
        return Data(body["data"], media_type=media_type, metadata=metadata)
    if "raw" in body:
        try:
            raw = base64.b64decode(body["raw"], validate=True)
        except binascii.Error as error:
            raise InvalidParams("is not base64", path=f"{path}.raw") from error
        return File(raw=raw, name=body.get("filename"), media_type=media_type, metadata=metadata)
    if "url" in body:
        return File(
            url=body["url"], name=body.get("filename"), media_type=media_type, metadata=metadata
        )
    raise InvalidParams("needs one of text, data, raw or url", path=path)


def as_part(value: Part | str) -> Part:
    return Text(value) if isinstance(value, str) else value


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: Role
    parts: tuple[Part, ...]
    message_id: str = field(default_factory=new_message_id)
    context_id: str | None = None
    task_id: str | None = None
    metadata: Mapping[str, Any] | None = None
    extensions: tuple[str, ...] = ()
    reference_task_ids: tuple[str, ...] = ()

    @classmethod
    def user(cls, *parts: Part | str, metadata: Mapping[str, Any] | None = None) -> Message:
        """A caller's message, as tests and the router of another agent write it."""
        return cls(role="user", parts=tuple(map(as_part, parts)), metadata=metadata)

    @classmethod
    def agent(cls, *parts: Part | str, metadata: Mapping[str, Any] | None = None) -> Message:
        """An agent's message: what a router returns to answer without a task."""
        return cls(role="agent", parts=tuple(map(as_part, parts)), metadata=metadata)

    @property
    def text(self) -> str:
        """All text parts, joined by line breaks."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def data(self) -> Any:
        """The value of the first data part, or None."""
        return next((part.data for part in self.parts if isinstance(part, Data)), None)

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "messageId": self.message_id,
            "role": _ROLES[self.role],
            "parts": [part.to_json() for part in self.parts],
        }
        if self.context_id:
            body["contextId"] = self.context_id
        if self.task_id:
            body["taskId"] = self.task_id
        if self.metadata:
            body["metadata"] = dict(self.metadata)
        if self.extensions:
            body["extensions"] = list(self.extensions)
        if self.reference_task_ids:
            body["referenceTaskIds"] = list(self.reference_task_ids)
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Message:
        parts = body.get("parts", ())
        return cls(
            role="agent" if body.get("role") == "ROLE_AGENT" else "user",
            parts=tuple(
                part_from_json(part, path=f"message.parts[{index}]")
                for index, part in enumerate(parts)
            ),
            message_id=body.get("messageId", ""),
            context_id=body.get("contextId"),
            task_id=body.get("taskId"),
            metadata=body.get("metadata"),
            extensions=tuple(body.get("extensions", ())),
            reference_task_ids=tuple(body.get("referenceTaskIds", ())),
        )


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """Something that the task produced; the same id replaces."""

    id: str
    parts: tuple[Part, ...]
    name: str | None = None
    description: str | None = None
    metadata: Mapping[str, Any] | None = None

    @property
    def text(self) -> str:
        """All text parts, joined without anything between: chunks make one text."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "artifactId": self.id,
            "parts": [part.to_json() for part in self.parts],
        }
        if self.name:
            body["name"] = self.name
        if self.description:
            body["description"] = self.description
        if self.metadata:
            body["metadata"] = dict(self.metadata)
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Artifact:
        return cls(
            id=body["artifactId"],
            parts=tuple(part_from_json(part, path="artifact.part") for part in body["parts"]),
            name=body.get("name"),
            description=body.get("description"),
            metadata=body.get("metadata"),
        )


def joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts with neighbouring plain texts made one: what coalesced chunks become."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        if isinstance(part, Text) and isinstance(last, Text) and _is_plain(part, last):
            out[-1] = Text(last.text + part.text)
        else:
            out.append(part)
    return tuple(out)


def _is_plain(*texts: Text) -> bool:
    return all(text.metadata is None and text.media_type is None for text in texts)


def _extras(metadata: Mapping[str, Any] | None, media_type: str | None) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    if media_type is not None:
        extras["mediaType"] = media_type
    if metadata:
        extras["metadata"] = dict(metadata)
    return extras
