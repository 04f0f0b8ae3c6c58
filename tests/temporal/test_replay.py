"""Histories of runs on Temporal are replayed without failures by other processes, whatever the seed of their hashes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.temporal_server import TemporalServer
from tests.temporal.processes import WorkerProcess, histories_replayed
from tests.temporal.program import DEFINITION, ITEM, effect, work

from stepwell import Stepwell, TemporalWorker

__all__ = ["effect", "work"]


@pytest.fixture
def server() -> Iterator[TemporalServer]:
    """A server of its own, that has the histories of this test and no others."""
    with TemporalServer() as server:
        yield server


def test_histories_of_evicted_and_killed_workflows_are_replayed_under_several_hash_seeds(
    url: str, tmp_path: Path, server: TemporalServer
) -> None:
    with Stepwell(url, worker=False) as well:
        with TemporalWorker(url, address=server.address, grace_seconds=1):
            items = [well.enqueue(*each, engine="temporal") for each in ((ITEM, "a"), (ITEM, "b"), (work, 1))]
            for each in items:
                each.result(timeout=60)
        with TemporalWorker(url, address=server.address, grace_seconds=1, max_cached_workflows=0):
            uncached = well.start(DEFINITION, engine="temporal")
            uncached.signal("go", 1)
            assert uncached.result(timeout=60) == 1
        (tmp_path / "die").write_text("commit.persisted:2")
        with WorkerProcess(url, server.address, tmp_path) as first:
            killed = well.start(DEFINITION, engine="temporal")
            killed.signal("go", 2)
            assert first.wait() == -9
        with WorkerProcess(url, server.address, tmp_path):
            assert killed.result(timeout=60) == 2
    count = len(items) + 2
    expected = f"{count} histories, 0 failed"
    deadline = time.monotonic() + 60
    while (found := histories_replayed(url, server.address, 1)) != expected and time.monotonic() < deadline:
        time.sleep(0.2)  # lists of workflows are behind what has happened
    assert found == expected
    assert [histories_replayed(url, server.address, seed) for seed in (2, 77)] == [expected] * 2
