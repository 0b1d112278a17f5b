"""What the directory holds: systems, users, and who may do what. Read from the files in `data`."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

DATA = Path(__file__).parent / "data"

Day = Annotated[date | None, BeforeValidator(lambda value: value or None)]
"""A day, or None: an empty cell in a CSV file."""


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class System(Record):
    """A system under review.

    owner: the account that answers for it.
    toxic: pairs of roles that nobody may hold together, as `system:role`. A pair that reaches into
        another system is listed once, with the system that asked for it.
    """

    name: str
    title: str
    owner: str
    roles: tuple[str, ...]
    toxic: tuple[tuple[str, str], ...] = ()


class User(Record):
    id: str
    title: str
    department: str
    left_at: Day = None


class Grant(Record):
    """One user's right to act in one role of one system. `last_used_at` is None: never used."""

    id: str
    system: str
    user: str
    role: str
    granted_at: date
    last_used_at: Day = None

    @property
    def qualified_role(self) -> str:
        return f"{self.system}:{self.role}"


class Revocation(Record):
    """What the directory answers when a grant is revoked."""

    grant: str
    revoked_at: datetime


class Register(Record):
    """`systems.json`. `as_of` is the day on which the data was drawn: a review judges as of that
    day and not of today, so that it finds the same next year."""

    as_of: date
    systems: tuple[System, ...]


@dataclass(frozen=True, kw_only=True)
class Records:
    """All of it. `grants` has an entry for every system, by name."""

    register: Register
    users: tuple[User, ...]
    grants: Mapping[str, tuple[Grant, ...]]


def read_records(folder: Path) -> Records:
    """Read the files of a folder. A row that does not fit raises pydantic's ValidationError."""
    register = Register.model_validate_json((folder / "systems.json").read_bytes())
    return Records(
        register=register,
        users=tuple(User.model_validate(row) for row in _rows(folder / "users.csv")),
        grants={
            system.name: tuple(
                Grant.model_validate({"system": system.name, **row})
                for row in _rows(folder / "grants" / f"{system.name}.csv")
            )
            for system in register.systems
        },
    )


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
