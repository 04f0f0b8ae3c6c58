"""An enqueue and a claim in one group have the outcomes that they have one after the other.

A store may write such a group by its fast path. Each case is something that may keep the item from being claimed at once. The
reference model says what is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
def test_enqueue_and_claim_in_one_group_have_the_outcomes_of_two(store: Store, clock: FakeClock, case: str) -> None:
    before, request, claim = CASES[case]
    twins = Twins(store, clock)
    _write_each(twins, [*_of("acme"), *_of("zeta", weight=2), *before], as_group=False)
    if case == "one that has become due":
        clock.advance(HOUR)
    _write_each(twins, [request, claim], as_group=True)
    twins.compare([], _WORKSPACES, [])


def test_claim_after_an_enqueue_takes_from_the_workspace_that_had_less(store: Store) -> None:
    for unit in [*_of("acme"), *_of("zeta"), *_of("slow", concurrency=0), _request("stuck", "slow")]:
        landed(write(store, unit))
    claim = _claim(1)
    for number in range(3):
        _, outcome = store.write([_request(f"a{number}", "acme"), claim])
        assert [item.item_id for item in answers(outcome)] == [f"a{number}"]
    add(store, new_item("first", "zeta"))
    _, outcome = store.write([_request("a3", "acme"), claim])
    assert [item.item_id for item in answers(outcome)] == ["first"]


def test_claim_after_an_enqueue_keeps_the_order_inside_a_workspace(store: Store) -> None:
    for unit in [*_of("acme"), *_of("zeta"), _request("first")]:
        landed(write(store, unit))
    _, outcome = store.write([_request("a"), _claim(1)])
    assert [item.item_id for item in answers(outcome)] == ["first"]


def test_items_claimed_with_their_enqueue_count_for_fairness(store: Store, clock: FakeClock) -> None:
    twins = Twins(store, clock)
    _write_each(twins, [*_of("acme"), *_of("zeta", weight=2)], as_group=False)
    for number in range(6):
        _write_each(twins, [_request(f"idle-{number}", _WORKSPACES[number == 5]), _claim()], as_group=True)
    for number in range(12):
        _write_each(twins, [_request(f"busy-{number}", _WORKSPACES[number % 2])], as_group=False)
    for _ in range(12):
        _write_each(twins, [_claim(1)], as_group=False)
    twins.compare([], _WORKSPACES, [])


def test_enqueue_of_no_items_has_no_answers(store: Store) -> None:
    assert answers(write(store, Enqueue(()))) == []
    assert statuses(store) == {}
