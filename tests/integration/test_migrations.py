"""The schema: applied once whoever starts, the same on both databases, and every query fits it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outlast.model.errors import SchemaMismatch, StoreUnavailable
from outlast.model.ids import WorkerId
from outlast.store import commits
from outlast.store.admin import SCHEMA_VERSION, Admin
from outlast.store.database import (
    PARAMETER,
    Dialect,
    Query,
    Rows,
    Script,
    Statement,
    catalog,
    parse,
)
from outlast.store.postgres import PostgresDatabase
from outlast.store.protocols import Settings
from outlast.store.sqlite import SqliteDatabase
from outlast.store.work import Work
from tests.contract.stores import TABLES, Store, chunk, database_at, intent

ROOT = Path(__file__).parents[2]
AnyDatabase = SqliteDatabase | PostgresDatabase


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AnyDatabase]:
    """An open, empty database without a schema."""
    opened = database_at(database_url)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def migrated(database: AnyDatabase) -> AnyDatabase:
    await Admin(database).migrate()
    return database


async def run(database: AnyDatabase, text: str, **params: Any) -> Rows:
    def script() -> Script[Rows]:
        return (yield Statement(Query(name="test_own", promise="", text=text), params))

    return await database.transact(script)


# --- starting -----------------------------------------------------------------------------------

_MIGRATE = """
import asyncio, sys
from outlast.store.admin import Admin
from tests.contract.stores import database_at

async def main():
    database = database_at(sys.argv[1], timeout=30)
    print("ready", flush=True)
    sys.stdin.readline()
    await database.open()
    print(list(await Admin(database).migrate()), flush=True)
    facts = await Admin(database).check()
    await database.close()
    print(facts.epoch, facts.schema_version, flush=True)

asyncio.run(main())
"""


def test_five_processes_may_start_at_once_on_an_empty_database(database_url: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _MIGRATE, database_url],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(5)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [err for _, err in said if err] == []
    assert [process.returncode for process in processes] == [0] * 5
    applied = sorted(out.splitlines()[0] for out, _ in said)
    assert applied == ["[1]"] + ["[]"] * 4
    assert len({out.splitlines()[1] for out, _ in said}) == 1


async def test_a_migration_is_applied_whole_or_not_at_all(database: AnyDatabase) -> None:
    await run(database, "create table webhooks (task_id text)")
    with pytest.raises(Exception, match="migration 1 failed"):
        await Admin(database).migrate()
    assert await tables_of(database) == ["webhooks"]
    await run(database, "drop table webhooks")
    assert list(await Admin(database).migrate()) == [1]


async def test_a_schema_from_the_future_is_refused(migrated: AnyDatabase) -> None:
    await run(migrated, "update store set schema_version = 8, readable_from = 7")
    for attempt in (Admin(migrated).check, Admin(migrated).migrate):
        with pytest.raises(SchemaMismatch) as caught:
            await attempt()
        text = str(caught.value)
        assert "schema 8" in text
        assert f"this one knows {SCHEMA_VERSION}" in text
        assert "newer release" in text


async def test_a_missing_schema_names_the_command(database: AnyDatabase) -> None:
    with pytest.raises(SchemaMismatch, match="run `outlast migrate`"):
        await Admin(database).check()
    with pytest.raises(Exception, match="run `outlast migrate`"):
        await Work(database).claim(WorkerId("w"), "agent", "review", 1, limit=1)


async def test_a_database_that_is_away_is_not_taken_for_one_without_a_schema(
    migrated: AnyDatabase,
) -> None:
    await migrated.close()
    with pytest.raises(StoreUnavailable):
        await Admin(migrated).check()


# --- the two dialects ---------------------------------------------------------------------------


async def tables_of(database: AnyDatabase) -> list[str]:
    text = {
        "sqlite": "select name from sqlite_master where type = 'table' order by 1",
        "postgres": "select table_name as name from information_schema.tables"
        " where table_schema = 'public' and table_type = 'BASE TABLE' order by 1",
    }
    return [row["name"] for row in await run(database, text[database.dialect])]


async def columns_of(database: AnyDatabase) -> dict[str, list[tuple[str, bool]]]:
    """Per table its columns, in order, and whether each may be null."""
    found: dict[str, list[tuple[str, bool]]] = {}
    for table in [*await tables_of(database), "clock"]:
        if database.dialect == "sqlite":
            rows = await run(database, f"select * from pragma_table_info('{table}')")
            keys = [row["name"] for row in rows if row["pk"]]
            found[table] = [
                (row["name"], not row["notnull"] and row["name"] not in keys) for row in rows
            ]
        else:
            rows = await run(
                database,
                "select column_name, is_nullable from information_schema.columns"
                " where table_schema = 'public' and table_name = :name order by ordinal_position",
                name=table,
            )
            found[table] = [(row["column_name"], row["is_nullable"] == "YES") for row in rows]
    return found


async def indexes_of(database: AnyDatabase) -> list[str]:
    text = {
        "sqlite": "select name from sqlite_master where type = 'index' and sql is not null",
        "postgres": "select indexname as name from pg_indexes where schemaname = 'public'"
        " and not exists (select 1 from pg_constraint where conname = indexname)",
    }
    return sorted(row["name"] for row in await run(database, text[database.dialect]))


async def constraints_of(database: AnyDatabase) -> set[str]:
    """The names of CHECK and UNIQUE constraints."""
    if database.dialect == "sqlite":
        rows = await run(database, "select sql from sqlite_master where type = 'table'")
        words = " ".join(row["sql"] for row in rows).split()
        return {words[n + 1] for n, word in enumerate(words) if word == "constraint"}
    rows = await run(
        database,
        "select conname from pg_constraint join pg_namespace on pg_namespace.oid = connamespace"
        " where nspname = 'public' and contype in ('c', 'u')",
    )
    return {row["conname"] for row in rows}


async def test_both_databases_have_the_same_schema(sqlite_url: str, postgres_dsn: str) -> None:
    described = []
    for url in (sqlite_url, postgres_dsn):
        database = database_at(url)
        await database.open()
        await Admin(database).migrate()
        described.append(
            (
                await tables_of(database),
                await columns_of(database),
                await indexes_of(database),
                await constraints_of(database),
            )
        )
        await database.close()
    sqlite, postgres = described
    assert sqlite[0] == postgres[0] == sorted(TABLES)
    assert sqlite[1] == postgres[1]
    assert sqlite[2] == postgres[2]
    assert sqlite[3] == postgres[3]


def test_both_dialects_have_the_same_migrations() -> None:
    folder = ROOT / "src/outlast/store/migrations"
    names = [
        sorted(path.name for path in (folder / dialect).glob("*.sql"))
        for dialect in ("sqlite", "postgres")
    ]
    assert names[0] == names[1]
    assert names[0][-1].startswith(f"{SCHEMA_VERSION:04d}_")


async def test_everything_carries_a_comment_on_postgresql(postgres_dsn: str) -> None:
    database = database_at(postgres_dsn)
    await database.open()
    await Admin(database).migrate()
    rows = await run(
        database,
        "select relname from pg_class join pg_namespace on pg_namespace.oid = relnamespace"
        " where nspname = 'public' and relkind in ('r', 'v')"
        " and obj_description(pg_class.oid, 'pg_class') is null",
    )
    await database.close()
    assert rows == []


# --- the queries --------------------------------------------------------------------------------

DUMMIES: dict[str, Any] = {
    "agent": "agent",
    "tenant": "acme",
    "owner": "ann",
    "workflow": "review",
    "version": 1,
    "task_id": "task",
    "task_ids": '["task"]',
    "ledger_id": "task",
    "context_id": "context",
    "after_id": "",
    "epoch": "epoch",
    "worker_id": "worker",
    "host": "host",
    "key": "key",
    "digest": "digest",
    "reply": "{}",
    "request": "{}",
    "result": "{}",
    "kind": "status",
    "body": "{}",
    "status": "{}",
    "state": "working",
    "step": "first",
    "steps": "[]",
    "fingerprint": "f",
    "versions": "[]",
    "presence": "here",
    "checkpoint": "{}",
    "ending_as": "{}",
    "metadata": "{}",
    "error": "{}",
    "outcome": "held",
    "reason": "look",
    "held_reason": "look",
    "first": "a",
    "last": "b",
    "is_gone": True,
    "on_cancel": True,
    "on_failure": False,
    "is_message": True,
    "artifacts": True,
    "changed_since": 0,
    "status_at": 0,
    "commits": True,
    "ends": False,
    "pauses": False,
    "stopped_by_mark": False,
    "closes": False,
    "key_id": "0123456789ab",
    "audit_id": "1",
    "name": "ci",
    "scopes": "[]",
    "lasts": 7,
    "subject": "ann",
    "source": "192.0.2.1",
    "detail": "x",
    "config_id": "one",
    "url": "https://hooks.example.com",
    "secrets": "{}",
    "task": b"fold",
    "log_left": True,
}
_NUMBERS = """
    n seq fence write_no visit attempt priority max_age events failures beat beat_ms lease_ms by
    gap since until before after age delay crashes pause_id hook_grace retention ready_at
    ready_after deadline_at deadline_after remind_at remind_after past pinned_seq fold_at fold_from
    window read beyond
"""
DUMMIES |= {name: 1_700_000_000_000 if name.endswith("_at") else 7 for name in _NUMBERS.split()}
_OPTIONAL = """
    state checkpoint step visit ending_as held_reason retention ready_at ready_after deadline_at
    deadline_after remind_at remind_after
"""
NULLABLE = {
    "task_id": {"send_keys_claim"},
    "tenant": {"api_keys_create"},
    "lasts": {"api_keys_create"},
    "secrets": {"webhooks_put"},
    "pinned_seq": {"webhooks_put"},
    "reply": {"send_keys_claim"},
    "write_no": {"task_events_append", "task_runs_end"},
    "request": {"task_ledger_intend"},
    "digest": {"task_ledger_intend", "task_ledger_keep"},
    "error": {"task_runs_end"},
    "presence": {"workers_register", "workers_beat"},
    "status": {"tasks_commit", "tasks_mark"},
    **{name: {"tasks_commit"} for name in _OPTIONAL.split()},
    "context_id": {"tasks_page", "tasks_count"},
    "state": {"tasks_commit", "tasks_page", "tasks_count"},
}


def dummies_of(query: Query, *, with_nulls: bool) -> dict[str, Any]:
    names = set(PARAMETER.findall(query.text))
    missing = names - DUMMIES.keys()
    assert not missing, f"give the test a value for {missing} of {query.name}"
    return {
        name: None if with_nulls and query.name in NULLABLE.get(name, ()) else DUMMIES[name]
        for name in names
    }


@pytest.mark.parametrize("with_nulls", [False, True], ids=["values", "nulls"])
async def test_every_query_prepares(migrated: AnyDatabase, with_nulls: bool) -> None:
    """So that no dialect is left behind: each is explained with values of the types it gets."""
    failed = {}
    for query in catalog(migrated.dialect).values():
        params = dummies_of(query, with_nulls=with_nulls)
        try:
            await run(migrated, f"explain {query.text}", **params)
        except Exception as error:  # all of them in one go
            failed[query.name] = str(error)
    assert failed == {}


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_an_override_says_why(dialect: Dialect) -> None:
    """And it stands in the place of a shared query, with the same parameters."""
    folder = ROOT / "src/outlast/store/sql"
    for path in (folder / dialect).glob("*.sql"):
        lines = path.read_text(encoding="utf-8").splitlines()
        for name in parse("\n".join(lines)):
            (head,) = [n for n, line in enumerate(lines) if line.startswith(f"-- {name}: ")]
            assert lines[head + 1].startswith("-- differs: "), f"{name} does not say why"
    queries = [catalog(one) for one in ("sqlite", "postgres")]
    assert set(queries[0]) == set(queries[1])
    for name in queries[0]:
        first, second = (set(PARAMETER.findall(one[name].text)) for one in queries)
        assert first == second, name


def test_no_bound_is_passed_by_a_subquery_run_twice() -> None:
    """PostgreSQL may run the subquery of a join once per row, and one that locks as it goes finds
    other rows each time, beyond its limit. A `with` runs once."""
    again = re.compile(r"in \(\s*select [^;]*?\bfor (no key )?update", re.IGNORECASE)
    assert again.search("where id in (select id from t limit 1 for update)")
    for name, query in catalog("postgres").items():
        for part in again.finditer(query.text):
            assert "as materialized (" in part[0] or "limit" not in part[0], name


def test_every_query_is_used() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "src/outlast").rglob("*.py"))
    unused = [name for name in catalog("sqlite") if f'"{name}"' not in code]
    assert unused == []


# --- plans --------------------------------------------------------------------------------------

_FILL = """
insert into tasks (task_id, agent, tenant, owner, context_id, workflow, version, state, status,
                   status_at, step, visit, lease_owner, ready_at, next_seq, pause_id,
                   pause_deadline_at, give_up_at, ledger_id, metadata, created_at, updated_at)
select n::text, 'agent', 'tenant' || (n % 7), 'ann', 'context', 'review', 1,
       case when n % 4 = 0 then 'working' when n % 4 = 1 then 'input-required'
            when n % 4 = 2 then 'completed' else 'submitted' end,
       '{}', n, 'first', 1,
       case when n % 4 = 0 then 'worker' || (n % 200) end,
       case when n % 4 = 3 then n end,
       2,
       case when n % 4 = 1 then 1 end,
       case when n % 4 = 1 then 4000000000000 + n end,
       4000000000000 + n, n::text, '{}', n, n
  from generate_series(1, 20000) as n;
insert into task_events (task_id, seq, fence, write_no, kind, body, created_at)
select n::text, seq, 0, seq, 'status', '{}', 1
  from generate_series(1, 2000) as n, generate_series(1, 20) as seq;
insert into task_ledger (ledger_id, key, kind, fence, write_no, intent_at)
select n::text, 'effect:' || k, 'effect', 1, 1, 1
  from generate_series(1, 2000) as n, generate_series(1, 10) as k;
insert into task_folds (task_id, seq, task)
select n::text, seq, '' from generate_series(1, 2000) as n, generate_series(5, 15, 5) as seq;
insert into workers (worker_id, agent, host, beat_ms, lease_ms, versions, started_at, seen_at)
select 'worker' || n, 'agent', 'host', 1, 1, '[]', 1, 1 from generate_series(0, 199) as n;
insert into task_runs (task_id, fence, worker_id, step, attempt, started_at)
select n::text, 0, 'worker1', 'first', 1, 1 from generate_series(1, 20000) as n;
"""
PLANS = {
    "tasks_claim": {"tasks_ready"},
    "tasks_leased_to": {"tasks_leased"},
    "tasks_overdue_pauses": {"tasks_pause_due"},
    "tasks_overdue_lives": {"tasks_give_up"},
    "tasks_spare": {"tasks_pause_due", "tasks_give_up"},
    "tasks_held": {"tasks_held"},
    "tasks_commit": {"tasks_pkey"},
    "tasks_outcome": {"tasks_pkey", "task_runs_pkey", "one_write_has_its_numbers_once"},
    "tasks_lock": {"tasks_pkey"},
    "tasks_find": {"tasks_pkey"},
    "task_events_since": {"task_events_pkey"},
    "task_folds_newest": {"task_folds_pkey"},
    "tasks_unfolded": {"tasks_unfolded"},
    "task_events_messages": {"task_messages"},
    "task_ledger_get": {"task_ledger_pkey"},
    "task_ledger_page": {"task_ledger_pkey"},
    "task_ledger_open": {"task_ledger_pkey"},
}


_SEEKING = {"worker_id": "worker4", "task_id": "17", "version": 1}


@pytest.fixture(scope="module")
def filled(postgres_server: Any) -> str:
    """The URL of a PostgreSQL database with 20,000 tasks in all conditions."""
    url: str = postgres_server.create_database(f"plans_{os.getpid()}")

    async def migrate() -> None:
        database = database_at(url)
        await database.open()
        await Admin(database).migrate()
        await database.close()

    asyncio.run(migrate())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_FILL)
        connection.execute("vacuum analyze")
    return url


def nodes_of(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", ()) for node in nodes_of(child))]


@pytest.mark.parametrize("name", list(PLANS))
async def test_a_hot_query_uses_its_index(filled: str, name: str) -> None:
    database = database_at(filled)
    await database.open()
    query = catalog("postgres")[name]
    params = dummies_of(query, with_nulls=False) | _SEEKING
    params = {key: value for key, value in params.items() if key in PARAMETER.findall(query.text)}
    rows = await run(database, f"explain (format json) {query.text}", **params)
    await database.close()
    plan = rows[0]["QUERY PLAN"]
    nodes = nodes_of((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
    indexes = {node["Index Name"] for node in nodes if "Index Name" in node}
    scanned = {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"}
    assert indexes >= PLANS[name]
    assert not scanned & {"tasks", "task_events", "task_ledger", "task_runs"}


async def test_a_list_looks_up_the_last_status_of_a_task_once(sqlite_url: str) -> None:
    """And not once for each of its events, of which there may be 50,000. PostgreSQL is told so by
    the query itself."""
    database = database_at(sqlite_url)
    await database.open()
    await Admin(database).migrate()
    query = catalog("sqlite")["task_events_shown"]
    params = dummies_of(query, with_nulls=False)
    plan = [
        row["detail"] for row in await run(database, f"explain query plan {query.text}", **params)
    ]
    await database.close()
    found = [line for line in plan if line.startswith("SEARCH task_events")]
    assert [re.findall(r"\(.*\)", line) for line in found] == [
        ["(task_id=? AND seq>?)"],
        ["(task_id=? AND seq=?)"],
    ]


async def test_chunks_and_beats_touch_no_indexed_column(postgres_dsn: str) -> None:
    """So that PostgreSQL updates the row in its page and writes no index (HOT)."""
    database = database_at(postgres_dsn)
    await database.open()
    await Admin(database).migrate()
    store = Store(postgres_dsn, database, Settings())
    leased = await store.claimed()
    queries = catalog("postgres")
    columns = commits._columns(leased.write(chunk(), ledger=[intent()]), Settings())
    counted = """
        select pg_stat_get_xact_tuples_updated('tasks'::regclass) as tasks,
               pg_stat_get_xact_tuples_hot_updated('tasks'::regclass) as tasks_hot,
               pg_stat_get_xact_tuples_updated('workers'::regclass) as workers,
               pg_stat_get_xact_tuples_hot_updated('workers'::regclass) as workers_hot
    """

    def script() -> Script[Rows]:
        yield queries("tasks_commit", **columns)
        yield queries("workers_beat", worker_id="w1", presence=None)
        return (yield Statement(Query(name="test_own", promise="", text=counted), {}))

    (row,) = await database.transact(script)
    await database.close()
    assert row == {"tasks": 1, "tasks_hot": 1, "workers": 1, "workers_hot": 1}
