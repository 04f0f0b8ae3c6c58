"""Due executions: which ones a claim returns, in which order, and that none is forgotten or returned twice."""

from __future__ import annotations

from contextlib import suppress

import pytest
from msgspec.structs import replace

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import Conflict, LeaseLost, LockHeld
from stepwell.fault_points import armed
from stepwell.model.commit import Claim, ClaimDue, Creation, Deletion, Extension, Lease, Release, Rest, StateBatch
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.testing.conformance.concurrency import write_together
from stepwell.testing.conformance.group_commit import InjectedFailure, failing_at
from stepwell.testing.conformance.samples import HOUR, SampleExecution, answers, claim, landed, refused, status, write


def runnable(
    store: Store, name: str = "order-7", *, workflow: str = "orders", holder: str | None = None, seconds: float = HOUR
) -> SampleExecution:
    """An execution that workers look after."""
    execution = SampleExecution(store, name, workflow=workflow)
    execution.create(creation=Creation(workflow, 3, holder=holder, lease_seconds=seconds, is_runnable=True))
    return execution


def claim_due(store: Store, *workflows: str, holder: str = "worker", limit: int = 10) -> list[Lease]:
    """The leases of what is due."""
    return answers(write(store, ClaimDue(workflows or ("orders",), holder, HOUR, limit)))


def names_of(leases: list[Lease]) -> list[str]:
    """The executions that the leases are of."""
    return [lease.name for lease in leases]


def nudge(store: Store, *names: str) -> None:
    """Have executions looked at."""
    landed(write(store, StateBatch((), nudges=names)))


def rest(execution: SampleExecution, fence: int, wake_ms: int | None = None, *, is_final: bool = False) -> None:
    """Give the lease back with a commit."""
    execution.land(fence=fence, rest=Rest(wake_ms, is_final))


def test_runnable_execution_is_due_at_once_and_given_to_one_worker(store: Store) -> None:
    execution = runnable(store)
    earliest = store.now_ms()
    [lease] = claim_due(store, holder="a")
    head = execution.head
    assert (lease.name, lease.holder) == (execution.id, "a")
    assert (head.holder, head.fence, head.lease_until_ms, head.wake_ms) == ("a", lease.fence, lease.until_ms, lease.until_ms)
    assert earliest <= lease.until_ms - HOUR * 1000 <= store.now_ms()
    assert claim_due(store, holder="b") == []
    execution.land(fence=lease.fence)


def test_execution_driven_by_hand_never_comes_due(store: Store, clock: FakeClock, execution: SampleExecution) -> None:
    assert execution.head.wake_ms is None
    lease = claim(store, execution.id)
    clock.advance(2 * HOUR)
    assert claim_due(store) == []
    landed(write(store, Release(execution.id, "a", lease.fence)))
    assert claim_due(store) == []


def test_execution_created_with_a_holder_is_its_holders(store: Store) -> None:
    execution = runnable(store, holder="me")
    head = execution.head
    assert (head.holder, head.lease_until_ms) == ("me", head.wake_ms)
    assert head.fence > 0
    refused(write(store, Claim(execution.id, "b", HOUR)), LockHeld)
    refused(write(store, execution.commit(fence=head.fence - 1)), LeaseLost)
    assert claim_due(store) == []
    execution.land(fence=head.fence)


@pytest.mark.parametrize("is_final", [False, True])
def test_rest_that_failed_in_the_store_forgets_no_nudge(store: Store, is_final: bool) -> None:
    """A group is undone whole: the nudge that the rest would have used up is still there."""
    execution = runnable(store)
    [lease] = claim_due(store)
    nudge(store, execution.id)
    commit = execution.commit(fence=lease.fence, rest=Rest(is_final=is_final))
    with suppress(InjectedFailure), armed(failing_at("store.before_commit")):
        store.write([commit])
    if execution.head.revision == 0:  # a store without this point has written it
        rest(execution, lease.fence)
    assert names_of(claim_due(store)) == [execution.id] or is_final
    assert store.nudged([execution.id]) == []


@pytest.mark.parametrize("start", ["created", "claimed", "extended"])
def test_execution_of_a_dead_worker_comes_due_when_its_lease_ends(store: Store, clock: FakeClock, start: str) -> None:
    """P4: and its worker's late commit is refused."""
    execution = runnable(store, holder="dead" if start == "created" else None)
    fence = execution.head.fence if start == "created" else claim_due(store, holder="dead")[0].fence
    if start == "extended":
        clock.advance(0.8 * HOUR)
        landed(write(store, Extension(execution.id, "dead", fence, HOUR)))
    clock.advance(0.8 * HOUR)
    assert claim_due(store, holder="next") == []
    clock.advance(0.3 * HOUR)
    [lease] = claim_due(store, holder="next")
    assert lease.fence > fence
    refused(write(store, execution.commit(fence=fence)), LeaseLost)


@pytest.mark.parametrize("holder", [None, "me"])
def test_execution_that_ends_with_its_first_commit_is_nobodys_and_never_due(
    store: Store, clock: FakeClock, holder: str | None
) -> None:
    """It would be claimed again and again, for ever."""
    execution = SampleExecution(store, "order-7")
    creation = Creation("orders", 3, holder=holder, lease_seconds=HOUR, is_runnable=True)
    execution.create(status("RUNNING"), status("COMPLETED"), creation=creation, rest=Rest(is_final=True))
    head = execution.head
    assert (head.status, head.holder, head.lease_until_ms, head.wake_ms) == ("COMPLETED", None, None, None)
    assert head.fence == (0 if holder is None else 1)
    nudge(store, execution.id)
    clock.advance(2 * HOUR)
    assert claim_due(store) == []


@pytest.mark.parametrize("hours", [0, 5, None])
def test_execution_whose_first_commit_rests_comes_due_as_that_says(store: Store, clock: FakeClock, hours: int | None) -> None:
    execution = SampleExecution(store, "order-7")
    creation = Creation("orders", 3, holder="me", lease_seconds=HOUR, is_runnable=True)
    wake_ms = None if hours is None else store.now_ms() + hours * HOUR * 1000
    execution.create(creation=creation, rest=Rest(wake_ms))
    head = execution.head
    assert (head.holder, head.lease_until_ms, head.wake_ms, head.fence) == (None, None, wake_ms, 1)
    if hours != 0:
        clock.advance(2 * HOUR)
        assert claim_due(store) == []
    if hours is None:
        nudge(store, execution.id)
    else:
        clock.advance(hours * HOUR)
    assert names_of(claim_due(store)) == [execution.id]


def test_released_execution_is_due_at_once(store: Store) -> None:
    """T42: a worker that stops hands back without waiting for its lease to end."""
    runnable(store)
    [lease] = claim_due(store, holder="a")
    landed(write(store, Release(lease.name, "a", lease.fence)))
    assert names_of(claim_due(store, holder="b")) == [lease.name]


def test_resting_execution_comes_due_at_its_time(store: Store, clock: FakeClock) -> None:
    execution = runnable(store)
    [lease] = claim_due(store)
    wake_ms = store.now_ms() + 3 * HOUR * 1000
    rest(execution, lease.fence, wake_ms)
    head = execution.head
    assert (head.holder, head.lease_until_ms, head.wake_ms, head.revision) == (None, None, wake_ms, 1)
    clock.advance(2 * HOUR)
    assert claim_due(store) == []
    clock.advance(1.1 * HOUR)
    assert names_of(claim_due(store)) == [execution.id]


def test_execution_that_rests_without_a_time_waits_for_a_nudge(store: Store, clock: FakeClock) -> None:
    execution = runnable(store)
    rest(execution, claim_due(store)[0].fence)
    clock.advance(1_000 * HOUR)
    assert claim_due(store) == []
    nudge(store, execution.id)
    assert names_of(claim_due(store)) == [execution.id]


def test_nudge_makes_an_execution_due_before_its_time(store: Store) -> None:
    execution = runnable(store)
    rest(execution, claim_due(store)[0].fence, store.now_ms() + 9 * HOUR * 1000)
    nudge(store, execution.id)
    assert names_of(claim_due(store)) == [execution.id]


def test_nudge_rides_with_the_commit_of_another(store: Store) -> None:
    sleeper, other = runnable(store), SampleExecution(store, "other").create()
    rest(sleeper, claim_due(store)[0].fence)
    refused(write(store, other.commit(fence=99, nudges=(sleeper.id,))), LeaseLost)
    assert claim_due(store) == []
    other.land(nudges=(sleeper.id,))
    assert names_of(claim_due(store)) == [sleeper.id]


def test_nudge_of_a_running_execution_makes_its_next_rest_due_at_once(store: Store) -> None:
    """A signal that comes while the worker decides to wait for it is not lost."""
    execution = runnable(store)
    [lease] = claim_due(store)
    nudge(store, execution.id)
    assert claim_due(store, holder="b") == []
    rest(execution, lease.fence, store.now_ms() + 9 * HOUR * 1000)
    [again] = claim_due(store)
    rest(execution, again.fence)
    assert claim_due(store) == []


def test_execution_that_has_ended_is_not_nudged(store: Store, clock: FakeClock) -> None:
    execution = runnable(store)
    [lease] = claim_due(store)
    nudge(store, execution.id)
    execution.land(status("RUNNING"))
    execution.land(status("COMPLETED"), fence=lease.fence, rest=Rest(is_final=True))
    nudge(store, execution.id, "nobody")
    clock.advance(1_000 * HOUR)
    assert claim_due(store) == []
    assert execution.head.wake_ms is None


def test_deleted_execution_never_comes_due(store: Store, clock: FakeClock) -> None:
    for name in ("waiting", "running"):
        runnable(store, name, holder="me" if name == "running" else None)
        landed(write(store, Deletion(name)))
        nudge(store, name)
    clock.advance(2 * HOUR)
    assert claim_due(store) == []


def test_workers_are_given_only_the_workflows_that_they_know(store: Store) -> None:
    for workflow in ("orders", "Orders", "order", "orders%", "refunds"):
        runnable(store, f"of-{workflow}", workflow=workflow)
    assert claim_due(store, "unknown") == []
    assert sorted(names_of(claim_due(store, "orders", "orders%"))) == ["of-orders", "of-orders%"]
    assert sorted(names_of(claim_due(store, "order", "Orders", "refunds"))) == ["of-Orders", "of-order", "of-refunds"]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_longest_due_comes_first(store: Store, clock: FakeClock, limit: int) -> None:
    """T33: a page that is full never hides the ones behind it for ever."""
    for name, hours in (("third", 3), ("second", 2), ("first", 1)):
        execution = runnable(store, name)
        rest(execution, claim_due(store)[0].fence, store.now_ms() + hours * HOUR * 1000)
    clock.advance(9 * HOUR)
    pages = [names_of(claim_due(store, limit=limit)) for _ in range(4)]
    expected = ["first", "second", "third"]
    assert set(pages[0]) == set(expected[:limit])
    assert sorted(name for page in pages for name in page) == expected


def test_claims_are_counted_until_the_next_commit(store: Store, clock: FakeClock) -> None:
    """T38: an execution that kills its workers shows."""
    execution = runnable(store)
    for number in range(1, 4):
        claim_due(store, holder=f"w{number}")
        assert execution.head.claims == number
        clock.advance(1.1 * HOUR)
    execution.land(fence=execution.head.fence)
    assert execution.head.claims == 0


def test_every_due_execution_is_given_to_exactly_one_of_many_workers(store: Store, committer: GroupCommit) -> None:
    """T27, T31."""
    names = {runnable(store, f"order-{number}").id for number in range(40)}
    units = [ClaimDue(("orders",), f"worker-{number}", HOUR, 6) for number in range(8)]
    given = [lease.name for outcome in write_together(committer, units) for lease in answers(outcome)]
    assert sorted(given) == sorted(names)


def test_rest_of_a_refused_commit_keeps_the_lease(store: Store) -> None:
    execution = runnable(store)
    [lease] = claim_due(store)
    stale = replace(execution.commit(fence=lease.fence, rest=Rest()), previous="f" * 64)
    refused(write(store, stale), Conflict)
    assert execution.head.holder == "worker"


def test_execution_of_a_newer_version_is_left_to_those_who_can_run_it(store: Store) -> None:
    """T48: however many of them are due first, those behind them are served."""
    newer = [runnable(store, f"newer-{number}") for number in range(5)]
    other = runnable(store, "other", workflow="bills")
    old = ClaimDue(("orders", "bills"), "old", HOUR, 2, (2, 3))
    assert names_of(answers(write(store, old))) == [other.id]
    assert answers(write(store, old)) == []
    assert {each.head.claims for each in newer} == {0}
    new = ClaimDue(("orders",), "new", HOUR, 10, (3,))
    assert sorted(names_of(answers(write(store, new)))) == [each.id for each in newer]


def test_executions_that_were_nudged_while_they_are_held_are_told_apart(store: Store) -> None:
    held = [runnable(store, name, holder="me") for name in ("a", "b", "c")]
    names = [each.id for each in held]
    assert store.nudged(names) == []
    nudge(store, "a", "c")
    assert sorted(store.nudged([*names, "nobody"])) == ["a", "c"]
    rest(held[0], held[0].head.fence)
    assert store.nudged(names) == ["c"]
    assert store.nudged([]) == []
