"""Migrations of stored state, and upgrades of runs, that are killed at any step: the same call finishes them, and nothing is done
twice or lost."""

from __future__ import annotations

import signal as signals
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.faults.system_calls import DISK_FULL, SystemCalls
from tests.support.store_urls import on_servers, shared_url

from stepwell import Scope, StateNewer, Stepwell, StoreFull, migration, verify_backup
from stepwell.flow import define, log, signal
from stepwell.model.state_versions import registered_alone

WAIT = 60
__all__ = ["shared_url"]

VALUES, RUNS = 30, 12

PROGRAM = textwrap.dedent("""
    import sys
    from tests.faults.hooks import at, kill_this_process
    from stepwell import Stepwell, migration
    from stepwell.fault_points import armed

    @migration(scope="custom/counts", from_version=1, to_version=2)
    def doubled(value):
        return value * 2

    @migration(workflow="shop", from_version=1, to_version=2)
    def doubled_total(value):
        value["variables"]["total"] *= 2
        return value

    url, folder, point, number = sys.argv[1:]

    with Stepwell(url, worker=False) as well, armed(at(point, int(number), kill_this_process)):
        report = well.migrate_state(batch=4, backup=folder or None)
        print(report.migrated, report.failed, report.is_verified)
""")


UPGRADE = textwrap.dedent("""
    import sys
    from tests.faults.hooks import at, kill_this_process
    from stepwell import Stepwell
    from stepwell.fault_points import armed
    from stepwell.maintenance import run_upgrade

    run_upgrade._PAGE = 5
    url, point, number = sys.argv[1:]

    with Stepwell(url, worker=False) as well, armed(at(point, int(number), kill_this_process)):
        print(len(well.upgrade_runs("orders", to_version=2).moved))
""")


def start(*arguments: str, program: str = PROGRAM) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, errors = process.communicate(timeout=WAIT)
    return process.returncode, out.strip() or errors


@pytest.fixture
def url(shared_url: str) -> str:
    url = shared_url
    with Stepwell(url, worker=False) as well:
        well.state.custom("counts").set_many({f"k{number:02}": number for number in range(VALUES)})
        for number in range(RUNS):
            well.create(f"run-{number}", workflow="shop")
            with well.transaction(f"run-{number}") as tx:
                tx.set_variable("total", number)
    return url


def check_migrated_once(url: str) -> None:
    with Stepwell(url, worker=False) as well, registered_alone():
        migration(scope="custom/counts", from_version=1, to_version=2)(_unused)
        migration(workflow="shop", from_version=1, to_version=2)(_unused)
        assert list(well.state.custom("counts").all().values()) == [number * 2 for number in range(VALUES)]
        for number in range(RUNS):
            kinds = [each["type"] for receipt in well.receipts(f"run-{number}") for each in receipt.mutations]
            assert kinds == ["create", "set_variable", "migrate_state"]
            assert well.load(f"run-{number}").variables == {"total": number * 2}
            assert well.verify(f"run-{number}").ok


def _unused(_: object) -> object:
    raise AssertionError("nothing is left to migrate")


@pytest.mark.parametrize(
    ("point", "number"),
    [
        ("migration.planned", 1),
        ("store.begun", 1),
        ("store.entry_written", 7),
        ("store.scope_written", 2),
        ("store.before_commit", 2),
        ("store.committed", 1),
        ("migration.batch_written", 1),
        ("migration.batch_written", 3),
        ("store.committed", 4),
        ("migration.batch_written", 4),
    ],
)
def test_killed_migration_is_finished_by_the_same_call(url: str, tmp_path: Path, point: str, number: int) -> None:
    """T49."""
    folder = tmp_path / "before"
    code, told = ended(start(url, str(folder), point, str(number)))
    assert code == -signals.SIGKILL, told
    assert verify_backup(folder).ok
    code, told = ended(start(url, "", "", "0"))
    assert (code, told.split()[1:]) == (0, ["0", "True"]), told
    check_migrated_once(url)
    # The backup from before has everything in the version before.
    with Stepwell("memory://", worker=False) as well:
        well.restore_backup(folder)
        assert list(well.state.custom("counts").all().values()) == list(range(VALUES))
        assert well.load("run-3").variables == {"total": 3}


@on_servers
@pytest.mark.parametrize(
    ("point", "number"), [("migration.planned", 1), ("migration.batch_written", 1), ("migration.batch_written", 3)]
)
def test_killed_migration_on_a_server_is_finished_too(url: str, tmp_path: Path, point: str, number: int) -> None:
    test_killed_migration_is_finished_by_the_same_call(url, tmp_path, point, number)


def test_two_migrations_at_once_share_the_work(url: str) -> None:
    """T49: one winner for each value."""
    both = [start(url, "", "", "0") for _ in range(2)]
    told = [ended(each) for each in both]
    assert [code for code, _ in told] == [0, 0], told
    assert sum(int(text.split()[0]) for _, text in told) == VALUES + RUNS
    check_migrated_once(url)


def test_old_code_that_writes_during_a_migration_is_migrated_too(url: str) -> None:
    """T49: what a worker of the version before writes meanwhile is brought forward, or refused where newer code was first."""
    process = start(url, "", "", "0")
    refused, written = 0, 0
    with Stepwell(url, worker=False) as well:  # has no migration
        counts = well.state.at(Scope.custom("counts"))
        while process.poll() is None:
            for key in ("k00", "k29"):
                try:
                    counts.set(key, int(key[1:]))
                    written += 1
                except StateNewer:
                    refused += 1
    code, told = ended(process)
    assert (code, told.split()[1:]) == (0, ["0", "True"]), told
    assert written + refused
    check_migrated_once(url)


@pytest.mark.parametrize(
    ("point", "number"),
    [("store.before_commit", 2), ("store.committed", 1), ("upgrade.batch_written", 1), ("upgrade.batch_written", 3)],
)
def test_killed_upgrade_is_finished_by_the_same_call(tmp_path: Path, point: str, number: int) -> None:
    url = f"sqlite:///{tmp_path}/well.db"
    with Stepwell(url, worker=False) as well:
        before, after = (define("orders", signal("go"), log(text), version=n) for n, text in ((1, "old"), (2, "new")))
        for n in range(RUNS):
            well.start(before, {}, execution_id=f"run-{n}")
        well.definitions.put(after)
    code, told = ended(start(url, point, str(number), program=UPGRADE))
    assert code == -signals.SIGKILL, told
    code, told = ended(start(url, "", "0", program=UPGRADE))
    assert code == 0, told
    with Stepwell(url, worker=False) as well:
        for n in range(RUNS):
            kinds = [each["type"] for receipt in well.receipts(f"run-{n}") for each in receipt.mutations]
            assert kinds.count("change_version") == 1
            assert (well.executions.get(f"run-{n}").version, well.verify(f"run-{n}").ok) == (2, True)


def test_migration_on_a_full_disk_is_finished_once_there_is_room(tmp_path: Path) -> None:
    """T10."""
    disk = SystemCalls()
    with Stepwell(f"sqlite:///{tmp_path}/well.db", worker=False) as well:
        for workspace in ("a", "b"):
            well.state.at(Scope.custom("counts", workspace)).set_many({f"k{n}": n for n in range(9)})
        migration(scope="custom/counts", from_version=1, to_version=2)(doubled)
        try:
            with pytest.raises(StoreFull, match="free some space and try again"):
                well.migrate_state(progress=lambda *_: disk.fail("pwrite64", 1, DISK_FULL, is_persistent=True))
            assert well.state.at(Scope.custom("counts", "b")).get("k8") == 16  # reads are served
        finally:
            disk.restore()
        report = well.migrate_state()
        assert (report.lines[0].versions, report.migrated, report.is_verified) == ({1: 9, 2: 9}, 9, True)


def doubled(value: int) -> int:
    return value * 2
