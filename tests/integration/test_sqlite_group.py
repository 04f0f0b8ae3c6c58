"""Groups on SQLite: commits of one kind are one statement, of a size that SQLite and apsw can keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from stepwell.clock import FakeClock
from stepwell.errors import Conflict
from stepwell.model.commit import Outcome, Rest, Unit, Written
from stepwell.model.limits import Limits
from stepwell.stores.sqlite.fast_path import FIRST, LAST, MOST_AT_ONCE, STEPS, statement_of
from stepwell.stores.sqlite.store import SQL, SQLiteStore
from stepwell.testing.conformance.samples import SampleExecution, status, walk

# Around a power of two, and around what one statement holds.
SIZES = (2, 3, 4, 5, MOST_AT_ONCE, MOST_AT_ONCE + 1)
_END = Rest(None, is_final=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(f"sqlite:///{tmp_path / 'well.db'}?synchronous=NORMAL", FakeClock(), Limits())
    store.open()
    yield store
    store.close()


def crowd(store: SQLiteStore, size: int) -> list[SampleExecution]:
    """Executions that do not exist yet."""
    return [SampleExecution(store, f"crowd-{number}") for number in range(size)]


def next_of(crowd: list[SampleExecution], *mutations: Any, **fields: Any) -> list[Unit]:
    return [each.foresee(*mutations, **fields) for each in crowd]


def kinds(outcomes: Sequence[Outcome]) -> list[type]:
    return [type(outcome) for outcome in outcomes]


@pytest.mark.parametrize("size", SIZES)
def test_first_plain_and_last_commits_land_in_groups_of_any_size(store: SQLiteStore, size: int) -> None:
    executions = crowd(store, size)
    assert kinds(store.write(next_of(executions, status("RUNNING")))) == [Written] * size
    assert kinds(store.write(next_of(executions))) == [Written] * size
    assert kinds(store.write(next_of(executions, status("COMPLETED"), rest=_END))) == [Written] * size
    assert {(each.head.revision, each.head.status) for each in executions} == {(2, "COMPLETED")}
    assert all(each.head.digest == each.state.receipt and walk(store, each.id).ok for each in executions)


@pytest.mark.parametrize("place", [0, 3, MOST_AT_ONCE, MOST_AT_ONCE + 3])
def test_one_commit_that_does_not_follow_is_refused_wherever_it_stands(store: SQLiteStore, place: int) -> None:
    executions = crowd(store, MOST_AT_ONCE + 5)
    store.write(next_of(executions))
    wrong = replace(executions[place].commit(), previous="e" * 64)
    right = next_of([*executions[:place], *executions[place + 1 :]])
    outcomes = store.write([*right[:place], wrong, *right[place:]])
    assert kinds(outcomes) == [Written] * place + [Conflict] + [Written] * (len(right) - place)
    assert [each.head.revision for each in executions].count(1) == len(right)
    assert executions[place].head.revision == 0


def test_commits_of_a_group_keep_their_signatures(store: SQLiteStore) -> None:
    executions = crowd(store, 3)
    for group in (next_of(executions, status("RUNNING")), next_of(executions), next_of(executions, status("COMPLETED"), rest=_END)):
        signed = [replace(unit, signature=bytes([number])) for number, unit in enumerate(group[:2])]
        assert kinds(store.write([*signed, group[2]])) == [Written] * 3
        assert [each.head.signature for each in executions] == [b"\0", b"\1", None]


def test_group_of_commits_of_one_kind_is_not_written_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units that it cannot write are written commit by commit, which takes several times as long."""
    ran: list[str] = []

    def trace(connection: apsw.Connection) -> None:
        connection.exec_trace = lambda _cursor, sql, _arguments: ran.append(sql) or True

    monkeypatch.setattr(apsw, "connection_hooks", [trace])
    store = SQLiteStore(f"sqlite:///{tmp_path / 'traced.db'}", FakeClock(), Limits())
    store.open()
    executions = crowd(store, 4)
    for group in (next_of(executions, status("RUNNING")), next_of(executions), next_of(executions, status("COMPLETED"), rest=_END)):
        ran.clear()
        assert kinds(store.write(group)) == [Written] * 4
        assert len([sql for sql in ran if sql not in ("BEGIN IMMEDIATE", "COMMIT")]) <= 2
    store.close()


@pytest.mark.parametrize("kind", [STEPS, FIRST, LAST])
def test_largest_statement_stays_prepared(kind: str) -> None:
    """apsw does not keep longer ones (SC_MAX_ITEM_SIZE), and would prepare them for every group."""
    row = (None,) * SQL[kind].count("?")
    statement, arguments = statement_of(SQL[kind], [row] * MOST_AT_ONCE)
    assert len(statement.encode()) < 16_384
    assert statement.count("?") == len(arguments) == MOST_AT_ONCE * len(row)
