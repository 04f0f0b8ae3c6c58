"""Locks: one holder at a time, a fence that only grows, and writes that land only while the fence is the newest."""

from __future__ import annotations

import pytest

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import Conflict, LeaseLost, LockHeld
from stepwell.model.commit import Acquire, LockGuard, Renew, StateBatch, Sweep, Unlock, Written
from stepwell.testing.conformance.samples import HOUR, SampleExecution, acquire, answers, content, landed, put, refused, write


def test_free_lock_is_granted(store: Store) -> None:
    earliest = store.now_ms()
    lease = acquire(store, "door", holder="a", seconds=HOUR)
    assert (lease.name, lease.holder) == ("door", "a")
    assert lease.fence > 0
    assert earliest <= lease.until_ms - HOUR * 1000 <= store.now_ms()


def test_held_lock_is_refused_with_the_time_of_its_end(store: Store, clock: FakeClock) -> None:
    lease = acquire(store, holder="a")
    clock.advance(0.5 * HOUR)
    assert refused(write(store, Acquire("door", "b", HOUR)), LockHeld).until_ms == lease.until_ms


def test_locks_of_different_names_do_not_meet(store: Store) -> None:
    acquire(store, "front", holder="a")
    acquire(store, "back", holder="b")
    refused(write(store, Acquire("front", "b", HOUR)), LockHeld)


def test_expired_lock_is_granted_to_another(store: Store, clock: FakeClock) -> None:
    first = acquire(store, holder="a")
    clock.advance(1.1 * HOUR)
    assert acquire(store, holder="b").fence > first.fence


def test_fence_is_higher_than_any_that_the_store_ever_gave(store: Store, clock: FakeClock) -> None:
    """Over other names, release, expiry, and a sweep that drops every trace of the lock."""
    fences = [acquire(store, "door", holder="a").fence]
    fences.append(acquire(store, "other", holder="a").fence)
    landed(write(store, Unlock("door", "a", fences[0])))
    fences.append(acquire(store, "door", holder="b").fence)
    clock.advance(2 * HOUR)
    fences.append(acquire(store, "door", holder="c").fence)
    clock.advance(2 * HOUR)
    landed(write(store, Sweep(0)))
    fences.append(acquire(store, "door", holder="d").fence)
    assert fences == sorted(set(fences))


def test_same_holder_again_gets_the_same_fence_and_a_later_end(store: Store, clock: FakeClock) -> None:
    """T25: the reply to its first try was lost."""
    first = acquire(store, holder="a")
    clock.advance(0.5 * HOUR)
    again = acquire(store, holder="a")
    assert again.fence == first.fence
    assert again.until_ms >= first.until_ms + 0.5 * HOUR * 1000


def test_same_holder_after_its_lock_expired_gets_a_new_fence(store: Store, clock: FakeClock) -> None:
    first = acquire(store, holder="a")
    clock.advance(1.1 * HOUR)
    assert acquire(store, holder="a").fence > first.fence


def test_holder_renews_from_now(store: Store, clock: FakeClock) -> None:
    lease = acquire(store)
    clock.advance(0.5 * HOUR)
    earliest = store.now_ms()
    [longer] = answers(write(store, Renew("door", "a", lease.fence, HOUR)))
    assert (longer.name, longer.holder, longer.fence) == ("door", "a", lease.fence)
    assert earliest <= longer.until_ms - HOUR * 1000 <= store.now_ms()
    clock.advance(0.7 * HOUR)
    assert refused(write(store, Acquire("door", "b", HOUR)), LockHeld).until_ms == longer.until_ms


def test_expired_lock_can_be_neither_renewed_nor_released(store: Store, clock: FakeClock) -> None:
    """T20: a holder that missed the end gets LeaseLost, even if there is no other."""
    lease = acquire(store)
    clock.advance(1.1 * HOUR)
    assert refused(write(store, Renew("door", "a", lease.fence, HOUR)), LeaseLost).fence == lease.fence
    assert refused(write(store, Unlock("door", "a", lease.fence)), LeaseLost).fence == lease.fence


def test_holder_that_slept_over_its_lock_can_do_no_harm(store: Store, clock: FakeClock) -> None:
    """T20: another took the lock; the late write, renewal and release are refused."""
    slept = acquire(store, holder="a")
    clock.advance(2 * HOUR)
    present = acquire(store, holder="b")
    refused(write(store, StateBatch((put("k", "a"),), (LockGuard("door", slept.fence),))), LeaseLost)
    refused(write(store, Renew("door", "a", slept.fence, 9 * HOUR)), LeaseLost)
    refused(write(store, Unlock("door", "a", slept.fence)), LeaseLost)
    assert refused(write(store, Acquire("door", "c", HOUR)), LockHeld).until_ms == present.until_ms
    landed(write(store, StateBatch((put("k", "b"),), (LockGuard("door", present.fence),))))
    assert content(store) == {"k": "b"}


def test_nobody_but_the_holder_renews_or_releases(store: Store) -> None:
    lease = acquire(store, holder="a")
    for holder, fence in (("b", lease.fence), ("a", lease.fence + 1), ("a", lease.fence - 1), ("", lease.fence)):
        refused(write(store, Renew("door", holder, fence, 9 * HOUR)), LeaseLost)
        refused(write(store, Unlock("door", holder, fence)), LeaseLost)
    refused(write(store, Renew("window", "a", lease.fence, HOUR)), LeaseLost)
    refused(write(store, Unlock("window", "a", lease.fence)), LeaseLost)
    assert refused(write(store, Acquire("door", "b", HOUR)), LockHeld).until_ms == lease.until_ms


def test_released_lock_is_free(store: Store) -> None:
    lease = acquire(store, holder="a")
    landed(write(store, Unlock("door", "a", lease.fence)))
    acquire(store, holder="b")


def test_lock_is_released_once(store: Store) -> None:
    lease = acquire(store)
    landed(write(store, Unlock("door", "a", lease.fence)))
    refused(write(store, Unlock("door", "a", lease.fence)), LeaseLost)
    refused(write(store, Renew("door", "a", lease.fence, HOUR)), LeaseLost)


def test_lock_released_early_stays_taken_for_its_least_time(store: Store, clock: FakeClock) -> None:
    """T24: a task of a millisecond does not run again in the same tick, on this node or another."""
    lease = acquire(store, holder="a", seconds=9 * HOUR)
    landed(write(store, Unlock("door", "a", lease.fence, at_least_seconds=2 * HOUR)))
    clock.advance(1.5 * HOUR)
    until = refused(write(store, Acquire("door", "b", HOUR)), LockHeld).until_ms
    refused(write(store, Acquire("door", "a", HOUR)), LockHeld)
    assert until is not None
    assert until < lease.until_ms
    clock.advance(0.6 * HOUR)
    assert acquire(store, holder="b").fence > lease.fence


def test_least_time_counts_from_when_the_lock_was_acquired(store: Store, clock: FakeClock) -> None:
    """Neither a renewal nor a repeated request starts it anew."""
    lease = acquire(store, holder="a")
    clock.advance(0.9 * HOUR)
    landed(write(store, Renew("door", "a", lease.fence, HOUR)))
    acquire(store, holder="a")
    landed(write(store, Unlock("door", "a", lease.fence, at_least_seconds=HOUR)))
    refused(write(store, Acquire("door", "b", HOUR)), LockHeld)
    clock.advance(0.2 * HOUR)
    acquire(store, holder="b")


def test_least_time_that_is_over_frees_the_lock_at_once(store: Store, clock: FakeClock) -> None:
    lease = acquire(store, holder="a", seconds=3 * HOUR)
    clock.advance(2 * HOUR)
    landed(write(store, Unlock("door", "a", lease.fence, at_least_seconds=HOUR)))
    acquire(store, holder="b")


def test_lock_that_stays_taken_has_no_holder_any_more(store: Store) -> None:
    lease = acquire(store)
    landed(write(store, Unlock("door", "a", lease.fence, at_least_seconds=2 * HOUR)))
    refused(write(store, Renew("door", "a", lease.fence, HOUR)), LeaseLost)
    refused(write(store, Unlock("door", "a", lease.fence)), LeaseLost)


def test_guarded_state_lands_while_the_lock_is_held(store: Store) -> None:
    lease = acquire(store)
    landed(write(store, StateBatch((put("k"),), (LockGuard("door", lease.fence),))))
    assert content(store) == {"k": 1}


def test_guard_holds_after_the_end_while_nobody_else_was_granted_the_lock(store: Store, clock: FakeClock) -> None:
    """The fence decides, not the time: no other can have written under this lock meanwhile."""
    lease = acquire(store)
    clock.advance(2 * HOUR)
    landed(write(store, StateBatch((put("k"),), (LockGuard("door", lease.fence),))))


@pytest.mark.parametrize("kind", ["state", "commit", "creation"])
@pytest.mark.parametrize("loss", ["never held", "taken over", "released", "swept", "ahead"])
def test_guard_of_a_lost_lock_refuses_whatever_it_guards(store: Store, clock: FakeClock, kind: str, loss: str) -> None:
    execution, new = SampleExecution(store).create(), SampleExecution(store, "new")
    guards = (LockGuard("door", lose_lock(store, clock, loss)),)
    unit = {
        "state": StateBatch((put("k"),), guards),
        "commit": execution.commit(ops=(put("k"),), guards=guards),
        "creation": new.creation(ops=(put("k"),), guards=guards),
    }[kind]
    assert refused(write(store, unit), LeaseLost).fence == guards[0].fence
    assert content(store) == {}
    assert execution.head.revision == 0
    assert store.head("new") is None


@pytest.mark.parametrize("kind", ["state", "commit", "creation"])
def test_late_writer_hears_of_its_lost_lock_before_a_conflict_over_the_state(store: Store, clock: FakeClock, kind: str) -> None:
    """The new holder has changed the key: the late one gets LeaseLost and no Conflict."""
    execution, guards = SampleExecution(store).create(), (LockGuard("door", lose_lock(store, clock, "taken over")),)
    landed(write(store, StateBatch((put("k", 2),))))
    ops = (put("k", 1, expected=0),)
    unit = {
        "state": StateBatch(ops, guards),
        "commit": execution.commit(ops=ops, guards=guards),
        "creation": SampleExecution(store, "new").creation(ops=ops, guards=guards),
    }[kind]
    assert refused(write(store, unit), LeaseLost).fence == guards[0].fence
    refused(write(store, StateBatch(ops)), Conflict)
    assert content(store) == {"k": 2}


def lose_lock(store: Store, clock: FakeClock, loss: str) -> int:
    """The fence of a lock ``door`` that is not, or no longer, the caller's."""
    if loss == "never held":
        return 1
    lease = acquire(store)
    match loss:
        case "taken over":
            clock.advance(2 * HOUR)
            acquire(store, holder="b")
        case "released":
            landed(write(store, Unlock("door", "a", lease.fence)))
        case "swept":
            clock.advance(2 * HOUR)
            landed(write(store, Sweep(0)))
        case _:
            return lease.fence + 1
    return lease.fence


@pytest.mark.parametrize("kind", ["commit", "creation"])
def test_guarded_commit_lands_while_the_lock_is_held(store: Store, kind: str) -> None:
    execution, guards = SampleExecution(store), (LockGuard("door", acquire(store).fence),)
    if kind == "creation":
        execution.create(guards=guards)
    else:
        execution.create().land(guards=guards)
    assert execution.head.digest == execution.state.receipt


def test_every_guard_must_hold(store: Store, execution: SampleExecution) -> None:
    held, lost = LockGuard("front", acquire(store, "front").fence), LockGuard("back", 99)
    for guards in ((held, lost), (lost, held)):
        refused(write(store, StateBatch((put("k"),), guards)), LeaseLost)
        refused(write(store, execution.commit(guards=guards)), LeaseLost)
    other = LockGuard("back", acquire(store, "back").fence)
    landed(write(store, StateBatch((put("k"),), (held, other))))
    landed(write(store, execution.commit(guards=(held, other))))


def test_guard_sees_the_units_before_it_in_its_group(store: Store, clock: FakeClock) -> None:
    slept = acquire(store, holder="a")
    clock.advance(2 * HOUR)
    late = StateBatch((put("k", "late"),), (LockGuard("door", slept.fence),))
    outcomes = store.write([late, Acquire("door", "b", HOUR), late])
    assert [type(outcome) for outcome in outcomes] == [Written, Written, LeaseLost]
    landed(write(store, StateBatch((put("k", "fresh"),), (LockGuard("door", answers(outcomes[1])[0].fence),))))
    assert content(store) == {"k": "fresh"}


def test_sweep_keeps_locks_that_are_held_or_ended_lately(store: Store, clock: FakeClock) -> None:
    """A guard goes on to hold until the lock is taken over or has been over for the given time."""
    held = acquire(store, "held", seconds=9 * HOUR)
    ended = acquire(store, "ended")
    clock.advance(2 * HOUR)
    landed(write(store, Sweep(5 * HOUR * 1000)))
    guards = (LockGuard("held", held.fence), LockGuard("ended", ended.fence))
    landed(write(store, StateBatch((put("k"),), guards)))
    refused(write(store, Acquire("held", "b", HOUR)), LockHeld)
