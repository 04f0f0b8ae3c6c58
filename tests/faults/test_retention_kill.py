"""Retention that is killed at any step: nothing is ever half there, and the next round finishes the work."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.support.store_urls import on_servers, shared_url

from stepwell import ExecutionRemoved, FakeClock, NotFound, Stepwell, read_archive, verify_archive, verify_proof
from stepwell.clock import Clock
from stepwell.fault_points import RETENTION_POINTS

__all__ = ["shared_url"]

WAIT = 60

PROGRAM = textwrap.dedent("""
    import sys
    from datetime import UTC, datetime
    from tests.faults.hooks import at, kill_this_process
    from stepwell import FakeClock, Stepwell
    from stepwell.fault_points import armed
    from stepwell.maintenance import retention

    retention._BATCH = 2
    url, point, number, *days = sys.argv[1:]
    clock = FakeClock(datetime.now(UTC)) if days else None
    if clock is not None:
        clock.advance(days[0])

    with Stepwell(url, worker=False, clock=clock) as well, armed(at(point, int(number), kill_this_process)):
        well.retention.apply()
""")

ENDED = ("a", "b", "c")
OLD = ("x", "y", "z")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=WAIT, check=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a well with executions that have ended, and a long one."""
    path = tmp_path_factory.mktemp("made") / "well.db"
    fill(f"sqlite:///{path}", FakeClock(datetime.now(UTC) - timedelta(days=2)))
    return path


def fill(url: str, clock: Clock | None = None) -> None:
    """Store executions that have ended, and a long one."""
    with Stepwell(url, worker=False, clock=clock) as well:
        for tier, names in (("free", ENDED), ("scale", OLD)):
            well.workspaces.put(tier, tier=tier)
            for name in names:
                well.create(name, workspace=tier, context={"customer": "Ada"})
                for status in ("RUNNING", "COMPLETED"):
                    with well.transaction(name) as tx:
                        tx.set_status(status)
        well.create("meter", workspace="startup")
        well.workspaces.put("startup", tier="startup")
        for reading in range(115):
            with well.transaction("meter") as tx:
                tx.set_variable("reading", reading)


@pytest.fixture
def url(made: Path, tmp_path: Path) -> str:
    """A well where values of three executions go, three others go themselves, and one rotates; all with an archive."""
    shutil.copy(made, tmp_path / "well.db")
    place = f"sqlite:///{tmp_path}/well.db"
    put_policies(place, tmp_path / "archive")
    return place


def put_policies(url: str, archive: Path) -> None:
    """Set a policy of each kind."""
    with Stepwell(url, worker=False) as well:
        well.retention.put("free", payloads="1d", archive=str(archive))
        well.retention.put("scale", executions="1d", archive=str(archive))
        well.retention.put("startup", receipts=10, archive=str(archive))


def check(url: str, folder: Path, *, is_done: bool, clock: Clock | None = None) -> None:
    """Each execution is as it was, or as its policy leaves it; what is gone is in the archive; all chains verify."""
    assert not folder.exists() or verify_archive(folder).ok
    with Stepwell(url, worker=False, clock=clock) as well:
        for name in ENDED:
            assert well.verify(name).ok
            state = well.load(name)
            is_cleared = state.context == {}
            assert is_cleared or (state.context == {"customer": "Ada"} and not is_done)
            assert is_cleared == (state.result is not None)
            if is_done:
                assert b"customer" not in well.snapshot(name)
                assert well.receipts(name) == []
                assert sum(verify_proof(each).receipts for each in read_archive(folder, name)) >= 4
        for name in OLD:
            try:
                assert well.load(name).context == {"customer": "Ada"}
                assert well.verify(name).receipts == 3
                assert not is_done
                with pytest.raises(NotFound):
                    well.retention.tombstone(name)
            except ExecutionRemoved:
                tombstone = well.retention.tombstone(name)
                assert tombstone.digest in [verify_proof(each).head for each in read_archive(folder, name)]
        assert well.load("meter").variables == {"reading": 114}
        kept = well.verify("meter")
        assert kept.ok
        assert kept.receipts == 10 or (kept.receipts == 116 and not is_done)
        removed = {each.execution_id for each in well.retention.tombstones()}
        assert removed == set(OLD) - {each.execution_id for each in well.executions.list()}
        if is_done:
            again = well.retention.apply()
            assert (again.removed, again.cleared, again.rotated, again.problems) == (0, 0, 0, ())


STEPS = [
    *((point, 1) for point in RETENTION_POINTS if point != "retention.items_dropped"),
    ("retention.values_removed", 2),
    ("retention.receipts_dropped", 2),
    ("retention.archive_written", 3),
]


@pytest.mark.parametrize(("point", "number"), STEPS)
def test_killed_round_leaves_nothing_half_done_and_the_next_finishes(url: str, tmp_path: Path, point: str, number: int) -> None:
    killed = run(url, point, str(number))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    check(url, tmp_path / "archive", is_done=False)
    with Stepwell(url, worker=False) as well:
        assert well.retention.apply().problems == ()
    check(url, tmp_path / "archive", is_done=True)


@on_servers
@pytest.mark.parametrize("point", ["retention.archive_written", "retention.tombstones_written", "retention.values_removed"])
def test_killed_round_on_a_server_is_finished_too(shared_url: str, tmp_path: Path, point: str) -> None:
    folder = tmp_path / "archive"
    fill(shared_url)
    put_policies(shared_url, folder)
    later = FakeClock(datetime.now(UTC))
    later.advance("2d")
    killed = run(shared_url, point, "1", "2d")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    check(shared_url, folder, is_done=False, clock=later)
    with Stepwell(shared_url, worker=False, clock=later) as well:
        assert well.retention.apply().problems == ()
    check(shared_url, folder, is_done=True, clock=later)
