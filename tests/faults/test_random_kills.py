"""T02: many writers, killed at random times, again and again on one file."""

from __future__ import annotations

import random
from pathlib import Path

import apsw
from tests.faults.acks import AckLog
from tests.faults.callers import Blocking
from tests.faults.children import Child
from tests.faults.invariants import check_acks, check_chain
from tests.faults.killed_writers import EXECUTIONS, LEDGER

from stepwell.testing.effort import scaled

_ROUNDS = scaled(8)
_MOST_ACKS = 120


def check_whole(caller: Blocking) -> None:
    """I1 and I5: every commit landed with all of its parts, each exactly once."""
    counted = caller.well.state.at(LEDGER).all()
    for execution_id in EXECUTIONS:
        state, receipts = caller.load(execution_id), caller.receipts(execution_id)
        commits = [receipt.commit_id for receipt in receipts[1:]]
        assert state.step_count == len(commits) == counted.get(execution_id, 0)
        assert {name: step.output for name, step in state.steps.items()} == {commit: commit for commit in commits}
        assert state.variables.get("last") == (commits[-1] if commits else None)


def test_randomly_killed_writers_lose_no_acknowledged_commit_and_leave_none_partial(tmp_path: Path) -> None:
    """T02, short: 8 writers, 50 executions, rounds of kill -9 after a random number of acks; I1 to I5 on the ack log."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    choice, path, acks = random.Random(seed), tmp_path / "well.db", tmp_path / "acks"
    url = f"sqlite:///{path}"
    caller = Blocking(url)
    for execution_id in EXECUTIONS:
        caller.create(execution_id, f"make {execution_id}")
    caller.close()
    for number in range(_ROUNDS):
        with Child("killed_writers", url, acks, f"{seed}/{number}") as child:
            for _ in range(choice.randrange(1, _MOST_ACKS)):
                assert child.hear() == "ack"
            child.kill()
        caller = Blocking(url)
        check_acks(caller, AckLog.read(acks))
        check_whole(caller)
        caller.close()
    caller = Blocking(url)
    for execution_id in EXECUTIONS:
        check_chain(caller, execution_id)
    caller.close()
    assert apsw.Connection(str(path)).execute("PRAGMA integrity_check").get == "ok"
