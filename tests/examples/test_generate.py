"""The directory's files: what the generator makes is what is committed, and what it planted."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.access_review.analysis import Policy, Reason, find, keep_relevant
from examples.access_review.generate import Generated, generate, write_records
from examples.access_review.records import DATA, Grant, Records, read_records


@pytest.fixture(scope="module")
def generated() -> Generated:
    return generate()


def everything(records: Records) -> list[Grant]:
    return [grant for grants in records.grants.values() for grant in grants]


def policy_of(records: Records) -> Policy:
    return Policy(
        as_of=records.register.as_of,
        leavers={user.id: user.left_at for user in records.users if user.left_at},
        toxic=tuple(pair for system in records.register.systems for pair in system.toxic),
    )


def test_committed_files_are_the_generated_ones(generated: Generated, tmp_path: Path) -> None:
    write_records(generated.records, tmp_path)
    assert _content(tmp_path) == _content(DATA)


def test_files_read_back_as_they_were(generated: Generated) -> None:
    assert read_records(DATA) == generated.records


def test_sizes(generated: Generated) -> None:
    records = generated.records
    assert len(records.register.systems) == 40
    assert len(records.users) == 2_000
    assert all(len(grants) > 100 for grants in records.grants.values())
    assert sum(len(content) for content in _content(DATA).values()) < 1_500_000


def test_analysis_finds_the_planted_grants_and_no_others(generated: Generated) -> None:
    findings = find(everything(generated.records), policy_of(generated.records))
    assert {finding.grant.id: finding.reasons for finding in findings} == generated.planted
    assert len(findings) == 14


def test_what_a_review_keeps_of_the_grants_is_small(generated: Generated) -> None:
    """A checkpoint holds it, and is written once for each system."""
    kept = keep_relevant(everything(generated.records), policy_of(generated.records))
    assert sum(len(grant.model_dump_json()) for grant in kept) < 128 * 1024


def test_every_reason_is_planted_in_several_systems(generated: Generated) -> None:
    for reason in Reason:
        systems = {
            key.rpartition("-")[0] for key, why in generated.planted.items() if reason in why
        }
        assert len(systems) >= 3, reason


def test_the_limits_are_met_from_within(generated: Generated) -> None:
    """Grants that a rule just leaves alone are there, so that a rule one day off is noticed."""
    records = generated.records
    as_of = records.register.as_of
    grants = everything(records)
    leaving = {user.id for user in records.users if user.left_at and user.left_at > as_of}
    assert any(grant.user in leaving for grant in grants)
    assert any(grant.last_used_at and (as_of - grant.last_used_at).days == 89 for grant in grants)
    assert any(grant.last_used_at is None and grant.id not in generated.planted for grant in grants)


def test_owners_are_users_who_stay(generated: Generated) -> None:
    staying = {user.id for user in generated.records.users if user.left_at is None}
    assert {system.owner for system in generated.records.register.systems} <= staying


def _content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
