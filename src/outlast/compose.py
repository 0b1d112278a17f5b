"""Wires everything: the one module that knows which database and which roles."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from outlast.admission import check_reach, identification, ways_of_knowing
from outlast.configuration import Configuration
from outlast.configured import gateway_config, idempotency_window, store_settings
from outlast.gateway.app import Unready, create_app
from outlast.gateway.auth.principal import Authenticator
from outlast.gateway.auth.watch import Watch, Watched
from outlast.gateway.auth.ways import any_of
from outlast.gateway.cards import agent_card
from outlast.gateway.handler import OutlastRequestHandler
from outlast.gateway.restores import RestoreWatch
from outlast.gateway.server import GatewayServer, listen
from outlast.model.errors import ConfigError, OutlastError
from outlast.roles import Role, run_roles, run_together
from outlast.store.access import Access
from outlast.store.admin import Admin
from outlast.store.beats import Beats
from outlast.store.database import Database
from outlast.store.inspect import Inspect
from outlast.store.log import Log
from outlast.store.protocols import Settings
from outlast.store.sweeping import Sweeping
from outlast.store.tasks import Tasks
from outlast.store.webhooks import Webhooks
from outlast.store.work import Work
from outlast.sweeps.sweeper import Sweeper
from outlast.worker.beat import BeatStores
from outlast.worker.worker import Worker, WorkerConfig, WorkerStores
from outlast.workflow.agent import Agent

if TYPE_CHECKING:
    from outlast.gateway.grpc_server import GrpcServer

log = structlog.get_logger("outlast")


@dataclass(frozen=True, kw_only=True)
class Stores:
    """One open database, and everything that can be asked of it."""

    database: Database
    tasks: Tasks
    webhooks: Webhooks
    log: Log
    work: Work
    sweeping: Sweeping
    admin: Admin
    inspect: Inspect
    access: Access


# --- the database -------------------------------------------------------------------------------


def database_for(configuration: Configuration, *, for_beats: bool = False) -> Database:
    """A database that is not open yet. With `for_beats`: one session, which shows presence."""
    scheme, _, rest = configuration.database.partition(":")
    if scheme == "sqlite" and rest.startswith("///"):
        from outlast.store.sqlite import SqliteDatabase

        return SqliteDatabase(rest[3:], timeout=configuration.database_timeout)
    if scheme in ("postgresql", "postgres"):
        return _postgres(configuration, for_beats)
    raise ConfigError(
        "the database is given as sqlite:///path/to/file.db or"
        f" postgresql://user@host/name, not as {scheme}:…"
    )


def _postgres(configuration: Configuration, for_beats: bool) -> Database:
    try:
        from outlast.store.postgres import PostgresDatabase
    except ImportError:
        raise ConfigError("PostgreSQL needs an extra: pip install 'outlast[postgres]'") from None
    timeout = configuration.database_timeout
    return PostgresDatabase(
        configuration.database,
        # A beat that takes longer than the lease is worth nothing, and its lock is in the way.
        timeout=min(timeout, configuration.lease) if for_beats else timeout,
        size=1 if for_beats else configuration.database_pool,
        listens=not for_beats,
        pooler=configuration.database_pooler,
    )


def stores_on(database: Database, settings: Settings) -> Stores:
    return Stores(
        database=database,
        tasks=Tasks(database, settings),
        webhooks=Webhooks(database),
        log=Log(database),
        work=Work(database, settings),
        sweeping=Sweeping(database, settings),
        admin=Admin(database),
        inspect=Inspect(database),
        access=Access(database),
    )


@contextlib.asynccontextmanager
async def open_stores(
    configuration: Configuration, *, create: bool = True
) -> AsyncIterator[Stores]:
    """The store, ready for use: a SQLite file is migrated here, PostgreSQL by `outlast migrate`.

    Without `create` a SQLite file that is not there stays so, and is a ConfigError.

    Raises ConfigError when the database is not there, SchemaMismatch when it does not fit.
    """
    path = configuration.database.removeprefix("sqlite:///")
    if not create and path != configuration.database and not Path(path).exists():
        raise ConfigError(f"there is no SQLite file {path}: check --database")
    database = database_for(configuration)
    await database.open()
    try:
        stores = stores_on(database, store_settings(configuration))
        if database.dialect == "sqlite":
            await stores.admin.migrate()
        else:
            await stores.admin.check()
        yield stores
    finally:
        await database.close()


async def migrate(configuration: Configuration) -> list[int]:
    """The numbers of the migrations that were applied."""
    database = database_for(configuration)
    await database.open()
    try:
        return list(await Admin(database).migrate())
    finally:
        await database.close()


# --- the author's code --------------------------------------------------------------------------


def load_agent(path: str) -> Agent:
    """The agent that `module:name` names, from the working folder or an installed package."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(f"name the agent as module:variable, not as {path!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise ConfigError(
                f"there is no module {module_name!r} to load the agent from"
            ) from None
        raise
    agent = getattr(module, name, None)
    if not isinstance(agent, Agent):
        raise ConfigError(f"{module_name} has no Agent named {name!r}")
    return agent


# --- the roles ----------------------------------------------------------------------------------


def worker_role(agent: Agent, stores: Stores, configuration: Configuration) -> Role:
    """A worker and the sweeps that every worker runs, together."""
    worker = Worker(
        agent,
        WorkerStores(
            work=stores.work,
            log=stores.log,
            wakeups=stores.database.wakeups,
            connect_beat=lambda: _beat_stores(configuration),
        ),
        WorkerConfig(
            concurrency=configuration.concurrency,
            beat_s=configuration.beat,
            lease_s=configuration.lease,
            grace_s=configuration.grace,
            poll_s=configuration.poll,
        ),
    )
    sweeper = Sweeper(
        stores.sweeping,
        stores.database.wakeups,
        agent=agent.name,
        recovery_s=configuration.recovery,
        tombstone_ms=int(configuration.tombstone * 1000),
        window_ms=int(idempotency_window(configuration) * 1000),
    )
    both = (Role(run=worker.run, stop=worker.stop), Role(run=sweeper.run, stop=sweeper.stop))
    return Role(
        run=lambda: run_together(*both),
        stop=worker.stop,
        problems=worker.problems,
        hindrances=worker.hindrances,
    )


def _beat_stores(configuration: Configuration) -> BeatStores:
    database = database_for(configuration, for_beats=True)
    settings = store_settings(configuration)
    return BeatStores(database=database, beats=Beats(database), work=Work(database, settings))


def gateway_role(
    agent: Agent,
    stores: Stores,
    configuration: Configuration,
    epoch: str,
    worker: Role | None = None,
) -> Role:
    """A gateway on its address. The card names the port that is really listened on. The health
    of a worker in the same process is told too."""
    ways = ways_of_knowing(agent.name, stores.access, configuration)
    check_reach(configuration, ways)
    watch = Watch(stores.access, agent.name)
    known = any_of(ways)
    authenticator = None if known is None else Watched(known, watch)
    listener = listen(configuration.host, configuration.port)
    host, port = listener.getsockname()[:2]
    url = configuration.url or f"http://{host}:{port}"
    config = replace(gateway_config(configuration), url=url, epoch=epoch)
    handler = OutlastRequestHandler(
        agent,
        stores.tasks,
        stores.log,
        stores.database.wakeups,
        config,
        identify=identification(agent.name, ways, configuration, watch),
        webhooks=stores.webhooks,
    )
    grpc = None
    if configuration.grpc_port is not None:
        try:
            grpc = _grpc_server(handler, configuration, configuration.grpc_port, authenticator)
        except ConfigError:
            listener.close()
            raise
        place = f"[{host}]" if ":" in host else host
        config = replace(config, grpc_url=configuration.grpc_url or f"{place}:{grpc.port}")
    app = create_app(
        handler,
        agent_card(agent, config, ways),
        problems=list if worker is None else worker.problems,
        unready=_unready(stores, worker),
        authenticator=authenticator,
        only_as=None if ways or configuration.open_to_all else url,
    )
    server = GatewayServer(app, handler, listener)

    async def run() -> None:
        for way in ways:
            way.begin()
        log.info("gateway.listening", url=url, agent=agent.name)
        try:
            await server.serve()
        finally:
            await watch.close()

    restores = RestoreWatch(stores.admin, epoch)
    parts = [
        Role(run=run, stop=server.stop),
        Role(run=restores.run, stop=restores.stop),
        *([] if grpc is None else [Role(run=grpc.serve, stop=grpc.stop)]),
    ]
    return Role(run=lambda: run_together(*parts), stop=server.stop)


def _unready(stores: Stores, worker: Role | None) -> Unready:
    async def unready() -> list[str]:
        hindrances = [] if worker is None else worker.hindrances()
        try:
            await stores.admin.check()
        except OutlastError as error:
            return [str(error), *hindrances]
        return hindrances

    return unready


def _grpc_server(
    handler: OutlastRequestHandler,
    configuration: Configuration,
    port: int,
    authenticator: Authenticator | None,
) -> GrpcServer:
    try:
        from outlast.gateway.grpc_server import GrpcServer, TlsFiles
    except ImportError as error:
        raise ConfigError(
            f"gRPC needs more than is installed ({error}): pip install 'outlast[grpc]'"
        ) from None
    tls = None
    if configuration.grpc_tls_cert is not None and configuration.grpc_tls_key is not None:
        tls = TlsFiles(cert=configuration.grpc_tls_cert, key=configuration.grpc_tls_key)
    return GrpcServer(
        handler, host=configuration.host, port=port, tls=tls, authenticator=authenticator
    )


# --- commands -----------------------------------------------------------------------------------


async def serve(agent: Agent, configuration: Configuration) -> None:
    """`outlast serve`: every role in one process."""
    async with open_stores(configuration) as stores:
        facts = await stores.admin.check()
        worker = worker_role(agent, stores, configuration)
        gateway = gateway_role(agent, stores, configuration, facts.epoch, worker)
        await run_roles(worker, gateway)


async def answer_calls(agent: Agent, configuration: Configuration) -> None:
    """`outlast gateway`: answer A2A requests until stopped."""
    async with open_stores(configuration) as stores:
        facts = await stores.admin.check()
        await run_roles(gateway_role(agent, stores, configuration, facts.epoch))


async def work_tasks(agent: Agent, configuration: Configuration) -> None:
    """`outlast worker`: claim and run tasks until stopped."""
    async with open_stores(configuration) as stores:
        await run_roles(worker_role(agent, stores, configuration))
