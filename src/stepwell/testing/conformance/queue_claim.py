"""Claims: only what has capacity, fair between workspaces, first in first out inside one, and no item to two claimers."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.model.commit import Unit
from stepwell.model.queue_item import (
    ClaimItems,
    ItemMark,
    PutQueue,
    PutTier,
    PutWorkspace,
    QueueSettings,
    RecoverItems,
    Tier,
    Workspace,
)
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.testing.conformance.concurrency import write_together
from stepwell.testing.conformance.samples import (
    HOUR,
    add,
    answers,
    claim_items,
    end,
    fresh_id,
    ids_of,
    landed,
    new_item,
    put_workspace,
    stored,
    used,
    write,
    written_at,
)

CLAIMERS = 16


def put_queue(store: Store, name: str = "mail", **fields: Any) -> None:
    """Set up a named queue."""
    landed(write(store, PutQueue(QueueSettings(name=name, **fields))))


def test_claimed_item_says_all_that_its_start_takes(store: Store) -> None:
    add(store, new_item("a", queue="mail", input=b"[1]"))
    earliest = store.now_ms()
    [claimed] = claim_items(store, holder="me", seconds=2 * HOUR)
    item = stored(store, "a")
    assert earliest <= claimed.until_ms - 2 * HOUR * 1000 <= store.now_ms()
    assert (claimed.item_id, claimed.workspace_id, claimed.workflow_id, claimed.version) == ("a", "default", "orders", 3)
    assert (claimed.execution_id, claimed.input, claimed.queue) == ("of-a", b"[1]", "mail")
    assert (claimed.attempts, claimed.enqueued_ms) == (1, item.enqueued_ms)
    assert (item.status, item.holder, item.fence, item.lease_until_ms) == ("CLAIMED", "me", claimed.fence, claimed.until_ms)
    assert (item.attempts, item.claimed_ms) == (1, claimed.until_ms - 2 * HOUR * 1000)
    assert claim_items(store) == []


def test_claim_takes_no_more_than_asked(store: Store) -> None:
    names = add(store, *(f"i{number}" for number in range(7)))
    assert claim_items(store, 0) == []
    assert [ids_of(claim_items(store, limit)) for limit in (1, 3, 10)] == [names[:1], names[1:4], names[4:]]


@pytest.mark.parametrize("limits", [{"is_paused": True}, {"concurrency": 0}, {"rate_per_second": 0}])
def test_items_of_a_shut_queue_take_nobodys_turn(store: Store, limits: dict[str, Any]) -> None:
    """T36: claims of one item at a time must not come back empty for ever because the first workspaces can start nothing."""
    put_queue(store, "shut", **limits)
    for workspace in ("a", "b", "c"):
        put_workspace(store, workspace)
    add(store, *(new_item(f"{workspace}1", workspace, queue="shut") for workspace in ("a", "b")), new_item("c1", "c", queue="mail"))
    assert ids_of(claim_items(store, 1)) == ["c1"]


def test_of_workspaces_that_are_even_the_one_whose_item_came_first_is_first(store: Store) -> None:
    for workspace in ("a", "b", "c"):
        put_workspace(store, workspace)
    add(store, new_item("c1", "c"), new_item("a1", "a"), new_item("b1", "b"))
    assert [ids_of(claim_items(store, 1)) for _ in range(3)] == [["c1"], ["a1"], ["b1"]]


def test_higher_priority_comes_first_then_first_in_first_out(store: Store) -> None:
    for number, priority in enumerate([0, 5, -1, 5, 0, 10, -1]):
        add(store, new_item(f"i{number}", priority=priority))
    assert ids_of(claim_items(store, 3)) == ["i5", "i1", "i3"]
    assert ids_of(claim_items(store)) == ["i0", "i4", "i2", "i6"]


def test_priority_is_kept_across_queues_and_workflows_of_a_workspace(store: Store) -> None:
    for number in range(24):
        add(store, new_item(f"i{number:02}", queue=f"q{number % 2}", workflow_id=f"w{number % 3}", priority=number % 4))
    expected = sorted(range(24), key=lambda number: (-(number % 4), number))
    taken = [name for limit in (1, 2, 5, 16) for name in ids_of(claim_items(store, limit))]
    assert taken == [f"i{number:02}" for number in expected]


def test_claimer_gets_only_its_queues_and_workflows_past_all_others(store: Store) -> None:
    others = [new_item(queue="Mail", priority=9) for _ in range(20)] + [
        new_item(workflow_id="order", priority=9) for _ in range(20)
    ]
    add(
        store, *others, new_item("mine", queue="mail", workflow_id="orders%"), new_item("also", queue="bulk", workflow_id="refunds")
    )
    assert claim_items(store, queues=("nothing",)) == claim_items(store, workflows=("order%",)) == []
    assert ids_of(claim_items(store, queues=("mail", "bulk"), workflows=("orders%", "orders"))) == ["mine"]
    assert ids_of(claim_items(store, workflows=("refunds", "nothing"))) == ["also"]
    assert len(claim_items(store, 100)) == 40


# Capacity.


def test_workspace_never_has_more_than_its_slots(store: Store) -> None:
    """T34, I7."""
    put_workspace(store, "acme", concurrency=3)
    add(store, *(new_item(f"i{number}", "acme") for number in range(9)))
    first = claim_items(store)
    assert (ids_of(first), claim_items(store)) == (["i0", "i1", "i2"], [])
    landed(write(store, ItemMark("i0", "DISPATCHED", first[0].fence)))
    assert claim_items(store) == []
    end(store, first[1])
    assert ids_of(claim_items(store)) == ["i3"]
    end(store, first[0], first[2], status="FAILED")
    assert ids_of(claim_items(store, 1)) == ["i4"]
    assert ids_of(claim_items(store)) == ["i5"]
    assert used(store, "acme") == 3


def test_limits_of_a_tier_are_effective_at_once(store: Store) -> None:
    put_workspace(store, "acme", concurrency=0)
    add(store, *(new_item(f"i{number}", "acme") for number in range(9)))
    assert claim_items(store) == []
    put_workspace(store, "acme", concurrency=4)
    first = claim_items(store)
    put_workspace(store, "acme", concurrency=2)
    end(store, *first[:2])
    assert claim_items(store) == []
    end(store, first[2])
    assert ids_of(claim_items(store)) == ["i4"]
    put_workspace(store, "acme", concurrency=None)
    assert len(claim_items(store)) == 4


def test_paused_workspace_gives_nothing_until_it_goes_on(store: Store) -> None:
    put_workspace(store, "acme", is_paused=True)
    add(store, new_item("a", "acme"), "other")
    assert ids_of(claim_items(store)) == ["other"]
    put_workspace(store, "acme")
    assert ids_of(claim_items(store)) == ["a"]


def test_paused_queue_gives_nothing_and_stands_in_nobodys_way(store: Store) -> None:
    put_queue(store, is_paused=True)
    add(store, new_item("mail", queue="mail", priority=9), "other")
    assert ids_of(claim_items(store, 1)) == ["other"]
    put_queue(store)
    assert ids_of(claim_items(store)) == ["mail"]


def test_queue_has_slots_of_its_own_over_all_workspaces(store: Store) -> None:
    put_queue(store, concurrency=2)
    for workspace in ("a", "b", "c"):
        put_workspace(store, workspace)
        add(store, new_item(f"{workspace}-mail", workspace, queue="mail", priority=9), new_item(f"{workspace}-bulk", workspace))
    first = claim_items(store)
    assert Counter(claimed.queue for claimed in first) == {"mail": 2, "default": 3}
    assert claim_items(store) == []
    running, ending = (claimed for claimed in first if claimed.queue == "mail")
    landed(write(store, ItemMark(running.item_id, "DISPATCHED", running.fence)))
    assert claim_items(store) == []
    end(store, ending)
    assert ids_of(claim_items(store)) == ["c-mail"]


def test_who_waits_for_a_queue_that_becomes_full_in_a_claim_takes_nobodys_turn(store: Store) -> None:
    """T36: the claim is filled up with what others have, though they come later."""
    for name in ("first", "second"):
        put_queue(store, name, concurrency=1)
    plan = {"a": "first", "b": "first", "c": "first", "d": "second", "e": "second", "f": "second", "g": "default", "h": "default"}
    for workspace, queue in plan.items():
        put_workspace(store, workspace)
        add(store, new_item(f"{workspace}1", workspace, queue=queue))
    assert ids_of(claim_items(store, 3)) == ["a1", "d1", "g1"]
    assert ids_of(claim_items(store, 3)) == ["h1"]


def test_order_is_kept_when_a_queue_becomes_full_in_the_middle_of_a_claim(store: Store) -> None:
    """A workspace whose next item stood in that queue has another one then, which may be before those of others."""
    put_queue(store, "narrow", concurrency=3)
    for workspace in "ac":
        put_workspace(store, workspace, weight=2.0, concurrency=None)
    plan = [
        *(("c1", "c", "wide", 0), ("a1", "a", "narrow", 0), ("c2", "c", "wide", -1), ("a2", "a", "wide", 0)),
        *(("a0", "a", "narrow", 1), ("c0", "c", "narrow", 1), ("c3", "c", "narrow", 0)),
    ]
    for name, workspace, queue, priority in plan:
        add(store, new_item(name, workspace, queue=queue, priority=priority))
    assert ids_of(claim_items(store, 5)) == ["a0", "c0", "c1", "a1", "c2"]


def test_rate_of_a_tier_holds(store: Store, clock: FakeClock) -> None:
    put_workspace(store, "acme", rate_per_second=3)
    add(store, *(new_item(workspace="acme") for _ in range(12)), "other")
    assert Counter(claimed.workspace_id for claimed in claim_items(store, 100)) == {"acme": 3, "default": 1}
    clock.advance(HOUR)
    assert len(claim_items(store, 100)) == 3
    put_workspace(store, "acme", rate_per_second=0)
    clock.advance(HOUR)
    assert claim_items(store) == []
    put_workspace(store, "acme", rate_per_second=None)
    assert len(claim_items(store)) == 6


def test_rate_below_one_lets_single_items_through(store: Store, clock: FakeClock) -> None:
    put_workspace(store, "acme", rate_per_second=1 / HOUR)
    add(store, *(new_item(workspace="acme") for _ in range(5)))
    assert [len(claim_items(store)) for _ in range(2)] == [1, 0]
    clock.advance(0.8 * HOUR)
    assert claim_items(store) == []
    clock.advance(0.3 * HOUR)
    assert [len(claim_items(store)) for _ in range(2)] == [1, 0]


def test_rate_of_a_queue_holds_over_all_workspaces(store: Store, clock: FakeClock) -> None:
    put_queue(store, rate_per_second=2)
    put_workspace(store, "acme")
    add(store, *(new_item(workspace=workspace, queue="mail") for workspace in ("acme", "default") for _ in range(4)))
    assert Counter(claimed.workspace_id for claimed in claim_items(store)) == {"acme": 1, "default": 1}
    clock.advance(HOUR)
    assert len(claim_items(store)) == 2


RAISES: dict[str, list[Unit]] = {
    "of the tier": [PutTier(Tier(name="acme", rate_per_second=1 / HOUR))],
    "by another tier": [
        PutTier(Tier(name="faster", rate_per_second=1 / HOUR)),
        PutWorkspace(Workspace(workspace_id="acme", tier="faster")),
    ],
    "of the queue": [PutQueue(QueueSettings(name="mail", rate_per_second=1 / HOUR))],
}


@pytest.mark.parametrize("which", RAISES)
def test_raised_rate_holds_at_once_for_those_who_started_by_the_old_one(store: Store, clock: FakeClock, which: str) -> None:
    slow = 0.001 / HOUR
    put_workspace(store, "acme", rate_per_second=None if which == "of the queue" else slow)
    put_queue(store, rate_per_second=slow if which == "of the queue" else None)
    add(store, *(new_item(workspace="acme", queue="mail") for _ in range(5)))
    assert [len(claim_items(store)) for _ in range(2)] == [1, 0]
    for unit in RAISES[which]:
        landed(write(store, unit))
    assert claim_items(store) == []
    clock.advance(0.8 * HOUR)
    assert claim_items(store) == []
    clock.advance(0.3 * HOUR)
    assert [len(claim_items(store)) for _ in range(2)] == [1, 0]


def test_rate_that_is_put_again_gives_nobody_more(store: Store, clock: FakeClock) -> None:
    put_workspace(store, "acme", rate_per_second=1 / HOUR)
    add(store, *(new_item(workspace="acme") for _ in range(5)))
    assert len(claim_items(store)) == 1
    clock.advance(0.8 * HOUR)
    put_workspace(store, "acme", rate_per_second=1 / HOUR)
    assert claim_items(store) == []
    clock.advance(0.3 * HOUR)
    put_workspace(store, "acme", rate_per_second=1 / HOUR)
    assert [len(claim_items(store)) for _ in range(2)] == [1, 0]


# Fairness.


def test_noisy_workspace_never_delays_a_quiet_one(store: Store) -> None:
    """T36: in small."""
    put_workspace(store, "noisy", concurrency=5)
    put_workspace(store, "loud")
    add(store, *(new_item(workspace=workspace, priority=100) for workspace in ("noisy", "loud") for _ in range(500)))
    claim_items(store, 5)
    for number in range(10):
        put_workspace(store, f"quiet-{number}")
        add(store, new_item(workspace=f"quiet-{number}"))
    assert {claimed.workspace_id for claimed in claim_items(store, 20)} >= {f"quiet-{number}" for number in range(10)}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    weights=st.lists(st.sampled_from([0.5, 1, 2, 3, 5, 10]), min_size=2, max_size=5),
    limits=st.lists(st.integers(1, 15), min_size=1, max_size=6),
)
def test_shares_follow_the_weights_within_one_item(store: Store, weights: list[float], limits: list[int]) -> None:
    """E3: at every moment, of any two workspaces with something waiting, neither is ahead of its share by more than one."""
    names = [fresh_id("w") for _ in weights]
    queue = fresh_id("q")
    for name, weight in zip(names, weights, strict=True):
        put_workspace(store, name, weight=weight)
        add(store, *(new_item(workspace=name, queue=queue) for _ in range(sum(limits))))
    got: Counter[str] = Counter()
    for limit in limits:
        for claimed in claim_items(store, limit, queues=(queue,)):
            got[claimed.workspace_id] += 1
            shares = [(got[name], weight) for name, weight in zip(names, weights, strict=True)]
            # In tags: the next item of one is never behind the last item that another was given.
            assert max((count - 1) / weight for count, weight in shares) <= min(count / weight for count, weight in shares) + 1e-6


def test_workspace_that_had_nothing_does_not_save_up_its_turns(store: Store) -> None:
    put_workspace(store, "busy")
    put_workspace(store, "late")
    add(store, *(new_item(workspace="busy") for _ in range(60)))
    assert len(claim_items(store, 40)) == 40
    add(store, *(new_item(workspace="late") for _ in range(60)))
    taken = Counter(claimed.workspace_id for claimed in claim_items(store, 20))
    assert abs(taken["late"] - taken["busy"]) <= 1


def test_full_workspace_does_not_save_up_its_turns(store: Store) -> None:
    put_workspace(store, "full", concurrency=1)
    put_workspace(store, "busy")
    add(store, *(new_item(workspace=name) for name in ("full", "busy") for _ in range(60)))
    claim_items(store, 40)
    put_workspace(store, "full", concurrency=None)
    taken = Counter(claimed.workspace_id for claimed in claim_items(store, 20))
    assert abs(taken["full"] - taken["busy"]) <= 2


# Many claimers.


def test_every_item_goes_to_exactly_one_of_many_claimers(store: Store, committer: GroupCommit) -> None:
    """T27."""
    for workspace in ("a", "b", "c"):
        put_workspace(store, workspace)
    names = add(store, *(new_item(workspace=workspace) for _ in range(40) for workspace in ("a", "b", "c")))
    units = [ClaimItems(f"claimer-{number}", HOUR, 6) for number in range(32)]
    taken = [claimed for outcome in write_together(committer, units) for claimed in answers(outcome)]
    assert sorted(ids_of(taken)) == sorted(names)


@pytest.mark.parametrize("cap", [1, 7])
def test_cap_holds_at_every_instant_with_many_claimers(store: Store, committer: GroupCommit, cap: int) -> None:
    """T34: the greatest concurrency in the event log is the cap."""
    put_workspace(store, "acme", concurrency=cap)
    items = 60
    add(store, *(new_item(workspace="acme") for _ in range(items)))
    log, left = list[int](), threading.Semaphore(items)
    first, together = threading.Semaphore(cap), threading.Barrier(cap, timeout=60)

    def work(number: int) -> None:
        while left.acquire(blocking=False):
            while not (taken := answers(committer.write(ClaimItems(f"claimer-{number}", HOUR, 1)))):
                pass
            log.append(1)
            if first.acquire(blocking=False):
                together.wait()  # all slots are used now, and all other claimers are asking
            assert used(store, "acme") <= cap
            log.append(-1)
            landed(committer.write(ItemMark(taken[0].item_id, "COMPLETED", taken[0].fence)))

    with ThreadPoolExecutor(CLAIMERS) as pool:
        for done in [pool.submit(work, number) for number in range(CLAIMERS)]:
            done.result(timeout=60)
    running = [sum(log[: index + 1]) for index in range(len(log))]
    assert max(running) == cap
    assert (len(log), used(store, "acme")) == (2 * items, 0)


def test_caps_hold_across_stores(store: Store, other_store: Store) -> None:
    """T34: two processes on one place."""
    put_workspace(store, "acme", concurrency=3)
    add(store, *(new_item(f"i{number}", "acme") for number in range(9)))
    first = claim_items(store, 2, holder="a")
    second = claim_items(other_store, 10, holder="b")
    assert ids_of(first + second) == ["i0", "i1", "i2"]
    assert claim_items(store) == claim_items(other_store) == []
    end(other_store, *first)
    assert ids_of(claim_items(store)) == ["i3", "i4"]


def test_unit_of_a_group_sees_what_the_units_before_it_did(store: Store) -> None:
    put_workspace(store, "acme", concurrency=1)
    add(store, new_item("a", "acme"), new_item("b", "acme"))
    claims = [ClaimItems("d", HOUR, 5) for _ in range(3)]
    paused = PutWorkspace(Workspace(workspace_id="acme", tier="acme", is_paused=True))
    first, second, _, third, _, fourth = store.write([*claims[:2], ItemMark("a", "COMPLETED"), claims[2], paused, claims[2]])
    assert [ids_of(answers(outcome)) for outcome in (first, second, third, fourth)] == [["a"], [], ["b"], []]


# The end of a claim, and the start of a delayed item, to the millisecond.


@pytest.mark.parametrize("offset_ms", [-1, 0, 1])
def test_claim_that_was_not_used_is_recovered_from_its_end_on(store: Store, clock: FakeClock, offset_ms: int) -> None:
    items: list[str] = []

    def prepare() -> tuple[int, Unit]:
        items.append(fresh_id("item"))
        add(store, new_item(items[-1], queue=items[-1]))
        claim_items(store, queues=(items[-1],))
        return stored(store, items[-1]).lease_until_ms or 0, RecoverItems(1_000)

    ids = answers(written_at(store, clock, offset_ms, prepare))
    assert (items[-1] in ids) == (offset_ms >= 0)


@pytest.mark.parametrize("offset_ms", [-1, 0, 1])
def test_delayed_item_is_claimed_from_its_time_on(store: Store, clock: FakeClock, offset_ms: int) -> None:
    items: list[str] = []

    def prepare() -> tuple[int, Unit]:
        items.append(fresh_id("item"))
        moment = store.now_ms() + 1_000
        add(store, new_item(items[-1], run_at_ms=moment))
        return moment, ClaimItems("d", HOUR, 1_000)

    taken = ids_of(answers(written_at(store, clock, offset_ms, prepare)))
    assert (items[-1] in taken) == (offset_ms >= 0)
