"""Leases of executions: one holder at a time, whose fence, compared inside the commit, excludes all other writers."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import LeaseLost, LockHeld, NotFound
from stepwell.model.commit import Acquire, Claim, Deletion, Extension, Lease, Release, Rest, StateBatch, Written
from stepwell.testing.conformance.samples import (
    HOUR,
    SampleExecution,
    answers,
    claim,
    content,
    everything,
    landed,
    put,
    refused,
    variable,
    walk,
    write,
)


def test_free_execution_is_leased_to_whoever_claims_it(store: Store, execution: SampleExecution) -> None:
    lease = claim(store, execution.id, holder="a")
    head = execution.head
    assert (lease.name, lease.holder) == (execution.id, "a")
    assert (head.holder, head.fence, head.lease_until_ms) == ("a", lease.fence, lease.until_ms)
    assert lease.fence > 0


@pytest.mark.parametrize("seconds", [0.5, 30, 86_400])
def test_lease_lasts_as_long_as_was_asked_by_the_clock_of_the_store(
    store: Store, execution: SampleExecution, seconds: float
) -> None:
    earliest = store.now_ms()
    lease = claim(store, execution.id, seconds=seconds)
    assert earliest <= lease.until_ms - seconds * 1000 <= store.now_ms()


def test_clock_of_the_store_moves_with_the_clock_of_the_test(store: Store, clock: FakeClock) -> None:
    before = store.now_ms()
    clock.advance(HOUR)
    assert HOUR * 1000 <= store.now_ms() - before < (HOUR + 600) * 1000


def test_leased_execution_cannot_be_claimed_by_another(store: Store, execution: SampleExecution, clock: FakeClock) -> None:
    lease = claim(store, execution.id, holder="a")
    clock.advance(0.5 * HOUR)
    refused(write(store, Claim(execution.id, "b", HOUR)), LockHeld)
    assert (execution.head.holder, execution.head.fence) == ("a", lease.fence)


def test_expired_lease_can_be_claimed_by_another_with_a_higher_fence(
    store: Store, execution: SampleExecution, clock: FakeClock
) -> None:
    first = claim(store, execution.id, holder="a")
    clock.advance(1.1 * HOUR)
    second = claim(store, execution.id, holder="b")
    assert second.fence > first.fence
    assert execution.head.holder == "b"


def test_same_holder_may_claim_again_and_its_old_fence_is_over(store: Store, execution: SampleExecution) -> None:
    first, second = claim(store, execution.id, holder="a"), claim(store, execution.id, holder="a")
    assert second.fence > first.fence
    refused(write(store, execution.commit(fence=first.fence)), LeaseLost)
    landed(write(store, execution.commit(fence=second.fence)))


def test_fence_rises_over_release_expiry_and_reclaim(store: Store, execution: SampleExecution, clock: FakeClock) -> None:
    """I8: accepted fences never decrease."""
    fences = [claim(store, execution.id, holder="a").fence]
    landed(write(store, Release(execution.id, "a", fences[-1])))
    fences.append(claim(store, execution.id, holder="b").fence)
    clock.advance(2 * HOUR)
    fences.append(claim(store, execution.id, holder="a").fence)
    fences.append(claim(store, execution.id, holder="a").fence)
    assert fences == sorted(set(fences))


def test_lease_is_of_one_execution_alone(store: Store, execution: SampleExecution) -> None:
    other = SampleExecution(store, "other").create()
    claim(store, execution.id, holder="a")
    claim(store, other.id, holder="b")
    assert (execution.head.holder, other.head.holder) == ("a", "b")


def test_claim_of_nothing_is_not_found(store: Store) -> None:
    refused(write(store, Claim("nobody", "a", HOUR)), NotFound)


def test_holder_commits_with_its_fence(store: Store, execution: SampleExecution) -> None:
    lease = claim(store, execution.id)
    execution.land(fence=lease.fence)
    execution.land(fence=lease.fence)
    head = execution.head
    assert (head.revision, head.holder, head.fence, head.lease_until_ms) == (2, "a", lease.fence, lease.until_ms)


def test_expired_holder_cannot_commit(store: Store, execution: SampleExecution, clock: FakeClock) -> None:
    stale = claim(store, execution.id, holder="a")
    clock.advance(1.1 * HOUR)
    claim(store, execution.id, holder="b")
    before = everything(store, execution.id)
    late = execution.commit(variable("late"), fence=stale.fence, ops=(put("late"),))
    assert refused(write(store, late), LeaseLost).fence == stale.fence
    assert everything(store, execution.id) == before
    assert content(store) == {}


def test_late_holder_hears_of_its_lost_lease_before_a_conflict_over_the_state(
    store: Store, execution: SampleExecution, clock: FakeClock
) -> None:
    stale = claim(store, execution.id, holder="a")
    clock.advance(1.1 * HOUR)
    claim(store, execution.id, holder="b")
    landed(write(store, StateBatch((put("k", 2),))))
    refused(write(store, execution.commit(fence=stale.fence, ops=(put("k", 1, expected=0),))), LeaseLost)
    assert content(store) == {"k": 2}


def test_expired_lease_that_nobody_took_still_proves_its_writer(store: Store, execution: SampleExecution, clock: FakeClock) -> None:
    """The fence decides, not the time: no other can have written meanwhile."""
    lease = claim(store, execution.id)
    clock.advance(2 * HOUR)
    landed(write(store, execution.commit(fence=lease.fence)))


@pytest.mark.parametrize("step", [-1, 1, 1_000])
def test_fence_that_is_not_the_present_one_is_refused(store: Store, execution: SampleExecution, step: int) -> None:
    lease = claim(store, execution.id)
    refused(write(store, execution.commit(fence=lease.fence + step)), LeaseLost)
    assert execution.head.revision == 0


@pytest.mark.parametrize("others", [0, 2], ids=["alone", "in a group"])
@pytest.mark.parametrize("step", [-1, 1])
@pytest.mark.parametrize(
    "fields",
    [{}, {"rest": Rest()}, {"rest": Rest(is_final=True)}, {"ops": (put("k"),)}, {"nudges": ("order-0",)}],
    ids=["a step", "a rest", "an end", "with state", "with a nudge"],
)
def test_fence_is_compared_in_every_kind_of_commit(store: Store, fields: dict[str, Any], step: int, others: int) -> None:
    """A store may write frequent kinds, and groups, by statements of their own."""
    executions = [SampleExecution(store, f"order-{number}").create() for number in range(1 + others)]
    fences = [claim(store, each.id).fence for each in executions]
    fences[0] += step
    outcomes = store.write([each.commit(fence=fence, **fields) for each, fence in zip(executions, fences, strict=True)])
    refused(outcomes[0], LeaseLost)
    assert all(isinstance(outcome, Written) for outcome in outcomes[1:])
    assert [each.head.revision for each in executions] == [0, *[1] * others]
    assert executions[0].head.holder == "a"


def test_writer_without_a_lease_is_guarded_by_the_revision_alone(store: Store, execution: SampleExecution) -> None:
    claim(store, execution.id)
    landed(write(store, execution.commit(fence=None)))


def test_holder_prolongs_its_lease_from_now(store: Store, execution: SampleExecution, clock: FakeClock) -> None:
    lease = claim(store, execution.id)
    clock.advance(0.5 * HOUR)
    earliest = store.now_ms()
    [longer] = answers(write(store, Extension(execution.id, "a", lease.fence, HOUR)))
    assert longer == Lease(execution.id, "a", lease.fence, longer.until_ms)
    assert earliest <= longer.until_ms - HOUR * 1000 <= store.now_ms()
    assert execution.head.lease_until_ms == longer.until_ms
    clock.advance(0.7 * HOUR)
    refused(write(store, Claim(execution.id, "b", HOUR)), LockHeld)


def test_lease_can_be_prolonged_for_ever(store: Store, execution: SampleExecution, clock: FakeClock) -> None:
    """P4: a live worker that renews is never rescued."""
    lease = claim(store, execution.id)
    for _ in range(10):
        clock.advance(0.8 * HOUR)
        refused(write(store, Claim(execution.id, "b", HOUR)), LockHeld)
        landed(write(store, Extension(execution.id, "a", lease.fence, HOUR)))


def test_expired_lease_cannot_be_prolonged(store: Store, execution: SampleExecution, clock: FakeClock) -> None:
    """T20: a holder that missed the end must claim anew, even if there is no other."""
    lease = claim(store, execution.id)
    clock.advance(1.1 * HOUR)
    refused(write(store, Extension(execution.id, "a", lease.fence, HOUR)), LeaseLost)
    claim(store, execution.id, holder="b")


def test_nobody_but_the_holder_prolongs_or_releases(store: Store, execution: SampleExecution) -> None:
    lease = claim(store, execution.id, holder="a")
    refused(write(store, Extension(execution.id, "b", lease.fence, 9 * HOUR)), LeaseLost)
    refused(write(store, Extension(execution.id, "a", lease.fence + 1, 9 * HOUR)), LeaseLost)
    refused(write(store, Release(execution.id, "b", lease.fence)), LeaseLost)
    refused(write(store, Release(execution.id, "a", lease.fence - 1)), LeaseLost)
    refused(write(store, Extension("nobody", "a", lease.fence, HOUR)), LeaseLost)
    refused(write(store, Release("nobody", "a", lease.fence)), LeaseLost)
    assert (execution.head.holder, execution.head.lease_until_ms) == ("a", lease.until_ms)


def test_released_execution_is_free(store: Store, execution: SampleExecution) -> None:
    lease = claim(store, execution.id, holder="a")
    landed(write(store, Release(execution.id, "a", lease.fence)))
    assert (execution.head.holder, execution.head.lease_until_ms) == (None, None)
    claim(store, execution.id, holder="b")


def test_released_lease_cannot_be_prolonged_or_released_again(store: Store, execution: SampleExecution) -> None:
    lease = claim(store, execution.id)
    landed(write(store, Release(execution.id, "a", lease.fence)))
    refused(write(store, Extension(execution.id, "a", lease.fence, HOUR)), LeaseLost)
    refused(write(store, Release(execution.id, "a", lease.fence)), LeaseLost)


def test_holder_that_slept_over_its_lease_can_do_no_harm(store: Store, execution: SampleExecution, clock: FakeClock) -> None:
    """T20: it wakes up after another took over and wrote; its write, renewal and release are refused."""
    slept = claim(store, execution.id, holder="a")
    late = execution.commit(variable("by", "a"), fence=slept.fence)
    clock.advance(2 * HOUR)
    present = claim(store, execution.id, holder="b")
    execution.land(variable("by", "b"), fence=present.fence)
    refused(write(store, late), LeaseLost)
    refused(write(store, execution.commit(variable("by", "a"), fence=slept.fence)), LeaseLost)
    refused(write(store, Extension(execution.id, "a", slept.fence, HOUR)), LeaseLost)
    refused(write(store, Release(execution.id, "a", slept.fence)), LeaseLost)
    head = execution.head
    assert (head.holder, head.fence, head.lease_until_ms, head.revision) == ("b", present.fence, present.until_ms, 1)
    execution.land(variable("by", "b"), fence=present.fence)
    assert walk(store, execution.id).ok


def test_late_units_of_two_holders_in_one_group_follow_the_fence(
    store: Store, execution: SampleExecution, clock: FakeClock
) -> None:
    """T06: the take-over and the late write share a transaction."""
    slept = claim(store, execution.id, holder="a")
    clock.advance(2 * HOUR)
    outcomes = store.write(
        [
            Claim(execution.id, "b", HOUR),
            execution.commit(fence=slept.fence),
            Extension(execution.id, "a", slept.fence, HOUR),
            StateBatch((put("k"),)),
        ]
    )
    assert [type(outcome) for outcome in outcomes] == [Written, LeaseLost, LeaseLost, Written]
    landed(write(store, execution.commit(fence=answers(outcomes[0])[0].fence)))


def test_lease_ends_with_its_execution(store: Store, execution: SampleExecution) -> None:
    lease = claim(store, execution.id)
    landed(write(store, Deletion(execution.id)))
    refused(write(store, execution.commit(fence=lease.fence)), NotFound)
    refused(write(store, Extension(execution.id, "a", lease.fence, HOUR)), LeaseLost)
    refused(write(store, Release(execution.id, "a", lease.fence)), LeaseLost)


def test_lease_and_lock_of_the_same_name_are_strangers(store: Store, execution: SampleExecution) -> None:
    claim(store, execution.id, holder="a")
    landed(write(store, Acquire(execution.id, "b", HOUR)))
    assert execution.head.holder == "a"
