"""What a reader copies from the documentation runs.

A block with `title="shop.py"` is a file, or a part of one. The tests among the files of a page are
run, beside the page's other files and nothing else.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from outlast import Agent
from outlast.testing import run_workflow
from tests.docs.pages import PAGES, README, ROOT, blocks_of, files_of, name_of

WITH_FILES = [page for page in PAGES if files_of(page)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that can be worked in and imported from; its modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


def put(files: dict[str, str], folder: Path) -> dict[str, ModuleType]:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    importlib.invalidate_caches()
    modules = [name.removesuffix(".py") for name in files if name.endswith(".py")]
    return {name: importlib.import_module(name) for name in modules}


@pytest.mark.parametrize("page", WITH_FILES, ids=name_of)
async def test_the_files_of_a_page_run(
    page: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"tmp_path": tmp_path, "monkeypatch": monkeypatch}
    modules = put(files_of(page), folder)
    values = [value for module in modules.values() for value in vars(module).values()]
    assert any(isinstance(value, Agent) for value in values)
    for name, module in modules.items():
        if not name.startswith("test_"):
            continue
        tests = [test for key, test in vars(module).items() if key.startswith("test_")]
        assert tests, f"{name} has no tests"
        for test in tests:
            await test(**{name: given[name] for name in inspect.signature(test).parameters})


async def test_the_readme_says_hello(folder: Path) -> None:
    files = files_of(README)
    assert files["hello.py"] == (ROOT / "examples/hello/agent.py").read_text(encoding="utf-8")
    module = put(files, folder)["hello"]
    run = await run_workflow(module.hello, "World")
    assert (run.state, run.text) == ("completed", "Hello, World.")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_python_of_a_page_is_python(page: Path) -> None:
    for block in blocks_of(page):
        if block.language == "python":
            with warnings.catch_warnings():
                compile(
                    block.text,
                    f"{name_of(page)}:{block.line}",
                    "exec",
                    flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                )
