"""T23 and T24: clocks that jump, and nodes whose clocks disagree. Leases and least times go by the store's clock alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.support import store_urls

from stepwell import FakeClock, HeldLock, LeaseLost, LockHeld, Scope, Stepwell

url = store_urls.url

TICKS = {"memory": 1_000, "sqlite": 1_000}
TICK_SECONDS = 60
MOST_SKEW_SECONDS = 2.0


class SteppedClock(FakeClock):
    """A clock that can be put back as well."""

    def step(self, seconds: float) -> None:
        self._ahead += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def well(url: str, clock: SteppedClock) -> Iterator[Stepwell]:
    with Stepwell(url, clock=clock, worker=False) as well:
        yield well


def acquires(well: Stepwell, seconds: float = 30) -> HeldLock | None:
    try:
        return well.lock("door", seconds=seconds).acquire()
    except LockHeld:
        return None


def is_accepted(well: Stepwell, held: HeldLock) -> bool:
    try:
        with well.state.transaction(lock=held) as tx:
            tx.state(Scope.globals()).set("by", held.fence)
    except LeaseLost:
        return False
    return True


@pytest.mark.parametrize("step", [3600, 600])
def test_a_clock_put_forward_ends_leases_early_but_lets_no_two_write(well: Stepwell, clock: SteppedClock, step: int) -> None:
    """T23."""
    old = acquires(well)
    clock.step(step)
    new = acquires(well)
    assert old is not None
    assert new is not None
    assert new.fence > old.fence
    assert is_accepted(well, new)
    assert not is_accepted(well, old)
    assert is_accepted(well, new)


@pytest.mark.parametrize("step", [3600, 600])
def test_a_clock_put_back_prolongs_a_lease_by_no_more_than_that(well: Stepwell, clock: SteppedClock, step: int) -> None:
    """T23: nobody steals it, and it is not for ever."""
    held = acquires(well, seconds=300)
    assert held is not None
    clock.step(-step)
    assert acquires(well) is None
    assert is_accepted(well, held)
    clock.advance(step + 200)  # servers have a clock of their own, which goes on meanwhile
    assert acquires(well) is None
    clock.advance(101)
    assert acquires(well) is not None


def test_a_lease_taken_after_a_step_lasts_as_long_as_ever(well: Stepwell, clock: SteppedClock) -> None:
    """T23: back and forth, and each lease is five minutes of the clock as it goes."""
    for step in (-3600, 3600, -600, 600, -7, 7):
        clock.advance(2 * 3600)
        clock.step(step)
        assert acquires(well, seconds=300) is not None
        clock.advance(200)
        assert acquires(well) is None
        clock.advance(101)


def test_scheduled_locks_after_a_clock_was_put_back_are_free_again_after_that(well: Stepwell, clock: SteppedClock) -> None:
    """T23: the job is late by as much as the clock was put back, and then runs; neither twice nor never."""
    with well.scheduled_lock("job", at_most=60, at_least=30):
        pass
    clock.step(-600)
    with pytest.raises(LockHeld):
        well.scheduled_lock("job", at_most=60, at_least=30).acquire()
    clock.advance(600 + 31)
    well.scheduled_lock("job", at_most=60, at_least=30).acquire()


def test_fences_rise_and_one_holder_writes_however_the_clock_goes(well: Stepwell, clock: SteppedClock) -> None:
    """T23, I8: random steps, forward and back; whoever was granted the lock last is the only one who is accepted."""
    chance, held = random.Random(20), list[HeldLock]()
    for _ in range(120):
        clock.step(chance.choice([-3600, -600, -31, -1, 0, 1, 29, 31, 600, 3600, 3600]))
        granted = acquires(well)
        if granted is not None:
            held.append(granted)
        for one in chance.sample(held, min(3, len(held))):
            assert is_accepted(well, one) == (one is held[-1])
    fences = [one.fence for one in held]
    assert fences == sorted(set(fences))
    assert len(fences) > 10


def test_of_nodes_whose_clocks_disagree_one_runs_each_tick(url: str, clock: SteppedClock) -> None:
    """T24: five nodes, each up to two seconds early or late, and a job of a millisecond: exactly one run per tick.

    A node starts the job when its own clock says so; how long the lock stays taken is up to the store's clock.
    """
    chance, runs = random.Random(24), Counter[int]()
    wells = [Stepwell(url, clock=clock, worker=False) for _ in range(1 if url.startswith("memory:") else 5)]
    try:
        ticks = TICKS.get(url.partition(":")[0], 100)
        for tick in range(ticks):
            elapsed = 0.0
            starts = sorted((chance.uniform(0, 2 * MOST_SKEW_SECONDS), node) for node in range(5))
            for start, node in starts:
                clock.advance(start - elapsed)
                elapsed = start
                runs[tick] += run_job(wells[node % len(wells)], clock)
            clock.advance(TICK_SECONDS - elapsed)
    finally:
        for well in wells:
            well.close()
    assert runs == dict.fromkeys(range(ticks), 1)


def run_job(well: Stepwell, clock: SteppedClock) -> int:
    """A job of a millisecond, kept for longer than the clocks may disagree; how often it ran."""
    try:
        with well.scheduled_lock("job", at_most=50, at_least=TICK_SECONDS / 2):
            clock.advance(0.001)
            return 1
    except LockHeld:
        return 0


def test_without_a_least_time_nodes_whose_clocks_disagree_run_more_than_once(well: Stepwell, clock: SteppedClock) -> None:
    """T24, the other way round: it is the least time that keeps late nodes out."""
    runs = 0
    for _ in range(2):
        with well.scheduled_lock("job", at_most=50):
            runs += 1
        clock.advance(1)
    assert runs == 2
