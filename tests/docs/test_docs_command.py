"""``stepwell docs``: every page can be printed and found by the words of a newcomer."""

from __future__ import annotations

import pytest
from tests.docs.pages import ROOT
from tests.docs.test_site import TERMS
from tests.support.command_line import Shell, shell

__all__ = ["shell"]

PAGES = sorted(path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md"))


def test_every_page_is_listed_with_its_title(shell: Shell):
    listed = shell("docs", "--json").lines
    assert sorted(each["page"] for each in listed) == PAGES
    assert {"page": "how-to/retries", "title": "Retries, backoff and timeouts"} in listed


@pytest.mark.parametrize("name", ["how-to/retries", "retries", "docs/how-to/retries.md", "../how-to/retries.md#backoff"])
def test_page_is_printed_by_its_name(shell: Shell, name: str):
    text = (ROOT / "docs" / "how-to" / "retries.md").read_text(encoding="utf-8")
    assert shell("docs", name).out == text
    assert shell("docs", name, "--json").json == {"page": "how-to/retries", "title": "Retries, backoff and timeouts", "text": text}


@pytest.mark.parametrize(("term", "page"), TERMS.items(), ids=TERMS)
def test_words_of_newcomers_find_their_page_among_the_first_five(shell: Shell, term: str, page: str):
    out = shell("docs", *term.split()).out
    listed = [line.partition("\t")[0] for line in out.splitlines()[:5]]
    assert page.removesuffix(".md") in listed or out == (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_name_of_several_pages_lists_them(shell: Shell):
    listed = [each["page"] for each in shell("docs", "queue", "--json").lines]
    assert {"how-to/queue", "reference/queue"} <= set(listed[:5])


def test_words_that_no_page_has_are_not_found(shell: Shell):
    done = shell("docs", "no-such-word-anywhere", "saga")
    assert (done.code, done.out) == (3, "")
    assert "`stepwell docs` lists all pages" in done.err
