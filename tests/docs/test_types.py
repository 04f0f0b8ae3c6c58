"""The Python blocks of README and documentation pass mypy --strict and basedpyright strict: one run of each over all of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, blocks_of

README = ROOT / "README.md"
UNTYPED = {"docs_how_to_django.py"}
"""Programs whose library has no types, of which pyright knows no attribute. mypy takes the library's names as Any."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program for each page, its lines at their numbers on the page. Each block of the README is one by itself."""
    folder = tmp_path_factory.mktemp("programs")
    for page in PAGES:
        blocks = [block for block in blocks_of(page) if block.language == "python"]
        name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
        parts = [[block] for block in blocks] if page == README else [blocks]
        for number, part in enumerate(each for each in parts if each):
            lines: list[str] = []
            for block in part:
                lines += [""] * (block.line - len(lines)) + block.code.splitlines()
            (folder / f"{name}{number or ''}.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_python_blocks_pass_mypy_strict(programs: Path):
    settings = ["[mypy]", "strict = true", "allow_redefinition = true", "[mypy-django.*]", "ignore_missing_imports = true"]
    settings += ["[mypy-docs_how_to_django]", "disallow_subclassing_any = false"]
    (programs / "mypy.ini").write_text("\n".join(settings))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "."], cwd=programs, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_python_blocks_pass_basedpyright_strict(programs: Path):
    settings = {
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": False,
        "exclude": sorted(UNTYPED),
        "reportDuplicateImport": False,  # a page shows its imports again where a reader begins
        "reportUnknownMemberType": False,  # of the test client of Starlette, which has none without httpx2
    }
    (programs / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--project", ".", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, cwd=programs, capture_output=True, text=True, timeout=240, check=False)
    report = json.loads(done.stdout)
    found = [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in report["generalDiagnostics"]
    ]
    assert found == []
    assert report["summary"]["filesAnalyzed"] == len(list(programs.glob("*.py"))) - len(UNTYPED)
