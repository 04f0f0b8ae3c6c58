"""Requests with a claim behind them: written as one group, they come to what they come to one after the other.

It is what a request to an idle system is, and stores have short ways for it. Each case is something that may keep the item
from being started at once; the memory store, which has no short way, says what is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.model.commit import Unit
from stepwell.model.queue_item import ClaimItems, Enqueue, PutQueue, PutTier, PutWorkspace, QueueSettings, Tier, Workspace
from stepwell.testing.conformance.samples import HOUR, add, answers, landed, new_item, statuses, write
from stepwell.testing.reference_model.side_by_side import Twins

_LATER_MS = 4 * HOUR * 1000
_WORKSPACES = ("acme", "zeta")


def _of(workspace: str, *, is_paused: bool = False, **limits: Any) -> list[Unit]:
    tier = PutTier(Tier(name=workspace, **limits))
    return [tier, PutWorkspace(Workspace(workspace_id=workspace, tier=workspace, is_paused=is_paused))]


def _request(name: str, workspace: str = "acme", **fields: Any) -> Enqueue:
    return Enqueue((new_item(name, workspace, **fields),))


def _claim(limit: int = 5, **fields: Any) -> ClaimItems:
    return ClaimItems("d", HOUR, limit, **fields)


CASES: dict[str, tuple[Sequence[Unit], Enqueue, ClaimItems]] = {
    "nothing else": ((), _request("a"), _claim()),
    "a room of one": ((), _request("a"), _claim(1)),
    "a priority": ((), _request("a", priority=7, queue="mail"), _claim()),
    "another that waits": ((_request("first"),), _request("a"), _claim(1)),
    "another workspace's that waits": ((_request("first", "zeta"),), _request("a"), _claim(1)),
    "one that has become due": ((_request("first", delay_ms=1),), _request("a"), _claim(1)),
    "one that is not due yet": ((_request("first", delay_ms=_LATER_MS),), _request("a"), _claim()),
    "itself, asked for before": ((_request("a"), _claim()), _request("a"), _claim()),
    "itself, asked for otherwise": ((_request("a"), _claim()), _request("a", body_digest="d2"), _claim()),
    "a workspace that nobody knows": ((), _request("a", "nobody"), _claim()),
    "a workspace that is paused": (_of("acme", is_paused=True), _request("a"), _claim()),
    "a workspace with a free slot": ((*_of("acme", concurrency=2), _request("b"), _claim()), _request("a"), _claim()),
    "a workspace without one": ((*_of("acme", concurrency=1), _request("b"), _claim()), _request("a"), _claim()),
    "a workspace that may start none": (_of("acme", concurrency=0), _request("a"), _claim()),
    "a workspace with a rate": (_of("acme", rate_per_second=0.0001), _request("a"), _claim()),
    "a workspace whose rate is used up": (
        (*_of("acme", rate_per_second=0.0001), _request("b"), _claim()),
        _request("a"),
        _claim(),
    ),
    "a workspace with room for one": (
        (*_of("acme", queue_depth=2), _request("b", delay_ms=_LATER_MS)),
        _request("a"),
        _claim(),
    ),
    "a workspace without room": ((*_of("acme", queue_depth=1), _request("b", delay_ms=_LATER_MS)), _request("a"), _claim()),
    "a workspace that may have none wait": (_of("acme", queue_depth=0), _request("a"), _claim()),
    "a queue that is paused": ([PutQueue(QueueSettings(name="mail", is_paused=True))], _request("a", queue="mail"), _claim()),
    "a queue that is full": (
        (PutQueue(QueueSettings(name="mail", concurrency=1)), _request("b", queue="mail"), _claim()),
        _request("a", queue="mail"),
        _claim(),
    ),
    "a queue with a rate": ([PutQueue(QueueSettings(name="mail", rate_per_second=0.0001))], _request("a", queue="mail"), _claim()),
    "a claim for its queue": ((), _request("a", queue="mail"), _claim(queues=("other", "mail"))),
    "a claim for another queue": ((), _request("a"), _claim(queues=("other",))),
    "a claim for its workflow": ((), _request("a"), _claim(workflows=("orders",))),
    "a claim for another workflow": ((), _request("a"), _claim(workflows=("other",))),
    "a claim for none": ((), _request("a"), _claim(0)),
    "a time to come": ((), _request("a", delay_ms=_LATER_MS), _claim()),
    "a key": ((), _request("a", key="k"), _claim()),
    "a key that was used": ((_request("b", key="k"), _claim()), _request("a", key="k"), _claim()),
    "a name that is taken": ((_request("b", singleton="s"), _claim()), _request("a", singleton="s"), _claim()),
}


def _write_each(twins: Twins, units: Sequence[Unit], *, as_group: bool) -> None:
    outcomes = [twins.right.write([unit])[0] for unit in units]
    groups = [range(len(units))] if as_group else [[place] for place in range(len(units))]
    for group in groups:
        twins.write([units[place] for place in group], [outcomes[place] for place in group])


@pytest.mark.parametrize("case", CASES)
def test_a_request_and_a_claim_come_to_the_same_as_one_after_the_other(store: Store, clock: FakeClock, case: str) -> None:
    before, request, claim = CASES[case]
    twins = Twins(store, clock)
    _write_each(twins, [*_of("acme"), *_of("zeta", weight=2), *before], as_group=False)
    if case == "one that has become due":
        clock.advance(HOUR)
    _write_each(twins, [request, claim], as_group=True)
    twins.compare([], _WORKSPACES, [])


@pytest.mark.parametrize("case", CASES)
def test_piggybacked_claim_takes_only_items_that_a_claim_could_take(store: Store, clock: FakeClock, case: str) -> None:
    before, request, claim = CASES[case]
    twins = Twins(store, clock)
    _write_each(twins, [*_of("acme"), *_of("zeta", weight=2), *before], as_group=False)
    if case == "one that has become due":
        clock.advance(HOUR)
    _, right_outcome = twins.right.write([request, msgspec.structs.replace(claim, limit=100)])
    right = {item.item_id for item in answers(right_outcome)}
    _, outcome = store.write([request, msgspec.structs.replace(claim, is_riding=True)])
    taken = {item.item_id for item in answers(outcome)}
    assert taken <= right
    assert len(taken) <= claim.limit
    if claim.limit > 1 and not any(isinstance(unit, Enqueue) and unit.items[0].item_id == "first" for unit in before):
        assert taken == right
    for item in answers(outcome):
        assert not item.is_alone or not any(lane.ready for lane in store.lanes(item.workspace_id))


def test_a_claim_that_rides_along_leaves_the_turn_to_those_who_have_it(store: Store) -> None:
    for unit in [*_of("acme"), *_of("zeta"), *_of("slow", concurrency=0), _request("stuck", "slow")]:
        landed(write(store, unit))
    riding = _claim(1, is_riding=True)
    for number in range(3):
        _, outcome = store.write([_request(f"a{number}", "acme"), riding])
        assert [item.item_id for item in answers(outcome)] == [f"a{number}"]
    add(store, new_item("first", "zeta"))
    _, outcome = store.write([_request("a3", "acme"), riding])
    assert [item.item_id for item in answers(outcome)] == ["first"]


def test_a_claim_that_rides_along_keeps_the_order_inside_a_workspace(store: Store) -> None:
    for unit in [*_of("acme"), *_of("zeta"), _request("first")]:
        landed(write(store, unit))
    _, outcome = store.write([_request("a"), _claim(1, is_riding=True)])
    assert [item.item_id for item in answers(outcome)] == ["first"]


def test_piggybacked_starts_count_as_turns_of_their_workspaces(store: Store, clock: FakeClock) -> None:
    twins = Twins(store, clock)
    _write_each(twins, [*_of("acme"), *_of("zeta", weight=2)], as_group=False)
    for number in range(6):
        _write_each(twins, [_request(f"idle-{number}", _WORKSPACES[number == 5]), _claim()], as_group=True)
    for number in range(12):
        _write_each(twins, [_request(f"busy-{number}", _WORKSPACES[number % 2])], as_group=False)
    for _ in range(12):
        _write_each(twins, [_claim(1)], as_group=False)
    twins.compare([], _WORKSPACES, [])


def test_a_request_for_nothing_is_answered_with_nothing(store: Store) -> None:
    """A worker makes one before the first comes."""
    assert answers(write(store, Enqueue(()))) == []
    assert statuses(store) == {}
