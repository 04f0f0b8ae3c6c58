"""The pages that people read, and the code in them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import NamedTuple

__all__ = ["PAGES", "ROOT", "Block", "blocks_of", "cells", "links_of"]

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    code: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, with the line that their code starts at."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["language"].strip(), found["code"], text.count("\n", 0, found.start("code"))) for found in _FENCE.finditer(text)
    ]


def links_of(page: Path) -> list[str]:
    """The targets of a page's links and pictures, code left out."""
    return _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))


def cells(page: Path, first_heading: str) -> list[list[str]]:
    """The rows of the table on a page whose first column has this heading."""
    lines = iter(page.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith(f"| {first_heading} |"):
            break
    table = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table][1:]
