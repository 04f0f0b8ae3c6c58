"""Schedulers make choices, remember them, and make them again."""

from __future__ import annotations

import pytest

from stepwell.testing import Diverged, InOrder, Replay, SchedulingChoice, Seeded, TaskScheduler, read_log, write_log


def wander(scheduler: TaskScheduler) -> list[int]:
    return [scheduler.choose(f"turn {number}", number + 2) for number in range(20)]


def test_in_order_goes_the_first_way():
    assert wander(InOrder()) == [0] * 20


def test_seed_says_the_ways():
    assert wander(Seeded(3)) == wander(Seeded(3))
    assert wander(Seeded(3)) != wander(Seeded(4))


def test_ways_are_within_what_there_is():
    assert all(0 <= way < number + 2 for number, way in enumerate(wander(Seeded(3))))


def test_log_goes_through_bytes_and_is_replayed():
    scheduler = Seeded(3)
    ways = wander(scheduler)
    log = read_log(write_log(scheduler.log))
    assert log == scheduler.log
    assert log[0] == SchedulingChoice("turn 0", 2, ways[0])
    assert wander(Replay(log)) == ways


def test_replay_finds_another_choice():
    scheduler = Seeded(3)
    wander(scheduler)
    replay = Replay(scheduler.log)
    replay.choose("turn 0", 2)
    with pytest.raises(Diverged, match="choice 1 is 'a fork' of 3 ways, but the log has 'turn 1' of 3 ways") as raised:
        replay.choose("a fork", 3)
    assert raised.value.number == 1


def test_replay_finds_another_number_of_ways():
    with pytest.raises(Diverged, match="of 5 ways, but the log has 'turn' of 4 ways"):
        Replay([SchedulingChoice("turn", 4, 1)]).choose("turn", 5)


def test_replay_finds_the_end_of_its_log():
    with pytest.raises(Diverged, match="the log has ended"):
        Replay([]).choose("turn", 4)
