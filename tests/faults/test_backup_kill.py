"""A backup or restore that is killed at any step: what was there before counts, and the next call finishes the work (T52)."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.support.store_urls import on_servers, shared_url

from stepwell import Scope, Stepwell, verify_backup

__all__ = ["shared_url"]

WAIT = 60

PROGRAM = textwrap.dedent("""
    import sys
    from tests.faults.hooks import at, kill_this_process
    from stepwell import Stepwell
    from stepwell.fault_points import armed
    from stepwell.maintenance import backup_files, restore

    backup_files._SEGMENT_BYTES, restore._BATCH = 300, 3
    act, url, folder, point, number = sys.argv[1:]

    with Stepwell(url, worker=False) as well, armed(at(point, int(number), kill_this_process)):
        print(getattr(well, act)(folder).digest)
""")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=WAIT, check=False)


@pytest.fixture
def source(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/source.db"
    with Stepwell(url, worker=False) as well:
        for number in range(4):
            write(well, f"run-{number}", number)
    return url


def write(well: Stepwell, name: str, number: int) -> None:
    well.create(name)
    for each in range(3):
        with well.transaction(name) as tx:
            tx.set_variable("n", each)
            tx.state(Scope.globals()).set(f"{name}/{each}", number)


@pytest.mark.parametrize(
    ("point", "number", "is_new"),
    [
        ("backup.segment_written", 1, False),
        ("backup.segment_written", 4, False),
        ("backup.manifest_written", 1, False),
        ("backup.finished", 1, True),
    ],
)
def test_killed_backup_leaves_the_earlier_one_or_is_done(
    source: str, tmp_path: Path, point: str, number: int, is_new: bool
) -> None:
    folder = tmp_path / "backup"
    with Stepwell(source, worker=False) as well:
        first = well.backup(folder)
        write(well, "later", 1)
        write(well, "last", 1)
    killed = run("backup", source, str(folder), point, str(number))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    found = verify_backup(folder)
    assert (found.ok, found.executions) == (True, 6 if is_new else 4)
    with Stepwell(source, worker=False) as well:
        second = well.backup(folder, keep=0)
    assert (second.digest != first.digest, verify_backup(folder).executions) == (True, 6)
    assert sum(path.stat().st_size for path in folder.glob("*.z")) == second.size


def test_first_backup_that_is_killed_leaves_none(source: str, tmp_path: Path) -> None:
    assert run("backup", source, str(tmp_path / "backup"), "backup.segment_written", "1").returncode == -signal.SIGKILL
    done = run("backup", source, str(tmp_path / "backup"), "", "0")
    assert done.returncode == 0, done.stderr
    assert verify_backup(tmp_path / "backup").ok


@on_servers
def test_killed_restore_into_a_server_is_finished_too(source: str, shared_url: str, tmp_path: Path) -> None:
    check_killed_restore(source, shared_url, tmp_path, 4)


@pytest.mark.parametrize("number", [1, 2, 4, 7])
def test_killed_restore_is_finished_by_the_same_call(source: str, shared_url: str, tmp_path: Path, number: int) -> None:
    check_killed_restore(source, shared_url, tmp_path, number)


def check_killed_restore(source: str, target: str, tmp_path: Path, number: int) -> None:
    """Kill a restore, and finish it by the same call."""
    with Stepwell(source, worker=False) as well:
        well.archive("run-0", tmp_path / "proof")
        made = well.backup(tmp_path / "backup")
    killed = run("restore_backup", target, str(tmp_path / "backup"), "restore.batch_written", str(number))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run("restore_backup", target, str(tmp_path / "backup"), "", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == made.digest
    with Stepwell(target, worker=False) as well:
        assert [well.verify(f"run-{each}").ok for each in range(4)] == [True] * 4
