"""What the documentation names is there: pages, headings, tests, commands, settings, events."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from outlast.cli import app
from outlast.configuration import PREFIX, Configuration
from outlast.telemetry import EVENTS
from tests.docs.pages import PAGES, ROOT, blocks_of, name_of, prose_of

_LINK = re.compile(r"\]\((?!https?:)([^)\s]*)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.M)
_TEST = re.compile(r"tests/[\w/]+\.py(?:::\w+)+")
_SETTING = re.compile(rf"\b{PREFIX}([A-Z_]+)\b")
_COMMAND = re.compile(r"(?:^\$ |\$ .*(?:;|&) )outlast (\w+)((?: [^#\n]+)?)", re.M)
_EVENT = re.compile(r"`([a-z]+\.[a-z_]+)`")
OUTSIDE = {"TEST_POSTGRES_BIN", "TOKEN"}

pages = pytest.mark.parametrize("page", PAGES, ids=name_of)


@pages
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(prose_of(page)):
        target, _, heading = link.partition("#")
        file = page if not target else (page.parent / target).resolve()
        assert file.exists(), link
        if heading:
            assert heading in slugs_of(file), link


@pages
def test_tests_that_are_named_exist(page: Path) -> None:
    for name in _TEST.findall(page.read_text(encoding="utf-8")):
        file, *path = name.split("::")
        assert "::".join(path) in names_in(ROOT / file), name


@pages
def test_settings_that_are_named_exist(page: Path) -> None:
    for name in _SETTING.findall(page.read_text(encoding="utf-8")):
        assert name.lower() in Configuration.model_fields or name in OUTSIDE, name


@pages
def test_commands_that_are_named_exist(page: Path) -> None:
    group: Any = typer.main.get_command(app)
    for block in blocks_of(page):
        for name, rest in _COMMAND.findall(block.text if block.language == "console" else ""):
            command = group.commands.get(name)
            if hasattr(command, "commands"):
                name, _, rest = rest.strip().partition(" ")
                command = command.commands.get(name)
            assert command is not None, f"outlast {name}"
            known = {opt for param in command.params for opt in param.opts}
            assert set(re.findall(r"--[\w-]+", rest)) <= known, f"outlast {name}{rest}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs/operations").glob("*.md")), ids=name_of)
def test_events_that_are_named_exist(page: Path) -> None:
    things = {event.partition(".")[0] for event in EVENTS}
    for name in _EVENT.findall(prose_of(page)):
        assert name in EVENTS or name.partition(".")[0] not in things, name


def slugs_of(page: Path) -> set[str]:
    """Headings as GitHub makes anchors of them."""
    found = _HEADING.findall(prose_of(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@cache
def names_in(file: Path) -> frozenset[str]:
    return frozenset(_names(ast.parse(file.read_text(encoding="utf-8")).body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name
            case ast.ClassDef(name=name, body=inner):
                yield from _names(inner, f"{name}::")
