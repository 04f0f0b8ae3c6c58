"""A backup, restore or import that is killed, or cut off from its server, at any step (T52).

What was there before counts, and the next call finishes the work.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest
from tests.faults.hooks import at
from tests.support.outages import Outage, outage_of
from tests.support.store_urls import shared_url, url_of

from stepwell import CommitUnknown, Scope, Stepwell, StoreUnavailable, verify_backup
from stepwell.fault_points import armed
from stepwell.maintenance import backup_files, restore

__all__ = ["shared_url"]

T = TypeVar("T")

WAIT = 180

PROGRAM = textwrap.dedent("""
    import sys
    from tests.faults.hooks import at, kill_this_process
    from stepwell import Stepwell
    from stepwell.fault_points import armed
    from stepwell.maintenance import backup_files, restore

    backup_files._SEGMENT_BYTES, restore._BATCH = 300, 3
    act, url, path, point, number = sys.argv[1:]

    with Stepwell(url, worker=False) as well, armed(at(point, int(number), kill_this_process)):
        if act == "import_":
            print(well.import_(open(path, "rb").read()).execution_id)
        else:
            print(getattr(well, act)(path).digest)
""")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=WAIT, check=False)


@pytest.fixture
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A well with four runs: on SQLite, unless a test names other stores."""
    name = getattr(request, "param", "sqlite")
    url = f"sqlite:///{tmp_path}/source.db" if name == "sqlite" else url_of(name, request)
    with Stepwell(url, worker=False) as well:
        fill(well)
    return url


def fill(well: Stepwell) -> None:
    for number in range(4):
        write(well, f"run-{number}", number)


def write(well: Stepwell, name: str, number: int) -> None:
    well.create(name)
    for each in range(3):
        with well.transaction(name) as tx:
            tx.set_variable("n", each)
            tx.state(Scope.globals()).set(f"{name}/{each}", number)


on_every_source = pytest.mark.parametrize("source", ["sqlite", "postgres", "redis"], indirect=True)
on_every_target = pytest.mark.parametrize("shared_url", ["sqlite", "postgres", "redis"], indirect=True)


@on_every_source
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


@on_every_source
def test_first_backup_that_is_killed_leaves_none(source: str, tmp_path: Path) -> None:
    assert run("backup", source, str(tmp_path / "backup"), "backup.segment_written", "1").returncode == -signal.SIGKILL
    done = run("backup", source, str(tmp_path / "backup"), "", "0")
    assert done.returncode == 0, done.stderr
    assert verify_backup(tmp_path / "backup").ok


@on_every_target
@pytest.mark.parametrize("number", [1, 2, 4, 7])
def test_killed_restore_is_finished_by_the_same_call(source: str, shared_url: str, tmp_path: Path, number: int) -> None:
    target = shared_url
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


@on_every_target
def test_killed_import_is_finished_by_the_same_call(source: str, shared_url: str, tmp_path: Path) -> None:
    with Stepwell(source, worker=False) as well:
        proof = well.export("run-2")
    (tmp_path / "proof").write_bytes(proof)
    killed = run("import_", shared_url, str(tmp_path / "proof"), "import.batch_written", "1")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with Stepwell(shared_url, worker=False) as well:
        assert 0 < well.load("run-2").revision < 3
    done = run("import_", shared_url, str(tmp_path / "proof"), "", "0")
    assert done.stdout.strip() == "run-2", done.stderr
    with Stepwell(shared_url, worker=False) as well:
        assert well.export("run-2") == proof


# The connections end, once, in the middle; the server can be reached again at once.

on_every_server = pytest.mark.parametrize("store", ["postgres", "redis"])


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many segments and batches, so that there is a middle."""
    monkeypatch.setattr(backup_files, "_SEGMENT_BYTES", 300)
    monkeypatch.setattr(restore, "_BATCH", 3)


def cut_at(outage: Outage, point: str, number: int, act: Callable[[], T]) -> T | None:
    """The result of a call whose connections are cut at one hit of a point; None if it failed as it may then."""

    def cut() -> None:
        with outage:
            pass

    with armed(at(point, number, cut)), suppress(StoreUnavailable, CommitUnknown):
        return act()
    return None


@on_every_server
@pytest.mark.usefixtures("small_pieces")
def test_backup_that_is_cut_off_leaves_the_earlier_one_or_is_done(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = tmp_path / "backup"
    with outage_of(store, request) as outage, Stepwell(outage.url, worker=False) as well:
        fill(well)
        for number in (1, 4):  # the first backup, then an increment
            done = cut_at(outage, "backup.segment_written", number, lambda: well.backup(folder))
            if done is None and number == 1:
                assert not (folder / "manifest.json").exists()
            well.backup(folder)
            assert verify_backup(folder).ok
            write(well, f"later-{number}", number)
        last = well.backup(folder, keep=0)
        assert (verify_backup(folder).ok, verify_backup(folder).executions) == (True, 6)
    with Stepwell("memory://", worker=False) as restored:
        assert restored.restore_backup(folder).digest == last.digest


@on_every_server
@pytest.mark.parametrize("number", [1, 3, 6])
@pytest.mark.usefixtures("small_pieces")
def test_restore_that_is_cut_off_is_finished_by_the_same_call(
    source: str, store: str, number: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with Stepwell(source, worker=False) as well:
        made = well.backup(tmp_path / "backup")
    with outage_of(store, request) as outage, Stepwell(outage.url, worker=False) as well:
        done = cut_at(outage, "restore.batch_written", number, lambda: well.restore_backup(tmp_path / "backup"))
        if done is None:
            done = well.restore_backup(tmp_path / "backup")
        assert done.digest == made.digest
        assert [well.verify(f"run-{each}").ok for each in range(4)] == [True] * 4


@on_every_server
@pytest.mark.usefixtures("small_pieces")
def test_import_that_is_cut_off_is_finished_by_the_same_call(
    source: str, store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with Stepwell(source, worker=False) as well:
        proof = well.export("run-2")
    with outage_of(store, request) as outage, Stepwell(outage.url, worker=False) as well:
        cut_at(outage, "import.batch_written", 1, lambda: well.import_(proof))
        well.import_(proof)
        assert well.export("run-2") == proof
