"""T01: a commit that fails at any point is old or new, never between, and everything goes on from there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faults.callers import CALLERS, Caller, Pending
from tests.faults.crash_case import ORDER, Picture, change, follow_up, pack, prepare, world
from tests.faults.hooks import Boom, Trace, at
from tests.faults.invariants import check_chain

from stepwell import CommitUnknown
from stepwell.fault_points import POINTS, armed
from stepwell.state.transaction_buffer import Buffer

_KINDS: dict[str, type[BaseException]] = {"exception": Boom, "cancelled": asyncio.CancelledError}


@pytest.fixture
def open_caller(store: str, colour: str, quick_path: Path) -> Iterator[Callable[[], Caller]]:
    """Opens callers of a colour, each on a well of its own that is prepared for the acts."""
    opened: list[Caller] = []

    def make() -> Caller:
        url = "memory://" if store == "memory" else f"sqlite:///{quick_path}/{len(opened)}.db"
        opened.append(CALLERS[colour](url))
        prepare(opened[-1])
        return opened[-1]

    yield make
    for caller in opened:
        caller.close()


def fail_with(kind: type[BaseException]) -> Callable[[], None]:
    def fail() -> None:
        raise kind

    return fail


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("colour", CALLERS)
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_commit_that_fails_is_old_or_new_and_its_retry_lands_once(
    store: str, kind: str, point: str, open_caller: Callable[[], Caller], pictures: dict[str, list[Picture]]
) -> None:
    """T01: exception and CancelledError at every hit of every point; I1, I3, I4; the same well goes on at once."""
    cases = [(each, hit) for each in pictures[store] for hit in range(1, each.trace.hits()[point] + 1)]
    assert cases, "no act reaches the point"
    for case, hit in cases:
        for is_fresh_retry_first in (True, False):
            fail_and_retry(open_caller(), case, at(point, hit, fail_with(_KINDS[kind])), point, kind, is_fresh_retry_first)


def fail_and_retry(
    caller: Caller, case: Picture, hook: Callable[[str], None], point: str, kind: str, is_fresh_retry_first: bool
) -> None:
    act, error = case.act, CommitUnknown if kind == "exception" and case.is_unknown_at(point) else _KINDS[kind]
    commit = act.begin(caller)
    with armed(hook), pytest.raises(error):
        commit()
    assert world(caller) == (case.new if case.has_landed_at(point) else case.old)
    if case.has_landed_at(point):
        check_chain(caller, act.execution_id)

    fresh = act.begin(caller)
    retries = (fresh, commit) if is_fresh_retry_first else (commit, fresh)
    assert [retry().digest for retry in retries] == [case.receipt.digest] * 2
    assert world(caller) == case.new

    caller.begin(act.execution_id, None, follow_up).commit()
    check_chain(caller, act.execution_id)
    steps = caller.load(act.execution_id).steps
    assert all(steps[name] == output for name, output in caller.load(act.execution_id, at=case.receipt.revision).steps.items())


CHANGES: dict[str, Callable[[Buffer], None]] = {"transaction": change, "fast path": pack}


def begin_unnamed(caller: Caller, way: str) -> Pending:
    """A transaction without a commit id, on an execution that this store has written to."""
    caller.begin(ORDER, None, lambda tx: tx.set_variable("is_warm", True)).commit()
    caller.begin(ORDER, None, lambda tx: tx.set_variable("is_warm", False)).commit()
    return caller.begin(ORDER, None, CHANGES[way])


def trace_unnamed(caller: Caller, way: str) -> Trace:
    pending, trace = begin_unnamed(caller, way), Trace()
    with armed(trace):
        pending.commit()
    return trace


@pytest.mark.parametrize("colour", CALLERS)
@pytest.mark.parametrize("store", ["sqlite"])
def test_fast_path_of_sqlite_is_taken_whether_or_not_a_test_listens(open_caller: Callable[[], Caller], store: str) -> None:
    """Nothing between the beginning and the commit can be interrupted: it is one statement."""
    assert store == "sqlite"
    points = [point for point in trace_unnamed(open_caller(), "fast path").points if point.startswith("store.")]
    assert points == ["store.before_begin", "store.committed"]


@pytest.mark.parametrize("way", CHANGES)
@pytest.mark.parametrize("colour", CALLERS)
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_failed_transaction_without_a_given_id_is_retried_and_lands_once(
    store: str, way: str, open_caller: Callable[[], Caller]
) -> None:
    """T01: whoever gave no commit id can still call commit() again on the same transaction, whatever point it failed at."""
    hits = trace_unnamed(open_caller(), way).hits()
    assert store == "memory" or ("store.begun" in hits) == (way == "transaction")
    for point, hit in [(name, number) for name, count in hits.items() for number in range(1, count + 1)]:
        caller = open_caller()
        pending, before = begin_unnamed(caller, way), caller.load(ORDER).revision
        with armed(at(point, hit, fail_with(Boom))), pytest.raises((Boom, CommitUnknown)):
            pending.commit()
        receipt = pending.commit()
        whole = caller.whole(ORDER)
        assert whole is not None
        assert receipt.revision == whole.revision == before + 1
        assert whole.receipts[-1] == receipt.digest
        check_chain(caller, ORDER)
