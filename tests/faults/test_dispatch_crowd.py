"""T27, T34: sixteen processes claim from one queue; each item is one run, and no cap is passed at any instant."""

from __future__ import annotations

from pathlib import Path

from tests.faults.children import Child
from tests.faults.dispatch_crowd import most_at_once, passes, runs_of
from tests.support.queue_urls import shared_url

from stepwell import ItemStatus, QueueRequest, Stepwell

__all__ = ["shared_url"]

WAIT = 60
CLAIMERS = 16
CAPS = (1, 7)


def test_the_greatest_concurrency_of_sixteen_processes_is_the_cap(shared_url: str, tmp_path: Path) -> None:
    """T34, T27: read off the logs that all of them wrote to, one for each workspace."""
    numbers = {cap: range(20 + 10 * cap) for cap in CAPS}
    folders = {cap: tmp_path / str(cap) for cap in CAPS}
    with Stepwell(shared_url, worker=False) as well, Child("dispatch_crowd", shared_url, CLAIMERS) as crowd:
        for cap in CAPS:
            folders[cap].mkdir()
            well.workspaces.put_tier(f"capped-{cap}", concurrency=cap)
            well.workspaces.put(str(cap), tier=f"capped-{cap}")
        assert crowd.hear() == "ready"
        requests = [
            QueueRequest(workflow=passes, value={"folder": str(folders[cap]), "number": number}, workspace=str(cap))
            for cap in CAPS
            for number in numbers[cap]
        ]
        items = [item for item in well.enqueue_many(requests) if not isinstance(item, Exception)]
        assert [item.result(WAIT) for item in items] == [number for cap in CAPS for number in numbers[cap]]
        states = [item.state() for item in items]
        assert {(state.status, state.attempts) for state in states} == {(ItemStatus.COMPLETED, 1)}
        assert len({state.execution_id for state in states}) == len(requests)
        assert all(lane.running == 0 for lane in well.queue.stats())
    for cap in CAPS:
        assert most_at_once(folders[cap]) == cap
        assert sorted(runs_of(folders[cap])) == list(numbers[cap])
