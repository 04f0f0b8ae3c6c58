"""T30: a worker killed before, inside and after steps: another one goes on, and what was recorded is not run again."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.support.store_urls import url_of

from stepwell import Status, Stepwell

PROGRAM = Path(__file__).with_name("killed_worker.py")
POINTS = [
    "before the effect",
    "after the effect",
    "between the steps",
    "in the second step",
    "store.before_commit",
    "store.committed",
    "commit.applied",
    "lease.claimed",
    "lease.rested",
    "lease.nudged",
]
ON_POSTGRES = ["after the effect", "between the steps", "store.before_commit", "store.committed"]


def run_program(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), url, str(folder)], capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize(
    ("store", "point"), [*(("sqlite", each) for each in POINTS), *(("postgres", each) for each in ON_POSTGRES)]
)
def test_killed_worker_is_replaced_and_recorded_steps_are_not_run_again(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, point: str
) -> None:
    url = url_of(store, request)
    (tmp_path / "die").write_text(point)
    assert run_program(url, tmp_path).returncode == -9
    second = run_program(url, tmp_path)
    assert (second.returncode, second.stdout.strip()) == (0, "['one', 'two']"), second.stderr
    effects = Counter((tmp_path / "effects").read_text().splitlines())
    at_most = {"after the effect": (2, 1), "in the second step": (1, 2)}.get(point, (2, 2) if "." in point else (1, 1))
    assert effects.keys() == {"first story:first", "second story:second"}
    assert 1 <= effects["first story:first"] <= at_most[0]
    assert 1 <= effects["second story:second"] <= at_most[1]
    with Stepwell(url, worker=False) as well:
        run = well.run("story")
        assert run.status() == Status.COMPLETED
        assert run.verify().ok
        assert run.state().get_variable("seen") == "one"


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_worker_that_is_always_killed_gives_up_on_its_execution(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> None:
    """T38: an execution that brings down its worker again and again is failed, with the reason, and not run for ever."""
    url = url_of(store, request)
    for _ in range(4):
        (tmp_path / "die").write_text("before the effect")
        assert run_program(url, tmp_path).returncode == -9
    (tmp_path / "die").write_text("before the effect")
    last = run_program(url, tmp_path)
    assert last.returncode == 1
    assert "brought down its worker" in last.stderr
