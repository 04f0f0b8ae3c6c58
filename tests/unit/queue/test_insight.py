"""Figures of the queue, worked out from lanes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.model.queue import Lane
from stepwell.queue.insight import demand_of, percentile, stats_of


@given(st.lists(st.integers(0, 10_000), min_size=1).map(sorted), st.floats(0.01, 1))
def test_a_percentile_is_a_value_that_enough_others_do_not_exceed(values: list[int], share: float):
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


def test_nothing_has_no_percentile():
    assert percentile((), 0.5) is None


@pytest.mark.parametrize(
    ("cap", "running", "ready", "startable"),
    [(None, 5, 7, 7), (10, 5, 7, 5), (10, 5, 3, 3), (5, 5, 7, 0), (2, 5, 7, 0)],  # the last: a cap that was made smaller
)
def test_no_more_can_be_started_than_there_are_slots(cap: int | None, running: int, ready: int, startable: int):
    lane = Lane(workspace_id="w", queue="q", ready=ready, delayed=0, claimed=0, dispatched=running, oldest_ready_ms=1_000)
    stats = stats_of([lane], {"w": cap}, 3_000)
    demand = demand_of(stats, frozenset())
    assert (demand.startable, demand.wanted, demand.oldest_seconds) == (startable, running + startable, 2.0)


def test_slots_are_counted_over_all_queues_of_a_workspace():
    lanes = [Lane(workspace_id="w", queue=queue, ready=5, delayed=0, claimed=1, dispatched=1) for queue in "ab"]
    assert demand_of(stats_of(lanes, {"w": 6}, 0), frozenset()).startable == 2
    assert demand_of(stats_of(lanes, {"w": 6}, 0), frozenset({"queue:a"})).startable == 2
    assert demand_of(stats_of(lanes, {"w": 6}, 0), frozenset({"workspace:w"})).startable == 0
