"""A worker whose machine's clock is an hour off: timers, timeouts and delays go by the clock of the store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.support import store_urls

import stepwell
from stepwell import ExecutionFailed, Stepwell, SystemClock, step, workflow
from stepwell.pipeline.store_clock import StoreClock

url = store_urls.url

HOUR = timedelta(hours=1)
SERVERS = pytest.mark.parametrize("url", ["postgres", "redis"], indirect=True)


class WrongClock(SystemClock):
    """A machine's clock that nobody has set right."""

    def __init__(self, off: timedelta) -> None:
        self.off = off

    def now(self) -> datetime:
        return super().now() + self.off

    def now_ms(self) -> int:
        return super().now_ms() + self.off // timedelta(milliseconds=1)


@pytest.fixture(params=[HOUR, -HOUR], ids=["an hour fast", "an hour slow"])
def clock(request: pytest.FixtureRequest) -> WrongClock:
    return WrongClock(request.param)


@pytest.fixture
def well(url: str, clock: WrongClock) -> Iterator[Stepwell]:
    with Stepwell(url, clock=clock) as well:
        yield well


@step
def note(text: str) -> str:
    return text


@workflow
def sleeper() -> str:
    stepwell.sleep(0.4)
    return note("slept")


@workflow
async def waiter(seconds: float) -> int:
    return await stepwell.wait_signal("answer", timeout=seconds)


@workflow(timeout="30m")
def limited() -> str:
    stepwell.sleep(0.3)
    return note("in time")


def test_short_sleep_of_a_worker_with_a_wrong_clock_is_short(well: Stepwell) -> None:
    assert well.start(sleeper).result(timeout=20) == "slept"


def test_wait_for_a_signal_lasts_until_it_comes(well: Stepwell) -> None:
    run = well.start(waiter, 1800.0)
    run.signal("answer", 42)
    assert run.result(timeout=20) == 42


def test_wait_for_a_signal_that_never_comes_ends_after_its_timeout(well: Stepwell) -> None:
    with pytest.raises(ExecutionFailed, match="answer"):
        well.start(waiter, 0.3).result(timeout=20)


@SERVERS
def test_time_limit_of_a_run_that_another_process_started_is_counted_by_the_store(url: str, clock: WrongClock) -> None:
    with Stepwell(url, clock=clock, worker=False) as wrong, Stepwell(url):
        assert wrong.start(limited).result(timeout=20) == "in time"


@SERVERS
def test_run_that_a_worker_with_a_wrong_clock_left_resting_goes_on_at_another(url: str, clock: WrongClock) -> None:
    """Both agree on when it goes on, by the store's clock."""
    with Stepwell(url, clock=clock) as wrong, Stepwell(url) as right:
        runs = [well.start(sleeper) for well in (wrong, right) for _ in range(3)]
        assert [run.result(timeout=20) for run in runs] == ["slept"] * 6


@SERVERS
def test_timer_of_a_worker_whose_clock_is_measured_a_little_fast_needs_no_poll(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that comes too early finds nothing, and is not made again."""
    really = StoreClock.measure

    def measure(clock: StoreClock) -> None:
        really(clock)
        clock.skew_ms += 20  # as far as a reply in 40 ms leaves it open
        clock.early_ms += 20

    monkeypatch.setattr(StoreClock, "measure", measure)
    monkeypatch.setattr("stepwell.runtime.worker._POLL_SECONDS", 3_600)
    with Stepwell(url) as well:
        assert well.start(sleeper).result(timeout=20) == "slept"


@SERVERS
def test_receipts_and_health_show_the_time_and_the_skew_of_the_store(url: str, clock: WrongClock) -> None:
    with Stepwell(url, clock=clock, worker=False) as well:
        receipt = well.create("run")
        health = well.health()
    assert abs(receipt.committed_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert health.is_ok
    assert abs(timedelta(milliseconds=health.clock_skew_ms) + clock.off) < timedelta(minutes=5)


def test_stores_that_read_this_machines_clock_have_no_skew(url: str) -> None:
    with Stepwell(url, worker=False) as well:
        assert abs(well.health().clock_skew_ms) <= (0 if url.startswith(("memory:", "sqlite:")) else 1_000)
