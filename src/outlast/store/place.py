"""The place of a SQLite file: whether a database can live there, and who is present beside it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from outlast.model.errors import ConfigError

_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs"}


def check_place(path: Path) -> None:
    """Raise ConfigError, with what to change, when no database can live there."""
    folder = path.parent
    if not folder.is_dir():
        raise ConfigError(f"the folder of the SQLite file does not exist: create {folder}")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name a file for the SQLite database")
    if path.exists() and not os.access(path, os.W_OK):
        raise ConfigError(f"the SQLite file {path} is read-only: make it writable")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"the folder {folder} is read-only: SQLite keeps its log beside the file")
    kind = file_system_of(folder)
    if kind in _REMOTE:
        raise ConfigError(
            f"{folder} is on a network file system ({kind}), where locks cannot be trusted:"
            " use a local disk, or PostgreSQL"
        )


def file_system_of(folder: Path) -> str:
    """The type of the file system, where the system tells it (Linux)."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "unknown"
    best, kind = "", "unknown"
    place = str(folder.resolve()) + "/"
    for line in mounts.splitlines():
        _, mount, mounted_as, *_ = line.split(" ")
        prefix = mount.rstrip("/") + "/"
        if place.startswith(prefix) and len(prefix) >= len(best):
            best, kind = prefix, mounted_as
    return kind


def is_locked(place: Path) -> bool | None:
    """Whether some process holds the file's lock; None when there is no such file."""
    try:
        descriptor = os.open(place, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
