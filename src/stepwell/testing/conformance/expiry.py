"""Expiry: leases, locks, wake-up times and TTLs hold until the last millisecond, and not one longer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import Conflict, LeaseLost, LockHeld
from stepwell.model.commit import (
    Acquire,
    Claim,
    ClaimDue,
    Creation,
    Extension,
    Lease,
    Outcome,
    Renew,
    Rest,
    StateBatch,
    Unit,
    Unlock,
    Written,
)
from stepwell.testing.conformance.samples import (
    HOUR,
    SampleExecution,
    acquire,
    answers,
    claim,
    fresh_id,
    landed,
    put,
    write,
    write_state,
    written_at,
)

AROUND_THE_END = pytest.mark.parametrize("offset_ms", [-1, 0, 1])
"""The last millisecond of a lease, the moment of its end, and the one after."""

MINUTE_MS = 60_000


def held(store: Store, then: Callable[[Lease], Unit]) -> Callable[[], tuple[int, Unit]]:
    """Prepare a new execution that "a" has leased, and a unit about it for the lease's end."""

    def prepare() -> tuple[int, Unit]:
        execution = SampleExecution(store, fresh_id("held")).create()
        lease = claim(store, execution.id, holder="a")
        return lease.until_ms, then(lease)

    return prepare


def locked(store: Store, then: Callable[[Lease], Unit]) -> Callable[[], tuple[int, Unit]]:
    """Prepare a lock that "a" holds, and a unit about it for its end."""

    def prepare() -> tuple[int, Unit]:
        lease = acquire(store, fresh_id("door"), holder="a")
        return lease.until_ms, then(lease)

    return prepare


def check(outcome: Outcome, refusal: type[Exception] | None) -> None:
    """The outcome must be this refusal, or none."""
    assert type(outcome) is (refusal or Written), outcome


@AROUND_THE_END
def test_lease_is_anothers_from_the_moment_of_its_end(store: Store, clock: FakeClock, offset_ms: int) -> None:
    outcome = written_at(store, clock, offset_ms, held(store, lambda lease: Claim(lease.name, "b", HOUR)))
    check(outcome, LockHeld if offset_ms < 0 else None)


@pytest.mark.parametrize("offset_ms", [-1, 0, 1, MINUTE_MS // 2, MINUTE_MS - 1, MINUTE_MS])
def test_lease_is_extended_before_its_end_alone(store: Store, clock: FakeClock, offset_ms: int) -> None:
    outcome = written_at(store, clock, offset_ms, held(store, lambda lease: Extension(lease.name, "a", lease.fence, HOUR)))
    check(outcome, None if offset_ms < 0 else LeaseLost)


@AROUND_THE_END
def test_execution_of_a_dead_worker_is_due_from_the_end_of_its_lease(store: Store, clock: FakeClock, offset_ms: int) -> None:
    def prepare() -> tuple[int, Unit]:
        workflow = fresh_id("orders")
        execution = SampleExecution(store, fresh_id("due"), workflow=workflow)
        execution.create(creation=Creation(workflow, 3, holder="a", lease_seconds=HOUR, is_runnable=True))
        return execution.head.lease_until_ms or 0, ClaimDue((workflow,), "b", HOUR, 1)

    assert len(answers(written_at(store, clock, offset_ms, prepare))) == (offset_ms >= 0)


@AROUND_THE_END
def test_resting_execution_is_due_from_its_time_on(store: Store, clock: FakeClock, offset_ms: int) -> None:
    def prepare() -> tuple[int, Unit]:
        workflow, moment = fresh_id("orders"), store.now_ms() + 1_000
        execution = SampleExecution(store, fresh_id("due"), workflow=workflow)
        execution.create(creation=Creation(workflow, 3, holder="a", lease_seconds=HOUR, is_runnable=True))
        execution.land(fence=execution.head.fence, rest=Rest(moment))
        return moment, ClaimDue((workflow,), "b", HOUR, 1)

    assert len(answers(written_at(store, clock, offset_ms, prepare))) == (offset_ms >= 0)


@AROUND_THE_END
def test_lock_is_anothers_from_the_moment_of_its_end(store: Store, clock: FakeClock, offset_ms: int) -> None:
    outcome = written_at(store, clock, offset_ms, locked(store, lambda lease: Acquire(lease.name, "b", HOUR)))
    check(outcome, LockHeld if offset_ms < 0 else None)


@AROUND_THE_END
def test_lock_keeps_its_fence_for_its_holder_until_its_end(store: Store, clock: FakeClock, offset_ms: int) -> None:
    fences: list[int] = []

    def asking_again(lease: Lease) -> Unit:
        fences.append(lease.fence)
        return Acquire(lease.name, "a", HOUR)

    [lease] = answers(written_at(store, clock, offset_ms, locked(store, asking_again)))
    assert (lease.fence == fences[-1]) == (offset_ms < 0)


@pytest.mark.parametrize("offset_ms", [-1, 0, 1, MINUTE_MS // 2])
@pytest.mark.parametrize("kind", [Renew, Unlock])
def test_lock_is_renewed_and_released_before_its_end_alone(
    store: Store, clock: FakeClock, kind: type[Renew] | type[Unlock], offset_ms: int
) -> None:
    def by_its_holder(lease: Lease) -> Unit:
        return Renew(lease.name, "a", lease.fence, HOUR) if kind is Renew else Unlock(lease.name, "a", lease.fence)

    check(written_at(store, clock, offset_ms, locked(store, by_its_holder)), None if offset_ms < 0 else LeaseLost)


@AROUND_THE_END
def test_released_lock_is_free_after_its_shortest_hold(store: Store, clock: FakeClock, offset_ms: int) -> None:
    def prepare() -> tuple[int, Unit]:
        name = fresh_id("door")
        lease = acquire(store, name, holder="a")
        landed(write(store, Unlock(name, "a", lease.fence, at_least_seconds=1)))
        return lease.until_ms - HOUR * 1000 + 1_000, Acquire(name, "b", HOUR)

    check(written_at(store, clock, offset_ms, prepare), LockHeld if offset_ms < 0 else None)


@AROUND_THE_END
def test_value_is_there_until_its_ttl_ends(store: Store, clock: FakeClock, offset_ms: int) -> None:
    """For rules, too: a key that has expired may be made anew."""

    def prepare() -> tuple[int, Unit]:
        key = fresh_id("k")
        [written] = write_state(store, put(key, ttl=1))
        again = put(key, 2, expected=0)
        return written.expires_ms, StateBatch((again,))

    check(written_at(store, clock, offset_ms, prepare), Conflict if offset_ms < 0 else None)
