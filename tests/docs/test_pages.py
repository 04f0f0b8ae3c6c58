"""The code of pages runs, and their links lead to existing targets."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.docs.pages import PAGES, ROOT, blocks_of, links_of

from stepwell.cli.main import cli

ALONE = {"django.md", "fastapi.md", "logging.md"}
"""Pages that run in a process of their own: the settings of Django and of logging are those of a process."""
LANGUAGES = {"python", "sh", "text", "toml", "yaml"}


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.language == "python" for block in blocks_of(page))], ids=_name
)
def test_code_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("STEPWELL_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    if page.name in ALONE:
        program = "\n\n".join(block.code for block in blocks_of(page) if block.language == "python")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.language == "python":
            # Blank lines in front make the line numbers of a traceback those of the page.
            exec(compile("\n" * block.line + block.code, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_blocks_say_their_language_and_none_is_exempt_from_running(page: Path):
    assert {block.language for block in blocks_of(page)} <= LANGUAGES


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path):
    for link in links_of(page):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}, link


def test_every_page_can_be_reached_from_the_index():
    reached, pending = set[Path](), [ROOT / "README.md"]
    while pending:
        page = pending.pop()
        if page in reached:
            continue
        reached.add(page)
        files = ((page.parent / link.partition("#")[0]).resolve() for link in links_of(page) if not re.match(r"[a-z]+:|#", link))
        pending += [file for file in files if file.suffix == ".md"]
    assert set(PAGES) - reached == set()


def test_pictures_of_examples_are_what_make_pictures_draws(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    drawn = re.findall(r"stepwell draw (\S+) -o (\S+\.svg)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert drawn
    for example, picture in drawn:
        fresh = CliRunner().invoke(cli, ["draw", example])
        assert fresh.stdout.strip() == (ROOT / picture).read_text(encoding="utf-8").strip(), picture


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").rglob("*.svg")), ids=_name)
def test_pictures_are_small_well_formed_and_made_for_light_and_dark(picture: Path):
    text = picture.read_text(encoding="utf-8")
    root = ET.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.find("{http://www.w3.org/2000/svg}title") is not None, "a title, for those who do not see it"
    assert "prefers-color-scheme: dark" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "nothing is fetched from elsewhere"
    assert len(text) < 12_000
