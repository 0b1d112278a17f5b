"""Log lines are events with names that stay the same: those that `telemetry.EVENTS` lists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import outlast
from outlast.telemetry import EVENTS

SOURCES = sorted(Path(outlast.__file__).parent.rglob("*.py"))
LOGGERS = {"log", "_log", "logger", "_logger"}
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def log_calls(source: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in LOGGERS
        ):
            yield node


def test_the_scan_sees_what_it_should() -> None:
    source = 'log.info("a", n=1)\nself.log.info("the author\'s")\n_log.error(text)\nlog.bind(x=1)'
    assert [ast.unparse(call) for call in log_calls(source)] == [
        "log.info('a', n=1)",
        "_log.error(text)",
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_every_log_call_names_a_listed_event(path: Path) -> None:
    for call in log_calls(path.read_text(encoding="utf-8")):
        first = call.args[0] if call.args else None
        where = f"{path}:{call.lineno}"
        named = first.value if isinstance(first, ast.Constant) else None
        assert isinstance(named, str), f"{where} does not name its event"
        assert named in EVENTS, f"{where} logs {named}, which EVENTS does not list"
        assert len(call.args) == 1, f"{where} has values without names"


def test_every_listed_event_is_logged_somewhere() -> None:
    calls = [call for path in SOURCES for call in log_calls(path.read_text(encoding="utf-8"))]
    logged = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    assert set(EVENTS) - logged == set()


def test_names_say_the_thing_and_what_happened() -> None:
    for name, meaning in EVENTS.items():
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", name)
        assert meaning


def test_nobody_logs_but_by_a_logger_that_the_scan_knows() -> None:
    """Loggers are made at module level, under the names above."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and "get_logger" in ast.unparse(node.value.func)
            ):
                (target,) = node.targets
                assert isinstance(target, ast.Name), path
                assert target.id in LOGGERS, path
