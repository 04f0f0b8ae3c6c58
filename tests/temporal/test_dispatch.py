"""T28, T29: a dispatcher that is killed on an item's way to Temporal loses no item and starts none twice."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import Client
from tests.support.temporal_server import TemporalServer
from tests.temporal.processes import WorkerProcess
from tests.temporal.program import ITEM, effect
from tests.temporal.test_faults import until

from stepwell import ItemStatus, Stepwell, TemporalWorker, workspace_queue

__all__ = ["effect"]

ITEMS = int(os.environ.get("STEPWELL_DISPATCHED_ITEMS", "12"))
POINTS = [
    "queue.items_claimed:1",
    "after the claim",
    "before the start",
    "after the start",
    "after the creation",
    "reply to the start",
]


@pytest.fixture
def server() -> Iterator[TemporalServer]:
    """A server of its own, whose workflows can be counted."""
    with TemporalServer() as server:
        yield server


def workflows_of(server: TemporalServer) -> Counter[str]:
    """How many runs each workflow id has on the server."""

    async def count() -> Counter[str]:
        client = await Client.connect(server.address)
        return Counter([found.id async for found in client.list_workflows()])

    return asyncio.run(count())


@pytest.mark.parametrize("point", POINTS)
def test_items_of_a_killed_dispatcher_run_once_each(point: str, url: str, tmp_path: Path, server: TemporalServer) -> None:
    (tmp_path / "die").write_text(point)
    with Stepwell(url, worker=False) as well:
        items = [well.enqueue(ITEM, f"item {n}", engine="temporal", max_attempts=5) for n in range(ITEMS)]
        if "reply" not in point:
            with WorkerProcess(url, server.address, tmp_path) as first:
                assert first.wait() == -9, first.output()
        with WorkerProcess(url, server.address, tmp_path):
            assert [item.result(timeout=60) for item in items] == [f"item {n}" for n in range(ITEMS)]
        effects = Counter((tmp_path / "effects").read_text().splitlines())
        assert set(effects) == {f"item {n} 1" for n in range(ITEMS)}  # nothing is lost
        started = Counter({f"execution-{item.execution_id}": 1 for item in items})
        until(lambda: workflows_of(server).keys() >= started.keys())  # lists of workflows are behind what has happened
        assert workflows_of(server) == started  # nothing is started twice
        listed = well.queue.list(limit=1_000)
        assert {each.status for each in listed} == {ItemStatus.COMPLETED}
        assert len({each.execution_id for each in listed}) == len(well.executions.list(limit=1_000)) == ITEMS
        assert all(lane.running == 0 for lane in well.queue.stats())
        assert all(well.verify(item.execution_id).ok for item in items)


def test_item_that_is_cancelled_before_its_start_never_runs(url: str, tmp_path: Path, server: TemporalServer) -> None:
    with Stepwell(url, worker=False) as well:
        item = well.enqueue(ITEM, "never", engine="temporal")
        item.cancel()
        with TemporalWorker(url, address=server.address, grace_seconds=1):
            other = well.enqueue(ITEM, "other", engine="temporal")
            assert other.result(timeout=60) == "other"
        assert len(well.executions.list()) == 1


def test_capacity_of_a_tier_holds_on_temporal(url: str, server: TemporalServer) -> None:
    with Stepwell(url, worker=False) as well, TemporalWorker(url, address=server.address, grace_seconds=1):
        well.workspaces.put("acme", tier="free")
        for n in range(4):
            well.enqueue(ITEM, f"n{n}", workspace="acme", engine="temporal")
        seen: set[int] = set()

        def is_over() -> bool:
            seen.update(lane.running for lane in well.queue.stats(workspace="acme"))
            return all(each.status is ItemStatus.COMPLETED for each in well.queue.list(workspace="acme"))

        until(is_over)
        assert max(seen) <= 1


def test_workspace_with_its_own_queue_is_served_by_its_own_workers(url: str, server: TemporalServer) -> None:
    with Stepwell(url, worker=False) as well, TemporalWorker(url, address=server.address, grace_seconds=1):
        well.workspaces.put("acme", tier="scale")
        item = well.enqueue(ITEM, "own", workspace="acme", queue=workspace_queue("acme"), engine="temporal")
        other = well.enqueue(ITEM, "shared", workspace="acme", engine="temporal")
        assert other.result(timeout=60) == "shared"
        assert item.execution_id not in {each.execution_id for each in well.executions.list(status="COMPLETED")}
        with TemporalWorker(url, address=server.address, grace_seconds=1, workspaces=["acme"]):
            assert item.result(timeout=60) == "own"


def test_worker_of_stepwells_own_leaves_items_for_temporal_alone(url: str, server: TemporalServer) -> None:
    with Stepwell(url) as well:
        well.start(ITEM, "local").result(timeout=60)
        item = well.enqueue(ITEM, "t", engine="temporal")
        assert well.enqueue(ITEM, "l").result(timeout=60) == "l"
        assert [each.status for each in well.queue.list() if each.item_id == item.item_id] == [ItemStatus.QUEUED]
        with TemporalWorker(url, address=server.address, grace_seconds=1):
            assert item.result(timeout=60) == "t"
