"""Groups: units that share a transaction take effect in order, are refused one by one, and fail together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from msgspec.structs import replace

from stepwell.contract.store import Store
from stepwell.errors import AlreadyExists, CommitUnknown, Conflict, InvalidInput, LeaseLost, LockHeld, NotFound
from stepwell.fault_points import armed
from stepwell.model.commit import (
    Acquire,
    Claim,
    Creation,
    Deletion,
    LockGuard,
    Rest,
    Seen,
    StateBatch,
    Unit,
    Unlock,
    Written,
)
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Increment, StateOp
from stepwell.testing.conformance.samples import (
    NOTHING,
    SCOPE,
    SampleExecution,
    acquire,
    answers,
    claim,
    content,
    everything,
    fresh_id,
    landed,
    put,
    status,
    variable,
    walk,
    write,
    write_state,
)


def test_commit_with_state_that_is_twice_in_a_group_lands_once_and_is_seen_then(store: Store, execution: SampleExecution) -> None:
    """T03: the second meets what the first has just written, and that is no conflict."""
    commit = execution.commit(ops=(put("k", expected=0),))
    first, second = store.write([commit, commit])
    landed(first)
    assert second == Seen(commit.header, commit.body)
    assert content(store) == {"k": 1}


def test_group_of_nothing_has_no_outcomes(store: Store) -> None:
    assert store.write([]) == []


def test_refused_unit_never_stops_its_group(store: Store, execution: SampleExecution) -> None:
    """Every kind of refusal stands between two units that land."""
    stranger = SampleExecution(store, "stranger")
    stranger.state = execution.state
    acquire(store, "taken", holder="somebody")
    claim(store, execution.id, holder="somebody")
    refusals: list[tuple[Unit, type]] = [
        (replace(execution.commit(), previous="e" * 64), Conflict),
        (SampleExecution(store, execution.id).creation(), AlreadyExists),
        (stranger.commit(), NotFound),
        (replace(execution.commit(), fence=99), LeaseLost),
        (StateBatch((put("k0", expected=7),)), Conflict),
        (StateBatch((Increment(SCOPE, "k0"), Increment(SCOPE, "text"))), InvalidInput),
        (StateBatch((put("k0", 9),), (LockGuard("door", 99),)), LeaseLost),
        (Claim(execution.id, "b", 60), LockHeld),
        (Acquire("taken", "b", 60), LockHeld),
        (Unlock("taken", "b", 1), LeaseLost),
        (Deletion("nobody"), NotFound),
        (execution.adoption(), AlreadyExists),
    ]
    write_state(store, put("text", "no number"))
    units: list[Unit] = []
    for number, (unit, _) in enumerate(refusals):
        units += [StateBatch((put(f"k{number}"),)), unit]
    outcomes = store.write([*units, execution.commit()])
    assert all(isinstance(outcome, Written) for outcome in (*outcomes[::2], outcomes[-1]))
    assert [type(outcome) for outcome in outcomes[1::2]] == [kind for _, kind in refusals]
    assert content(store) == {"text": "no number", **{f"k{number}": 1 for number in range(len(refusals))}}
    assert execution.head.revision == 1


def test_several_commits_of_one_execution_land_in_one_group(store: Store) -> None:
    execution = SampleExecution(store)
    outcomes = store.write([execution.foresee() for _ in range(5)])
    assert [type(outcome) for outcome in outcomes] == [Written] * 5
    assert (execution.head.revision, execution.head.digest) == (4, execution.state.receipt)
    assert walk(store, execution.id).receipts == 5


def crowd(store: Store, count: int = 6) -> list[SampleExecution]:
    """Executions that do not exist yet."""
    return [SampleExecution(store, fresh_id("crowd")) for _ in range(count)]


def test_first_commits_of_a_group_land_and_one_whose_id_is_taken_does_not(store: Store, execution: SampleExecution) -> None:
    others = crowd(store)
    units: list[Unit] = [each.foresee() for each in others]
    taken = SampleExecution(store, execution.id).creation()
    outcomes = store.write([*units[:3], taken, *units[3:]])
    assert [type(outcome) for outcome in outcomes] == [Written] * 3 + [AlreadyExists] + [Written] * 3
    assert all(each.head.digest == each.state.receipt for each in others)
    assert [type(outcome) for outcome in store.write([each.foresee() for each in others])] == [Written] * 6
    assert all(walk(store, each.id).ok for each in others)


def test_new_executions_of_a_group_have_the_leases_that_they_asked_for(store: Store) -> None:
    held, free, by_hand = crowd(store, 3)
    creations = (
        Creation("orders", 3, holder="a", lease_seconds=60, is_runnable=True),
        Creation("orders", 3, is_runnable=True),
        Creation("orders", 3),
    )
    units: list[Unit] = [each.foresee(creation=creation) for each, creation in zip((held, free, by_hand), creations, strict=True)]
    assert [type(outcome) for outcome in store.write(units)] == [Written] * 3
    assert (held.head.holder, held.head.fence, held.head.lease_until_ms) == ("a", 1, held.head.wake_ms)
    assert (free.head.holder, free.head.fence, free.head.wake_ms is None) == (None, 0, False)
    assert (by_hand.head.holder, by_hand.head.wake_ms) == (None, None)


def test_last_commits_of_a_group_end_their_executions_and_one_that_is_late_does_not(store: Store) -> None:
    others = [each.create(status("RUNNING")) for each in crowd(store)]
    leases = [claim(store, each.id) for each in others]
    late = others[2]
    stale = late.commit(status("COMPLETED"), rest=Rest(None, is_final=True), fence=leases[2].fence)
    late.land(fence=leases[2].fence)
    units: list[Unit] = [
        stale if each is late else each.foresee(status("COMPLETED"), rest=Rest(None, is_final=True), fence=lease.fence)
        for each, lease in zip(others, leases, strict=True)
    ]
    outcomes = store.write(units)
    assert [type(outcome) for outcome in outcomes] == [Written, Written, Conflict, Written, Written, Written]
    ended = [each.head for each in others if each is not late]
    assert {(head.status, head.holder, head.lease_until_ms, head.wake_ms) for head in ended} == {("COMPLETED", None, None, None)}
    assert (late.head.status, late.head.holder) == ("RUNNING", "a")
    assert all(walk(store, each.id).ok for each in others)


def test_group_of_all_kinds_of_commits_lands_whole(store: Store) -> None:
    """First, plain and last commits of different executions, and the three of one execution, in one group."""
    new, plain, last = crowd(store, 2), crowd(store, 2), crowd(store, 2)
    for each in (*plain, *last):
        each.create(status("RUNNING"))
    one = SampleExecution(store, fresh_id("crowd"))
    units: list[Unit] = [one.foresee()]
    for number in range(2):
        units += [new[number].foresee(), last[number].foresee(status("FAILED"), rest=Rest(None, is_final=True))]
        units += [plain[number].foresee(), one.foresee(status("RUNNING")) if number == 0 else one.foresee()]
    units.append(one.foresee(status("COMPLETED"), rest=Rest(None, is_final=True)))
    assert [type(outcome) for outcome in store.write(units)] == [Written] * len(units)
    for each in (*new, *plain, *last, one):
        assert (each.head.digest, walk(store, each.id).ok) == (each.state.receipt, True)
    assert one.head.status == "COMPLETED"


def test_units_of_a_group_take_effect_in_order(store: Store, execution: SampleExecution) -> None:
    first, second = execution.commit(variable("n", 1)), execution.commit(variable("n", 2))
    outcomes = store.write(
        [
            StateBatch((put("k", 1),)),
            StateBatch((Increment(SCOPE, "k", 5),)),
            first,
            second,
            first,
            Claim(execution.id, "a", 60),
            Claim(execution.id, "b", 60),
            Deletion(execution.id),
            second,
        ]
    )
    kinds = [Written, Written, Written, Conflict, Seen, Written, LockHeld, Written, NotFound]
    assert [type(outcome) for outcome in outcomes] == kinds
    assert answers(outcomes[1]) == [6]


def test_lease_of_the_same_group_guards_the_commits_after_it(store: Store, execution: SampleExecution) -> None:
    [lease] = answers(write(store, Claim(execution.id, "a", 60)))
    outcomes = store.write([Claim(execution.id, "a", 60), execution.commit(fence=lease.fence)])
    assert [type(outcome) for outcome in outcomes] == [Written, LeaseLost]
    landed(write(store, execution.commit(fence=answers(outcomes[0])[0].fence)))


class Exploding(Sequence[Any]):
    """Operations that raise as soon as a store looks at them: a failure in the middle of a group."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        raise ZeroDivisionError


@pytest.mark.parametrize("kind", ["batch", "commit"])
def test_exception_in_the_middle_of_a_group_writes_nothing(store: Store, execution: SampleExecution, kind: str) -> None:
    """T01: neither the units before it nor those after it are there, and the store goes on to work."""
    ops = cast("tuple[StateOp, ...]", Exploding())
    bomb = StateBatch(ops) if kind == "batch" else SampleExecution(store, "bomb").creation(ops=ops)
    new, before = SampleExecution(store, "new"), everything(store, execution.id)
    group = [*one_of_each(new, execution), bomb, StateBatch((put("after"),))]
    with pytest.raises(ZeroDivisionError):
        store.write(group)
    assert everything(store, execution.id) == before
    assert everything(store, "new") == NOTHING
    assert content(store) == {}
    assert all(isinstance(outcome, Written) for outcome in store.write(one_of_each(new, execution)))


def test_group_that_failed_holds_up_no_other_store(store: Store, other_store: Store) -> None:
    """Its transaction is rolled back at once, and not when this store is next written to."""
    with pytest.raises(ZeroDivisionError):
        store.write([StateBatch((put("before"),)), StateBatch(cast("tuple[StateOp, ...]", Exploding()))])
    assert isinstance(write(other_store, StateBatch((put("after"),))), Written)


def test_fault_at_any_point_of_a_write_writes_nothing(store: Store, execution: SampleExecution) -> None:
    """T01: the store's own fault points, those that it has, one after the other."""
    points = [point for point in points_of_a_write(store) if point != "store.committed"]
    for number, point in enumerate(points):
        new, before = SampleExecution(store, f"new-{number}"), (everything(store, execution.id), content(store))
        with pytest.raises(InjectedFailure), armed(failing_at(point)):
            store.write(one_of_each(new, execution))
        assert (everything(store, execution.id), content(store)) == before, f"something was left behind by {point}"
        assert everything(store, new.id) == NOTHING, f"something was left behind by {point}"
    landed(write(store, execution.commit()))


def test_fault_after_the_write_leaves_a_commit_that_can_be_looked_up(store: Store, execution: SampleExecution) -> None:
    """T03: the reply is lost, the commit is not; asking for its id tells."""
    if "store.committed" not in points_of_a_write(store):
        pytest.skip("this store has no fault point after its transaction")
    commit = execution.commit()
    with pytest.raises((InjectedFailure, CommitUnknown)), armed(failing_at("store.committed")):
        write(store, commit)
    found = store.commit_of(execution.id, commit.commit_id)
    assert found is not None
    assert (found.revision, found.header, found.body) == (1, commit.header, commit.body)
    assert write(store, commit) == Seen(commit.header, commit.body)


def one_of_each(new: SampleExecution, old: SampleExecution) -> list[Unit]:
    """A group that touches every kind of row."""
    return [
        new.creation(ops=(put("new"),)),
        old.commit(ops=(put("old"), Increment(SCOPE, "n")), snapshot=old.snapshot()),
        Claim(old.id, "a", 60),
        Acquire(fresh_id("door"), "a", 60),
    ]


class InjectedFailure(Exception):
    """Raised at a fault point."""


def failing_at(point: str) -> Any:
    """A hook that raises at one fault point."""

    def fail(reached: str) -> None:
        if reached == point:
            raise InjectedFailure(point)

    return fail


def points_of_a_write(store: Store) -> list[str]:
    """The fault points that this store really has, in the order in which a write reaches them."""
    scratch, reached = SampleExecution(store, fresh_id("scratch")).create(), list[str]()
    elsewhere = Scope.custom("scratch", "acme").path
    with armed(reached.append):
        write(store, scratch.commit(ops=(put("k", scope=elsewhere),), snapshot=scratch.snapshot()))
    return list(dict.fromkeys(reached))
