"""Write `docs/reference.md` from the code: the author's API, commands, settings, errors and events.

    python docs/generate_reference.py

A test fails when the page and the code have parted.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

import typer.main
from pydantic.fields import FieldInfo

import outlast
from outlast import Context, testing
from outlast.cli import app
from outlast.configuration import PREFIX, Configuration
from outlast.model import errors
from outlast.telemetry import EVENTS
from outlast.workflow import next as next_

PAGE = Path(__file__).with_name("reference.md")

FOR_THE_ATTEMPT = {
    "adopt",
    "build",
    "drained",
    "encoded_checkpoint",
    "has_provisional",
    "message_json",
    "pending_events",
    "read",
    "reads_inbox",
    "step",
    "take_commit",
}
"""Of a context: what the attempt asks, which is no author's business."""

_HEAD = """\
# Reference

Made from the code by `python docs/generate_reference.py`: change it there.

- [What an author imports](#what-an-author-imports)
- [What a step gets](#what-a-step-gets)
- [Commands](#commands)
- [Settings](#settings)
- [Errors](#errors)
- [Events](#events)
"""


def render() -> str:
    """The page."""
    sections = [_HEAD, *_names(), *_verbs(), *_commands(), *_settings(), *_errors(), *_events()]
    return "\n".join(section.strip() + "\n" for section in sections)


# --- the author's API ---------------------------------------------------------------------------


def _names() -> Iterator[str]:
    yield "## What an author imports\n\nFrom `outlast`, and in tests from `outlast.testing`."
    rows = [(f"`{name}`", _said_of(outlast, name)) for name in outlast.__all__ if name[0] != "_"]
    rows += [(f"`testing.{name}`", _said_of(testing, name)) for name in testing.__all__]
    yield _table(("name", "what it is"), sorted(rows))


def _said_of(module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        return _first_paragraph(value)
    return _docstrings_below(ast.parse(inspect.getsource(next_)).body)[name]


def _verbs() -> Iterator[str]:
    yield (
        "## What a step gets\n\nThe context, `ctx`. What waits is awaited; its first paragraph is"
        " here, the rest is in its docstring."
    )
    members = [(f"`{_shown(name)}`", inspect.getattr_static(Context, name)) for name in verbs()]
    yield _table(
        ("member", "what it is"), [(shown, _first_paragraph(member)) for shown, member in members]
    )


def verbs() -> list[str]:
    """The public members of a context, but what the attempt alone asks."""
    members = [name for name in dir(Context) if not name.startswith("_")]
    return sorted(set(members) - FOR_THE_ATTEMPT)


def _shown(name: str) -> str:
    member = inspect.getattr_static(Context, name)
    if isinstance(member, property):
        return f"ctx.{name}"
    parameters = list(inspect.signature(member).parameters.values())[1:]
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    signature = str(inspect.Signature(bare))
    return f"ctx.{name}" + re.sub(r"datetime\.timedelta\(seconds=(\d+)\)", r"\1 s", signature)


# --- commands -----------------------------------------------------------------------------------


def _commands() -> Iterator[str]:
    yield "## Commands\n\nEach exits with 0 when it did what it says, and else says what was wrong."
    for name, command in commands():
        yield f"### outlast {name}\n\n{_one_line(command.help)}"
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        options = [param for param in command.params if param.param_type_name == "option"]
        usage = " ".join(["outlast", name, *(_placeholder(param) for param in arguments)])
        yield f"```\n{usage}{' [OPTIONS]' if options else ''}\n```"
        rows = [(_named(param), _one_line(param.help)) for param in [*arguments, *options]]
        yield _table(("argument or option", "what it says"), rows)


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by its full name: `keys create`."""
    yield from _below(typer.main.get_command(app), "")


def _below(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _below(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _placeholder(param: Any) -> str:
    return str(param.metavar or param.name.upper().replace("_", "-"))


def _named(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{_placeholder(param)}`"
    takes = "" if param.is_flag else f" {_placeholder(param)}"
    needed = ", required" if param.required else ""
    return f"`{'/'.join(param.opts)}{takes}`{needed}"


# --- settings -----------------------------------------------------------------------------------


def _settings() -> Iterator[str]:
    yield (
        "## Settings\n\nFrom the environment, by these names, and by the options of commands, which"
        " win. Times are in seconds. A name that does not exist and a value that cannot work are"
        " refused at start."
    )
    told = _attribute_docstrings(Configuration)
    yield _table(
        ("variable", "default", "what it is"),
        [
            (f"`{PREFIX}{name.upper()}`", _default(field), f"{told[name]}{_choices(field)}")
            for name, field in Configuration.model_fields.items()
        ],
    )


def _attribute_docstrings(owner: type) -> Mapping[str, str]:
    (made,) = ast.parse(inspect.getsource(owner)).body
    assert isinstance(made, ast.ClassDef)
    return _docstrings_below(made.body)


def _docstrings_below(body: Sequence[ast.stmt]) -> Mapping[str, str]:
    """The strings that stand below assignments, by the name that is assigned."""
    found: dict[str, str] = {}
    for assigned, below in pairwise(body):
        match assigned, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = _one_line(text)
    return found


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:.10g}`" if isinstance(value, float) else f"`{value}`"


def _choices(field: FieldInfo) -> str:
    kinds = [field.annotation, *get_args(field.annotation)]
    named = [get_args(kind) for kind in kinds if get_origin(kind) is Literal]
    return f" One of {', '.join(f'`{choice}`' for choice in named[0])}." if named else ""


# --- errors and events --------------------------------------------------------------------------


def _errors() -> Iterator[str]:
    tree = inspect.getdoc(errors) or ""
    yield "## Errors\n\nBy who must act. Those that an author raises come from `outlast` itself."
    yield f"```\n{inspect.cleandoc(tree.partition('::')[2])}\n```"
    yield _table(
        ("error", "what it says"),
        [(f"`{kind.__name__}`", _first_paragraph(kind)) for kind in error_types()],
    )


def error_types() -> list[type[BaseException]]:
    """Every error of the tree, in the order in which it is written."""
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type)
        and issubclass(value, BaseException)
        and value.__module__ == errors.__name__
    ]


def _first_paragraph(said: object) -> str:
    return _one_line((inspect.getdoc(said) or "").partition("\n\n")[0])


def _events() -> Iterator[str]:
    yield (
        "## Events\n\nWhat the runtime logs, each line with its values as fields: readable on a"
        " terminal, else a JSON object a line. An author's own lines, by `ctx.log`, stand between."
    )
    yield _table(("event", "what it says"), [(f"`{name}`", EVENTS[name]) for name in EVENTS])


# --- Markdown -----------------------------------------------------------------------------------


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
