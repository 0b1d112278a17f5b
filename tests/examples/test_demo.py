"""`make demo`, as it is run by hand."""

from __future__ import annotations

import asyncio
import csv
import fcntl
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from outlast import compose
from outlast.configuration import configuration
from tests.examples.conftest import ROOT

WITHIN_S = 120.0
COMMAND = [sys.executable, "-m", "examples.access_review.demo"]


def run_demo(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "--folder", str(folder), *options],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


def demo(folder: Path, *options: str) -> str:
    """Run the demo, which must succeed; return what it printed."""
    ran = run_demo(folder, *options)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert ran.stderr == ""
    return ran.stdout


def check_told(text: str) -> None:
    assert "The checker found nothing lost and nothing doubled." in text
    killed = re.search(r"kill -9 (\d+), within the fetch of system 23, personnel", text)
    successor = re.search(r"The worker with pid (\d+) claimed the review ([\d,]+) ms after", text)
    assert killed is not None
    assert successor is not None
    assert killed[1] != successor[1]
    assert int(successor[2].replace(",", "")) < 15_000  # sooner than the lease would have run out
    assert re.search(r"4[01] calls for 40 systems; again: (personnel|none)\.", text)
    assert re.search(r"Saw events 1 … (\d+) of \1, none missing and none twice, over 2", text)
    assert "1 day, 0:00:0" in text
    assert "Failed when 9 of 14 revocations were known to be done." in text
    assert "16 calls under 14 keys; applied under 14 keys, once each." in text


def runs_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] == "2")


def check_left_behind(run: Path, told: str) -> None:
    """The report, the account and a log of every process; and no process."""
    report = (run / "report.md").read_text()
    assert "40 systems, 14 findings" in report
    with (run / "revocations.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 14
    assert str(run / "report.md") in told
    assert "What happened" in (run / "account.txt").read_text()
    for name in ("directory", "gateway", "worker-1", "worker-2"):
        assert (run / f"{name}.log").exists()
    check_nothing_runs(run.parent)


def check_nothing_runs(folder: Path) -> None:
    """Every process of the demo holds the folder's lock for as long as it lives."""
    with (folder / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def states_in(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return [state for (state,) in connection.execute("select state from tasks")]


def interrupt(folder: Path) -> None:
    """Start the demo, and press Ctrl-C as soon as the review runs."""
    with subprocess.Popen(
        [*COMMAND, "--folder", str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        # Jobs in the background of a shell ignore Ctrl-C, and so would their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as running:
        assert running.stdout is not None
        assert any("The review is sent" in line for line in running.stdout)
        running.send_signal(signal.SIGINT)
        assert "stopped" in running.stdout.read()
        assert running.wait(WITHIN_S) == 128 + signal.SIGINT
    check_nothing_runs(folder)


def test_again_and_again_in_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "demo-data"
    interrupt(folder)
    first = demo(folder)
    assert "An earlier demo did not come to its end" in first
    second = demo(folder)
    assert "An earlier demo" not in second
    _, *runs = runs_in(folder)
    for run, told in zip(runs, (first, second), strict=True):
        check_told(told)
        check_left_behind(run, told)
    assert states_in(folder / "outlast.db") == ["completed", "completed"]


def test_on_postgres(tmp_path: Path) -> None:
    told = demo(tmp_path, "--db", "postgres")
    check_told(told)
    (run,) = runs_in(tmp_path)
    check_left_behind(run, told)


def test_a_database_that_breaks_a_promise(tmp_path: Path) -> None:
    """Something is wrong with it before the demo begins: the demo says so in the end."""
    database = tmp_path / "outlast.db"
    asyncio.run(compose.migrate(configuration({}, database=f"sqlite:///{database}")))
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            "insert into task_events (task_id, seq, fence, kind, body, created_at)"
            " values ('lost', 1, 0, 'task', '{}', 0)"
        )
    ran = run_demo(tmp_path)
    assert ran.returncode == 1
    assert "no_orphans: {'of_table': 'task_events', 'id': 'lost'}" in ran.stdout
    assert "nothing lost" not in ran.stdout


def test_two_at_once_in_one_folder(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ran = run_demo(tmp_path)
    assert ran.returncode == 1
    assert "another demo runs in" in ran.stdout
    assert runs_in(tmp_path) == []
