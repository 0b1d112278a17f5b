"""Which tokens a gateway takes. Apart from what checks them, so that it can be said without
`outlast[jwt]`."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.model.errors import ConfigError

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
"""What may have signed a token: asymmetric all of them. With a symmetric one, whoever can read the
provider's public key could sign."""


@dataclass(frozen=True, kw_only=True)
class TokenRules:
    """Which tokens are taken, and what is read of them.

    audiences: of which a token names at least one. leeway_s: what clocks may differ by.
    subject_claim: who calls; a token without it is refused. tenant_claim: of which tenant, and a
    token without it is refused too; None when tokens are of no tenant. scope_claim: what the
    caller may do: a text with spaces between, or a list. shown_claims: what the author may see.
    A claim within another is named with a dot: `realm_access.roles`.
    """

    issuer: str
    audiences: tuple[str, ...]
    algorithms: tuple[str, ...] = ALGORITHMS
    leeway_s: int = 30
    subject_claim: str = "sub"
    tenant_claim: str | None = None
    scope_claim: str = "scope"
    shown_claims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.audiences or not all(self.audiences):
            raise ConfigError(
                "tokens need an audience: without one, a token that was given out for another"
                " service would open this one"
            )
        if others := [name for name in self.algorithms if name not in ALGORITHMS]:
            raise ConfigError(
                f"{', '.join(others)} cannot be accepted from everybody; what can:"
                f" {', '.join(ALGORITHMS)}"
            )
        if not self.algorithms:
            raise ConfigError(f"tokens need an algorithm, of {', '.join(ALGORITHMS)}")
