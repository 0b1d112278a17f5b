"""The Agent Card: what the agent says of itself, and what is true of this gateway."""

from __future__ import annotations

from collections.abc import Sequence

from a2a.types import a2a_pb2 as pb
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, TransportProtocol

from outlast.gateway.auth.ways import Way, declare
from outlast.gateway.config import Extension, GatewayConfig
from outlast.gateway.policy import policy_of
from outlast.wire.extension import EXTENSION_URI
from outlast.workflow.agent import Agent, Skill


def agent_card(agent: Agent, config: GatewayConfig, ways: Sequence[Way] = ()) -> pb.AgentCard:
    """The public card of the agent behind `config.url`, whose callers are known in these ways."""
    url = config.url.rstrip("/")
    card = pb.AgentCard(
        name=agent.name,
        description=agent.description,
        version=config.agent_version,
        supported_interfaces=[
            _interface(f"{url}/", TransportProtocol.JSONRPC),
            _interface(url, TransportProtocol.HTTP_JSON),
            *([_interface(config.grpc_url, TransportProtocol.GRPC)] if config.grpc_url else []),
            *(_older_interfaces(config) if config.serves_0_3 else []),
        ],
        capabilities=pb.AgentCapabilities(
            streaming=True,
            push_notifications=config.push_notifications,
            # Only for callers who have authenticated (§13.3): where nobody can, there is none.
            extended_agent_card=bool(ways and agent.extended_skills),
            extensions=[_extension(agent, config), *map(_declared, config.extensions)],
        ),
        default_input_modes=agent.input_modes,
        default_output_modes=agent.output_modes,
        skills=map(_skill, agent.skills or [_whole(agent)]),
    )
    declare(card, ways)
    return card


def extended_card(public: pb.AgentCard, agent: Agent) -> pb.AgentCard:
    """What a caller who has authenticated sees in the place of the public card (§3.1.11)."""
    card = pb.AgentCard()
    card.CopyFrom(public)
    card.skills.extend(map(_skill, agent.extended_skills))
    return card


def _interface(
    url: str, binding: TransportProtocol, version: str = PROTOCOL_VERSION_1_0
) -> pb.AgentInterface:
    return pb.AgentInterface(url=url, protocol_binding=binding.value, protocol_version=version)


def _older_interfaces(config: GatewayConfig) -> list[pb.AgentInterface]:
    """Clients of 0.3 add /v1 themselves."""
    url = config.url.rstrip("/")
    places = [(f"{url}/", TransportProtocol.JSONRPC), (url, TransportProtocol.HTTP_JSON)]
    if config.grpc_url:
        places.append((config.grpc_url, TransportProtocol.GRPC))
    return [_interface(place, binding, PROTOCOL_VERSION_0_3) for place, binding in places]


def _extension(agent: Agent, config: GatewayConfig) -> pb.AgentExtension:
    extension = pb.AgentExtension(
        uri=EXTENSION_URI,
        description=(
            "Generations, callers' messages as events, a GetTask that waits for a newer generation,"
            " sends that insist on one, and answers that name their question; params: what this"
            " gateway promises and limits."
        ),
        required=False,
    )
    extension.params.update(policy_of(agent, config))
    return extension


def _declared(extension: Extension) -> pb.AgentExtension:
    declared = pb.AgentExtension(
        uri=extension.uri, description=extension.description, required=extension.required
    )
    declared.params.update(extension.params)
    return declared


def _whole(agent: Agent) -> Skill:
    """The agent as its own only skill: the specification wants at least one."""
    return Skill(id=agent.name, name=agent.name, description=agent.description)


def _skill(skill: Skill) -> pb.AgentSkill:
    return pb.AgentSkill(
        id=skill.id,
        name=skill.name,
        description=skill.description,
        tags=skill.tags or [skill.id],  # here, too, it wants at least one
        examples=skill.examples,
    )
