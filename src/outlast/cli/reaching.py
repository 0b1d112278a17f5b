"""How commands reach an agent: where it is, with which credentials, and how a command ends.

Credentials come from the environment or from files. The arguments of a command show in lists of
processes and in the histories of shells.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from outlast.client import Client, Patience
from outlast.configuration import PREFIX
from outlast.model.errors import (
    ConfigError,
    OutlastError,
    TaskNotFound,
    Unauthenticated,
    Unreachable,
)
from outlast.model.task import State

URL = f"{PREFIX}URL"
TOKEN = f"{PREFIX}TOKEN"
EXITS = (
    "Exits with 0 when it is done, 3 when the task failed, 4 canceled, 5 rejected, 6 when it waits"
    " for an answer, 7 when there is no such task, 8 when the agent cannot be reached, 2 when the"
    " command was not understood, 130 after Ctrl-C, and 1 when something else went wrong."
)
INTERRUPTED = 130

ENDS: Mapping[State, int] = {
    State.FAILED: 3,
    State.CANCELED: 4,
    State.REJECTED: 5,
    State.INPUT_REQUIRED: 6,
    State.AUTH_REQUIRED: 6,
}
_NO_TASK, _UNREACHABLE = 7, 8
_SECRET = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
_PATIENCE = Patience(total=10.0)

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", help=f"Where the agent is, such as http://localhost:8000. [env: {URL}]"
    ),
]
TaskId = Annotated[str, typer.Argument(metavar="TASK", help="The id of the task.")]
Json = Annotated[bool, typer.Option("--json", help="A2A's JSON, one document a line.")]
Tenant = Annotated[str, typer.Option("--tenant", help="The tenant, where an agent has several.")]
Headers = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="NAME:VALUE",
        help="Goes with every request; may be repeated. NAME:@FILE reads the value from a file."
        f" A bearer token comes from the environment: {TOKEN}.",
    ),
]
TrustCard = Annotated[
    bool,
    typer.Option(
        "--trust-card",
        help="Send credentials wherever the agent's card points, not to the URL's host alone.",
    ),
]


class Calling(TyperCommand):
    """A command whose first argument, the URL, may come from the environment."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names = [param.name for param in self.params if param.param_type_name == "argument"]
        given: Mapping[Any, Any] = self.make_parser(ctx).parse_args(args=list(args))[0]
        is_short = not isinstance(given.get(names[-1]), str)
        if is_short and not {"--help"} & set(args):
            if url := os.environ.get(URL):
                args = [url, *args]
            elif "://" not in str(given.get(names[0])):
                ctx.fail(f"say where the agent is: its URL comes first, or {URL} has it")
        return list(super().parse_args(ctx, args))


@dataclass(frozen=True, kw_only=True)
class Agent:
    """An agent as the command line names it."""

    url: str
    tenant: str = ""
    headers: Sequence[str] = ()
    trust_card: bool = False

    def client(self) -> Client:
        """Raises ConfigError for headers that are none, or that must not be arguments."""
        return Client(
            self.url,
            auth=os.environ.get(TOKEN) or None,
            headers=dict(map(_header, self.headers)),
            tenant=self.tenant,
            patience=_PATIENCE,
            trust_card=self.trust_card,
        )

    def command(self, name: str, *arguments: str) -> str:
        """What to type to do something with this agent."""
        url = [] if self.url == os.environ.get(URL) else [self.url]
        tenant = ["--tenant", self.tenant] if self.tenant else []
        headers = [word for header in self.headers for word in ("--header", header)]
        trust = ["--trust-card"] if self.trust_card else []
        return shlex.join(["outlast", name, *url, *arguments, *tenant, *headers, *trust])


def call(
    agent: Agent,
    work: Callable[[Client], Awaitable[int]],
    *,
    interrupted: Callable[[], str] = lambda: "interrupted",
) -> NoReturn:
    """Do this work with the agent, and exit as it says.

    What went wrong is said in one line. interrupted: what is said after Ctrl-C.
    """

    async def run() -> int:
        async with agent.client() as client:
            return await work(client)

    try:
        code = asyncio.run(run())
    except OutlastError as error:
        stop(_told(error), {TaskNotFound: _NO_TASK, Unreachable: _UNREACHABLE}.get(type(error), 1))
    except KeyboardInterrupt:
        stop(interrupted(), INTERRUPTED)
    raise typer.Exit(code)


def stop(text: str, code: int = 1) -> NoReturn:
    """Say why this is the end."""
    say(text)
    raise typer.Exit(code)


def say(text: str) -> None:
    """Something of ours, beside what the agent said: so it goes to stderr."""
    typer.echo(f"outlast: {text}", err=True)


def read_file(path: str, option: str) -> str:
    """What the file holds that an option names. Raises ConfigError, which names the option."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"{option} cannot read {path}: {reason}") from error


def _told(error: OutlastError) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, Unauthenticated):
        is_set = "is not accepted" if os.environ.get(TOKEN) else "is not set"
        return f"{text}; a bearer token comes from {TOKEN}, which {is_set}"
    return text


def _header(text: str) -> tuple[str, str]:
    name, colon, value = (part.strip() for part in text.partition(":"))
    if not colon or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
        # Not repeated: it may be the value alone, and that a secret.
        raise ConfigError("--header takes NAME:VALUE, such as --header 'X-Team: lamps'")
    if value.startswith("@"):
        return name, read_file(value[1:], f"--header {name}").strip()
    if name.lower() in _SECRET:
        raise ConfigError(
            f"--header {name} with its value shows in lists of processes: put a bearer token into"
            f" {TOKEN}, or write --header {name}:@FILE"
        )
    return name, value
