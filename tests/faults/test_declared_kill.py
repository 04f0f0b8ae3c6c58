"""T30: a worker killed anywhere in a declared workflow: another goes on from the tokens, and nothing recorded is run again."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stepwell import Status, Stepwell

PROGRAM = Path(__file__).with_name("killed_declared.py")
POINTS = [
    "before the effect",
    "after the effect",
    "in step a",
    "in step 5",
    "store.before_commit#1",
    "store.committed#2",
    "store.before_commit#2",
]
KEYS = (
    {"killed.first", "killed.second", "killed.second-2"}
    | {f"killed.third[{n}]" for n in range(3)}
    | {"killed.third-2[0]", "killed.third-2[1]"}
)


def run_program(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), url, str(folder)], capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize("point", POINTS)
def test_killed_worker_is_replaced_and_recorded_steps_are_not_run_again(tmp_path: Path, point: str) -> None:
    url = f"sqlite:///{tmp_path}/well.db"
    (tmp_path / "die").write_text(point)
    first = run_program(url, tmp_path)
    assert first.returncode == -9, first.stderr
    with Stepwell(url, worker=False) as well:
        recorded = set(well.load("story").steps)
    before = Counter((tmp_path / "effects").read_text().splitlines())
    second = run_program(url, tmp_path)
    assert second.returncode == 0, second.stderr
    assert second.stdout.strip() == "['one', {'a': 'b', 'b': [10, 20, 30], 'c': [40, 50]}]"
    effects = Counter((tmp_path / "effects").read_text().splitlines())
    assert effects.keys() == {f"story:{key}" for key in KEYS}
    assert max(effects.values()) <= 2
    assert all(effects[f"story:{key}"] == before[f"story:{key}"] for key in recorded & KEYS), "what was recorded is not run again"
    with Stepwell(url, worker=False) as well:
        run = well.run("story")
        assert run.status() == Status.COMPLETED
        assert run.verify().ok
        assert well.load("story").tokens == {}
