"""The memory store keeps a list of the executions that come due, and takes it back with everything else of a group that failed."""

from __future__ import annotations

import pytest

from stepwell import fault_points
from stepwell.clock import FakeClock
from stepwell.errors import StepwellError
from stepwell.model.commit import Deletion
from stepwell.model.limits import Limits
from stepwell.stores.memory import MemoryStore
from stepwell.testing.conformance.due import claim_due, names_of, nudge, rest, runnable
from stepwell.testing.conformance.samples import landed, write


class Broken(Exception):
    pass


def break_off(point: str) -> None:
    if point == "store.before_commit":
        raise Broken


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(FakeClock(), Limits())


def test_execution_that_ended_is_looked_at_no_more(store: MemoryStore) -> None:
    execution = runnable(store)
    [lease] = claim_due(store)
    rest(execution, lease.fence, is_final=True)
    assert not store._executions.leases.waking


def test_execution_that_was_deleted_is_looked_at_no_more(store: MemoryStore) -> None:
    execution = runnable(store)
    landed(write(store, Deletion(execution.id)))
    assert not store._executions.leases.waking
    assert claim_due(store) == []


def test_nudge_makes_one_that_rests_without_a_time_come_due(store: MemoryStore) -> None:
    execution = runnable(store)
    [lease] = claim_due(store)
    rest(execution, lease.fence, None)
    assert claim_due(store) == []
    nudge(store, execution.id)
    assert names_of(claim_due(store)) == [execution.id]


def test_start_that_was_taken_back_is_not_due(store: MemoryStore) -> None:
    with fault_points.armed(break_off), pytest.raises((Broken, StepwellError)):
        runnable(store)
    assert not store._executions.leases.waking
    assert claim_due(store) == []


def test_end_that_was_taken_back_leaves_it_due(store: MemoryStore) -> None:
    execution = runnable(store)
    [lease] = claim_due(store)
    with fault_points.armed(break_off), pytest.raises((Broken, StepwellError)):
        rest(execution, lease.fence, is_final=True)
    assert list(store._executions.leases.waking) == [execution.id]
