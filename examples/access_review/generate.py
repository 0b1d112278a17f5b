"""Write the directory's files: 40 systems, 2,000 users, and 14 grants that should not be there.

The same seed gives the same bytes with every Python: only `Random.random` is used, the one method
whose sequence Python promises to keep. All accounts are made up; none stands for a person.

    python -m examples.access_review.generate [FOLDER]
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import TypeVar

from examples.access_review.analysis import UNUSED_DAYS, Reason
from examples.access_review.company import (
    ACROSS,
    AS_OF,
    DEPARTMENTS,
    LEAVERS,
    LEAVERS_WITH_GRANTS,
    LEAVING,
    TOXIC,
    UNUSED,
    USERS,
)
from examples.access_review.records import DATA, Grant, Records, Register, System, User

SEED = 20250930
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Generated:
    """The records, and the reasons for each grant that a review must find, by grant id."""

    records: Records
    planted: Mapping[str, tuple[Reason, ...]]


@dataclass
class Draft:
    """Grants before they have ids, which count within a system once all of its grants are known."""

    rng: Random
    toxic: frozenset[frozenset[str]]
    grants: dict[tuple[str, str, str], tuple[date, date | None]] = field(default_factory=dict)
    planted: dict[tuple[str, str, str], tuple[Reason, ...]] = field(default_factory=dict)
    held: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def days_ago(self, fewest: int, most: int) -> date:
        return AS_OF - timedelta(days=fewest + int(self.rng.random() * (most - fewest + 1)))

    def pick(self, values: Sequence[T]) -> T:
        return values[int(self.rng.random() * len(values))]

    def add(self, user: str, system: str, role: str, used_days_ago: int | None) -> None:
        used = None if used_days_ago is None else AS_OF - timedelta(days=used_days_ago)
        self.grants[system, user, role] = (self.days_ago(400, 1_500), used)
        self.held[user].add(f"{system}:{role}")

    def plant(
        self, user: str, system: str, role: str, used_days_ago: int | None, *reasons: Reason
    ) -> None:
        self.add(user, system, role, used_days_ago)
        self.planted[system, user, role] = reasons

    def is_clean(self, user: str, system: str, role: str) -> bool:
        """Whether the user may be given this: once in a system, and nothing toxic with it."""
        held = self.held[user]
        return not any(
            other.startswith(f"{system}:") or frozenset((other, f"{system}:{role}")) in self.toxic
            for other in held
        )


def generate() -> Generated:
    rng = Random(SEED)
    systems = _systems()
    draft = Draft(rng, frozenset(frozenset(pair) for system in systems for pair in system.toxic))
    users = _users(draft)
    _plant(draft, users)
    _fill(draft, users)
    grants, planted = _number(draft, systems)
    owned = tuple(
        system.model_copy(update={"owner": _owner(system, grants[system.name], users)})
        for system in systems
    )
    register = Register(as_of=AS_OF, systems=owned)
    return Generated(
        records=Records(register=register, users=tuple(users), grants=grants), planted=planted
    )


def _systems() -> list[System]:
    systems = []
    for name, department in DEPARTMENTS.items():
        for system in department.systems:
            within = [department.toxic] if department.toxic else []
            toxic = [(f"{system}:{one}", f"{system}:{other}") for one, other in within]
            systems.append(
                System(
                    name=system,
                    title=f"{system.capitalize()} ({name})",
                    owner="",
                    roles=department.roles,
                    toxic=(*toxic, *ACROSS.get(system, ())),
                )
            )
    return sorted(systems, key=lambda system: system.name)


def _users(draft: Draft) -> list[User]:
    """Return the users, by id. The leavers are the first of a shuffled row, so anywhere in it."""
    order = sorted(range(USERS), key=lambda _: draft.rng.random())
    left: dict[int, date] = {number: draft.days_ago(1, 700) for number in order[:LEAVERS]}
    left |= {
        number: AS_OF + timedelta(days=1 + 7 * index)
        for index, number in enumerate(order[LEAVERS : LEAVERS + LEAVING])
    }
    for number, (days, _) in zip(sorted(order[:LEAVERS]), LEAVERS_WITH_GRANTS, strict=False):
        left[number] = AS_OF - timedelta(days=days)
    users = []
    for number in range(USERS):
        department = draft.pick(tuple(DEPARTMENTS))
        users.append(
            User(
                id=f"u{number + 1:04}",
                title=draft.pick(DEPARTMENTS[department].titles),
                department=department,
                left_at=left.get(number),
            )
        )
    return users


def _plant(draft: Draft, users: Sequence[User]) -> None:
    """Give the 14 grants that a review must find, to users who are in nobody else's way."""
    leavers = [user.id for user in users if user.left_at and user.left_at <= AS_OF]
    for user, (_, held) in zip(leavers, LEAVERS_WITH_GRANTS, strict=False):
        for system, role, used in held:
            unused = (Reason.UNUSED,) if used >= UNUSED_DAYS else ()
            draft.plant(user, system, role, used, Reason.LEAVER, *unused)
    for system, role, days in UNUSED:
        draft.plant(_newcomer(draft, users, system), system, role, days, Reason.UNUSED)
    for (system, role, days), stays in TOXIC:
        user = _newcomer(draft, users, system)
        draft.plant(user, system, role, days, Reason.TOXIC)
        draft.add(user, *stays)


def _newcomer(draft: Draft, users: Sequence[User], system: str) -> str:
    """Return a user of the system's department who holds nothing yet."""
    (department,) = [name for name, each in DEPARTMENTS.items() if system in each.systems]
    free = [
        user.id
        for user in users
        if user.department == department and not user.left_at and not draft.held[user.id]
    ]
    return draft.pick(free)


def _fill(draft: Draft, users: Iterable[User]) -> None:
    """Give everybody who is still there two to six grants that no review objects to."""
    for user in users:
        if user.left_at and user.left_at <= AS_OF:
            continue
        for _ in range(2 + int(draft.rng.random() * 5)):
            # Two thirds of what people hold is in systems of their own department.
            at_home = draft.rng.random() < 2 / 3
            name = user.department if at_home else draft.pick(tuple(DEPARTMENTS))
            department = DEPARTMENTS[name]
            system = draft.pick(department.systems)
            # Squared, so that the weak roles, which stand first, are the common ones.
            role = department.roles[int(draft.rng.random() ** 2 * len(department.roles))]
            if draft.is_clean(user.id, system, role):
                draft.grants[system, user.id, role] = _clean_dates(draft)
                draft.held[user.id].add(f"{system}:{role}")


def _clean_dates(draft: Draft) -> tuple[date, date | None]:
    """Return when a grant was given and used: some just within 90 days, some new and unused."""
    chance = draft.rng.random()
    if chance < 0.01:
        return draft.days_ago(400, 1_500), AS_OF - timedelta(days=89)
    if chance < 0.03:
        return draft.days_ago(0, 89), None
    return draft.days_ago(100, 1_500), draft.days_ago(0, 80)


def _number(
    draft: Draft, systems: Iterable[System]
) -> tuple[dict[str, tuple[Grant, ...]], dict[str, tuple[Reason, ...]]]:
    """Give each grant its id; return the grants by system and the planted reasons by id."""
    grants: dict[str, tuple[Grant, ...]] = {}
    planted: dict[str, tuple[Reason, ...]] = {}
    for system in systems:
        keys = sorted(key for key in draft.grants if key[0] == system.name)
        rows = []
        for number, key in enumerate(keys, start=1):
            granted_at, last_used_at = draft.grants[key]
            grant = Grant(
                id=f"{system.name}-{number:04}",
                system=system.name,
                user=key[1],
                role=key[2],
                granted_at=granted_at,
                last_used_at=last_used_at,
            )
            rows.append(grant)
            if key in draft.planted:
                planted[grant.id] = draft.planted[key]
        grants[system.name] = tuple(rows)
    return grants, planted


def _owner(system: System, grants: Iterable[Grant], users: Iterable[User]) -> str:
    """Return the first administrator who stays."""
    staying = {user.id for user in users if user.left_at is None}
    admins = [grant.user for grant in grants if grant.role == "admin" and grant.user in staying]
    return admins[0]


def write_records(records: Records, folder: Path) -> None:
    """Write the files that `read_records` reads."""
    (folder / "grants").mkdir(parents=True, exist_ok=True)
    register = records.register.model_dump(mode="json")
    (folder / "systems.json").write_text(json.dumps(register, indent=1) + "\n", encoding="utf-8")
    _write_csv(folder / "users.csv", [user.model_dump() for user in records.users])
    for system, grants in records.grants.items():
        rows = [grant.model_dump(exclude={"system"}) for grant in grants]
        _write_csv(folder / "grants" / f"{system}.csv", rows)


def _write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    write_records(generate().records, folder)
    print(f"wrote {folder}")


if __name__ == "__main__":
    main()
