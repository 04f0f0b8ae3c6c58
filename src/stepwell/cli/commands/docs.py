"""``docs``: the pages of the documentation, which are in the wheel, listed, found by words and printed."""

from __future__ import annotations

import re
from pathlib import Path

import click
import msgspec

import stepwell
from stepwell.cli.main import command
from stepwell.cli.options import settings
from stepwell.cli.report import report_rows
from stepwell.errors import NotFound

__all__ = ["docs"]


class DocsPage(msgspec.Struct):
    """A page, as the list shows it."""

    page: str
    """Its path without the suffix, such as ``how-to/retries``."""
    title: str


@command("docs")
@click.argument("words", nargs=-1)
def docs(words: tuple[str, ...]) -> None:
    """Print the page of the documentation that WORDS name, or list the pages that have all WORDS, the best first.

    Without WORDS, list all pages. A page is named by its path, as a link on another page has it, or by the last part of it.
    """
    given, texts = settings(), _texts()
    name = _named(words[0], texts) if len(words) == 1 else None
    if name is None:
        found = _found(words, texts)
        if not found:
            raise NotFound(f"no page of the documentation has {' '.join(words)!r}; `stepwell docs` lists all pages")
        report_rows(given, [DocsPage(each, _title(texts[each])) for each in found], {"PAGE": "page", "TITLE": "title"})
    elif given.is_json:
        given.screen.json({"page": name, "title": _title(texts[name]), "text": texts[name]})
    elif given.screen.is_table:
        click.echo_via_pager(texts[name])
    else:
        given.screen.text(texts[name])


def _texts() -> dict[str, str]:
    """Return the Markdown of each page by its name: guides first, design last."""
    package = Path(stepwell.__file__).parent
    shipped, checkout = package / "docs", package.parents[1] / "docs"
    folder = shipped if shipped.is_dir() else checkout
    pages = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.md")}
    return {name: pages[name].read_text(encoding="utf-8") for name in sorted(pages, key=_place)}


def _place(name: str) -> tuple[int, str]:
    folders = ("", "how-to", "reference", "design")
    folder = name.rpartition("/")[0]
    return (folders.index(folder) if folder in folders else len(folders), name)


def _named(word: str, texts: dict[str, str]) -> str | None:
    """Return the one page that a word names, if it names one: a link such as ``../how-to/retries.md#backoff`` does, too."""
    path = re.sub(r"^(\.\./|\./)*(docs/)?", "", word.partition("#")[0].removesuffix(".md"))
    same = [path] if path in texts else [name for name in texts if name.rpartition("/")[2] == path]
    return same[0] if len(same) == 1 else None


def _found(words: tuple[str, ...], texts: dict[str, str]) -> list[str]:
    """Return the pages that have all words: those with the phrase in the title first, then in a heading, then in the text."""
    phrase = _plain(" ".join(words))

    def rank(text: str) -> tuple[bool, bool, int, int]:
        headings = _plain("\n".join(re.findall(r"^#+ .*$", text, re.MULTILINE)))
        in_headings = sum(word in headings for word in phrase.split())
        return phrase in _plain(_title(text)), phrase in headings, in_headings, _plain(text).count(phrase)

    having = {name: text for name, text in texts.items() if all(word in _plain(text) for word in phrase.split())}
    if not words:
        return list(having)
    return sorted(having, key=lambda name: rank(having[name]), reverse=True)


def _plain(text: str) -> str:
    """Return a text for a comparison: `fan-out` and `Fan out` are the same."""
    return text.lower().replace("-", " ")


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")
