"""T01: a commit that fails at any point is old or new, never between, and everything goes on from there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faults.callers import CALLERS, Caller
from tests.faults.crash_case import ORDER, Picture, change, follow_up, prepare, world
from tests.faults.hooks import Boom, at
from tests.faults.invariants import check_chain

from stepwell import CommitUnknown
from stepwell.fault_points import POINTS, armed

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


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("colour", CALLERS)
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_failed_transaction_without_an_id_of_its_own_is_committed_again_and_lands_once(
    store: str, point: str, open_caller: Callable[[], Caller], pictures: dict[str, list[Picture]]
) -> None:
    """T01: whoever gave no commit id can still call commit() again on the same transaction."""
    case = next(each for each in pictures[store] if each.act.name == "commit")
    for hit in range(1, case.trace.hits()[point] + 1):
        caller = open_caller()
        pending = caller.begin(ORDER, None, change)
        with armed(at(point, hit, fail_with(Boom))), pytest.raises((Boom, CommitUnknown)):
            pending.commit()
        receipt = pending.commit()
        assert (receipt.revision, receipt.after) == (case.receipt.revision, case.receipt.after)
        whole, wanted = caller.whole(ORDER), case.new[0]
        assert whole is not None
        assert wanted is not None
        assert (whole.entries, whole.scopes) == (wanted.entries, wanted.scopes)
        check_chain(caller, ORDER)
