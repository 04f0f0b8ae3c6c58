"""The well for tests: its clock stands still, is moved by hand, and skips what a test waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

import stepwell
from stepwell import InvalidInput, Limits, Retry, Status, Stepwell, step, workflow
from stepwell.stores.memory import MemoryStore
from stepwell.testing import SkippingClock, TestWell

REAL_SECONDS = 60
"""Far more than any of these takes; far less than what they sleep."""
entered, release = threading.Event(), threading.Event()


@pytest.fixture
def clock() -> SkippingClock:
    return SkippingClock()


@pytest.fixture
def well(clock: SkippingClock) -> Iterator[TestWell]:
    entered.clear()
    release.clear()
    with TestWell(clock) as opened:
        yield opened


@step
async def note(text: str) -> str:
    await asyncio.sleep(30)
    return text


@step(retry=Retry(attempts=3, first_seconds=86_400))
async def flaky() -> int:
    if stepwell.current().attempt < 3:
        raise RuntimeError("not yet")
    return stepwell.current().attempt


@step
def held() -> str:
    entered.set()
    assert release.wait(REAL_SECONDS)
    return "held"


@workflow
async def napping(nap: str) -> str:
    await stepwell.sleep(nap)
    return await note("rested")


@workflow
async def asking(limit: str) -> Any:
    try:
        return await stepwell.wait_signal("answer", timeout=limit)
    except TimeoutError:
        return "nobody"


@workflow
async def trying() -> int:
    return await flaky()


@workflow
def holding() -> str:
    return held()


@workflow
async def moving(clock: str) -> None:
    clocks[clock].advance("1h")


clocks: dict[str, SkippingClock] = {}


def test_waiting_for_a_result_skips_what_the_run_sleeps(well: TestWell, clock: SkippingClock):
    started = clock.now()
    assert well.start(napping, "30d").result(timeout=REAL_SECONDS) == "rested"
    assert timedelta(days=30) <= clock.now() - started < timedelta(days=31)


def test_retries_are_skipped_too(well: TestWell):
    assert well.start(trying).result(timeout=REAL_SECONDS) == 3


def test_nothing_is_skipped_while_nobody_waits(well: TestWell, clock: SkippingClock):
    run = well.start(napping, "2h")
    clock.advance(1)
    assert run.status() == Status.WAITING
    clock.advance("1h59m")
    assert run.status() != Status.COMPLETED
    clock.advance("2m")
    assert run.status() == Status.COMPLETED


def test_advance_lets_everything_happen_on_its_way(well: TestWell, clock: SkippingClock):
    runs = [well.start(napping, f"{hours}h") for hours in (1, 5, 9)]
    clock.advance("6h")
    assert [run.status() for run in runs] == [Status.COMPLETED, Status.COMPLETED, Status.WAITING]
    ends = [run.receipts()[-1].committed_at for run in runs[:2]]
    assert timedelta(hours=4) <= ends[1] - ends[0] < timedelta(hours=4, minutes=1)


@workflow
async def counted(number: int) -> int:
    return number


def times(well: TestWell, clock: SkippingClock, began: datetime) -> list[float]:
    """Return in which minute each execution was created, the earliest first."""
    return sorted(round((each.created_at - began).total_seconds() / 60, 1) for each in well.executions.list(limit=1000))


def test_advance_fires_every_tick_on_its_way_at_its_time(well: TestWell, clock: SkippingClock):
    began = clock.now()
    well.schedules.put("hourly", counted, 1, every="1h")
    clock.advance("24h30m")
    assert times(well, clock, began) == [60.0 * hour for hour in range(1, 25)]


def test_advance_starts_delayed_items_at_their_times(well: TestWell, clock: SkippingClock):
    began = clock.now()
    items = [well.enqueue(counted, hours, delay=f"{hours}h") for hours in (1, 7, 30)]
    clock.advance("12h")
    assert times(well, clock, began) == [60.0, 420.0]
    assert [item.state().status for item in items] == ["COMPLETED", "COMPLETED", "QUEUED"]


def test_advance_passes_a_paused_schedule_and_a_paused_workspace(well: TestWell, clock: SkippingClock):
    well.workspaces.put("acme", tier="free", is_paused=True)
    well.schedules.put("paused", counted, 1, every="1m")
    well.schedules.pause("paused")
    well.enqueue(counted, 1, workspace="acme", delay="1h")
    clock.advance("30d")
    assert well.executions.list() == []


def test_signal_ends_a_wait_before_its_time(well: TestWell, clock: SkippingClock):
    run = well.start(asking, "3d")
    clock.advance("1d")
    run.signal("answer", 42)
    assert run.result(timeout=REAL_SECONDS) == 42


def test_signal_that_does_not_come_is_skipped(well: TestWell):
    assert well.start(asking, "3d").result(timeout=REAL_SECONDS) == "nobody"


def test_state_expires_by_the_clock(well: TestWell, clock: SkippingClock):
    well.state.globals.set("token", 1, ttl=3600)
    clock.advance("59m")
    assert well.state.globals.get("token") == 1
    clock.advance("2m")
    assert well.state.globals.get("token") is None


def test_lock_of_a_holder_that_died_ends_by_the_clock(well: TestWell, clock: SkippingClock):
    well.scheduled_lock("nightly", at_most=3600).acquire()
    clock.advance("61m")
    with well.scheduled_lock("nightly", at_most=3600):
        pass


def test_step_that_is_under_way_keeps_its_lease(well: TestWell, clock: SkippingClock):
    run = well.start(holding)
    assert entered.wait(REAL_SECONDS)
    clock.advance("10m")
    assert run.status() == Status.RUNNING
    release.set()
    assert run.result(timeout=REAL_SECONDS) == "held"
    assert [event.kind for event in run.trace("min").events].count("step") == 1


def test_clock_is_not_moved_from_inside(well: TestWell, clock: SkippingClock):
    clocks["inner"] = clock
    with pytest.raises(stepwell.ExecutionFailed, match="moved from a test"):
        well.start(moving, "inner").result(timeout=REAL_SECONDS)


def test_clock_without_a_well_is_moved_too():
    clock = SkippingClock()
    before = clock.now()
    clock.advance("2h")
    assert clock.now() - before == timedelta(hours=2)
    with pytest.raises(InvalidInput):
        clock.advance(-1)


def test_well_can_be_opened_on_a_store_of_ones_own():
    clock = SkippingClock()
    store = MemoryStore(clock, Limits())
    with Stepwell(store, worker=False, clock=clock) as one, Stepwell(store, worker=False, clock=clock) as another:
        one.state.globals.set("shared", 1)
        assert another.state.globals.get("shared") == 1


def test_what_is_neither_a_url_nor_a_store_is_refused():
    with pytest.raises(InvalidInput, match="a URL is text, not int"):
        Stepwell(5)  # pyright: ignore[reportArgumentType]


def test_clock_arrives_where_no_float_is_exact(well: TestWell) -> None:
    """600.000089 + 600 is a hair more than 1,200,000,089 microseconds."""
    well.clock.move_to(600.000089)
    well.clock.advance("10m")
    assert well.clock.elapsed == 1200.000089
