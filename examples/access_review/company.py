"""The made-up company whose access is reviewed, and what is wrong in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

AS_OF = date(2025, 9, 30)
USERS = 2_000
LEAVERS = 70
"""Users who have left. All but those of the planted findings hold no grants any more."""
LEAVING = 6
"""Users whose last day is still to come: they keep what they have."""


@dataclass(frozen=True, kw_only=True)
class Department:
    """A department, its systems, the roles in them (from the weakest), and who works there.

    toxic: two roles that nobody may hold together in one system.
    """

    systems: tuple[str, ...]
    roles: tuple[str, ...]
    titles: tuple[str, ...]
    toxic: tuple[str, str] | None = None


DEPARTMENTS: Mapping[str, Department] = {
    "finance": Department(
        systems=(
            "expenses",
            "invoicing",
            "ledger",
            "payments",
            "payroll",
            "procurement",
            "tax",
            "treasury",
        ),
        roles=("viewer", "clerk", "approver", "admin"),
        titles=("accountant", "controller", "payables clerk"),
        toxic=("clerk", "approver"),
    ),
    "people": Department(
        systems=("absence", "appraisal", "personnel", "recruiting", "training"),
        roles=("viewer", "editor", "admin"),
        titles=("recruiter", "people partner", "trainer"),
    ),
    "engineering": Department(
        systems=(
            "builds",
            "clusters",
            "metrics",
            "packages",
            "releases",
            "secrets",
            "source",
            "tickets",
        ),
        roles=("viewer", "developer", "operator", "admin"),
        titles=("developer", "tester", "site engineer", "architect"),
    ),
    "sales": Department(
        systems=("campaigns", "contracts", "crm", "partners", "pricing", "quotes"),
        roles=("viewer", "seller", "approver", "admin"),
        titles=("account executive", "sales assistant", "pricing analyst"),
        toxic=("seller", "approver"),
    ),
    "operations": Department(
        systems=("assets", "badges", "fleet", "maintenance", "shipping", "sites", "warehouse"),
        roles=("viewer", "dispatcher", "admin"),
        titles=("dispatcher", "warehouse clerk", "site keeper"),
    ),
    "support": Department(
        systems=("calls", "chats", "knowledge", "refunds", "surveys", "visits"),
        roles=("viewer", "agent", "admin"),
        titles=("support agent", "support lead"),
    ),
}

ACROSS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "payments": (("payments:approver", "procurement:clerk"),),
    "payroll": (("payroll:admin", "personnel:admin"),),
    "releases": (("releases:operator", "source:admin"),),
    "refunds": (("refunds:admin", "ledger:clerk"),),
}
"""Pairs of roles that reach from the system that asks for them into another."""

LEAVERS_WITH_GRANTS = (
    # A row is one user: how many days ago they left, then what they still hold and how many days
    # ago they used it. More than 90 days ago makes two reasons of one grant.
    (12, (("crm", "seller", 15), ("quotes", "viewer", 20))),
    (41, (("source", "developer", 43),)),
    (3, (("badges", "admin", 4),)),
    (120, (("payroll", "viewer", 131),)),
)
UNUSED = (
    # How many days ago they were used; None: never, and given long ago.
    ("secrets", "admin", 90),
    ("treasury", "viewer", 200),
    ("recruiting", "editor", 91),
    ("warehouse", "dispatcher", 365),
    ("knowledge", "agent", None),
)
TOXIC = (
    # The first of each pair was used longer ago, so it is the one to go.
    (("ledger", "clerk", 30), ("ledger", "approver", 8)),
    (("procurement", "clerk", 21), ("payments", "approver", 2)),
    (("contracts", "approver", 47), ("contracts", "seller", 5)),
    (("personnel", "admin", 33), ("payroll", "admin", 1)),
)
