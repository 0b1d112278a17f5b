"""`outlast policy`: what an agent promises to its callers, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from outlast import compose
from outlast.cli.frame import AgentPath, configured, out, run, table
from outlast.configured import gateway_config
from outlast.gateway.policy import Policy, policy_of
from outlast.workflow.limits import in_bytes

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(policy)


def policy(
    agent: AgentPath,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Show what callers can rely on with these settings. The Agent Card says the same."""
    settings = configured()

    async def read() -> Policy:
        return policy_of(compose.load_agent(agent), gateway_config(settings))

    found = run(read)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    shown = table("what", "how much")
    for name, value in lines(found):
        shown.add_row(name, value)
    out.print(shown)


def lines(policy: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, str]]:
    """The policy as a person reads it, one thing a line."""
    for key, value in policy.items():
        if isinstance(value, Mapping):
            yield from lines(value, f"{under}{_words(key)}: ")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            for item in value:
                named = f"{under}{item['name']} v{item['version']}: "
                rest = {name: said for name, said in item.items() if name not in _NAMES}
                yield from lines(rest, named)
        else:
            yield f"{under}{_words(key)}", _amount(key, value)


_NAMES = ("name", "version")


def _words(key: str) -> str:
    name = key.removesuffix("Seconds").removesuffix("Bytes")
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)


def _amount(key: str, value: Any) -> str:
    if key.endswith("Seconds"):
        return _duration(value)
    if key.endswith("Bytes"):
        return in_bytes(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _duration(seconds: float) -> str:
    """In the largest unit of which it is a whole number."""
    for size, name in _UNITS:
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {name}"
    return f"{seconds:g} s"
