"""The clock of durable times: this machine's, corrected by its difference from the store's."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stepwell.clock import FakeClock, from_ms
from stepwell.contract.store import Capabilities
from stepwell.errors import StoreUnavailable
from stepwell.pipeline.store_clock import StoreClock

HOUR_MS = 3_600_000


class Machine(FakeClock):
    """A machine whose clock can be set."""

    passed = 0.0
    """The seconds that pass, whatever the clock is set to."""

    def set_by(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


class FarStore:
    """A store whose clock is ahead; its reply takes a while, the more of it after the clock was read."""

    def __init__(self, machine: Machine, *, is_remote: bool = False) -> None:
        self.is_remote = is_remote
        self.machine, self.ahead_ms, self.reply_seconds, self.is_away, self.asked = machine, HOUR_MS, 0.0, False, 0

    def capabilities(self) -> Capabilities:
        return Capabilities(is_shared=True, has_blocking_writes=self.is_remote)

    def now_ms(self) -> int:
        self.asked += 1
        if self.is_away:
            raise StoreUnavailable("no route")
        self.machine.set_by(self.reply_seconds / 4)
        now = self.machine.now_ms() + self.ahead_ms
        self.machine.set_by(self.reply_seconds * 3 / 4)
        return now


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def store(machine: Machine) -> FarStore:
    return FarStore(machine)


@pytest.fixture
def clock(store: FarStore, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> StoreClock:
    monkeypatch.setattr("stepwell.pipeline.store_clock.monotonic", lambda: machine.passed)
    clock = StoreClock(store, machine)  # type: ignore[arg-type]
    clock.measure()
    return clock


def test_time_is_the_stores_to_the_millisecond(clock: StoreClock, machine: Machine) -> None:
    assert clock.skew_ms == HOUR_MS
    assert clock.now_ms() == machine.now_ms() + HOUR_MS
    assert clock.now() == machine.now() + timedelta(hours=1) == from_ms(clock.now_ms())


@pytest.mark.parametrize(("ahead_ms", "skew_ms"), [(-500, 0), (1_500, 0), (-3_000, -3_500), (2_000, 1_500)])
def test_slow_reply_moves_the_time_only_if_it_proves_a_difference(
    store: FarStore, machine: Machine, ahead_ms: int, skew_ms: int
) -> None:
    """The reply takes two seconds, and the store read its clock somewhere in them: half a second after the question here."""
    clock = StoreClock(store, machine)  # type: ignore[arg-type]
    store.reply_seconds, store.ahead_ms = 2.0, ahead_ms
    clock.measure()
    assert clock.skew_ms == skew_ms


@pytest.mark.parametrize("reply_ms", [0, 1, 8, 60])
@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, 3, HOUR_MS])
def test_time_is_early_by_at_most_what_the_measurement_could_not_tell(machine: Machine, reply_ms: int, ahead_ms: int) -> None:
    """A worker that claims what is due by its own clock waits for as long as that."""
    store = FarStore(machine, is_remote=True)
    clock = StoreClock(store, machine)  # type: ignore[arg-type]
    store.reply_seconds, store.ahead_ms = reply_ms / 1000, ahead_ms
    clock.measure()
    store.reply_seconds = 0
    assert clock.now_ms() - clock.early_ms <= store.now_ms()
    assert clock.early_ms <= reply_ms + 1
    store.reply_seconds = 10.0
    clock.measure()
    assert clock.early_ms <= 50, "one slow reply delays no timer noticeably"


def test_store_that_reads_this_clock_is_never_behind_it(store: FarStore, clock: StoreClock) -> None:
    store.reply_seconds = 1.0
    clock.measure()
    assert clock.early_ms == 0


def test_refresh_measures_again_after_a_minute(clock: StoreClock, store: FarStore, machine: Machine) -> None:
    store.ahead_ms = 2 * HOUR_MS
    for seconds, asked, skew in ((59, 1, HOUR_MS), (2, 2, 2 * HOUR_MS), (30, 2, 2 * HOUR_MS)):
        machine.passed += seconds
        machine.set_by(seconds)
        clock.refresh(machine.passed)
        assert (store.asked, clock.skew_ms) == (asked, skew)


@pytest.mark.parametrize("step", [3_600, -3_600])
def test_refresh_measures_at_once_after_the_machines_clock_was_set(
    clock: StoreClock, store: FarStore, machine: Machine, step: float
) -> None:
    before = clock.now()
    machine.set_by(step)
    store.ahead_ms -= round(step * 1000)
    clock.refresh(machine.passed)
    assert clock.now() == before
    assert store.asked == 2


def test_store_that_does_not_answer_leaves_the_time_as_it_was_and_is_asked_again(
    clock: StoreClock, store: FarStore, machine: Machine
) -> None:
    store.is_away, store.ahead_ms = True, 0
    clock.measure()
    assert clock.skew_ms == HOUR_MS
    store.is_away = False
    clock.refresh(machine.passed)
    assert clock.skew_ms == 0


def test_time_that_a_test_moved_is_told_on(clock: StoreClock, machine: Machine) -> None:
    machine.advance(5)
    assert clock.ahead_ms() == 5_000
