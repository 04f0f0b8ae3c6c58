"""Depth: how many items of a workspace may wait, and which items of a group are admitted.

Starts that are given back to a rate: an item that is returned unstarted has used up nothing.

A tier's ``state_bytes``: how much scoped state a workspace may hold, over all its scopes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec import Raw

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import LeaseLost, LimitExceeded
from stepwell.model.commit import StateBatch, Written
from stepwell.model.queue_item import (
    CancelItem,
    Claimed,
    ClaimItems,
    Enqueue,
    Enqueued,
    PutQueue,
    PutTier,
    PutWorkspace,
    QueueSettings,
    Redrive,
    ReturnItem,
    Tier,
    Workspace,
)
from stepwell.model.scope import Scope, internal_path
from stepwell.model.scoped_operations import Clear, Copy, Delete, Put, StateOp
from stepwell.model.value import canonical
from stepwell.testing.conformance.fixtures import OpenStore
from stepwell.testing.conformance.samples import (
    HOUR,
    SampleExecution,
    add,
    added,
    answers,
    claim_items,
    end,
    give_back,
    ids_of,
    landed,
    new_item,
    put_workspace,
    refused,
    statuses,
    write,
)


def test_full_workspace_is_refused_until_something_has_started(store: Store) -> None:
    put_workspace(store, "acme", queue_depth=3)
    add(store, new_item("other"), new_item("a", "acme"), new_item("b", "acme", delay_ms=HOUR * 1000))
    third, fourth, other = added(store, new_item("c", "acme"), new_item("d", "acme"), new_item("more"))
    assert (third.is_new, other.is_new) == (True, True)
    assert refused(fourth, LimitExceeded).limit == "queue_depth"
    refused(added(store, new_item("d", "acme"))[0], LimitExceeded)
    assert store.item("d") is None
    claim_items(store, 2)
    add(store, new_item("e", "acme"))
    refused(added(store, new_item("f", "acme"))[0], LimitExceeded)


@pytest.mark.parametrize("how", ["returned", "driven again"])
def test_item_that_waits_again_takes_up_room_for_those_behind_it_in_a_group(store: Store, how: str) -> None:
    put_workspace(store, "acme", queue_depth=1)
    add(store, new_item("a", "acme"))
    [claimed] = claim_items(store)
    unit = ReturnItem("a", claimed.fence)
    if how == "driven again":
        end(store, claimed, status="FAILED")
        unit = Redrive("a", "again")
    outcome, second = store.write([unit, Enqueue((new_item("b", "acme"),))])
    landed(outcome)
    refused(answers(second)[0], LimitExceeded)
    assert list(statuses(store)) == ["a"]


@pytest.mark.parametrize("delay_ms", [0, HOUR * 1000])
def test_workspace_that_has_more_waiting_than_it_may_stays_full_when_one_of_them_goes(store: Store, delay_ms: int) -> None:
    put_workspace(store, "acme", queue_depth=1)
    add(store, new_item("a", "acme"))
    [claimed] = claim_items(store)
    add(store, new_item("b", "acme"))
    landed(write(store, ReturnItem("a", claimed.fence, delay_ms=delay_ms)))
    outcome, second = store.write([CancelItem("b"), Enqueue((new_item("c", "acme"),))])
    landed(outcome)
    refused(answers(second)[0], LimitExceeded)
    outcome, third = store.write([CancelItem("a"), Enqueue((new_item("c", "acme"),))])
    landed(outcome)
    assert answers(third)[0].is_new


def test_depth_is_changed_at_once(store: Store) -> None:
    put_workspace(store, "acme", queue_depth=0)
    refused(added(store, new_item("a", "acme"))[0], LimitExceeded)
    put_workspace(store, "acme", queue_depth=1)
    add(store, new_item("a", "acme"))
    put_workspace(store, "acme", queue_depth=None)
    add(store, new_item("b", "acme"))


def test_full_workspace_still_answers_for_what_is_there(store: Store) -> None:
    put_workspace(store, "acme", queue_depth=1)
    asked = new_item("a", "acme", key="k", debounce="d")
    add(store, asked)
    for again in (asked, new_item("b", "acme", key="k"), new_item("c", "acme", debounce="d")):
        assert added(store, again) == [Enqueued("a", "of-a", "QUEUED", False)]


LIMITED = pytest.mark.parametrize("whose", ["workspace", "queue", "workspace and queue"])


def limit_starts(store: Store, whose: str, rate: float | None = 1 / HOUR) -> None:
    """Give workspace ``acme``, queue ``mail`` or both a rate, and the other none."""
    put_workspace(store, "acme", rate_per_second=rate if "workspace" in whose else None)
    if "queue" in whose:
        landed(write(store, PutQueue(QueueSettings(name="mail", rate_per_second=rate))))


def add_mail(store: Store, *names: str) -> None:
    """Add items that a rate limits."""
    add(store, *(new_item(name, "acme", queue="mail") for name in names))


@LIMITED
@pytest.mark.parametrize("ending", [{"delay_ms": 3 * HOUR * 1000}, {"is_final": True}], ids=["to wait", "for good"])
def test_item_returned_without_an_error_leaves_room_for_another_start(store: Store, whose: str, ending: dict[str, Any]) -> None:
    limit_starts(store, whose)
    add_mail(store, "a", "b", "c")
    [first] = claim_items(store)
    give_back(store, first, **ending)
    assert [ids_of(claim_items(store)) for _ in range(2)] == [["b"], []]


@LIMITED
@pytest.mark.parametrize("is_final", [False, True])
def test_item_returned_with_an_error_has_started(store: Store, whose: str, is_final: bool) -> None:
    limit_starts(store, whose)
    add_mail(store, "a", "b")
    [first] = claim_items(store)
    give_back(store, first, "broken", is_final=is_final)
    assert claim_items(store) == []


@LIMITED
def test_all_starts_of_a_claim_can_be_given_back_and_no_more(store: Store, clock: FakeClock, whose: str) -> None:
    """Each less the moment that it was held, which is less than an interval for all of them here."""
    limit_starts(store, whose, 3)
    add_mail(store, *"abcdef")
    for first in claim_items(store):
        give_back(store, first)
        refused(write(store, ReturnItem(first.item_id, first.fence)), LeaseLost)
    clock.advance(0.2)
    assert ids_of(claim_items(store)) == ["a", "b", "c"]


@LIMITED
def test_start_that_is_given_back_serves_the_claim_behind_it(store: Store, whose: str) -> None:
    limit_starts(store, whose)
    add_mail(store, "a", "b")
    [first] = claim_items(store)
    claim = ClaimItems("d", HOUR, 5)
    none, _, some, last = store.write([claim, ReturnItem("a", first.fence, delay_ms=HOUR * 1000), claim, claim])
    assert [ids_of(answers(outcome)) for outcome in (none, some, last)] == [[], ["b"], []]


@LIMITED
def test_start_is_given_back_only_while_it_counts(store: Store, clock: FakeClock, whose: str) -> None:
    """Later it would be taken from others, who have started when their time had come."""
    limit_starts(store, whose)
    add_mail(store, "a", "b", "c")
    [first] = claim_items(store, seconds=9 * HOUR)
    clock.advance(1.1 * HOUR)
    assert ids_of(claim_items(store)) == ["b"]
    give_back(store, first)
    assert claim_items(store) == []
    clock.advance(1.1 * HOUR)
    assert ids_of(claim_items(store)) == ["a"]


@LIMITED
@pytest.mark.parametrize("rate", [None, 0])
def test_no_start_is_given_back_to_a_rate_that_is_gone(store: Store, whose: str, rate: float | None) -> None:
    limit_starts(store, whose)
    add_mail(store, *"abcd")
    [first] = claim_items(store)
    limit_starts(store, whose, rate)
    assert give_back(store, first).attempts == 0
    assert len(claim_items(store, 3)) == (3 if rate is None else 0)
    limit_starts(store, whose)
    assert claim_items(store) == []


@pytest.mark.parametrize("whose", ["workspace", "queue"])
def test_start_is_given_back_to_its_own_rate_alone(store: Store, whose: str) -> None:
    """Beside another that has used up its rate, and whose next start is later."""
    items: list[Claimed] = []
    for name, rate, count in (("aaa", 10, 20), ("bbb", 1, 1), ("ccc", 10, 20)):
        workspace, queue = (name, "default") if whose == "workspace" else ("default", name)
        if whose == "workspace":
            put_workspace(store, name, rate_per_second=rate)
        else:
            landed(write(store, PutQueue(QueueSettings(name=name, rate_per_second=rate))))
        add(store, *(new_item(f"{name}-{number}", workspace, queue=queue) for number in range(count)))
        items += claim_items(store, 100, queues=(queue,))
    [returned] = [item for item in items if item.item_id == "bbb-0"]
    give_back(store, returned)
    assert "bbb-0" in ids_of(claim_items(store, 100))


MOST = 100
OWN = Scope.of_workspace("acme").path
TALK = internal_path("conversation_record", "acme", "c/1")
FOREIGN = Scope.of_workspace("acme2").path


def put(key: str, size: int, scope: str = OWN, ttl_ms: int | None = None) -> Put:
    """Set a key so that key and value are so many bytes together."""
    return Put(scope, key, Raw(canonical("x" * (size - len(key) - 2))), ttl_ms)


def limit(store: Store, state_bytes: int | None, workspace: str = "acme") -> None:
    """Put a workspace into a tier of its own with this limit."""
    landed(write(store, PutTier(Tier(name=f"of-{workspace}", state_bytes=state_bytes))))
    landed(write(store, PutWorkspace(Workspace(workspace_id=workspace, tier=f"of-{workspace}"))))


def accept(store: Store, *ops: StateOp) -> None:
    landed(write(store, StateBatch(ops)))


def refuse(store: Store, *ops: StateOp) -> LimitExceeded:
    return refused(write(store, StateBatch(ops)), LimitExceeded)


def held(store: Store) -> int:
    return sum(store.totals(path).bytes for path in store.scopes("acme"))


def test_workspace_holds_no_more_state_than_its_tier_allows(store: Store) -> None:
    """All its scopes count together, and what is over the limit is refused before anything is written."""
    limit(store, MOST)
    accept(store, put("a", 60), put("b", 40, TALK))
    refusal = refuse(store, put("c", 4))
    assert (refusal.limit, refusal.maximum, refusal.actual) == ("state_bytes", MOST, MOST + 4)
    refuse(store, put("c", 4, Scope.custom("new", "acme").path))
    refuse(store, put("a", 61), put("x", 10, FOREIGN))
    assert held(store) == MOST
    assert (store.entries(OWN, ["c"]), store.entries(FOREIGN, ["x"])) == ({}, {})
    accept(store, put("x", 1_000, FOREIGN))


def test_state_of_before_the_limit_counts(store: Store) -> None:
    accept(store, put("a", 60), put("b", 30, TALK))
    limit(store, MOST)
    refuse(store, put("c", 11))
    accept(store, put("c", 10))


def test_limit_of_state_is_effective_at_once(store: Store) -> None:
    limit(store, MOST)
    accept(store, put("a", 90))
    refuse(store, put("b", 20))
    limit(store, 110)
    accept(store, put("b", 20))
    limit(store, None)
    accept(store, put("c", 500, TALK), Delete(OWN, "b"))
    limit(store, 600)
    accept(store, put("b", 10))
    refuse(store, put("b", 11))
    landed(write(store, PutWorkspace(Workspace(workspace_id="acme", tier="unlimited"))))
    accept(store, put("b", 1_000))
    landed(write(store, PutWorkspace(Workspace(workspace_id="acme", tier="of-acme"))))
    refuse(store, put("a", 91))


def test_workspace_that_is_over_its_limit_can_be_tidied_up(store: Store) -> None:
    accept(store, put("a", 150), put("b", 50, TALK))
    limit(store, MOST)
    accept(store, put("a", 140))
    accept(store, Copy(OWN, "a", TALK, "z", move=True))
    refuse(store, put("a", 5))
    accept(store, Delete(TALK, "z"))
    accept(store, put("a", 50))
    refuse(store, put("a", 51))
    accept(store, Clear(TALK), put("a", 100))
    assert held(store) == MOST


def test_expired_state_makes_room(store: Store, clock: FakeClock) -> None:
    limit(store, MOST)
    accept(store, put("a", 80, ttl_ms=1_000))
    refuse(store, put("b", 30))
    clock.advance(HOUR)
    accept(store, put("b", 30))
    refuse(store, put("a", 71))
    assert held(store) == 30


def test_own_writes_of_stepwell_count_and_are_never_refused(store: Store) -> None:
    limit(store, MOST)
    accept(store, put("a", 90, internal_path("inbox", "acme", "run")), put("b", 90, internal_path("schedule", "acme")))
    refuse(store, put("c", 5))


def test_commit_over_the_limit_of_state_does_not_land(store: Store, execution: SampleExecution) -> None:
    limit(store, MOST)
    refused(write(store, execution.commit(ops=(put("a", 101),))), LimitExceeded)
    landed(write(store, execution.commit(ops=(put("a", 100),))))
    assert held(store) == MOST


def test_units_of_one_group_share_the_room(store: Store) -> None:
    limit(store, MOST)
    batches = [StateBatch((put("a", 60),)), StateBatch((put("b", 60, TALK),)), StateBatch((put("c", 40, TALK),))]
    first, second, third = store.write(batches)
    landed(first)
    refused(second, LimitExceeded)
    landed(third)
    assert held(store) == MOST


@pytest.mark.parametrize("workspace", ["a%", "ж/1", "a b"])
def test_limit_of_state_holds_whatever_the_workspace_is_called(store: Store, workspace: str) -> None:
    limit(store, MOST, workspace)
    refuse(store, put("a", 101, Scope.of_workspace(workspace).path))
    accept(store, put("a", 100, Scope.of_workspace(workspace).path))


def test_processes_share_the_room(store: Store, other_store: Store) -> None:
    limit(store, MOST)
    accept(store, put("a", 60))
    refuse(other_store, put("b", 41, TALK))
    accept(other_store, put("b", 40, TALK))
    refuse(store, put("a", 61))
    limit(other_store, MOST + 1)
    accept(store, put("a", 61))


def test_writers_at_once_never_take_more_than_there_is(store: Store, open_store: OpenStore) -> None:
    """Each in a scope of its own, so that nothing but the workspace's room keeps them apart."""
    limit(store, 20 * MOST)
    stores = [store] if not store.capabilities().is_shared else [store, open_store(), open_store(), open_store()]

    def fill(writer: int) -> None:
        for number in range(20):
            outcome = write(stores[writer], StateBatch((put(f"{number:02}", MOST, Scope.custom(str(writer), "acme").path),)))
            assert isinstance(outcome, Written | LimitExceeded)

    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(fill, range(len(stores))))
    assert held(store) == 20 * MOST
