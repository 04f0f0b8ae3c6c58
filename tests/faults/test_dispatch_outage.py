"""T32, T41: a store that was away and a dispatcher that does nothing: work goes on by itself, and health says so until it does."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from typing import Any

import pytest
from tests.support.outages import outage_of
from tests.support.queue_urls import QUEUE_STORES, SHARED_STORES
from tests.support.store_urls import url_of

from stepwell import CommitUnknown, FakeClock, ItemStatus, QueueItem, Stepwell, StoreUnavailable, step, workflow
from stepwell.model.commit import Outcome, Written
from stepwell.model.queue_item import ClaimItems
from stepwell.queue.diagnosis import IDLE_SECONDS
from stepwell.testing.store_access import store_under

WAIT = 60


@workflow(name="outage.echo")
async def echo(number: int) -> int:
    return number


def ask_again(well: Stepwell, number: int) -> QueueItem:
    """Ask until the store is there."""
    while True:
        try:
            return well.enqueue(echo, number)
        except (StoreUnavailable, CommitUnknown):
            continue


@pytest.mark.parametrize("store", SHARED_STORES)
def test_consumption_resumes_after_the_store_was_away(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, store: str):
    """T41: it flaps, then nobody gets through for a while; what waited and what comes later runs by itself."""
    with outage_of(store, request) as outage, Stepwell(outage.url, lease_seconds=2) as well:
        assert well.enqueue(echo, 1).result(WAIT) == 1
        for _ in range(3):
            with outage, pytest.raises((StoreUnavailable, CommitUnknown)):
                well.enqueue(echo, 2)
        later = ask_again(well, 3) if store == "sqlite" else well.enqueue(echo, 3, delay=0.3)
        with outage:
            while "the dispatcher failed" not in (told := well.health()).parts["worker"]:
                pass  # the test's own time limit ends this
            assert not told.is_ok
        assert ask_again(well, 4).result(WAIT) == 4
        assert later.result(WAIT) == 3
        while not well.health().is_ok:
            pass  # until each task of the worker has tried again
    assert [told for told in caplog.messages if "unexpected error" in told] == []


begun, ended, may_end = threading.Semaphore(0), threading.Semaphore(0), threading.Event()


@step
async def hold() -> None:
    begun.release()
    try:
        while not may_end.is_set():  # noqa: ASYNC110 - told by another thread
            await asyncio.sleep(0.01)
    finally:
        ended.release()


@workflow(name="outage.held")
async def held() -> None:
    await hold()


@pytest.mark.parametrize("store", SHARED_STORES)
def test_worker_that_cannot_renew_stops_its_item_by_itself(request: pytest.FixtureRequest, store: str):
    """T32: its step is ended though nobody says so, and nobody has the item then; when the store is back, it is begun anew."""
    may_end.clear()
    with outage_of(store, request) as outage, Stepwell(outage.url, lease_seconds=2) as well, ExitStack() as at_the_end:
        at_the_end.callback(may_end.set)  # also if it was not stopped, or the well could not be closed
        item = well.enqueue(held)
        assert begun.acquire(timeout=WAIT)
        while item.state().status is not ItemStatus.DISPATCHED:
            pass  # the test's own time limit ends this
        with outage:
            assert ended.acquire(timeout=WAIT)
            assert not begun.acquire(blocking=False)
        assert begun.acquire(timeout=WAIT)
        may_end.set()
        item.result(WAIT)
        assert ended.acquire(timeout=WAIT)
        assert (item.state().status, item.state().attempts) == (ItemStatus.COMPLETED, 1)


class Deaf:
    """Stands before a store's ``write``: claims of items find nothing, and all else goes on."""

    def __init__(self, well: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write, self.is_deaf = store_under(well).write, True
        monkeypatch.setattr(store_under(well), "write", self.write)

    def write(self, units: Any) -> list[Outcome]:
        if not self.is_deaf:
            return self._write(units)
        others = [unit for unit in units if not isinstance(unit, ClaimItems)]
        outcomes = iter(self._write(others) if others else ())
        return [Written() if isinstance(unit, ClaimItems) else next(outcomes) for unit in units]


@pytest.mark.parametrize("store", QUEUE_STORES)
def test_health_is_red_while_a_dispatcher_starts_nothing_of_what_it_could(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: str
):
    """T41: alive and consuming nothing, the worst of ends, is seen from outside; and no longer when it is over."""
    clock = FakeClock()
    with Stepwell(url_of(store, request), clock=clock) as well:
        deaf = Deaf(well, monkeypatch)
        clock.advance(IDLE_SECONDS + 1)
        assert well.health().parts["queue"] == "ok"  # idle, and nothing to do
        item = well.enqueue(echo, 1)
        assert well.health().parts["queue"] == "ok"  # it has only just come
        clock.advance(IDLE_SECONDS + 1)
        health = well.health()
        assert not health.is_ok
        assert (health.parts["read"], health.parts["write"]) == ("ok", "ok")
        assert "1 items of workspace 'default'" in health.parts["queue"]
        deaf.is_deaf = False
        well.enqueue(echo, 2)  # which rings, so that the test need not wait for a poll
        assert item.result(WAIT) == 1
        assert well.health().is_ok


@pytest.mark.parametrize(
    "hindrance", ["paused workspace", "paused queue", "no slot", "no rate", "later", "other workflow", "full queue"]
)
def test_what_a_dispatcher_may_not_start_is_no_fault_of_its(monkeypatch: pytest.MonkeyPatch, hindrance: str):
    """T41: red is for what it could start; items that wait for something else leave it green."""
    clock = FakeClock()
    with Stepwell("memory://", clock=clock) as well:
        Deaf(well, monkeypatch)
        well.workspaces.put_tier("own", **({"concurrency": 0} if hindrance == "no slot" else {}))
        well.workspaces.put("acme", tier="own", is_paused=hindrance == "paused workspace")
        if hindrance == "paused queue":
            well.queue.pause()
        if hindrance == "full queue":
            well.queue.put("default", concurrency=0)
        if hindrance == "no rate":
            well.workspaces.put_tier("own", rate_per_second=0)
        well.enqueue(echo, 1, workspace="acme", delay="1h" if hindrance == "later" else 0)
        if hindrance == "other workflow":
            monkeypatch.setattr("stepwell.queue.diagnosis.registered_names", lambda: ("another",))
        clock.advance(IDLE_SECONDS + 1)
        assert well.health().is_ok


def test_a_process_that_serves_other_queues_or_none_is_not_asked(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    """T41: the backlog of a queue is the fault of those alone who serve it."""
    clock, url = FakeClock(), f"sqlite:///{tmp_path}/well.db"
    with Stepwell(url, clock=clock, worker=False) as asking, Stepwell(url, clock=clock, queues=["mail"]) as serving:
        Deaf(serving, monkeypatch)
        asking.enqueue(echo, 1)
        clock.advance(IDLE_SECONDS + 1)
        assert "queue" not in asking.health().parts
        assert serving.health().is_ok
        asking.enqueue(echo, 1, queue="mail")
        clock.advance(IDLE_SECONDS + 1)
        assert not serving.health().is_ok
