"""Wakes: the soonest times at which something comes due, in bounded memory."""

from __future__ import annotations

from stepwell.runtime.worker import WakeTimes


def test_next_time_is_the_soonest_that_has_not_passed() -> None:
    wakes = WakeTimes()
    assert wakes.next_after(0) is None
    for time in (50, 20, 30):
        wakes.add(time)
    assert wakes.next_after(10) == 20
    assert wakes.next_after(25) == 25
    assert wakes.next_after(25) == 30
    assert wakes.next_after(99) == 99
    assert wakes.next_after(99) is None


def test_however_many_wait_only_the_soonest_are_remembered() -> None:
    wakes = WakeTimes()
    for time in range(100_000, 0, -1):
        wakes.add(time)
    assert len(wakes) <= 2_000
    assert wakes.next_after(0) == 1
