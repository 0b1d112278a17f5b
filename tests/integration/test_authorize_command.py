"""`outlast authorize`: a command in a process of its own, beside a server in another one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from outlast.model.ids import Seq, TaskId
from outlast.testing.fleet import Child, Fleet, until
from tests.chaos.caller import Caller, Json, pause_of, state_of
from tests.chaos.databases import sqlite, sqlite_files  # noqa: F401
from tests.chaos.fleets import ONCE, CounterSink, sink, sqlite_fleet  # noqa: F401

SECRET = "s3cret-token"


@dataclass(frozen=True)
class Operator:
    """Types commands. Each is a process, and what it is given comes on its standard input."""

    database: str

    async def authorizes(
        self, task: Json, pause: str, value: str, *options: str
    ) -> tuple[int, str]:
        """Its exit code, and all that it prints."""
        known = {name: text for name, text in os.environ.items() if not name.startswith("OUTLAST_")}
        words = ["authorize", task["id"], "--pause", pause, *options]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "outlast", *words),
            env=known | {"OUTLAST_DATABASE": self.database, "COLUMNS": "200"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed, _ = await process.communicate(value.encode())
        assert process.returncode is not None
        return process.returncode, printed.decode()


async def test_a_task_that_waits_is_authorized_from_a_shell(
    sqlite_fleet: Fleet,  # noqa: F811
    sink: CounterSink,  # noqa: F811
    tmp_path: Path,
) -> None:
    """What it is given is JSON, reaches the step, and is shown to nobody; what is wrong changes
    nothing, and says what would be right."""
    key, value = sink.key(), json.dumps({"token": SECRET})
    server = await sqlite_fleet.serve()
    operator = Operator(str(sqlite_fleet.settings["database"]))
    async with Caller(server.url) as caller:
        task = await caller.send(f"auth Log in; effect {key}; say over")
        pause = pause_of(task)
        assert state_of(task) == "AUTH_REQUIRED"

        wrong = await asyncio.gather(
            operator.authorizes(task, pause, SECRET),
            operator.authorizes(task, f"another-{pause}", value),
            operator.authorizes({"id": "none"}, pause, value),
            operator.authorizes(task, pause, value, "--value", value),
            operator.authorizes(task, pause, value, "--value", f"@{tmp_path}/nowhere"),
        )
        told = ("no JSON", "is over", "no task", "--value @FILE", "No such file")
        for (code, printed), says in zip(wrong, told, strict=True):
            assert code != 0
            assert says in printed
            assert SECRET not in printed
        assert await caller.get(task) == task

        code, printed = await operator.authorizes(task, pause, value)
        assert (code, printed) == (0, f"task {task['id']} runs again\n")
        await until(lambda: is_completed(caller, task))
        assert await sink.counts(key) == ONCE
        file = tmp_path / "value.json"
        file.write_text(json.dumps("another"))
        code, printed = await operator.authorizes(task, pause, "", "--value", f"@{file}")
        assert (code, printed) == (0, f"task {task['id']} was authorized before\n")
    await nobody_was_told(sqlite_fleet, server, task)


async def nobody_was_told(fleet: Fleet, server: Child, task: Json) -> None:
    """No log and no event holds the secret; the ledger does."""
    assert SECRET not in server.text()
    async with fleet.stores() as stores:
        events = await stores.log.events_since(TaskId(task["id"]), Seq(0))
        assert SECRET not in str(events)
        assert events[-1].body["state"] == "completed"
        found = await stores.inspect.find(TaskId(task["id"]))
        assert found is not None
        entries = await stores.work.entries(found.ledger_id, "", "~")
    assert [SECRET in str(entry.result) for entry in entries].count(True) == 1


async def is_completed(caller: Caller, task: Json) -> bool:
    return state_of(await caller.get(task)) == "COMPLETED"
