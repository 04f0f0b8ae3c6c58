"""Figures of the queue, worked out from lanes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.model.queue_item import Lane, QueueSettings, Tier, Workspace
from stepwell.queue.statistics import Demand, demand_of, metrics_of, percentile, stats_of


def lane(workspace: str, queue: str, *, ready: int, running: int = 0) -> Lane:
    return Lane(workspace_id=workspace, queue=queue, ready=ready, delayed=0, claimed=0, dispatched=running, oldest_ready_ms=1_000)


def demand(*lanes: Lane, queues: tuple[QueueSettings, ...] = (), **tiers: Tier) -> Demand:
    """Of these lanes, at 3 s; a workspace has the tier of its name, and else no limits."""
    names = {each.workspace_id for each in lanes}
    workspaces = [Workspace(workspace_id=name, tier=name if name in tiers else "any") for name in names]
    return demand_of(stats_of(lanes, {}, 3_000), workspaces, {name: tiers.get(name, Tier(name="any")) for name in names}, queues)


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
    busy = lane("w", "q", ready=ready, running=running)
    of_tier = demand(busy, w=Tier(name="w", concurrency=cap))
    assert (of_tier.startable, of_tier.wanted, of_tier.oldest_seconds) == (startable, running + startable, 2.0)
    assert demand(busy, queues=(QueueSettings(name="q", concurrency=cap),)) == of_tier


def test_slots_are_counted_over_all_queues_of_a_workspace():
    lanes = [lane("w", queue, ready=5, running=2) for queue in "ab"]
    tier, paused = Tier(name="w", concurrency=6), QueueSettings(name="a", is_paused=True)
    assert demand(*lanes, w=tier).startable == 2
    assert demand(*lanes, w=tier, queues=(paused,)).startable == 2
    asleep = [Workspace(workspace_id="w", tier="w", is_paused=True)]
    assert demand_of(stats_of(lanes, {}, 0), asleep, {"w": tier}, ()).startable == 0


def test_slots_of_a_queue_are_counted_over_all_workspaces():
    lanes = [lane(workspace, "q", ready=5, running=2) for workspace in "vw"]
    assert demand(*lanes, queues=(QueueSettings(name="q", concurrency=6),)).startable == 2


@pytest.mark.parametrize(("rate", "startable"), [(None, 9), (0, 0), (0.001, 1), (3, 3), (100, 9)])
def test_a_rate_lets_a_second_s_worth_start_and_a_rate_of_nothing_is_a_pause(rate: float | None, startable: int):
    waiting = lane("w", "q", ready=9)
    assert demand(waiting, w=Tier(name="w", rate_per_second=rate)).startable == startable
    assert demand(waiting, queues=(QueueSettings(name="q", rate_per_second=rate),)).startable == startable


def test_slots_go_first_to_what_no_other_limit_holds_up():
    """The slot of v is for its own queue, so that w can have the one of the shared queue."""
    lanes = [lane("v", "shared", ready=5), lane("v", "own", ready=5), lane("w", "shared", ready=5)]
    assert demand(*lanes, v=Tier(name="v", concurrency=1), queues=(QueueSettings(name="shared", concurrency=1),)).startable == 2


def test_a_lane_in_which_nothing_is_left_has_no_figures():
    assert stats_of([lane("w", "q", ready=0)], {}, 0) == []


def test_metrics_of_large_queues_are_exact():
    stats = stats_of([lane("w", "q", ready=12_345_678)], {}, 1_001)
    text = metrics_of(stats, demand_of(stats, [Workspace(workspace_id="w", tier="any")], {"w": Tier(name="any")}, ()))
    assert 'stepwell_queue_ready{workspace="w",queue="q"} 12345678\n' in text
    assert 'stepwell_queue_oldest_ready_seconds{workspace="w",queue="q"} 0.001\n' in text
