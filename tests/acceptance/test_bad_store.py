"""Stores that cannot be opened: each a typed error with a stable code that says what to do; nothing is written."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from stepwell import (
    AsyncStepwell,
    Corrupted,
    InvalidInput,
    Stepwell,
    StepwellError,
    StoreForeign,
    StoreNewer,
    StoreUnavailable,
)


def refused(url: str, error: type[StepwellError], advice: str) -> StepwellError:
    """The error that both faces give for a URL, at their first use."""

    async def use() -> None:
        well = AsyncStepwell(url)
        try:
            await well.load("run")
        finally:
            await well.close()

    with pytest.raises(error, match=advice) as caught:
        Stepwell(url)
    with pytest.raises(error, match=advice) as awaited:
        asyncio.run(use())
    assert str(caught.value) == str(awaited.value)
    assert str(caught.value).endswith(f"[{error.code}]")
    return caught.value


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# URLs.


@pytest.mark.parametrize(
    "url",
    [
        "mysql://host/db",
        "",
        "well.db",
        "/tmp/well.db",
        "sqlite3:///a.db",
        "://",
        "file:///a.db",
        "SQLITE",
        "http://[",
        "http://[::1",
    ],
)
def test_unknown_scheme(url: str) -> None:
    error = refused(url, InvalidInput, "sqlite:///path|is no URL")
    assert error.code == "SW-101"


@pytest.mark.parametrize("url", [5, b"memory://", ["memory://"]])
def test_url_that_is_no_text(url: str) -> None:
    refused(url, InvalidInput, "a URL is text")


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite://host/a.db", "names no file"),
        ("sqlite:a.db", "names no file"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///a%00b.db", "no path of a file"),
        ("sqlite:///a.db?synchronous=OFF", "FULL or NORMAL"),
        ("sqlite:///a.db?synchronous=", "FULL or NORMAL"),
        ("sqlite:///a.db?busy_seconds=x", "busy_seconds must be seconds or a text"),
        ("sqlite:///a.db?busy_seconds=-1", "from 0 seconds to 3600"),
        ("sqlite:///a.db?busy_seconds=nan", "from 0 seconds to 3600"),
        ("sqlite:///a.db?colour=red", "not colour"),
    ],
)
def test_sqlite_url_with_a_fault(url: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(url, InvalidInput, advice)
    assert contents(tmp_path) == {}


# Files.


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    refused(f"sqlite:///{tmp_path}/no/well.db", StoreUnavailable, "does not exist; create it, or correct the URL")
    assert not (tmp_path / "no").exists()


def test_folder_where_the_file_should_be(tmp_path: Path) -> None:
    (tmp_path / "well.db").mkdir()
    refused(f"sqlite:///{tmp_path}/well.db", StoreUnavailable, "check the path and its permissions")


def test_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("x")
    refused(f"sqlite:///{tmp_path}/folder/well.db", StoreUnavailable, "create it, or correct the URL")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "well.db"
    path.write_bytes(b"")
    path.chmod(0)
    refused(f"sqlite:///{path}", StoreUnavailable, "permissions")


def _text(path: Path) -> None:
    path.write_text("This is not a database.\n" * 100)


def _short_text(path: Path) -> None:
    path.write_text("hello")


def _picture(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(5000))


def _foreign(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY, money REAL)")
    database.execute("INSERT INTO accounts VALUES (1, 99.5)")
    database.commit()
    database.close()


def _foreign_with_our_tables(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE executions (execution_id TEXT)")
    database.commit()
    database.close()


def _foreign_application(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("PRAGMA application_id = 252006673")
    database.commit()
    database.close()


def _foreign_wal(path: Path) -> None:
    """A database of another program that ended before its log was written back."""
    other = path.with_name("writing.db")
    database = apsw.Connection(str(other))
    database.execute("PRAGMA journal_mode = wal").fetchall()
    database.execute("CREATE TABLE accounts (money REAL); INSERT INTO accounts VALUES (99.5)")
    shutil.copy(other, path)
    shutil.copy(f"{other}-wal", f"{path}-wal")
    database.close()
    other.unlink()


@pytest.mark.parametrize(
    "make", [_text, _short_text, _picture, _foreign, _foreign_with_our_tables, _foreign_application, _foreign_wal]
)
def test_file_of_another_program_is_left_as_it_is(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "well.db"
    make(path)
    before, stamp = contents(tmp_path), path.stat().st_mtime_ns
    error = refused(f"sqlite:///{path}", StoreForeign, "nothing was written")
    assert error.code == "SW-302"
    after = contents(tmp_path)
    assert after["well.db"] == before["well.db"]
    assert after.get("well.db-wal") == before.get("well.db-wal")
    assert path.stat().st_mtime_ns == stamp


def test_store_of_a_newer_schema(tmp_path: Path) -> None:
    """T48."""
    path = tmp_path / "well.db"
    Stepwell(f"sqlite:///{path}").close()
    database = apsw.Connection(str(path))
    database.execute("PRAGMA journal_mode = delete").fetchall()
    database.execute("PRAGMA user_version = 999")
    database.close()
    before = contents(tmp_path)
    error = refused(f"sqlite:///{path}", StoreNewer, r"schema 999.*upgrade")
    assert error.code == "SW-303"
    assert contents(tmp_path) == before


def test_damaged_store(tmp_path: Path) -> None:
    """T11: the first page says it is ours, the rest is noise."""
    path = tmp_path / "well.db"
    with Stepwell(f"sqlite:///{path}") as well:
        well.create("run")
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    with pytest.raises(StoreUnavailable), Stepwell(f"sqlite:///{path}") as well:
        well.load("run")


def test_truncated_store(tmp_path: Path) -> None:
    path = tmp_path / "well.db"
    with Stepwell(f"sqlite:///{path}") as well:
        well.create("run")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(Corrupted, match="restore it from a backup"), Stepwell(f"sqlite:///{path}") as well:
        well.load("run")


def test_failed_opening_can_be_repeated(tmp_path: Path) -> None:
    async def main() -> int:
        well = AsyncStepwell(f"sqlite:///{tmp_path}/later/well.db")
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await well.create("run")
        (tmp_path / "later").mkdir()
        receipt = await well.create("run")
        await well.close()
        return receipt.revision

    assert asyncio.run(main()) == 0


def test_busy_store_gives_up_in_time_and_works_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/well.db?busy_seconds=0.05"
    with Stepwell(url) as well:
        well.create("run")
        other = apsw.Connection(str(tmp_path / "well.db"))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="busy_seconds; try again"):
            well.create("another")
        assert well.load("run").revision == 0
        other.execute("ROLLBACK")
        other.close()
        well.create("another")
