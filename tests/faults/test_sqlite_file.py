"""SQLite's own files and handles stay sound after any failure of the process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from stepwell import Stepwell
from stepwell.errors import StoreUnavailable
from stepwell.stores.sqlite.connection import Database
from stepwell.stores.sqlite.store import SQLiteStore

# Byte 128 of the WAL index: SQLite holds a shared lock on it for as long as it has the file open.
TAKE_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)
    except OSError:
        print("held")
    else:
        print("free")
"""


def _lock_of(file: Path) -> str:
    command = [sys.executable, "-c", TAKE_LOCK, f"{file}-shm"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout.strip()


def test_no_process_can_reset_the_wal_index_while_a_store_is_open(tmp_path: Path):
    """T12: closing any descriptor of the index would drop SQLite's lock on it, and the next process would truncate it."""
    file = tmp_path / "well.db"
    with Stepwell(f"sqlite:///{file}") as well:
        well.create("a")
        assert _lock_of(file) == "held"
        with Stepwell(f"sqlite:///{file}") as second:
            second.create("b")
        with well.transaction("a") as transaction:
            transaction.set_variable("x", 1)
        assert _lock_of(file) == "held"


def test_file_that_another_process_is_setting_up_is_not_taken_for_somebody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """T49: the other one may come between any two questions of what the file is."""
    url = f"sqlite:///{tmp_path}/well.db"
    ask = Database.value

    def after_the_other(database: Database, sql: str) -> object:
        answer = ask(database, sql)
        with monkeypatch.context() as patch:
            patch.setattr(Database, "value", ask)
            with contextlib.suppress(StoreUnavailable), Stepwell(f"{url}?busy_seconds=0"):
                pass
        return answer

    monkeypatch.setattr(Database, "value", after_the_other)
    with Stepwell(url) as well:
        well.create("ours")
        assert well.load("ours").variables == {}


def test_commit_after_an_interrupted_one_is_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """T01: an interrupt between the last statement and COMMIT leaves nothing open that a later commit could fall into."""
    url = f"sqlite:///{tmp_path}/well.db"
    with Stepwell(url) as well:
        well.create("a")
        with well.transaction("a") as transaction:
            transaction.set_variable("x", 0)
        with monkeypatch.context() as patch:
            patch.setattr(SQLiteStore, "_commit", _interrupt)  # signals are delivered when a function begins
            with pytest.raises(KeyboardInterrupt):
                well.state.globals.set("interrupted", True)
        with well.transaction("a") as transaction:
            transaction.set_variable("x", 1)
        with Stepwell(url) as other:
            assert other.load("a").variables == {"x": 1}
            assert other.state.globals.get("interrupted") is None


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
def test_every_connection_that_writes_flushes_the_cache_of_the_drive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synchronous: str
):
    """macOS: a plain fsync leaves the data in the drive's cache, and a power loss takes it."""
    connections: list[apsw.Connection] = []
    monkeypatch.setattr(apsw, "connection_hooks", [connections.append])
    with Stepwell(f"sqlite:///{tmp_path / 'well.db'}?synchronous={synchronous}") as well:
        well.create("a")
        well.load("a")
        writers = [each for each in connections if not each.pragma("query_only")]
        assert writers
        for each in writers:
            assert (each.pragma("fullfsync"), each.pragma("checkpoint_fullfsync")) == (1, 1)
