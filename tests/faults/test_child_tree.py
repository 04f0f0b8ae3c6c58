"""A tree of children in several processes, one of which is killed: all of it runs, within the limit of the tier."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.faults.child_tree import MOST, SIZE, root
from tests.faults.children import Child
from tests.support.polling import until
from tests.support.queue_urls import shared_url

from stepwell import Stepwell

__all__ = ["shared_url"]

WAIT = 120


def traces(folder: Path) -> list[str]:
    """The leaves that began (+) and ended (-), in this order."""
    log = folder / "traces"
    return log.read_text().splitlines() if log.exists() else []


def test_killed_worker_leaves_no_place_taken_and_none_exceeded(shared_url: str, tmp_path: Path) -> None:
    with Stepwell(shared_url, worker=False) as well:
        well.workspaces.put_tier("few", child_concurrency=MOST)
        well.workspaces.put("acme", tier="few")
        run = well.start(root, str(tmp_path), workspace="acme", execution_id="tree")
        with Child("child_tree", shared_url, 5) as first, Child("child_tree", shared_url, 60) as second:
            assert (first.hear(), second.hear()) == ("working", "working")
            until(lambda: len(traces(tmp_path)) >= 2)
            first.signal(signal.SIGKILL)
            names = [[f"{branch}.{leaf}" for leaf in range(SIZE)] for branch in range(SIZE)]
            assert run.result(WAIT) == names
    running: set[str] = set()
    for line in traces(tmp_path):
        if line[0] == "+":
            running.add(line[1:])
        else:
            running.discard(line[1:])
        assert len(running) <= MOST
