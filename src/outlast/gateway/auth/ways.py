"""What the Agent Card says of the ways in which callers are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from a2a.types import a2a_pb2 as pb

from outlast.gateway.auth import api_keys
from outlast.gateway.auth.principal import AnyOf, Authenticator
from outlast.gateway.auth.proxy import TrustedProxy
from outlast.gateway.auth.token_rules import TokenRules
from outlast.gateway.context import is_seen
from outlast.model.errors import ConfigError
from outlast.store.protocols import AccessStore


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way of knowing callers, and the schemes by which the card declares it: each alone is
    enough. begin: what it does when the gateway starts."""

    authenticator: Authenticator
    schemes: Mapping[str, pb.SecurityScheme]
    begin: Callable[[], None] = lambda: None


def by_api_keys(store: AccessStore, agent: str) -> Way:
    """Callers with an API key of this agent."""
    said = "A key made by `outlast keys create`."
    in_header = pb.APIKeySecurityScheme(location="header", name="X-API-Key", description=said)
    as_bearer = pb.HTTPAuthSecurityScheme(scheme="Bearer", description=said)
    return Way(
        authenticator=api_keys.ApiKeys(store, agent),
        schemes={
            "apiKey": pb.SecurityScheme(api_key_security_scheme=in_header),
            "apiKeyAsBearer": pb.SecurityScheme(http_auth_security_scheme=as_bearer),
        },
    )


def by_proxy(header: str, proxies: Sequence[str]) -> Way:
    """Callers whose client certificate a proxy has checked. Errors as for `TrustedProxy`, and
    ConfigError for a header that handlers read as something else."""
    if is_seen(header.lower()):
        raise ConfigError(f"{header} has a meaning of its own: name callers in another header")
    said = pb.MutualTlsSecurityScheme(description="A client certificate.")
    return Way(
        authenticator=TrustedProxy(header, proxies),
        schemes={"mutualTLS": pb.SecurityScheme(mtls_security_scheme=said)},
    )


def by_tokens(rules: TokenRules, *, jwks_url: str | None = None) -> Way:
    """Callers with a token of an identity provider. Errors as for `ProviderKeys`, and ConfigError
    where what checks tokens is not installed."""
    try:
        from outlast.gateway.auth.jwt import SignedTokens
        from outlast.gateway.auth.provider_keys import ProviderKeys, discovery_url
    except ImportError as error:
        raise ConfigError(
            f"tokens need more than is installed ({error}): pip install 'outlast[jwt]'"
        ) from None
    keys = ProviderKeys(rules.issuer, jwks_url=jwks_url)
    said = f"A token of {rules.issuer} for {' or '.join(rules.audiences)}."
    if jwks_url is None:
        found = pb.OpenIdConnectSecurityScheme(
            open_id_connect_url=discovery_url(rules.issuer), description=said
        )
        schemes = {"openIdConnect": pb.SecurityScheme(open_id_connect_security_scheme=found)}
    else:
        bearer = pb.HTTPAuthSecurityScheme(scheme="Bearer", bearer_format="JWT", description=said)
        schemes = {"token": pb.SecurityScheme(http_auth_security_scheme=bearer)}
    return Way(authenticator=SignedTokens(rules, keys), schemes=schemes, begin=keys.begin)


def any_of(ways: Sequence[Way]) -> Authenticator | None:
    """All of the ways at once; None when there is none, and nobody is authenticated."""
    return AnyOf(tuple(way.authenticator for way in ways)) if ways else None


def declare(card: pb.AgentCard, ways: Sequence[Way]) -> None:
    """Write into the card what is enforced: one of these schemes, whichever."""
    for way in ways:
        for name, scheme in way.schemes.items():
            card.security_schemes[name].CopyFrom(scheme)
            requirement = card.security_requirements.add()
            requirement.schemes[name].SetInParent()
