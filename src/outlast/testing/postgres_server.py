"""A real PostgreSQL server for tests, the demo and benchmarks.

    with PostgresServer() as server:
        dsn = server.create_database("orders")

The server is a child process of ours on a folder of its own. It can be killed, frozen, stopped and
started again on the same port and data, which is what our tests are about.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self
from urllib.parse import quote

from outlast.testing.postgres_binaries import (
    Account,
    can_run,
    copy_binaries,
    find_binaries,
    inspect_binaries,
    run_as,
    server_account,
)
from outlast.testing.processes import Process, children_of, read_process, wait_until_gone

if TYPE_CHECKING:
    from psycopg.sql import Composed

SUPERUSER: Final = "postgres"
READY_WITHIN_S: Final = 60.0
STOPPED_WITHIN_S: Final = 60.0
ORPHANS_GONE_WITHIN_S: Final = 5.0
# Below the ports that systems lend to outgoing connections: while the server is down nobody gets
# its port by chance, and a client that keeps calling it cannot end up connected to itself.
PORTS: Final = range(20_000, 32_000)


class PostgresServerError(RuntimeError):
    """The server did not do what it was asked for. The message ends with the tail of its log."""


class PostgresServer:
    """One PostgreSQL server: a folder, a port, and a child process while it runs.

    Entering the context starts it, leaving the context stops it and, unless a folder was given,
    removes everything it wrote. It only ever signals its own process and the children of that.
    Not for use from several threads at once.

    ``folder``: where data and log are kept; used again if it holds a database already. By default
    a temporary one. ``bindir``: the folder of the server programs; found by default.
    ``durable``: whether commits reach the disk (``fsync``). Off by default: a killed server loses
    nothing then either, only a machine that loses power does. ``settings`` go to the server as
    they are and win over ours.

    Raises PostgresNotFound if this machine has no server to start.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        bindir: Path | None = None,
        durable: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._account = server_account()
        self._binaries = find_binaries() if bindir is None else inspect_binaries(bindir)
        self._temporary = folder is None
        self._folder = _temporary_folder(self._account) if folder is None else folder.resolve()
        self._copy: Path | None = None
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "fsync": "on" if durable else "off",
            "synchronous_commit": "on",
            "max_connections": "300",
            "log_line_prefix": "%m [%p] ",
            "timezone": "UTC",
        } | dict(settings or {})
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen: set[Process] = set()
        # A fork of this process inherits the object, and must not stop its parent's server.
        self._creator_pid = os.getpid()
        atexit.register(self.close)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- What it is -------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """The folder that holds the data, the log and the unix socket."""
        return self._folder

    @property
    def data_folder(self) -> Path:
        """PostgreSQL's own data directory."""
        return self._folder / "data"

    @property
    def log_file(self) -> Path:
        """What the server and initdb printed."""
        return self._folder / "postgres.log"

    @property
    def bindir(self) -> Path:
        """The folder of the server programs in use; pgbench and psql are there if installed."""
        return self._binaries.folder

    @property
    def version(self) -> int:
        """The major version of the server."""
        return self._binaries.version

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1: chosen by the first start and kept."""
        if self._port is None:
            raise PostgresServerError("the server has no port before its first start")
        return self._port

    @property
    def is_running(self) -> bool:
        """Whether the postmaster runs; true also while it is frozen."""
        return self._process is not None and self._process.poll() is None

    @property
    def postmaster_pid(self) -> int:
        """The pid of the server's first process, the parent of all its others."""
        return self._running().pid

    def dsn(self, database: str = "postgres") -> str:
        """Return the URL of a database on this server, for its superuser, without a password."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    # --- Start, stop, kill --------------------------------------------------------------------

    def start(self) -> None:
        """Start the server and wait until it takes connections.

        The first start makes the database cluster and chooses the port; later ones use both again.

        Raises PostgresServerError if it ends or is not ready within a minute.
        """
        if self.is_running:
            raise PostgresServerError("the server is running already")
        self._prepare()
        for port in [self._port] if self._port is not None else _free_ports(3):
            began_at = self.log_file.stat().st_size
            self._launch(port)
            try:
                self._wait_until_ready(port)
            except BaseException as failure:
                self.kill()
                taken = b"could not bind" in self.log_file.read_bytes()[began_at:]
                if taken and self._port is None and isinstance(failure, PostgresServerError):
                    continue
                raise
            self._port = port
            return
        raise PostgresServerError("the ports chosen were taken by others before the server started")

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server and wait until all its processes have ended.

        ``fast`` ends the sessions and writes everything out; ``immediate`` ends at once, and the
        next start recovers from the log. Does nothing if the server is not running.
        """
        if not self.is_running:
            return
        process, family = self._running(), children_of(self.postmaster_pid)
        self.thaw()
        process.send_signal(signal.SIGINT if mode == "fast" else signal.SIGQUIT)
        try:
            process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise PostgresServerError(f"the server does not stop\n{self._log_tail()}") from None
        self._wait_until_gone(family)

    def kill(self) -> None:
        """Kill the postmaster (SIGKILL) and wait until its children have ended too.

        A PostgreSQL process ends by itself when it sees that its postmaster is gone, and no new
        server starts before all have. One that is too busy to look is killed after five seconds.
        Does nothing if the server is not running.
        """
        if not self.is_running:
            return
        process = self._running()
        # Frozen first, so that it starts no child which we would not know of.
        process.send_signal(signal.SIGSTOP)
        family = children_of(process.pid)
        process.kill()
        process.wait()
        self.thaw()
        self._wait_until_gone(family)

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server and start it again on the same port and data."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server, whatever state it is in, and remove its temporary files.

        Happens by itself when Python exits. Safe to call twice. In a fork of the process that
        made the server it does nothing.
        """
        if os.getpid() != self._creator_pid:
            return
        try:
            self.stop("fast")
        except PostgresServerError:
            self.kill()
        finally:
            atexit.unregister(self.close)
            for folder in (self._copy, self._folder if self._temporary else None):
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)

    # --- Databases ----------------------------------------------------------------------------

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """Create a database, a copy of the template if one is given; return its URL.

        Nobody may be connected to the template meanwhile.
        """
        from psycopg.sql import SQL, Identifier

        statement = SQL("create database {}").format(Identifier(name))
        if template is not None:
            statement += SQL(" template {}").format(Identifier(template))
        self._administer(statement)
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, ending its sessions; nothing if there is none of that name."""
        from psycopg.sql import SQL, Identifier

        self._administer(
            SQL("drop database if exists {} with (force)").format(Identifier(name)),
        )

    # --- Freezing -----------------------------------------------------------------------------

    def freeze(self, pid: int | None = None) -> None:
        """Stop one process of the server in its tracks (SIGSTOP); by default all of them.

        It keeps its connections and locks and answers nothing, as on a machine that hangs. A
        frozen postmaster still has its port: connecting works, and then nothing happens.

        Raises ValueError if the pid is not one of this server's processes.
        """
        postmaster = self._running()
        if pid is None or pid == postmaster.pid:
            self._freeze(postmaster.pid)
        if pid is None:
            for child in children_of(postmaster.pid):
                self._freeze(child.pid)
        elif pid != postmaster.pid:
            if pid not in {child.pid for child in children_of(postmaster.pid)}:
                raise ValueError(f"{pid} is not a process of this PostgreSQL server")
            self._freeze(pid)

    def thaw(self, pid: int | None = None) -> None:
        """Let a frozen process run on (SIGCONT); by default all that are frozen."""
        for process in [entry for entry in self._frozen if pid in (None, entry.pid)]:
            process.send(signal.SIGCONT)
            self._frozen.discard(process)

    # --- Inside -------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Make the folder and in it the database cluster, unless both are there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.log_file.touch()
        account = self._account
        if account is not None:
            if not _is_open_to_all(self._folder.parent):
                raise PostgresServerError(
                    f"PostgreSQL runs as the user {account.name} here, who cannot enter "
                    f"{self._folder.parent}"
                )
            os.chown(self._folder, account.uid, account.gid)
            if not can_run(self._binaries, account):
                self._copy = _temporary_folder(account)
                self._binaries = copy_binaries(self._binaries, self._copy, account)
        if not (self.data_folder / "PG_VERSION").exists():
            self._make_cluster()

    def _make_cluster(self) -> None:
        command = [
            str(self.bindir / "initdb"),
            f"--pgdata={self.data_folder}",
            f"--username={SUPERUSER}",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-instructions",
        ]
        if self._settings["fsync"] == "off":
            command.append("--no-sync")
        with self.log_file.open("ab") as log:
            answer = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=_environment(),
                check=False,
                **run_as(self._account),
            )
        if answer.returncode != 0:
            raise PostgresServerError(f"initdb failed\n{self._log_tail()}")

    def _launch(self, port: int) -> None:
        settings = self._settings | {"port": str(port), "unix_socket_directories": ""}
        if len(str(self._folder)) < 80:  # a socket's path has room for about 100 bytes
            settings["unix_socket_directories"] = str(self._folder)
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self.bindir / "postgres"), "-D", str(self.data_folder), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=_environment(),
                # A Ctrl-C in the terminal is for us, who then stop the server in good order.
                start_new_session=True,
                **run_as(self._account),
            )

    def _wait_until_ready(self, port: int) -> None:
        import psycopg

        url = f"postgresql://{SUPERUSER}@127.0.0.1:{port}/postgres"
        until = time.monotonic() + READY_WITHIN_S
        while self.is_running and time.monotonic() < until:
            try:
                with psycopg.connect(url, connect_timeout=2) as connection:
                    row = connection.execute("show data_directory").fetchone()
            except psycopg.OperationalError:
                time.sleep(0.02)
                continue
            if row is not None and Path(row[0]).resolve() == self.data_folder:
                return
            time.sleep(0.02)  # another server has this port; ours is about to say so and end
        state = "is not ready after a minute" if self.is_running else "ended while it started"
        raise PostgresServerError(f"the server {state}\n{self._log_tail()}")

    def _wait_until_gone(self, family: list[Process]) -> None:
        left = wait_until_gone(family, deadline_s=ORPHANS_GONE_WITHIN_S)
        for process in left:
            process.send(signal.SIGKILL)
        left = wait_until_gone(left, deadline_s=ORPHANS_GONE_WITHIN_S)
        if left:
            raise PostgresServerError(f"processes of the server that do not end: {left}")

    def _freeze(self, pid: int) -> None:
        process = read_process(pid)
        if process is not None:
            process.send(signal.SIGSTOP)
            self._frozen.add(process)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise PostgresServerError("the server is not running")
        return self._process

    def _administer(self, statement: Composed) -> None:
        import psycopg

        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(statement)

    def _log_tail(self, lines: int = 20) -> str:
        try:
            text = self.log_file.read_text(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def _environment() -> dict[str, str]:
    """Return our environment without what would change the server: PGDATA, PGPORT, a locale…"""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    return kept | {"LC_ALL": "C"}


def _temporary_folder(account: Account | None) -> Path:
    """Make a temporary folder that belongs to the account, in a place where it can go."""
    base = Path(tempfile.gettempdir()).resolve()
    if account is not None and not _is_open_to_all(base):
        base = Path("/tmp")
    folder = Path(tempfile.mkdtemp(prefix="outlast-postgres-", dir=base))
    if account is not None:
        os.chown(folder, account.uid, account.gid)
    return folder


def _is_open_to_all(folder: Path) -> bool:
    """Whether every user may go through that folder and those above it."""
    return all(entry.stat().st_mode & 0o001 for entry in (folder, *folder.parents))


def _free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens on at this moment."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, 500):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            break
    return found
