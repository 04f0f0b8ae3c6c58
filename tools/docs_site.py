"""Hooks of mkdocs for `make docs`: pages that are generated, and links that leave `docs/`.

The pages of `docs/` are read in the repository, too, where they link to examples, tests and `CONTRIBUTING.md`. In the site, a file
outside `docs/` that a page links to is a page of its own, and the links to it are rewritten.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel
from tools.api_reference import api_pages

__all__ = ["ROOT", "on_files", "on_page_markdown"]

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(?P<before>!?\[[^\]]*\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_AT_ROOT = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml"}


def on_files(files: Files, config: Any) -> Files:
    """Add the API reference, `CONTRIBUTING.md`, `CHANGELOG.md`, and each file outside `docs/` that a page links to."""
    generated = dict(api_pages())
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        generated[_AT_ROOT[name]] = (ROOT / name).read_text(encoding="utf-8")
    pages = [(f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    pages += [(_in_repository(uri), text) for uri, text in generated.items()]
    for page, text in pages:
        for target in _targets(page, text):
            uri = _in_site(target)
            if uri.startswith("source/") and (ROOT / target).is_file():
                generated[uri] = _source_page(target)
    for uri, text in generated.items():
        level = InclusionLevel.NOT_IN_NAV if uri.startswith("source/") else InclusionLevel.INCLUDED
        files.append(File.generated(config, uri, content=text, inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point each link that leaves `docs/` to the page that the site has for its file."""
    here = _in_repository(page.file.src_uri)

    def rewritten(found: re.Match[str]) -> str:
        target = found["target"]
        if re.match(r"[a-z]+:|/", target):
            return found[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        link = posixpath.relpath(_in_site(file), posixpath.dirname(page.file.src_uri) or ".")
        return f"{found['before']}{link}{found['anchor'] or ''})"

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(rewritten, _ROW.sub(_plain_bars, part)) for part in parts)


def _plain_bars(row: re.Match[str]) -> str:
    """Remove the backslash before a bar in the code of a table: the repository's host needs it, and mkdocs would show it."""
    return re.sub(r"`[^`]+`", lambda code: code[0].replace("\\|", "|"), row[0])


def _targets(page: str, text: str) -> Iterator[str]:
    """Return the files, as paths in the repository, that a page links to."""
    for found in _LINK.finditer(_FENCE.sub("", text)):
        if not re.match(r"[a-z]+:|/", found["target"]):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(page), found["target"]))


def _in_site(file: str) -> str:
    """Return where the site has a file of the repository."""
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    return _AT_ROOT.get(file) or f"source/{file}.md"


def _in_repository(uri: str) -> str:
    """Return the file of the repository that a page of the site was read from."""
    at_root = {site: file for file, site in _AT_ROOT.items() if file != "README.md"}
    return at_root.get(uri) or f"docs/{uri}"


def _source_page(file: str) -> str:
    text = (ROOT / file).read_text(encoding="utf-8")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {file}\n\n````{_LANGUAGES.get(Path(file).suffix, 'text')}\n{text}\n````\n"
