"""T28, T35, T38: a process that is killed between a claim and an end leaves no lost item, no second run and no lost slot."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.faults.dispatch_worker import ITEMS
from tests.support.queue_urls import SHARED_STORES
from tests.support.store_urls import url_of

from stepwell import ItemStatus, Stepwell

PROGRAM = Path(__file__).with_name("dispatch_worker.py")
POINTS = ["before the claim", "after the claim", "before the start", "after the start", "in the step"]
"""Of an item's way through a dispatcher; the last one is after its run has begun and before that is known to anybody."""
ON_SQLITE = ["in the code", "after the step"]


def run_program(url: str, folder: Path, poison: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), url, str(folder), poison], capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize(
    ("store", "point"),
    [*((store, each) for store in SHARED_STORES for each in POINTS), *(("sqlite", each) for each in ON_SQLITE)],
)
def test_items_of_a_killed_dispatcher_run_once_and_keep_no_slot(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, point: str
):
    """T28, T35."""
    url = url_of(store, request)
    (tmp_path / "die").write_text(point)
    assert run_program(url, tmp_path).returncode == -9
    second = run_program(url, tmp_path)
    assert (second.returncode, second.stdout.strip()) == (0, str(["COMPLETED"] * ITEMS)), second.stderr
    effects = Counter((tmp_path / "effects").read_text().splitlines())
    assert len(effects) == ITEMS  # each number in one execution, whoever ran it
    assert sum(effects.values()) <= ITEMS + 3  # what was under way in the three slots may be done again
    with Stepwell(url, worker=False) as well:
        assert all(lane.running == 0 for lane in well.queue.stats())
        items = well.queue.list()
        assert len(items) == len({item.execution_id for item in items}) == ITEMS
        assert all(well.verify(item.execution_id).ok for item in items)
        assert all(well.run(item.execution_id).status() == item.status for item in items)


@pytest.mark.parametrize("store", SHARED_STORES)
def test_an_item_that_kills_its_workers_is_dead_after_its_attempts_and_others_go_on(
    request: pytest.FixtureRequest, tmp_path: Path, store: str
):
    """T38: three attempts, and then it is left with its error; the others are done by then."""
    url = url_of(store, request)
    for _ in range(3):
        assert run_program(url, tmp_path, "poison").returncode == -9
    last = run_program(url, tmp_path, "poison")
    assert (last.returncode, last.stdout.strip()) == (0, str(["COMPLETED"] * ITEMS + ["FAILED"])), last.stderr
    assert (tmp_path / "poisoned").read_text() == "xxx"
    with Stepwell(url, worker=False) as well:
        (dead,) = well.queue.dead()
        assert (dead.attempts, dead.status) == (3, ItemStatus.FAILED)
        assert dead.error
        assert all(lane.running == 0 for lane in well.queue.stats())
