"""SQLite's migrations, with migrations made for the test: a file is brought up to what the code knows, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from stepwell import StoreForeign, StoreNewer, StoreUnavailable
from stepwell.clock import FakeClock
from stepwell.model.limits import Limits
from stepwell.stores.sql_files import read_schema
from stepwell.stores.sqlite import connection
from stepwell.stores.sqlite.store import SQLiteStore
from stepwell.testing.conformance.samples import SampleExecution, walk

INITIAL = read_schema("stepwell.stores.sqlite")
LAST = INITIAL[-1][0]
NOTES = (LAST + 1, "CREATE TABLE notes (text TEXT NOT NULL) STRICT; INSERT INTO notes VALUES ('made');")
MARK = (LAST + 2, "ALTER TABLE notes ADD COLUMN mark INTEGER NOT NULL DEFAULT 7;")
BROKEN = (LAST + 2, "UPDATE notes SET text = 'half'; ALTER TABLE missing ADD COLUMN mark INTEGER;")

Know = Callable[..., None]


@pytest.fixture
def know(monkeypatch: pytest.MonkeyPatch) -> Know:
    """Let the code know these scripts beyond the initial one."""

    def know(*scripts: tuple[int, str]) -> None:
        monkeypatch.setattr(connection, "_SCHEMA", [*INITIAL, *scripts])
        monkeypatch.setattr(connection, "SCHEMA_VERSION", LAST + len(scripts))

    return know


def open_store(folder: Path) -> SQLiteStore:
    store = SQLiteStore(f"sqlite:///{folder}/well.db", FakeClock(), Limits())
    store.open()
    return store


def ask(folder: Path, sql: str) -> list[object]:
    with apsw.Connection(f"{folder}/well.db") as database:
        return [row for (row,) in database.execute(sql).fetchall()]


def test_shipped_scripts_are_numbered_without_a_gap() -> None:
    assert [number for number, _ in INITIAL] == list(range(1, connection.SCHEMA_VERSION + 1))


def test_file_of_an_older_schema_runs_the_scripts_that_it_lacks(know: Know, tmp_path: Path) -> None:
    before = open_store(tmp_path)
    execution = SampleExecution(before, "run").create()
    before.close()
    know(NOTES, MARK)
    later = open_store(tmp_path)
    assert walk(later, execution.id).ok
    assert ask(tmp_path, "SELECT mark FROM notes") == [7]
    assert ask(tmp_path, "PRAGMA user_version") == [LAST + 2]
    later.close()


def test_scripts_run_once(know: Know, tmp_path: Path) -> None:
    know(NOTES)
    for _ in range(3):
        open_store(tmp_path).close()
    assert ask(tmp_path, "SELECT text FROM notes") == ["made"]


def test_script_that_fails_takes_all_of_the_migration_back(know: Know, tmp_path: Path) -> None:
    open_store(tmp_path).close()
    know(NOTES, BROKEN)
    with pytest.raises(StoreUnavailable, match="missing"):
        open_store(tmp_path)
    assert ask(tmp_path, "PRAGMA user_version") == [LAST]
    assert ask(tmp_path, "SELECT name FROM sqlite_schema WHERE name = 'notes'") == []
    know(NOTES, MARK)
    open_store(tmp_path).close()
    assert ask(tmp_path, "SELECT text || mark FROM notes") == ["made7"]


def test_code_that_knows_less_than_the_file_refuses_it(know: Know, tmp_path: Path) -> None:
    know(NOTES)
    open_store(tmp_path).close()
    know()
    with pytest.raises(StoreNewer, match=rf"schema {LAST + 1}.*up to {LAST}"):
        open_store(tmp_path)


def test_script_that_was_edited_is_noticed(know: Know, tmp_path: Path) -> None:
    know(NOTES)
    open_store(tmp_path).close()
    know((NOTES[0], NOTES[1].replace("made", "edited")))
    with pytest.raises(StoreForeign, match=f"migration {NOTES[0]} is not the one of this Stepwell"):
        open_store(tmp_path)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("draft", ["DROP TABLE migrations", "UPDATE migrations SET digest = 'draft' WHERE number = 1"])
def test_file_of_an_earlier_draft_is_refused_and_not_touched(draft: str, version: int, tmp_path: Path) -> None:
    """T48: drafts had no record of their scripts; one that had further scripts is not taken for a newer file."""
    open_store(tmp_path).close()
    with apsw.Connection(f"{tmp_path}/well.db") as database:
        database.execute(draft)
        database.pragma("user_version", version)
    database.close()
    before = (tmp_path / "well.db").read_bytes()
    with pytest.raises(StoreForeign, match=r"unreleased version\. Nothing was written to it: back it up") as caught:
        open_store(tmp_path)
    assert caught.value.code == "SW-302"
    assert (tmp_path / "well.db").read_bytes() == before
