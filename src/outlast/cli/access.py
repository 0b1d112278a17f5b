"""Commands about who may call an agent, and what happened at its door."""

from __future__ import annotations

import getpass
import os
import re
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape

from outlast import compose
from outlast.cli.frame import AgentPath, DatabaseUrl, errors, out, stop, table, with_stores
from outlast.gateway.auth.api_keys import digest_of, key_id_of, new_key
from outlast.gateway.scopes import check_tenant
from outlast.model.errors import ConfigError, InvalidParams
from outlast.model.ids import Millis
from outlast.store.protocols import ApiKey, NewKey

_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LASTS = re.compile(r"([1-9][0-9]{0,5})([smhd])")

keys = typer.Typer(help="API keys of callers.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Make these commands of the program's."""
    app.add_typer(keys, name="keys")
    app.command()(audit)


@keys.command()
def create(
    agent: AgentPath,
    owner: Annotated[str, typer.Option(help="Whose tasks the key opens.")],
    tenant: Annotated[str | None, typer.Option(help="The tenant that the owner is of.")] = None,
    scope: Annotated[
        list[str] | None, typer.Option(help="A scope that steps see; give it again for more.")
    ] = None,
    lasts: Annotated[
        str | None, typer.Option(help="How long it is good for, as 90d, 12h, 30m or 45s.")
    ] = None,
    name: Annotated[str, typer.Option(help="What people know it by.")] = "",
    database: DatabaseUrl = None,
) -> None:
    """Make an API key and print it, once: the database keeps a hash of it."""
    length = None if lasts is None else _length_of(lasts)
    if not owner.strip():
        stop("--owner is empty: a key is somebody's")
    try:
        check_tenant(tenant or "", path="--tenant")
    except InvalidParams as error:
        stop(str(error))
    key = new_key()
    digest = digest_of(key)

    async def write(stores: compose.Stores) -> ApiKey:
        new = NewKey(
            key_id=key_id_of(digest),
            agent=compose.load_agent(agent).name,
            digest=digest,
            name=name,
            owner=owner.strip(),
            tenant=tenant or None,
            scopes=tuple(scope or ()),
            lasts=length,
        )
        return await stores.access.create_key(new, source=_operator())

    made = with_stores(database, write)
    # The key alone goes to standard output, so that a script can take it from there.
    typer.echo(key)
    errors.print(
        f"key {made.key_id} of {escape(made.owner)}; it is not shown again", highlight=False
    )


@keys.command("list")
def list_(agent: AgentPath, database: DatabaseUrl = None) -> None:
    """List the keys of an agent, the newest first; never the keys themselves."""

    async def read(stores: compose.Stores) -> None:
        rows = table("key", "name", "owner", "tenant", "scopes", "created", "expires", "revoked")
        for key in await stores.access.keys(compose.load_agent(agent).name):
            rows.add_row(
                key.key_id,
                *map(escape, (key.name, key.owner, key.tenant or "", " ".join(key.scopes))),
                *(_time(at) for at in (key.created_at, key.expires_at, key.revoked_at)),
            )
        out.print(rows)

    with_stores(database, read)


@keys.command()
def revoke(
    agent: AgentPath,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key, as the list names it.")],
    database: DatabaseUrl = None,
) -> None:
    """Revoke a key. Gateways that know it go on believing it for five seconds."""

    async def write(stores: compose.Stores) -> bool:
        name = compose.load_agent(agent).name
        return await stores.access.revoke_key(name, key, source=_operator())

    if not with_stores(database, write):
        stop(f"there is no key {key} to revoke: see outlast keys list")
    out.print(f"key {key} is revoked")


def audit(
    agent: AgentPath,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 100,
    database: DatabaseUrl = None,
) -> None:
    """Show what happened at an agent's door, the latest first."""

    async def read(stores: compose.Stores) -> None:
        rows = table("time", "what", "who", "tenant", "from", "detail")
        for entry in await stores.access.audit(compose.load_agent(agent).name, limit=limit):
            said = (entry[name] for name in ("kind", "subject", "tenant", "source", "detail"))
            rows.add_row(_time(entry["at"]), *map(escape, said))
        out.print(rows)

    with_stores(database, read)


def _length_of(text: str) -> Millis:
    if (found := _LASTS.fullmatch(text.strip())) is None:
        stop(f"--lasts {text!r} is no length: say 90d, 12h, 30m or 45s")
    return Millis(int(found[1]) * _UNITS[found[2]])


def _time(at: int | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at / 1000, UTC).isoformat("T", "seconds")


def _operator() -> str:
    """Who runs the command, as far as the machine knows."""
    try:
        return f"{getpass.getuser()} on {os.uname().nodename}"
    except (KeyError, OSError):
        raise ConfigError("this account has no name: set USER") from None
