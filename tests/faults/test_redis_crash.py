"""T01 on Redis: a commit that fails, or whose process is killed, at any point is old or new, never between.

A unit is one script, and Redis runs a script whole: the points inside a store's transaction (a row written, another not) do not
exist here. What is left is before the script is sent and after it was answered.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faults.acks import AckLog
from tests.faults.callers import CALLERS, Blocking, Caller
from tests.faults.children import Child
from tests.faults.crash_case import ACTS, ORDER, Picture, change, follow_up, prepare, world
from tests.faults.hooks import Boom, Trace, at
from tests.faults.invariants import check_acks, check_chain
from tests.support.redis_server import RedisServer

from stepwell import CommitUnknown, Scope
from stepwell.fault_points import POINTS, armed
from stepwell.state.transaction_buffer import Buffer

# Writes inside a transaction; a script has no inside that anything could fail in.
_INSIDE = {"store.head_written", "store.commit_written", "store.snapshot_written", "store.entry_written", "store.scope_written"}
_REACHED = [point for point in POINTS if point not in _INSIDE]
pytestmark = pytest.mark.usefixtures("given_clock")

_KINDS: dict[str, type[BaseException]] = {"exception": Boom, "cancelled": asyncio.CancelledError}
# T01 says one second. The limit is longer for a busy machine: it only tells a wait for a dead process from none.
_LONGEST_REOPEN_SECONDS = 60.0

OpenCaller = Callable[[str], Caller]


@pytest.fixture
def open_caller(redis_server: RedisServer) -> Iterator[OpenCaller]:
    """Opens callers of a colour, each on a store of its own that is prepared for the acts."""
    opened: list[Caller] = []

    def make(colour: str) -> Caller:
        opened.append(CALLERS[colour](redis_server.url()))
        prepare(opened[-1])
        return opened[-1]

    yield make
    for caller in opened:
        caller.close()


@pytest.mark.parametrize("colour", CALLERS)
def test_commits_that_write_everything_reach_exactly_the_points_that_redis_has(colour: str, redis_url: str) -> None:
    """T01: no write without a point, no point that nothing reaches."""
    caller, trace = CALLERS[colour](redis_url), Trace()
    with armed(trace):
        prepare(caller)
        caller.begin(ORDER, "third", change).commit()
    caller.close()
    assert set(trace.points) == set(_REACHED)


@pytest.mark.parametrize("act", ACTS)
def test_redis_comes_to_the_same_receipts_and_state_as_memory(
    act: str, open_caller: OpenCaller, pictures: dict[str, list[Picture]]
) -> None:
    """T01, T51: what the crash tests compare with does not depend on the store."""
    case = next(each for each in pictures["memory"] if each.act.name == act)
    caller = open_caller("blocking")
    commit = case.act.begin(caller)
    assert world(caller) == case.old
    assert commit() == case.receipt
    assert world(caller) == case.new


@pytest.mark.parametrize("point", _REACHED)
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("colour", CALLERS)
def test_a_commit_that_fails_is_old_or_new_and_its_retry_lands_once(
    colour: str, kind: str, point: str, open_caller: OpenCaller, pictures: dict[str, list[Picture]]
) -> None:
    """T01: exception and CancelledError at every point; I1, I3, I4; the same store goes on at once."""
    for case in pictures["memory"]:
        if point not in case.trace.points:
            continue
        caller = open_caller(colour)
        commit = case.act.begin(caller)
        error = CommitUnknown if (point, kind) == ("store.committed", "exception") else _KINDS[kind]
        with armed(at(point, 1, raising(_KINDS[kind]))), pytest.raises(error):
            commit()
        assert world(caller) == (case.new if case.has_landed_at(point) else case.old)
        assert [retry().digest for retry in (case.act.begin(caller), commit)] == [case.receipt.digest] * 2
        assert world(caller) == case.new
        caller.begin(case.act.execution_id, None, follow_up).commit()
        check_chain(caller, case.act.execution_id)


def raising(kind: type[BaseException]) -> Callable[[], None]:
    def act() -> None:
        raise kind

    return act


# Each child takes half a second to start: every point once, with the commit, and with the creation where a store is concerned.
_KILLS = [("commit", point) for point in _REACHED] + [("create", point) for point in _REACHED if point.startswith("store.")]


@pytest.mark.parametrize(("act", "point"), _KILLS)
def test_a_killed_commit_is_old_or_new_and_its_retry_lands_once(
    act: str, point: str, redis_url: str, tmp_path: Path, pictures: dict[str, list[Picture]]
) -> None:
    """T01: kill -9 of the process at every point; I1 to I4; reopened without a wait."""
    case = next(each for each in pictures["memory"] if each.act.name == act)
    before = Blocking(redis_url)
    prepare(before)
    before.close()
    acks = tmp_path / "acks"
    colour = list(CALLERS)[_REACHED.index(point) % 2]
    with Child("crasher", redis_url, colour, act, point, 1, acks) as child:
        assert child.end() == -signal.SIGKILL

    began = time.monotonic()
    caller = Blocking(redis_url)
    caller.load(ORDER)
    assert time.monotonic() - began < _LONGEST_REOPEN_SECONDS
    check_chain(caller, ORDER)
    check_acks(caller, AckLog.read(acks))
    assert world(caller) == (case.new if case.has_landed_at(point) else case.old)
    assert caller.receipt(case.act.execution_id, case.act.commit_id) == (case.receipt if case.has_landed_at(point) else None)
    assert case.act.begin(caller)() == case.receipt
    assert world(caller) == case.new
    caller.begin(case.act.execution_id, None, follow_up).commit()
    check_chain(caller, case.act.execution_id)
    caller.close()


def test_a_server_killed_in_the_middle_of_commits_keeps_every_acknowledged_one(tmp_path: Path) -> None:
    """T01, I1 to I3: kill -9 of the server itself, again and again, with appendfsync=always; counters ride with the commits."""
    with RedisServer(tmp_path, appendonly="yes", appendfsync="always") as server:
        url = server.url("mine")
        caller = Blocking(url)
        caller.create(ORDER, "first")
        known = 0
        for _ in range(5):
            with armed(at("store.before_commit", 4, server.kill)):
                for _ in range(4):
                    try:
                        caller.begin(ORDER, None, count).commit()
                        known += 1
                    except Exception:  # noqa: BLE001 - the server is gone; what counts is what it kept
                        break
            server.start()
        check_chain(caller, ORDER)
        assert caller.load(ORDER).step_count >= known
        [(_, content)] = caller.scopes().values()
        assert content == {"n": caller.load(ORDER).step_count}
        caller.close()


def count(tx: Buffer) -> None:
    tx.increment_step_count()
    tx.state(Scope.globals()).increment("n")
