"""The benchmark of races for one revision sees it when a race had more or fewer winners than one."""

from __future__ import annotations

import pytest
from benchmarks.subjects.races import Racing, result

from stepwell import Stepwell


def test_races_with_one_winner_each_meet_the_target():
    measurement = result("races.x", [[0], [3], [1]], is_whole=True, note="")
    assert measurement.value == 3
    assert measurement.target is not None
    assert measurement.target.met


@pytest.mark.parametrize("winners", [[[0], [1, 2]], [[0], []]])
def test_a_race_with_two_winners_or_none_misses_the_target(winners: list[list[int]]):
    measurement = result("races.x", winners, is_whole=True, note="")
    assert measurement.value == 1
    assert measurement.target is not None
    assert not measurement.target.met


def test_a_chain_that_does_not_add_up_misses_the_target():
    measurement = result("races.x", [[0]], is_whole=False, note="")
    assert measurement.target is not None
    assert not measurement.target.met


def test_writers_who_all_begin_before_any_commits_have_one_winner():
    """T05."""
    with Stepwell("memory://") as well:
        well.create("contested")
        racing = Racing([well] * 3, 10)
        assert racing.run() > 0
        assert [len(winners) for winners in racing.winners] == [1] * 10
        assert well.load("contested").revision == 10


def test_a_writer_that_fails_ends_the_races():
    with Stepwell("memory://") as well, pytest.raises(Exception, match="no execution 'contested'"):
        Racing([well] * 2, 3).run()
