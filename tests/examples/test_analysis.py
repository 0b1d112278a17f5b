"""The rules of the access review, at their edges."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.access_review.analysis import Policy, Reason, find, keep_relevant
from examples.access_review.records import Grant

AS_OF = date(2025, 9, 30)
POLICY = Policy(
    as_of=AS_OF,
    leavers={"u1": AS_OF, "u2": AS_OF + timedelta(days=1)},
    toxic=(("ledger:clerk", "ledger:approver"), ("ledger:clerk", "payroll:admin")),
)


def grant(
    number: int, role: str, *, user: str = "u9", used: int | None = 1, given: int = 500
) -> Grant:
    """A grant of `system:role`; `used` and `given` are days ago."""
    system, _, name = role.partition(":")
    return Grant(
        id=f"{system}-{number:04}",
        system=system,
        user=user,
        role=name,
        granted_at=AS_OF - timedelta(days=given),
        last_used_at=None if used is None else AS_OF - timedelta(days=used),
    )


def reasons(*grants: Grant) -> dict[str, tuple[Reason, ...]]:
    return {finding.grant.id: finding.reasons for finding in find(grants, POLICY)}


@pytest.mark.parametrize(
    ("user", "expected"),
    [("u1", (Reason.LEAVER,)), ("u2", None), ("u9", None)],
    ids=["left that day", "leaves the day after", "stays"],
)
def test_leavers(user: str, expected: tuple[Reason, ...] | None) -> None:
    assert reasons(grant(1, "crm:viewer", user=user)).get("crm-0001") == expected


@pytest.mark.parametrize(
    ("used", "given", "is_found"),
    [(89, 500, False), (90, 500, True), (None, 89, False), (None, 90, True)],
)
def test_unused(used: int | None, given: int, is_found: bool) -> None:
    found = reasons(grant(1, "crm:viewer", used=used, given=given))
    assert found == ({"crm-0001": (Reason.UNUSED,)} if is_found else {})


def test_one_grant_may_have_two_reasons() -> None:
    (finding,) = find([grant(1, "crm:viewer", user="u1", used=200)], POLICY)
    assert finding.reasons == (Reason.LEAVER, Reason.UNUSED)
    assert finding.explanation == "left on 2025-09-30; not used since 2025-03-14"


def test_of_a_toxic_pair_the_one_used_longest_ago_goes() -> None:
    pair = [grant(1, "ledger:clerk", used=5), grant(2, "ledger:approver", used=6)]
    assert reasons(*pair) == {"ledger-0002": (Reason.TOXIC,)}


def test_a_toxic_pair_reaches_across_systems() -> None:
    pair = [grant(1, "ledger:clerk", used=9), grant(1, "payroll:admin", used=6)]
    assert reasons(*pair) == {"ledger-0001": (Reason.TOXIC,)}


def test_two_users_make_no_pair() -> None:
    assert not reasons(grant(1, "ledger:clerk"), grant(2, "ledger:approver", user="u8"))


def test_one_revocation_may_break_two_pairs() -> None:
    found = reasons(
        grant(1, "ledger:clerk", used=9), grant(2, "ledger:approver"), grant(3, "payroll:admin")
    )
    assert found == {"ledger-0001": (Reason.TOXIC,)}


def test_a_pair_that_is_broken_anyway_is_no_finding_of_its_own() -> None:
    pair = [grant(1, "ledger:clerk", used=120), grant(2, "ledger:approver")]
    assert reasons(*pair) == {"ledger-0001": (Reason.UNUSED,)}


def test_a_role_held_twice_goes_twice() -> None:
    held = [grant(1, "ledger:clerk", used=9), grant(2, "ledger:clerk", used=8)]
    found = reasons(*held, grant(3, "ledger:approver"))
    assert found == {"ledger-0001": (Reason.TOXIC,), "ledger-0002": (Reason.TOXIC,)}


grants = st.lists(
    st.builds(
        grant,
        st.integers(1, 9_999),
        st.sampled_from(["ledger:clerk", "ledger:approver", "payroll:admin", "crm:viewer"]),
        user=st.sampled_from(["u1", "u2", "u8", "u9"]),
        used=st.none() | st.integers(80, 100) | st.integers(0, 10),
        given=st.sampled_from([89, 90, 500]),
    ),
    max_size=20,
    unique_by=lambda grant: grant.id,
)


@given(grants)
def test_the_relevant_grants_give_the_same_findings(everything: list[Grant]) -> None:
    assert find(keep_relevant(everything, POLICY), POLICY) == find(everything, POLICY)


@given(grants)
def test_nothing_is_found_once_the_findings_are_revoked(everything: list[Grant]) -> None:
    gone = {finding.grant.id for finding in find(everything, POLICY)}
    assert not find([grant for grant in everything if grant.id not in gone], POLICY)
