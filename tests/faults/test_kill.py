"""T01: a process killed with SIGKILL at any point of a commit leaves the old state or the new one, and a retry lands once."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

import pytest
from tests.faults.acks import AckLog
from tests.faults.callers import CALLERS, Blocking
from tests.faults.children import Child
from tests.faults.crash_case import ORDER, Picture, follow_up, prepare, world
from tests.faults.invariants import check_acks, check_chain

from stepwell.fault_points import POINTS

# T01 says one second. The limit is longer for a busy machine: it only tells a wait for a dead process from none.
_LONGEST_REOPEN_SECONDS = 60.0


class Site:
    """A database file with the prepared execution in it, and the ack log that children keep beside it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._template, self._files = folder, folder / "template.db", 0
        caller = Blocking(f"sqlite:///{self._template}")
        prepare(caller)
        caller.close()

    def renew(self) -> None:
        """Go on with a new copy of the file and an empty ack log."""
        self._files += 1
        path, self.acks = self._folder / f"{self._files}.db", self._folder / f"{self._files}.acks"
        shutil.copy(self._template, path)
        self.url = f"sqlite:///{path}"

    def kill(self, colour: str, what: str, point: str, hit: int) -> None:
        """Run a child that dies at a hit of a point."""
        with Child("crasher", self.url, colour, what, point, hit, self.acks) as child:
            assert child.end() == -signal.SIGKILL

    def reopen(self) -> Blocking:
        """Open what the dead process left: quickly, and everything that was acknowledged is there."""
        began = time.monotonic()
        caller = Blocking(self.url)
        caller.load(ORDER)
        assert time.monotonic() - began < _LONGEST_REOPEN_SECONDS
        check_chain(caller, ORDER)
        check_acks(caller, AckLog.read(self.acks))
        return caller


@pytest.fixture
def site(quick_path: Path) -> Site:
    return Site(quick_path)


def check_and_retry(caller: Blocking, case: Picture, point: str) -> None:
    act = case.act
    assert world(caller) == (case.new if case.has_landed_at(point) else case.old)
    assert caller.receipt(act.execution_id, act.commit_id) == (case.receipt if case.has_landed_at(point) else None)
    assert act.begin(caller)() == case.receipt
    assert world(caller) == case.new
    caller.begin(act.execution_id, None, follow_up).commit()
    check_chain(caller, act.execution_id)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("colour", CALLERS)
def test_a_killed_commit_is_old_or_new_and_its_retry_lands_once(
    point: str, colour: str, site: Site, pictures: dict[str, list[Picture]]
) -> None:
    """T01: kill -9 at every hit of every point, for both colours; I1 to I4; reopened without a wait."""
    acts = [each for each in pictures["sqlite"] if point in each.trace.points]
    assert acts, "no act reaches the point"
    few = acts if colour == "blocking" else acts[-1:]  # the store cannot tell the callers apart
    cases = [(each, hit) for each in few for hit in range(1, each.trace.hits()[point] + 1)]
    for case, hit in cases:
        site.renew()
        site.kill(colour, case.act.name, point, hit)
        caller = site.reopen()
        check_and_retry(caller, case, point)
        caller.close()


@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_while_it_recovers_from_a_kill_changes_nothing(
    point: str, site: Site, pictures: dict[str, list[Picture]]
) -> None:
    """T01, FP15: killed before COMMIT, then again at each point of the retry (and while loading); then it lands once."""
    case = next(each for each in pictures["sqlite"] if point in each.trace.points)
    site.renew()
    site.kill("blocking", case.act.name, "store.before_commit", 1)
    if point == "commit.applying":
        site.kill("blocking", "load", point, 1)
    site.kill("blocking", case.act.name, point, 1)
    caller = site.reopen()
    check_and_retry(caller, case, point)
    caller.close()
