"""What an agent reads and says, by media type, against what a send brings and takes (§3.1.1)."""

from __future__ import annotations

from collections.abc import Sequence

from a2a.types import a2a_pb2 as pb

from outlast.model.errors import ContentTypeNotSupported
from outlast.model.media import is_among
from outlast.workflow.agent import Agent

_SHOWN = 100


def check_modes(params: pb.SendMessageRequest, agent: Agent) -> None:
    """Raise ContentTypeNotSupported for a part of a type that the agent does not read, and where
    nothing that it says is accepted. A part that names no type is judged by nobody."""
    for index, part in enumerate(params.message.parts):
        if part.media_type and not is_among(part.media_type, agent.input_modes):
            raise ContentTypeNotSupported(
                f"message.parts[{index}].mediaType: this agent does not read"
                f" {part.media_type[:_SHOWN]!r}; it reads {_listed(agent.input_modes)}",
                supported=agent.input_modes,
            )
    accepted = params.configuration.accepted_output_modes
    if accepted and not any(is_among(mode, agent.output_modes) for mode in accepted):
        raise ContentTypeNotSupported(
            "configuration.acceptedOutputModes: this agent says nothing of these types; it says"
            f" {_listed(agent.output_modes)}",
            supported=agent.output_modes,
        )


def _listed(modes: Sequence[str]) -> str:
    return ", ".join(modes)
