"""The pages of the documentation, and what stands in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted(
    [
        README,
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("README.md"),
    ]
)

_BLOCK = re.compile(r"^```(?P<language>\w*)(?P<more>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S)
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """A fenced block. `title` is the name of the file that it is (a part of)."""

    language: str
    title: str | None
    text: str
    line: int


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        title = _TITLE.search(match["more"])
        yield Block(
            language=match["language"],
            title=None if title is None else title[1],
            text=match["text"],
            line=text.count("\n", 0, match.start()) + 1,
        )


def files_of(page: Path) -> dict[str, str]:
    """The files that a page shows, by name: blocks of one title are one file."""
    files: dict[str, str] = {}
    for block in blocks_of(page):
        if block.title is not None:
            known = files.get(block.title)
            files[block.title] = block.text if known is None else f"{known}\n\n{block.text}"
    return files


def prose_of(page: Path) -> str:
    """The page without its blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))
