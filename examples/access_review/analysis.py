"""Which grants should go, and why. Pure: the same grants and policy give the same findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from enum import StrEnum

from examples.access_review.records import Grant, Record

UNUSED_DAYS = 90


class Reason(StrEnum):
    LEAVER = "leaver"
    UNUSED = "unused"
    TOXIC = "toxic"


class Policy(Record):
    """What a review judges by.

    as_of: the day it judges for.
    leavers: the day on which a user left, for those who have.
    toxic: pairs of roles, as `system:role`, that nobody may hold together.
    """

    as_of: date
    leavers: dict[str, date]
    toxic: tuple[tuple[str, str], ...] = ()
    unused_days: int = UNUSED_DAYS

    def is_leaver(self, grant: Grant) -> bool:
        left_at = self.leavers.get(grant.user)
        return left_at is not None and left_at <= self.as_of

    def is_unused(self, grant: Grant) -> bool:
        """Not used for `unused_days`; a grant never used counts from the day it was given."""
        return (self.as_of - last_sign_of_life(grant)).days >= self.unused_days


class Finding(Record):
    """A grant that should be revoked. `explanation` is for people, one clause per reason."""

    grant: Grant
    reasons: tuple[Reason, ...]
    explanation: str


def last_sign_of_life(grant: Grant) -> date:
    return grant.last_used_at or grant.granted_at


def keep_relevant(grants: Iterable[Grant], policy: Policy) -> list[Grant]:
    """Return the grants that `find` can say anything about: a small part of them all.

    `find` over the relevant grants finds what it would over all of them.
    """
    sensitive = {role for pair in policy.toxic for role in pair}
    return [
        grant
        for grant in grants
        if grant.qualified_role in sensitive or policy.is_leaver(grant) or policy.is_unused(grant)
    ]


def find(grants: Iterable[Grant], policy: Policy) -> list[Finding]:
    """Return the findings, by grant id.

    Leavers and unused grants first. Of a toxic combination that is left after these are gone, the
    grant used longest ago goes: revoking one of the two is enough to break it.
    """
    everything = list(grants)
    findings = {finding.grant.id: finding for finding in _stale(everything, policy)}
    left = [grant for grant in everything if grant.id not in findings]
    findings |= {finding.grant.id: finding for finding in _toxic(left, policy)}
    return [findings[key] for key in sorted(findings)]


def _stale(grants: Iterable[Grant], policy: Policy) -> Iterable[Finding]:
    for grant in grants:
        clauses: dict[Reason, str] = {}
        if policy.is_leaver(grant):
            clauses[Reason.LEAVER] = f"left on {policy.leavers[grant.user]}"
        if policy.is_unused(grant):
            clauses[Reason.UNUSED] = (
                f"not used since {grant.last_used_at}"
                if grant.last_used_at
                else f"never used since it was granted on {grant.granted_at}"
            )
        if clauses:
            yield Finding(
                grant=grant, reasons=tuple(clauses), explanation="; ".join(clauses.values())
            )


def _toxic(grants: Iterable[Grant], policy: Policy) -> Iterable[Finding]:
    held: defaultdict[str, list[Grant]] = defaultdict(list)
    for grant in grants:
        held[grant.user].append(grant)
    for user_grants in held.values():
        for one, other in policy.toxic:
            sides = [_in_role(user_grants, one), _in_role(user_grants, other)]
            if not all(sides):
                continue
            goes, stays = sorted(sides, key=_last_used)
            for grant in goes:
                user_grants.remove(grant)  # Other pairs it belongs to are broken up as well.
                yield Finding(
                    grant=grant,
                    reasons=(Reason.TOXIC,),
                    explanation=f"may not be held together with {stays[0].qualified_role}",
                )


def _in_role(grants: Iterable[Grant], role: str) -> list[Grant]:
    return [grant for grant in grants if grant.qualified_role == role]


def _last_used(grants: Sequence[Grant]) -> tuple[date, str]:
    return max((last_sign_of_life(grant), grant.id) for grant in grants)
