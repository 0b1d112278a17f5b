"""Step commits per second, beside pgbench running the same fenced update and insert.

One commit is `await ctx.commit("…")` in a real worker: checkpoint, status and event, under the
fence. pgbench runs one transaction per commit with as many clients as there are tasks, at most 64.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import tempfile
import time
from pathlib import Path

from pydantic import BaseModel

from bench.places import DATABASES, place, stores_at
from outlast import Agent, Context, Message, Workflow
from outlast.compose import Stores, worker_role
from outlast.configuration import Configuration
from outlast.model.ids import ContextId, Millis, StepName, TaskId, new_task_id
from outlast.model.task import Scope
from outlast.store.protocols import NewTask
from outlast.testing.postgres_server import PostgresServer

IN_FLIGHT = (1, 16, 256)
SCOPE = Scope(agent="bench")

_SETUP = """
create table bench_tasks (task_id text primary key, fence bigint not null, write_no bigint not null,
    next_seq bigint not null, checkpoint text, status text);
create table bench_events (task_id text not null, seq bigint not null, fence bigint not null,
    write_no bigint, body text not null, primary key (task_id, seq));
insert into bench_tasks select 'task-' || n, 1, 0, 1, '{}', '{}' from generate_series(1, 64) as n;
"""
_TRANSACTION = """
begin;
update bench_tasks set write_no = write_no + 1, next_seq = next_seq + 1,
    checkpoint = '{"commits":100,"done":1}', status = '{"state":"working"}'
 where task_id = 'task-' || (:client_id + 1) and fence = 1 returning next_seq \\gset
insert into bench_events values ('task-' || (:client_id + 1), :next_seq, 1, 1,
    '{"state":"working","message":{"messageId":"01890000-0000-7000-8000-000000000000","role":"ROLE_AGENT","parts":[{"text":"step"}]}}');
commit;
"""


class Count(BaseModel):
    commits: int
    done: int = 0


count = Workflow("count", version=1, checkpoint=Count)


@count.start
async def begin(message: Message) -> Count:
    return Count(commits=int(message.text))


@count.step
async def commit(ctx: Context[Count, None]) -> None:
    while ctx.checkpoint.done < ctx.checkpoint.commits:
        ctx.checkpoint.done += 1
        await ctx.commit("step")


agent = Agent("bench", description="Commits.", skills=[], workflows=[count])


async def create(stores: Stores, text: str, workflow: Workflow[Count] = count) -> TaskId:
    task_id = new_task_id()
    await stores.tasks.create(
        NewTask(
            task_id=task_id,
            scope=SCOPE,
            context_id=ContextId("bench"),
            workflow=workflow.name,
            version=workflow.version,
            first_step=StepName(workflow.steps[0].name),
            max_age=Millis(86_400_000),
            message=Message.user(text).to_json(),
            caller={},
            metadata={},
            send_key=task_id,
            digest="",
        )
    )
    return task_id


async def commits_per_second(settings: Configuration, in_flight: int, each: int) -> float:
    """Tasks are there before the worker starts; the clock stops when the last one has ended."""
    async with stores_at(settings) as stores:
        tasks = [await create(stores, str(each)) for _ in range(in_flight)]
        role = worker_role(agent, stores, settings)
        began = time.perf_counter()
        running = asyncio.ensure_future(role.run())
        for task_id in tasks:
            while not (await stores.tasks.status_of(SCOPE, task_id))[0].is_terminal:
                await asyncio.sleep(0.02)
        took = time.perf_counter() - began
        role.stop()
        await running
    return in_flight * each / took


def pgbench(server: PostgresServer, dsn: str, clients: int, seconds: int = 5) -> float:
    """Transactions per second of the bare statements, from the server's own pgbench."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop table if exists bench_tasks, bench_events")
        for statement in _SETUP.split(";\n"):
            if statement.strip():
                connection.execute(statement.encode())
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "commit.sql"
        script.write_text(_TRANSACTION)
        ran = subprocess.run(
            [
                server.bindir / "pgbench", "-n", "-M", "prepared", "-f", script,
                "-c", str(clients), "-j", "2", "-T", str(seconds), dsn,
            ],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    found = re.search(r"tps = ([\d.]+)", ran.stdout)
    assert found is not None, ran.stdout
    return float(found[1])


def main() -> None:
    print("step commits per second")
    for in_flight in IN_FLIGHT:
        each = max(4, 2000 // in_flight)
        figures = {}
        for kind in DATABASES:
            with place(kind, concurrency=in_flight) as (settings, server):
                figures[kind] = asyncio.run(commits_per_second(settings, in_flight, each))
                if server is not None and (server.bindir / "pgbench").exists():
                    bare = pgbench(server, settings.database, min(in_flight, 64))
                    figures["pgbench"] = bare
        told = "  ".join(f"{name} {value:8.0f}/s" for name, value in figures.items())
        ratio = (
            f"  postgres/pgbench {figures['postgres'] / figures['pgbench']:.2f}"
            if "pgbench" in figures
            else "  (this server brings no pgbench)"
        )
        print(f"{in_flight:4} in flight: {told}{ratio}", flush=True)
