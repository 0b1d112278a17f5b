"""Whatever is public is documented: every command and its options, every setting, event and error,
every name that an author imports, every verb of a context."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import outlast
from outlast import Context
from outlast.configuration import PREFIX, Configuration
from outlast.telemetry import EVENTS

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference.md"


@cache
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_reference", ROOT / "docs" / "generate_reference.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


COMMANDS: dict[str, Any] = dict(generator().commands())
OPTIONS = [
    (name, option)
    for name, command in COMMANDS.items()
    for param in command.params
    if param.param_type_name == "option"
    for option in param.opts
]


@cache
def reference() -> str:
    return REFERENCE.read_text(encoding="utf-8")


@cache
def pages() -> str:
    """All that is written for readers, but the reference."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in found if page != REFERENCE)


def test_the_reference_is_what_the_code_says() -> None:
    assert reference() == generator().render(), "run `python docs/generate_reference.py`"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_its_part_and_says_what_it_does(name: str) -> None:
    command = COMMANDS[name]
    assert f"\n### outlast {name}\n" in reference()
    assert command.help
    assert re.search(rf"\boutlast {name}\b", pages()), f"no page says when to use outlast {name}"


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_every_option_says_what_it_does(command: str, option: str) -> None:
    part = reference().partition(f"\n### outlast {command}\n")[2].partition("\n### ")[0]
    row = next(line for line in part.splitlines() if f"`{option}" in line)
    assert len(row.split(" | ")[1]) > 5


@pytest.mark.parametrize("name", sorted(Configuration.model_fields))
def test_every_setting_says_what_it_is(name: str) -> None:
    row = next(line for line in reference().splitlines() if f"`{PREFIX}{name.upper()}`" in line)
    assert len(row.split(" | ")[2]) > 5


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_every_event_is_listed(name: str) -> None:
    assert f"| `{name}` | {EVENTS[name]} |" in reference()


def test_every_error_is_listed_and_stands_in_the_tree() -> None:
    tree = reference().partition("## Errors")[2].partition("| error |")[0]
    for kind in generator().error_types():
        assert f"| `{kind.__name__}` |" in reference()
        assert re.search(rf"\b{kind.__name__}\b", tree), kind


@pytest.mark.parametrize("name", sorted(set(outlast.__all__) - {"__version__"}))
def test_every_name_that_an_author_imports_says_what_it_is(name: str) -> None:
    row = next(line for line in reference().splitlines() if line.startswith(f"| `{name}` |"))
    assert len(row.split(" | ")[1]) > 5


@pytest.mark.parametrize("name", generator().verbs())
def test_every_verb_of_a_context_says_what_it_does(name: str) -> None:
    row = next(line for line in reference().splitlines() if f"| `ctx.{name}" in line)
    assert len(row.split(" | ")[-1]) > 5


def test_what_is_no_authors_business_is_still_there() -> None:
    """Else the reference leaves out what has come under an old name."""
    assert set(dir(Context)) >= generator().FOR_THE_ATTEMPT
