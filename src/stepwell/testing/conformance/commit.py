"""Commits: their guards, refusals with reasons, and that a unit lands whole or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
from msgspec.structs import replace

from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import AlreadyExists, Conflict, NotFound, StoreUnavailable
from stepwell.model.commit import (
    Claim,
    ClaimDue,
    Creation,
    Deletion,
    LockGuard,
    Release,
    Seen,
    Unit,
    Unlock,
    Written,
)
from stepwell.model.mutation import ChangeVersion
from stepwell.model.scoped_operations import ABSENT, Increment, StateOp
from stepwell.testing.conformance.samples import (
    NOTHING,
    SCOPE,
    SampleExecution,
    acquire,
    answers,
    claim,
    content,
    everything,
    landed,
    put,
    refused,
    status,
    step,
    variable,
    walk,
    write,
)


def test_creation_makes_the_execution(store: Store) -> None:
    new = SampleExecution(store, "new", workspace="acme", workflow="orders")
    creation = replace(new.creation(), creation=Creation("orders", 3, "parent-1"), signature=b"\x00signed\xff")
    landed(write(store, creation))
    head = new.head
    assert (head.execution_id, head.workspace_id, head.workflow_id, head.version) == ("new", "acme", "orders", 3)
    assert (head.status, head.revision, head.digest, head.signature) == ("PENDING", 0, creation.digest, b"\x00signed\xff")
    assert (head.fence, head.holder, head.lease_until_ms, head.base_revision) == (0, None, None, -1)
    assert (head.created_ms, head.updated_ms, head.parent_id) == (creation.committed_ms, creation.committed_ms, "parent-1")


def test_creation_can_set_a_status(store: Store) -> None:
    assert SampleExecution(store).create(status("RUNNING")).head.status == "RUNNING"


def test_commit_moves_the_head(execution: SampleExecution) -> None:
    created = execution.head
    commit = execution.land(status("RUNNING"), signature=b"second")
    head = execution.head
    assert (head.revision, head.digest, head.status, head.signature) == (1, commit.digest, "RUNNING", b"second")
    assert (head.created_ms, head.updated_ms) == (created.created_ms, commit.committed_ms)


def test_commit_without_a_status_keeps_the_one_before(execution: SampleExecution) -> None:
    execution.land(status("RUNNING"))
    execution.land(variable())
    assert execution.head.status == "RUNNING"


def test_commit_moves_the_execution_to_another_version_of_its_workflow(store: Store, execution: SampleExecution) -> None:
    execution.land(ChangeVersion(2))
    assert (execution.head.version, walk(store, execution.id).ok) == (2, True)
    execution.land(variable())
    assert execution.head.version == 2
    waiting = SampleExecution(store, "waiting").creation()
    waiting = replace(waiting, creation=Creation("orders", 1, is_runnable=True))
    landed(write(store, waiting))
    found = SampleExecution(store, "waiting")
    found.follow()
    found.land(ChangeVersion(2))
    due = ClaimDue(("orders",), "old", 30, 10, (1,))
    assert answers(write(store, due)) == []
    assert [lease.name for lease in answers(write(store, replace(due, versions=(2,))))] == ["waiting"]


def test_signature_belongs_to_the_newest_commit_alone(execution: SampleExecution) -> None:
    execution.land(signature=b"one")
    execution.land()
    assert execution.head.signature is None


def test_stale_revision_is_a_conflict_that_writes_nothing(store: Store, execution: SampleExecution) -> None:
    late = execution.commit(variable("late"), ops=(put("late"),), snapshot=execution.snapshot())
    execution.land(variable("first"))
    before = everything(store, execution.id)
    conflict = refused(write(store, late), Conflict)
    assert (conflict.expected, conflict.actual) == (0, 1)
    assert everything(store, execution.id) == before


def test_revision_ahead_of_the_head_is_a_conflict(store: Store, execution: SampleExecution) -> None:
    view = SampleExecution(store, execution.id)
    view.state = execution.state
    ahead = replace(view.commit(), revision=2)
    assert refused(write(store, ahead), Conflict).actual == 0
    assert execution.head.revision == 0


def test_right_revision_on_another_history_is_a_conflict(store: Store, execution: SampleExecution) -> None:
    elsewhere = replace(execution.commit(), previous="f" * 64)
    refused(write(store, elsewhere), Conflict)
    assert execution.head.revision == 0
    assert store.history(execution.id, 0, 10) == []


def test_commit_to_an_execution_that_is_not_there_makes_none(store: Store, execution: SampleExecution) -> None:
    nobody = SampleExecution(store, "nobody")
    nobody.state = execution.state
    refused(write(store, nobody.commit(ops=(put("k"),))), NotFound)
    assert everything(store, "nobody") == NOTHING
    assert content(store) == {}


# Ids as users choose them, and as Stepwell makes them (see model.ids): those say a revision, and users may imitate them.
COMMIT_IDS = ["pay", "r1.pay", "r3.pay", "r01.pay", "r1.", "r.pay", "r99999999999999.pay"]


@pytest.mark.parametrize("commit_id", COMMIT_IDS)
def test_commit_id_seen_before_gives_back_what_was_stored(store: Store, execution: SampleExecution, commit_id: str) -> None:
    """T03: a caller who lost the reply sends the same commit again."""
    first = execution.land(variable("n", 1), commit_id=commit_id)
    before = everything(store, execution.id)
    assert write(store, first) == Seen(first.header, first.body)
    assert everything(store, execution.id) == before


@pytest.mark.parametrize("commit_id", COMMIT_IDS)
def test_commit_id_seen_before_wins_over_new_content_and_a_new_revision(
    store: Store, execution: SampleExecution, commit_id: str
) -> None:
    """T03: the retry was built anew, on a state that its own first try is part of."""
    first = execution.land(variable("n", 1), commit_id=commit_id)
    for revision in (2, 3, 4):
        again = execution.commit(variable("n", 2), commit_id=commit_id)
        assert write(store, again) == Seen(first.header, first.body)
        execution.land()
        assert execution.head.revision == revision


def test_seen_commit_does_not_write_its_state_again(store: Store, execution: SampleExecution) -> None:
    """T03: a counter that rides with a commit counts distinct commit ids."""
    count: tuple[StateOp, ...] = (Increment(SCOPE, "paid"),)
    commit = execution.land(ops=count)
    for _ in range(3):
        assert isinstance(write(store, commit), Seen)
    assert content(store) == {"paid": 1}


def test_seen_commit_is_known_though_its_state_would_be_refused_now(store: Store, execution: SampleExecution) -> None:
    """T03: the key that must be absent is there because this very commit set it."""
    commit = execution.land(ops=(put("once", expected=ABSENT),))
    assert isinstance(write(store, commit), Seen)


def test_seen_commit_is_known_though_its_lease_and_lock_are_lost(store: Store, execution: SampleExecution) -> None:
    lease, lock = claim(store, execution.id), acquire(store, "door")
    commit = execution.land(fence=lease.fence, guards=(LockGuard("door", lock.fence),))
    landed(write(store, Release(execution.id, "a", lease.fence)))
    claim(store, execution.id, holder="b")
    landed(write(store, Unlock("door", "a", lock.fence)))
    assert isinstance(write(store, commit), Seen)


def test_creation_sent_twice_is_seen(store: Store) -> None:
    creation = SampleExecution(store).creation()
    landed(write(store, creation))
    assert write(store, creation) == Seen(creation.header, creation.body)


def test_commit_id_is_unique_to_its_execution_only(store: Store) -> None:
    one, two = SampleExecution(store, "one").create(), SampleExecution(store, "two").create()
    first, second = one.land(commit_id="same"), two.land(commit_id="same")
    assert first.header != second.header
    assert (one.head.revision, two.head.revision) == (1, 1)


def test_execution_id_is_never_created_twice(store: Store, execution: SampleExecution) -> None:
    before = everything(store, execution.id)
    twin = SampleExecution(store, execution.id, workspace="other").creation(ops=(put("k"),))
    refused(write(store, twin), AlreadyExists)
    assert everything(store, execution.id) == before
    assert content(store) == {}


def test_deleted_execution_is_gone_for_every_reader(store: Store, execution: SampleExecution) -> None:
    commit = execution.land()
    execution.land(snapshot=execution.snapshot())
    landed(write(store, Deletion(execution.id)))
    assert everything(store, execution.id) == NOTHING
    assert store.commit_of(execution.id, commit.commit_id) is None
    assert store.find(ExecutionQuery()) == []


def test_deleted_execution_cannot_be_revived(store: Store, execution: SampleExecution) -> None:
    """T07: the tombstone wins over every late writer."""
    creation = SampleExecution(store, execution.id).creation()
    first, late = execution.land(), execution.commit(ops=(put("k"),))
    landed(write(store, Deletion(execution.id)))
    refused(write(store, late), NotFound)
    refused(write(store, first), NotFound)
    refused(write(store, creation), AlreadyExists)
    refused(write(store, execution.adoption()), AlreadyExists)
    refused(write(store, Claim(execution.id, "a", 60)), NotFound)
    refused(write(store, Deletion(execution.id)), NotFound)
    assert everything(store, execution.id) == NOTHING
    assert content(store) == {}


def test_deletion_leaves_other_executions_alone(store: Store) -> None:
    kept = SampleExecution(store, "kept").create().grow(2)
    landed(write(store, Deletion(SampleExecution(store, "gone").create().id)))
    assert walk(store, kept.id).ok
    assert kept.head.revision == 2


def test_deleting_nothing_is_not_found(store: Store) -> None:
    refused(write(store, Deletion("nobody")), NotFound)


@pytest.mark.parametrize("is_grouped", [False, True], ids=["alone", "grouped"])
@pytest.mark.parametrize("order", list(itertools.permutations(("first", "other", "again", "delete"))), ids="-".join)
def test_step_output_is_written_once_whatever_comes_first(store: Store, order: Sequence[str], is_grouped: bool) -> None:
    """T07: a step's output, another output for it, a retry of the first, and a deletion, in every order."""
    execution = SampleExecution(store).create()
    first, other = execution.commit(step("charge", 1)), execution.commit(step("charge", 2))
    units: dict[str, Unit] = {"first": first, "other": other, "again": first, "delete": Deletion(execution.id)}
    writes = [units[name] for name in order]
    outcomes = store.write(writes) if is_grouped else [write(store, unit) for unit in writes]
    assert [type(outcome) for outcome in outcomes] == list(expected_of_step(order))
    assert store.head(execution.id) is None
    assert store.history(execution.id, -1, 10) == []


def expected_of_step(order: Sequence[str]) -> Iterator[type]:
    """Return the outcome that each of T07's actors must get."""
    winner = ""
    for name in order:
        commit = "first" if name == "again" else name
        if name == "delete":
            winner = "deleted"
            yield Written
        elif winner == "deleted":
            yield NotFound
        elif winner == "":
            winner = commit
            yield Written
        else:
            yield Seen if commit == winner else Conflict


def test_scoped_state_lands_with_its_commit(store: Store, execution: SampleExecution) -> None:
    outcome = write(store, execution.commit(ops=(put("k", "v"), Increment(SCOPE, "n", 2))))
    assert answers(outcome)[1] == 2
    assert content(store) == {"k": "v", "n": 2}


def test_refused_state_refuses_its_commit(store: Store, execution: SampleExecution) -> None:
    commit = execution.commit(ops=(put("other"), put("k", expected=7)), snapshot=execution.snapshot())
    before = everything(store, execution.id)
    refused(write(store, commit), Conflict)
    assert everything(store, execution.id) == before
    assert content(store) == {}
    landed(write(store, replace(commit, ops=())))


def test_refused_creation_with_state_leaves_the_id_free(store: Store) -> None:
    new = SampleExecution(store, "new")
    refused(write(store, new.creation(ops=(put("k", expected=7),))), Conflict)
    assert store.head("new") is None
    new.create()


def test_head_digests_come_in_the_order_of_the_ids(store: Store) -> None:
    first, second = SampleExecution(store).create(), SampleExecution(store, "other é/%:{}").create()
    first.land()
    asked = [second.id, "nobody", first.id, second.id]
    assert store.head_digests(asked) == [second.state.receipt, None, first.state.receipt, second.state.receipt]
    second.land()
    assert store.head_digests([second.id]) == [second.state.receipt]
    landed(write(store, Deletion(first.id)))
    assert store.head_digests([first.id, second.id]) == [None, second.state.receipt]
    assert store.head_digests([]) == []


def test_many_head_digests_are_read_at_once(store: Store) -> None:
    executions = [SampleExecution(store, f"e-{number}").create() for number in range(20)]
    ids = [execution.id for execution in executions] * 60
    assert store.head_digests(ids) == [execution.state.receipt for execution in executions] * 60


def test_closing_twice_does_nothing(store: Store) -> None:
    store.close()
    store.close()


def test_closed_store_refuses_reads_and_writes(store: Store, execution: SampleExecution) -> None:
    store.close()
    store.close()
    reads: list[Callable[[], object]] = [
        lambda: store.head(execution.id),
        lambda: store.load(execution.id),
        lambda: store.head_digests([execution.id]),
        lambda: store.entries(SCOPE, ["k"]),
        store.check,
    ]
    for read in reads:
        with pytest.raises(StoreUnavailable):
            read()
    with pytest.raises(StoreUnavailable):
        write(store, execution.commit())
