"""Workspaces, tiers and named queues: who may run how much, changed while things run."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.module_state import cleared
from tests.support.queue_urls import queue_url

import stepwell
from stepwell import (
    ExecutionFailed,
    InvalidInput,
    ItemStatus,
    LimitExceeded,
    NotFound,
    Scope,
    Stepwell,
    step,
    workflow,
    workspace_queue,
)
from stepwell.queue.dispatcher import Dispatcher

__all__ = ["queue_url"]

WAIT = 60
gate = threading.Event()
entered = threading.Semaphore(0)


_cleared = cleared(gate, entered)


@pytest.fixture
def well(open_well: OpenWell, queue_url: str) -> Any:
    """A well that works, by the machine's clock."""
    return open_well(queue_url)


@workflow(name="limits.echo")
async def echo(value: int) -> int:
    return value


@step
def pass_gate(name: int) -> int:
    entered.release()
    assert gate.wait(WAIT)
    return name


@step
async def keep(size: int) -> int:
    stepwell.current().state(Scope.of_workspace("acme")).set("kept", "x" * size)
    return size


@workflow(name="limits.keeps")
async def keeps(size: int) -> int:
    return await keep(size)


@workflow(name="limits.held")
def held(name: int) -> int:
    return pass_gate(name)


def test_new_stores_have_the_tiers_and_the_default_workspace(well: Any):
    caps = {tier.name: tier.concurrency for tier in well.workspaces.tiers()}
    assert caps == {"free": 1, "startup": 3, "scale": 5, "enterprise": 10, "unlimited": None}
    assert [each.workspace_id for each in well.workspaces.list()] == ["default"]
    assert well.workspaces.get("default").tier == "unlimited"


def test_a_workspace_is_made_changed_and_found(well: Any):
    assert well.workspaces.put("acme", tier="SCALE").tier == "scale"
    assert well.workspaces.put("acme", is_paused=True).tier == "scale"
    assert well.workspaces.get("acme").is_paused
    assert not well.workspaces.resume("acme").is_paused
    assert well.workspaces.pause("acme").is_paused
    assert well.workspaces.put("other").tier == "free"
    with pytest.raises(NotFound):
        well.workspaces.get("nobody")
    with pytest.raises(NotFound):
        well.workspaces.put("acme", tier="gold")


def test_a_tier_keeps_what_is_not_changed(well: Any):
    well.workspaces.put_tier("Gold", concurrency=4, weight=2.5, rate_per_second=10)
    tier = well.workspaces.put_tier("gold", queue_depth=7, rate_per_second=None)
    assert (tier.concurrency, tier.weight, tier.rate_per_second, tier.queue_depth) == (4, 2.5, None, 7)
    assert tier in well.workspaces.tiers()


@pytest.mark.parametrize(
    "settings",
    [
        {"concurrency": -1},
        {"concurrency": 1.5},
        {"concurrency": True},
        {"weight": 0},
        {"weight": None},
        {"weight": float("nan")},
        {"rate_per_second": -0.1},
        {"rate_per_second": 1e-307},
        {"queue_depth": -1},
        {"state_bytes": "many"},
        {"state_bytes": -1},
        {"retention_seconds": -1},
        {"child_concurrency": 0},
    ],
)
def test_a_bad_tier_is_refused_and_the_old_one_stays(well: Any, settings: dict[str, Any]):
    before = well.workspaces.tiers()
    with pytest.raises(InvalidInput):
        well.workspaces.put_tier("scale", **settings)
    assert well.workspaces.tiers() == before


@pytest.mark.parametrize("options", [{"is_paused": "yes"}, {"tier": ""}, {"tier": 7}])
def test_a_bad_workspace_is_refused(well: Any, options: dict[str, Any]):
    with pytest.raises(InvalidInput):
        well.workspaces.put("acme", **options)
    with pytest.raises(InvalidInput):
        well.workspaces.put("", tier="free")
    assert len(well.workspaces.list()) == 1


def test_a_paused_workspace_waits_and_says_so(well: Any):
    well.workspaces.put("acme", tier="scale", is_paused=True)
    item = well.enqueue(echo, 1, workspace="acme")
    assert well.enqueue(echo, 2).result(WAIT) == 2
    assert item.why().codes == ("workspace_paused",)
    well.workspaces.resume("acme")
    assert item.result(WAIT) == 1


def test_a_paused_queue_waits_and_others_go_on(well: Any):
    well.queue.pause("mail")
    item = well.enqueue(echo, 1, queue="mail")
    assert well.enqueue(echo, 2).result(WAIT) == 2
    assert item.why().codes == ("queue_paused",)
    assert well.queue.get("mail").is_paused
    well.queue.resume("mail")
    assert item.result(WAIT) == 1


def test_a_queue_runs_no_more_at_once_than_it_may(well: Any):
    well.queue.put("mail", concurrency=1)
    items = [well.enqueue(held, number, queue="mail") for number in range(2)]
    assert entered.acquire(timeout=WAIT)
    assert items[1].why().codes[0] == "queue_at_capacity"
    gate.set()
    assert [item.result(WAIT) for item in items] == [0, 1]


def test_draining_waits_for_what_runs_and_starts_nothing_more(well: Any):
    running = well.enqueue(held, 1, queue="mail")
    assert entered.acquire(timeout=WAIT)
    assert not well.queue.drain("mail", timeout=0)
    waiting = well.enqueue(echo, 2, queue="mail")
    gate.set()
    assert well.queue.drain("mail", timeout=WAIT)
    assert running.state().status is ItemStatus.COMPLETED
    assert waiting.state().status is ItemStatus.QUEUED
    well.queue.resume("mail")
    assert waiting.result(WAIT) == 2


@pytest.fixture
def _no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dispatchers that look again only when there is a reason to."""
    monkeypatch.setitem(Dispatcher.__init__.__kwdefaults__, "poll_seconds", 3_600)


@pytest.mark.usefixtures("_no_poll")
def test_a_rate_spreads_the_starts_of_a_workspace(well: Any):
    well.workspaces.put_tier("steady", rate_per_second=10)
    well.workspaces.put("acme", tier="steady")
    items = [well.enqueue(echo, number, workspace="acme") for number in range(15)]
    assert [item.result(WAIT) for item in items] == list(range(15))
    claimed = sorted(item.state().claimed_at for item in items)
    # A second's worth may start at once; the other five take a tenth of a second each.
    assert (claimed[-1] - claimed[0]).total_seconds() >= 0.4


def test_a_workspace_holds_no_more_state_than_its_tier_allows(well: Any):
    well.workspaces.put_tier("small", state_bytes=50)
    well.workspaces.put("acme", tier="small")
    own = well.state.workspace("acme")
    own.set("a", "x" * 30)
    with pytest.raises(LimitExceeded) as refusal:
        own.workflow("orders").set("b", "x" * 30)
    assert (refusal.value.limit, refusal.value.maximum, refusal.value.actual) == ("state_bytes", 50, 66)
    assert own.workflow("orders").get("b") is None
    well.state.workspace("other").set("b", "x" * 300)
    well.workspaces.put_tier("small", state_bytes=66)
    own.workflow("orders").set("b", "x" * 30)


def test_a_step_that_keeps_more_state_than_its_workspace_may_has_failed(well: Any):
    well.workspaces.put_tier("small", state_bytes=50)
    well.workspaces.put("acme", tier="small")
    with pytest.raises(ExecutionFailed, match="state_bytes=50"):
        well.enqueue(keeps, 100, workspace="acme").result(WAIT)
    assert well.state.workspace("acme").get("kept") is None
    assert well.enqueue(keeps, 40, workspace="acme").result(WAIT) == 40


def test_a_process_serves_the_queues_that_it_names(open_well: OpenWell, queue_url: str):
    own = workspace_queue("acme")
    assert own == "workflow.workspace.acme"
    well: Any = open_well(queue_url, queues=[own])
    well.workspaces.put("acme", tier="scale")
    other = well.enqueue(echo, 1, workspace="acme")
    assert well.enqueue(echo, 2, workspace="acme", queue=own).result(WAIT) == 2
    assert other.state().status is ItemStatus.QUEUED


@pytest.mark.parametrize("queues", ["mail", [""], [7], 7])
def test_bad_queues_are_refused(queues: Any):
    with pytest.raises(InvalidInput):
        Stepwell("memory://", queues=queues)


@pytest.mark.parametrize(
    "options",
    [{"concurrency": -1}, {"concurrency": True}, {"rate_per_second": -1}, {"rate_per_second": "fast"}, {"rate_per_second": 1e-307}],
)
def test_a_bad_queue_is_refused(well: Any, options: dict[str, Any]):
    with pytest.raises(InvalidInput):
        well.queue.put("mail", **options)
    assert well.queue.get("mail").concurrency is None


def test_a_limit_of_a_queue_that_is_not_given_stays_as_it_is(well: Any):
    well.queue.put("mail", concurrency=2, rate_per_second=10)
    well.queue.pause("mail")
    assert well.queue.put("mail", concurrency=3) == well.queue.get("mail")
    mail = well.queue.put("mail", rate_per_second=None)
    assert (mail.concurrency, mail.rate_per_second, mail.is_paused) == (3, None, True)


def test_one_start_in_a_year_is_the_least_rate_and_none_at_all_is_allowed(well: Any):
    for rate in (0, 1 / (366 * 86_400)):
        assert well.queue.put("mail", rate_per_second=rate).rate_per_second == rate
        assert well.workspaces.put_tier("scale", rate_per_second=rate).rate_per_second == rate
    with pytest.raises(InvalidInput, match="from 3e-08 on, or 0"):
        well.workspaces.put_tier("scale", rate_per_second=1e-9)


def test_demand_does_not_count_what_a_full_queue_keeps_waiting(well: Any):
    well.queue.put("mail", concurrency=1)
    items = [well.enqueue(held, number, queue="mail") for number in range(10)]
    assert entered.acquire(timeout=WAIT)
    demand = well.queue.demand()
    assert (demand.ready, demand.running, demand.startable, demand.wanted) == (9, 1, 0, 1)
    gate.set()
    assert [item.result(WAIT) for item in items] == list(range(10))
