"""Bad input: each a typed error with a stable code that says what to do; nothing is written."""

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
    AlreadyExists,
    AsyncStepwell,
    Conflict,
    Corrupted,
    InvalidInput,
    LimitExceeded,
    NotFound,
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
        ("sqlite:///a.db?busy_seconds=x", "from 0 to 3600"),
        ("sqlite:///a.db?busy_seconds=-1", "from 0 to 3600"),
        ("sqlite:///a.db?busy_seconds=nan", "from 0 to 3600"),
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


# Ids, values, revisions.

USES: dict[str, Callable[[Stepwell, object], object]] = {
    "load": lambda well, name: well.load(name),
    "load at": lambda well, name: well.load(name, at=0),
    "transaction": lambda well, name: well.transaction(name).commit(),
    "receipts": lambda well, name: well.receipts(name),
    "verify": lambda well, name: well.verify(name),
    "snapshot": lambda well, name: well.snapshot(name),
    "export": lambda well, name: well.export(name),
    "fork": lambda well, name: well.fork(name, "new"),
    "diff": lambda well, name: well.diff(name, 0, 0),
    "delete": lambda well, name: well.delete(name),
}


@pytest.mark.parametrize("use", USES)
def test_unknown_execution(well: Stepwell, use: str) -> None:
    with pytest.raises(NotFound, match="there is no execution 'missing'") as caught:
        USES[use](well, "missing")
    assert caught.value.code == "SW-200"
    assert well.executions.list() == []


def test_unknown_execution_leaves_no_archive(well: Stepwell, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        well.archive("missing", tmp_path / "proof")
    assert not (tmp_path / "proof").exists()


ID_USES: dict[str, Callable[[Stepwell, object], object]] = {
    **USES,
    "create": lambda well, name: well.create(name),
    "receipt": lambda well, name: well.receipt(name, "c"),
    "receipt of": lambda well, name: well.receipt("run", name),
    "fork to": lambda well, name: well.fork("run", name),
    "commit id": lambda well, name: well.transaction("run", commit_id=name or "").commit(),
    "workspace": lambda well, name: well.create("other", workspace=name),
    "workflow": lambda well, name: well.create("other", workflow=name),
    "create with commit id": lambda well, name: well.create("other", commit_id=name or ""),
}


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", None, 7, "x" * 513], ids=ascii)
def test_bad_ids(well: Stepwell, name: str) -> None:
    """T46."""
    well.create("run")
    for use, act in ID_USES.items():
        with pytest.raises((InvalidInput, LimitExceeded)) as caught:
            act(well, name)
        assert caught.value.code in ("SW-101", "SW-102"), use
    assert [summary.execution_id for summary in well.executions.list()] == ["run"]
    assert well.load("run").revision == 0


def test_reused_id(well: Stepwell) -> None:
    well.create("run", context={"first": True})
    with pytest.raises(AlreadyExists, match="ids are never used twice") as caught:
        well.create("run", workspace="other")
    assert caught.value.code == "SW-202"
    assert isinstance(caught.value, Conflict)
    assert well.load("run").context == {"first": True}
    assert len(well.receipts("run")) == 1


def test_stale_revision(well: Stepwell) -> None:
    well.create("run")
    with (  # noqa: PT012 - leaving the block is what raises
        pytest.raises(Conflict, match="at revision 1, and this transaction began at 0; begin again") as caught,
        well.transaction("run") as tx,
    ):
        well.transaction("run").commit()
        tx.set_variable("a", 1)
    assert caught.value.code == "SW-201"
    assert well.load("run").variables == {}


def test_over_limit_value(well: Stepwell) -> None:
    """T43."""
    big = "x" * (256 * 1024 - 1)
    well.create("run")
    for use in (
        lambda: well.create("big", context={"a": big}),
        lambda: well.state.globals.set("k", big),
        lambda: _commit(well, lambda tx: tx.set_variable("a", big)),
        lambda: _commit(well, lambda tx: tx.set_context({"a": big})),
        lambda: _commit(well, lambda tx: tx.update_context(lambda _: {"a": big})),
        lambda: _commit(well, lambda tx: tx.set_trigger(big)),
        lambda: _commit(well, lambda tx: tx.add_token("t", node="n", value=big)),
        lambda: _commit(well, lambda tx: tx.state(well.state.globals).set("k", big)),
    ):
        with pytest.raises(
            LimitExceeded, match=r"over the limit value_bytes=262,144; .* raise Limits\(value_bytes=\.\.\.\)"
        ) as caught:
            use()
        assert caught.value.code == "SW-102"
    assert well.load("run").revision == 0
    assert well.state.globals.all() == {}
    assert [summary.execution_id for summary in well.executions.list()] == ["run"]


def _commit(well: Stepwell, change: Callable[[object], object]) -> None:
    with well.transaction("run") as tx:
        change(tx)


@pytest.mark.parametrize("at", [1, 2**31, 2**63, 2**70])
def test_revision_that_is_not_there(well: Stepwell, at: int) -> None:
    well.create("run")
    for use in (lambda: well.load("run", at=at), lambda: well.diff("run", 0, at), lambda: well.fork("run", "new", at=at)):
        with pytest.raises(NotFound, match="has revisions 0 to 0"):
            use()
    assert well.receipts("run", after=at) == []


@pytest.mark.parametrize("at", [-1, "1", 1.0, True])
def test_revision_that_is_no_number(well: Stepwell, at: int, tmp_path: Path) -> None:
    well.create("run")
    for use in (
        lambda: well.load("run", at=at),
        lambda: well.diff("run", 0, at),
        lambda: well.fork("run", "new", at=at),
        lambda: well.archive("run", tmp_path / "proof", through=at),
    ):
        with pytest.raises(InvalidInput, match="a revision is a whole number"):
            use()
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("arguments", [{"after": "x"}, {"after": None}, {"limit": -1}, {"limit": "5"}, {"limit": 1.5}])
def test_receipts_by_bad_numbers(well: Stepwell, arguments: dict[str, int]) -> None:
    well.create("run")
    with pytest.raises(InvalidInput):
        well.receipts("run", **arguments)


@pytest.mark.parametrize(
    "arguments", [{"version": -1}, {"version": "1"}, {"version": 2**64}, {"context": [1]}, {"context": {1: 1}}]
)
def test_create_with_bad_arguments(well: Stepwell, arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        well.create("run", **arguments)
    assert well.executions.list() == []


@pytest.mark.parametrize(
    "query",
    [
        {"status": "DONE"},
        {"status": ""},
        {"limit": 0},
        {"limit": 10_001},
        {"limit": "1"},
        {"workspace": ""},
        {"workspace": "\ud800"},
        {"workflow": 5},
    ],
)
def test_listing_by_a_bad_query(well: Stepwell, query: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        well.executions.list(**query)


@pytest.mark.parametrize("revision", [-1, "1", None, 1.0, 2**70])
def test_compare_and_set_with_a_bad_revision(well: Stepwell, revision: int) -> None:
    well.create("run")
    with pytest.raises(InvalidInput, match="a revision is a whole number"):
        well.state.globals.compare_and_set("k", 1, revision=revision)
    with pytest.raises(InvalidInput, match="a revision is a whole number"), well.transaction("run") as tx:
        tx.state(well.state.globals).compare_and_set("k", 1, revision=revision)
    assert well.state.globals.all() == {}


def test_one_bad_write_stops_no_other(well: Stepwell) -> None:
    """A number that overflows in the middle of a group must not take the group with it."""
    scope = well.state.globals
    scope.set("f", 1.5)
    with pytest.raises(InvalidInput):
        scope.increment("f", 10**400)
    with pytest.raises(InvalidInput):
        scope.increment("f", 1.7e308) and scope.increment("f", 1.7e308)
    assert scope.increment("other") == 1
