"""The queue's own reports: figures, metrics, the demand for workers, and why an item waits."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.queue_urls import clocked_url, queue_url

from stepwell import FakeClock, InvalidInput, ItemStatus, NotFound, QueueRequest, workflow

__all__ = ["clocked_url", "queue_url"]

WAIT = 60


@workflow(name="insight.echo")
async def echo(value: int) -> int:
    return value


@pytest.fixture
def well(open_well: OpenWell, clocked_url: str, clock: FakeClock) -> Any:
    """A well that takes requests and runs none, in a time that stands still."""
    well: Any = open_well(clocked_url, worker=False, clock=clock)
    well.workspaces.put("acme", tier="startup")
    return well


def test_depth_and_age_are_counted_by_workspace_and_queue(well: Any, clock: FakeClock):
    well.enqueue(echo, 1, workspace="acme")
    clock.advance(5)
    well.enqueue(echo, 2, workspace="acme")
    well.enqueue(echo, 3, workspace="acme", delay=60)
    well.enqueue(echo, 4, workspace="acme", queue="mail")
    clock.advance(2)
    lanes = {lane.queue: lane for lane in well.queue.stats("acme")}
    assert (lanes["default"].depth, lanes["default"].ready, lanes["default"].delayed) == (3, 2, 1)
    assert lanes["default"].oldest_seconds == 7
    assert lanes["default"].wait_p50_seconds is None
    assert (lanes["mail"].depth, lanes["mail"].oldest_seconds, lanes["mail"].cap) == (1, 2, 3)
    assert well.queue.stats("default") == []


def test_waits_of_started_items_are_told_as_percentiles(open_well: OpenWell, queue_url: str):
    well: Any = open_well(queue_url)
    for number in range(20):
        well.enqueue(echo, number).result(WAIT)
    (lane,) = well.queue.stats()
    assert 0 <= lane.wait_p50_seconds <= lane.wait_p90_seconds <= lane.wait_p99_seconds < 10


def test_demand_counts_what_more_workers_could_start(well: Any):
    for number in range(5):
        well.enqueue(echo, number, workspace="acme")
    well.enqueue(echo, 1)
    well.enqueue(echo, 1, queue="mail")
    well.queue.pause("mail")
    demand = well.queue.demand()
    assert (demand.ready, demand.running, demand.startable, demand.wanted) == (7, 0, 4, 4)
    well.workspaces.pause("acme")
    assert well.queue.demand().startable == 1


def test_metrics_are_in_the_text_format_with_stable_names(well: Any):
    well.workspaces.put('a"b\\c\n', tier="free")
    well.enqueue(echo, 1, workspace='a"b\\c\n')
    text = well.queue.metrics()
    assert 'stepwell_queue_ready{workspace="a\\"b\\\\c\\n",queue="default"} 1\n' in text
    assert 'stepwell_queue_capacity{workspace="a\\"b\\\\c\\n",queue="default"} 1\n' in text
    assert "stepwell_queue_startable 1\n" in text
    line = re.compile(r"# (HELP|TYPE) stepwell_\w+ .+|stepwell_\w+(\{.*\})? [0-9.e+-]+")
    assert [each for each in text.splitlines() if not line.fullmatch(each)] == []


def test_why_names_every_reason_in_words(well: Any, clock: FakeClock):
    first = well.enqueue(echo, 1, workspace="acme")
    assert first.why().codes == ("ready",)
    second = well.enqueue(echo, 1, workspace="acme", delay="1h")
    reason = second.why()
    assert reason.codes == ("delayed", "behind_others")
    assert "in 3,600.0 s" in reason.message
    well.workspaces.put_tier("startup", rate_per_second=0)
    well.workspaces.pause("acme")
    assert first.why().codes == ("workspace_paused", "rate")
    well.workspaces.put_tier("startup", rate_per_second=2)
    assert first.why().codes == ("workspace_paused",)
    first.cancel()
    assert well.queue.why(first.item_id).codes == ("ended",)
    with pytest.raises(NotFound):
        well.queue.why("nothing")


def test_why_says_that_no_worker_knows_the_workflow(open_well: OpenWell, queue_url: str, monkeypatch: pytest.MonkeyPatch):
    well: Any = open_well(queue_url)
    well.queue.pause()
    while not well.queue.workers():
        pass
    (worker,) = well.queue.workers()
    assert (worker.engine, worker.workflows, worker.concurrency) == ("local", ("insight.echo",), 100)

    @workflow(name="newer")
    async def newer(value: int) -> int:
        return value

    assert well.enqueue(newer, 1).why().codes == ("queue_paused", "unknown_workflow")


def test_why_says_that_no_worker_has_the_version_of_the_workflow(open_well: OpenWell, queue_url: str):
    """Its worker gives the item back for a moment, over and over: that it waits for the next moment is not the reason."""
    well: Any = open_well(queue_url)
    while not well.queue.workers():  # they say that they have version 1
        pass

    @workflow(name="insight.echo", version=2)
    async def newer(value: int) -> int:
        return value

    well.queue.pause()
    item = well.enqueue(newer, 1)
    workflow(name="insight.echo", version=1)(echo.function)  # what the worker has
    well.queue.resume()
    while item.state().run_at <= item.state().enqueued_at:
        pass
    reason = item.why()
    assert reason.codes == ("newer_version",)
    assert "needs version 2 of workflow 'insight.echo', and no worker that is running has a later one than 1" in reason.message


def test_why_names_a_rate_only_while_it_holds_the_item_up(open_well: OpenWell, queue_url: str):
    well: Any = open_well(queue_url)
    well.workspaces.put("acme", tier="startup")
    well.workspaces.put_tier("startup", rate_per_second=0.001)
    waiting = well.enqueue(echo, 1, workspace="acme", delay="1h")
    assert waiting.why().codes == ("delayed",)
    assert well.enqueue(echo, 2, workspace="acme").result(WAIT) == 2
    assert well.enqueue(echo, 3, workspace="acme").why().codes == ("rate",)
    well.workspaces.pause("acme")
    assert well.enqueue(echo, 4, workspace="acme").why().codes == ("workspace_paused", "behind_others")


def test_why_says_that_no_worker_serves_the_queue(open_well: OpenWell, queue_url: str):
    """Workers that do not serve an item's queue do not count: what they know does not help it."""
    well: Any = open_well(queue_url, queues=["mail"])
    while not well.queue.workers():
        pass
    well.queue.pause("mail")

    @workflow(name="newer")
    async def newer(value: int) -> int:
        return value

    assert well.enqueue(echo, 1).why().codes == ("unserved_queue",)
    assert well.enqueue(newer, 1, queue="mail").why().codes == ("queue_paused", "unknown_workflow")
    assert well.enqueue(echo, 1, queue="mail").why().codes == ("queue_paused", "behind_others")


def test_why_says_that_no_worker_is_there(well: Any):
    reason = well.enqueue(echo, 1).why()
    assert reason.codes == ("ready",)
    assert reason.message.endswith("no worker is known to be running")


def test_items_are_listed_by_pages(well: Any):
    for number in range(5):
        well.enqueue(echo, number)
    page = well.queue.list(limit=2)
    rest = well.queue.list(limit=10, before=page[-1])
    assert [item.input for item in (*page, *rest)] == [4, 3, 2, 1, 0]
    assert well.queue.list(status=ItemStatus.COMPLETED) == []
    assert len(well.queue.list(workspace="default", queue="default", workflow="insight.echo")) == 5
    with pytest.raises(InvalidInput):
        well.queue.list(status="LOST")
    with pytest.raises(InvalidInput):
        well.queue.list(limit=0)


def test_items_are_not_asked_for_by_what_no_item_can_have(open_well: OpenWell, queue_url: str):
    """PostgreSQL would say that it cannot take the value, as if it were away, and others would break off."""
    well: Any = open_well(queue_url, worker=False)
    for name in (5, "a\0b", "", "\ud800", echo):
        for what in ("workspace", "queue", "workflow"):
            with pytest.raises(InvalidInput):
                well.queue.list(**{what: name})
        with pytest.raises(InvalidInput):
            well.queue.dead(workspace=name)
    for query in ({"status": ["FAILED"]}, {"before": 5}, {"before": "item"}):
        with pytest.raises(InvalidInput):
            well.queue.list(**query)


def test_a_queue_has_a_limit_that_every_store_can_keep(open_well: OpenWell, queue_url: str):
    well: Any = open_well(queue_url, worker=False)
    for concurrency in (2**53 + 1, 2**63, 2**70, -1, True, 1.0):
        with pytest.raises(InvalidInput, match="concurrency of queue 'mail'"):
            well.queue.put("mail", concurrency=concurrency)
    assert well.queue.put("mail", concurrency=2**53) == well.queue.get("mail")


def test_many_requests_are_requests(well: Any):
    with pytest.raises(InvalidInput, match="QueueRequest"):
        well.enqueue_many([QueueRequest(workflow=echo, value=1), {"workflow": echo}])
    assert well.queue.list() == []


def test_ended_items_go_when_their_tier_keeps_them_no_longer(well: Any, clock: FakeClock):
    well.workspaces.put_tier("startup", retention_seconds=60)
    item = well.enqueue(echo, 1, workspace="acme")
    item.cancel()
    clock.advance(59)
    well.retention.apply()
    assert item.state().status is ItemStatus.CANCELLED
    clock.advance(2)
    well.retention.apply()
    with pytest.raises(NotFound):
        item.state()


def test_recovery_drops_all_that_is_old_however_much_that_is(open_well: OpenWell, queue_url: str):
    """More than goes into one unit: else what ends faster than sweeps come would stay for good."""
    well: Any = open_well(queue_url, worker=False)
    well.workspaces.put("acme", tier="startup")
    for item in well.enqueue_many(QueueRequest(workflow=echo, value=1, workspace="acme") for _ in range(1_001)):
        item.cancel()
    well.workspaces.put_tier("startup", retention_seconds=0)
    well.retention.apply()
    assert well.queue.list(workspace="acme") == []
