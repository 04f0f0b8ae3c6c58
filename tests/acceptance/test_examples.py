"""The examples: each runs as people run it, says what it shows, and its workflow survives a crash at each of its commits."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import ROOT, cells

from stepwell import Stepwell
from stepwell.testing import crash_everywhere

EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "examples.md"
NAMES = sorted(file.stem for file in EXAMPLES.glob("*.py"))

# What each prints, in order; other lines may stand in between.
SAYS = {
    "agent": [
        "model: temperature, temperature",
        "to_fahrenheit(11) -> 51.8",
        "=> It is 51.8 degrees Fahrenheit in Basel; Atlantis I could not find.",
        "Watch the weather for ever",
        "GovernanceViolated: the execution has run 12 steps and may run 12",
    ],
    "approval": [
        "read from approval.yaml: the same",
        "=> 'Report' is published",
        "carol: no",
        "=> 'Poem' is put aside",
        "=> cancelled",
    ],
    "checkout": [
        "no answer, so once more",
        "charge 42.00\n",
        "=> a lamp from the shelf, on its way to CH",
        "send a bed from the shelf to US",
        "refund 990.00",
        "release a bed from the shelf",
        "NotSentThere: we do not send to US",
        "receipts, all good",
    ],
    "nightly_import": [
        "=> {'report': {'imported': 496, 'left_out': 4}, 'rows_in_store': 496}",
        "sums in the store: 496 rows, 868,000 cents",
        "has no price",
        "1,003 records",
    ],
    "reviewers": ["asked: ann, bob, cem, dora, eve", "=> accepted by ann, dora, eve", "still asked: nobody"],
    "vending_machine": [
        "coin 100",
        "[credit 100]",
        "choose tea",
        "[150, please]",
        "[credit 200]",
        "[no gold here]",
        "* tea *",
        "50 given back",
        "=> credit 0",
        "walks away",
        "50 given back",
        "=> credit 0",
    ],
}


FAILURES = {"agent": 1, "checkout": 1}
"""How many of its runs fail, as they should."""


def without_store() -> dict[str, str]:
    """The environment without a store, so that an example makes its own."""
    return {key: value for key, value in os.environ.items() if key not in ("STEPWELL_URL", "REDIS_URL")}


def _run(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
    return subprocess.run(command, cwd=folder, env=without_store(), capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_example_runs_on_the_embedded_store_and_says_what_it_shows(name: str, tmp_path: Path):
    ran = _run(name, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("execution '") == FAILURES.get(name, 0), "failed runs are logged, and nothing else"
    rest = ran.stdout
    for line in SAYS[name]:
        _, found, rest = rest.partition(line)
        assert found, f"{line!r} is missing, or not in order, in:\n{ran.stdout}"
    with Stepwell(f"sqlite:///{tmp_path}/.stepwell/well.db", worker=False) as well:
        runs = well.executions.list()
        assert runs
        assert all(well.verify(each.execution_id).ok for each in runs)


def test_example_can_be_run_again_on_the_same_store(tmp_path: Path):
    assert _run("reviewers", tmp_path).stdout == _run("reviewers", tmp_path).stdout != ""


# Crashes.


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Loads an example as a module of this test, with its steps and workflows."""

    def load_one(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return load_one


def test_checkout_undoes_the_same_wherever_it_crashes(load: Any):
    shop = load("checkout")
    assert crash_everywhere(shop.checkout, shop.Order("lamp", 1, "CH")).result == "a lamp from the shelf, on its way to CH"
    assert "NotSentThere" in crash_everywhere(shop.checkout, shop.Order("bed", 1, "US")).result


@pytest.mark.parametrize(("answers", "ending"), [(["ann"], "'Memo' is published"), ([], "was cancelled")])
def test_approval_ends_the_same_wherever_it_crashes(load: Any, answers: list[str], ending: str):
    document = {"title": "Memo", "text": "hello"}
    signals = [("decision", {"by": by, "is_approved": True}) for by in answers]
    assert ending in crash_everywhere(load("approval").document_approval(), document, signals=signals).result


def test_agent_asks_nothing_twice_wherever_it_crashes(load: Any):
    assert "51.8 degrees" in crash_everywhere(load("agent").agent, "How warm is it?").result


def test_import_counts_every_row_once_wherever_it_crashes(load: Any):
    assert crash_everywhere(load("nightly_import").nightly_import, 5).result == {
        "report": {"imported": 5, "left_out": 0},
        "rows_in_store": 5,
    }


def test_vending_machine_keeps_its_credit_wherever_it_crashes(load: Any):
    pressed = [("coin", 100), ("coin", 100), ("choose", "tea"), ("back", None)]
    machine = load("vending_machine").vending_machine
    assert crash_everywhere(machine, signals=pressed).result == 0


def test_three_of_five_reviewers_decide_wherever_it_crashes(load: Any):
    example = load("reviewers")
    answers = [(f"answer[{number}]", {"by": example.REVIEWERS[number], "is_approved": number != 0}) for number in (3, 0, 4)]
    report = crash_everywhere(example.review, {"paper": "x", "reviewers": example.REVIEWERS}, signals=answers)
    assert report.result == {"is_accepted": True, "votes": {"ann": False, "dora": True, "eve": True}}


# The page.


def test_every_example_is_tested_and_on_the_page():
    linked = {found[1] for row in cells(PAGE, "example") if (found := re.search(r"\.\./examples/(\w+)\.py", row[0]))}
    assert set(NAMES) == set(SAYS) == linked


@pytest.mark.parametrize("name", NAMES)
def test_example_says_at_its_top_how_to_run_it_and_what_it_shows(name: str):
    told = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))) or ""
    assert f"python examples/{name}.py" in told
    assert "Shows: " in told
