"""The walk tool traces three walks, and names files that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.docs.pages import ROOT

import stepwell

SOURCES = Path(stepwell.__file__).parent
PAGE = ROOT / "docs" / "architecture.md"


class Line(msgspec.Struct):
    name: str
    store: str
    calls: int
    modules: int
    files: dict[str, int]


@pytest.fixture(scope="module")
def walks() -> list[Line]:
    command = [sys.executable, "-m", "benchmarks.walk", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return [msgspec.json.decode(line, type=Line) for line in done.stdout.splitlines()]


def test_every_walk_is_traced_on_memory_and_sqlite(walks: list[Line]):
    names = [(walk.store, walk.name) for walk in walks]
    assert names == [(store, name) for store in ("memory", "sqlite") for name in ("step", "item", "declared step")]


def test_walks_count_the_calls_of_each_file_that_they_pass(walks: list[Line]):
    for walk in walks:
        assert walk.calls == sum(walk.files.values())
        assert walk.modules == len(walk.files) > 10
        assert all((SOURCES / file).is_file() for file in walk.files)


def test_walks_include_the_threads_that_write_to_the_store(walks: list[Line]):
    for walk in walks:
        assert any(file.startswith(f"stores/{walk.store}/") for file in walk.files)


def test_walks_leave_out_the_clock(walks: list[Line]):
    assert [file for walk in walks for file in walk.files if file.endswith("clock.py")] == []


def test_walks_pass_every_file_that_the_architecture_page_names_for_them(walks: list[Line]):
    texts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for number, name in enumerate(("step", "item", "declared step"), 1):
        [text] = [each for each in texts if each.startswith(f"Walk {number}")]
        [walk] = [each for each in walks if (each.store, each.name) == ("sqlite", name)]
        named = set(re.findall(r"`([a-z_/]+\.py)`", text))
        assert len(named) > 5
        assert named - walk.files.keys() == set()
