"""The demo's folder: one database that all runs share, and what each run leaves behind."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from a2a.types import a2a_pb2 as pb

from examples.access_review.demo import DemoFailed


class FolderInUse(DemoFailed):
    """Another demo, or a process that one left behind, uses the folder."""


@dataclass(frozen=True, kw_only=True)
class DemoFolder:
    """root: kept from run to run. run: this run's own. lock: a descriptor that holds the lock."""

    root: Path
    run: Path
    lock: int

    @property
    def database(self) -> Path:
        return self.root / "outlast.db"

    def set_database_aside(self) -> Path:
        """Move the database, with what SQLite keeps beside it, into the run's folder."""
        for file in self.root.glob(f"{self.database.name}*"):
            file.rename(self.run / file.name)
        return self.run / self.database.name

    def save_artifacts(self, task: pb.Task) -> list[Path]:
        """Write the task's artifacts into the run's folder, each under its name."""
        saved = []
        for artifact in task.artifacts:
            path = self.run / Path(artifact.name).name
            path.write_bytes(b"".join(part.raw or part.text.encode() for part in artifact.parts))
            saved.append(path)
        return saved


@contextmanager
def open_folder(root: Path, label: str) -> Iterator[DemoFolder]:
    """A new run in the folder, made if it is not there.

    The children inherit the lock: it is free when the last of them has ended. Raises FolderInUse.
    """
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(
                f"another demo runs in {root}, or a process that it left behind;"
                " choose another with --folder"
            ) from None
        run = root / f"{datetime.now():%Y-%m-%dT%H-%M-%S}-{label}"
        run.mkdir()
        yield DemoFolder(root=root, run=run, lock=lock.fileno())
