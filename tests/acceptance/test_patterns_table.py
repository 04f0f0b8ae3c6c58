"""The table of patterns and their tests agree."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import ROOT, cells

HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "patterns.md"
ROWS = cells(PAGE, "WCP")


def _tests() -> dict[int, list[str]]:
    """The files that have a test for each pattern."""
    found: dict[int, list[str]] = {}
    for file in HERE.glob("test_patterns_*.py"):
        for number in re.findall(r"^def test_wcp_(\d\d)_", file.read_text(encoding="utf-8"), re.MULTILINE):
            found.setdefault(int(number), []).append(file.name)
    return found


def test_all_43_patterns_are_in_the_table_once_and_in_order():
    assert [int(number) for number, *_ in ROWS] == list(range(1, 44))
    assert len({name for _, name, *_ in ROWS}) == 43
    assert {supported for _, _, supported, *_ in ROWS} == {"yes", "partly", "no"}


def test_a_pattern_has_a_test_exactly_if_the_table_says_that_it_is_supported():
    written = {int(number): link for number, _, supported, _, link in ROWS if supported != "no"}
    assert _tests().keys() == written.keys()
    for number, link in written.items():
        target = re.fullmatch(r"\[wcp_(\d\d)\]\(\.\./tests/acceptance/(\w+\.py)\)", link)
        assert target is not None, link
        assert (int(target[1]), _tests()[number]) == (number, [target[2]])


def test_what_is_not_supported_says_why():
    assert all(how and link == "none" for _, _, supported, how, link in ROWS if supported == "no")


def test_the_page_counts_right():
    counts = [sum(1 for row in ROWS if row[2] == kind) for kind in ("yes", "partly", "no")]
    assert counts == [38, 4, 1]
    assert "38 are supported, 4 in part, one is not" in PAGE.read_text(encoding="utf-8")
