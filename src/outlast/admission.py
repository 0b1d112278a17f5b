"""What a configuration says of callers: how they are known, and who is let in unknown."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.configuration import Configuration
from outlast.gateway.auth.hosts import is_loopback
from outlast.gateway.auth.principal import Principal
from outlast.gateway.auth.token_rules import ALGORITHMS, TokenRules
from outlast.gateway.auth.watch import Refusal, Watch
from outlast.gateway.auth.ways import Way, by_api_keys, by_proxy, by_tokens
from outlast.gateway.scopes import ResolveIdentity, with_principal
from outlast.model.errors import ConfigError
from outlast.store.protocols import AccessStore


def ways_of_knowing(agent: str, store: AccessStore, configuration: Configuration) -> list[Way]:
    """How a gateway of this agent knows its callers, in the order in which the ways are asked;
    none when nobody is authenticated. Raises ConfigError for a way that cannot work."""
    ways: list[Way] = []
    if configuration.api_keys:
        ways.append(by_api_keys(store, agent))
    if configuration.jwt_issuer is not None:
        rules = _token_rules(configuration, configuration.jwt_issuer)
        ways.append(by_tokens(rules, jwks_url=configuration.jwt_jwks_url))
    # Last: whoever sends a credential is judged by it, whatever a proxy says beside it.
    if configuration.proxy_header is not None:
        ways.append(by_proxy(configuration.proxy_header, configuration.proxies or ()))
    return ways


def _token_rules(configuration: Configuration, issuer: str) -> TokenRules:
    return TokenRules(
        issuer=issuer,
        audiences=configuration.jwt_audience or (),
        algorithms=ALGORITHMS
        if configuration.jwt_algorithms is None
        else configuration.jwt_algorithms,
        leeway_s=configuration.jwt_leeway,
        subject_claim=configuration.jwt_subject_claim,
        tenant_claim=configuration.jwt_tenant_claim,
        scope_claim=configuration.jwt_scope_claim,
        shown_claims=configuration.jwt_shown_claims or (),
    )


def identification(
    agent: str, ways: Sequence[Way], configuration: Configuration, watch: Watch
) -> ResolveIdentity | None:
    """Whose tasks a caller sees; None where nobody is authenticated. Who names a foreign tenant is
    noted."""
    if not ways:
        return None

    def note(principal: Principal) -> None:
        refused = Refusal(
            kind="tenant.refused",
            detail="named a tenant that is not its own",
            subject=principal.subject,
            tenant=principal.tenant or "",
        )
        watch.note(refused)

    return with_principal(
        agent, tenant_from_request=configuration.tenant_from_request, on_foreign=note
    )


def knows_callers(configuration: Configuration) -> bool:
    """Whether there is a way of knowing callers: without one all are the same owner."""
    ways = (configuration.jwt_issuer, configuration.proxy_header)
    return configuration.api_keys or any(way is not None for way in ways)


def check_reach(configuration: Configuration, ways: Sequence[Way]) -> None:
    """Raise ConfigError where other machines would reach a gateway that knows nobody."""
    if not ways and not configuration.open_to_all and not is_loopback(configuration.host):
        raise ConfigError(
            f"nobody is authenticated, so the gateway listens on loopback only, not on"
            f" {configuration.host}: say how callers are known (OUTLAST_API_KEYS=true,"
            " OUTLAST_JWT_ISSUER or OUTLAST_PROXY_HEADER), or say OUTLAST_OPEN_TO_ALL=true"
        )
