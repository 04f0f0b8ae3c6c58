"""The queue on SQLite: every statement of a write goes by an index, whatever waits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from operator import truediv
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.model.limits import Limits
from stepwell.model.value import canonical
from stepwell.stores.sql_files import read_schema
from stepwell.stores.sqlite.queue import SQL
from stepwell.stores.sqlite.store import SQLiteStore
from stepwell.testing.conformance.samples import add, claim_items, new_item, put_workspace

# The first entry of an index is all that these read of it; and listings for people may read what they list.
_FIRST_ENTRY = ("outlook", "ended_lanes", "old_items", "next_ready", "has_ready")
_LISTINGS = ("waiting_lanes", "active_lanes", "find_items")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "well.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = SQLiteStore(f"sqlite:///{path}", FakeClock(), Limits())
    store.open()
    yield store
    store.close()


def plan(path: Path, statement: str) -> list[str]:
    """How SQLite would run a statement."""
    connection = apsw.Connection(str(path))
    arguments = len(set(re.findall(r"\?\d+", statement))) or statement.count("?")
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", (None,) * arguments).fetchall()
    connection.close()
    return [str(row[3]) for row in rows]


@pytest.mark.parametrize("name", [name for name in SQL if name not in _LISTINGS])
def test_statement_does_not_walk_through_the_items(store: Store, path: Path, name: str) -> None:
    """T36."""
    scans = [step for step in plan(path, SQL[name]) if step.startswith("SCAN items")]
    assert len(scans) == (1 if name in _FIRST_ENTRY else 0), scans


def test_only_a_list_goes_by_the_index_of_all_items_of_a_workspace(store: Store, path: Path) -> None:
    """T36: it holds those that have ended or wait, too, so counting by it would take longer and longer."""
    assert [name for name in SQL if "items_by_workspace" in " ".join(plan(path, SQL[name]))] == ["find_items_of"]


def test_claim_takes_as_many_steps_whatever_waits(store: Store, path: Path) -> None:
    """T36: counted in steps of SQLite's machine, which no load of this computer changes."""
    for workspace in ("noisy", "quiet"):
        put_workspace(store, workspace, concurrency=3)
    add(store, new_item(workspace="noisy"), new_item(workspace="quiet"))
    add(store, *(new_item(workspace="noisy") for _ in range(50)))
    few = steps_of_claim(store)
    add(store, *(new_item(workspace="noisy") for _ in range(5_000)))
    add(store, new_item(workspace="quiet"))
    assert steps_of_claim(store) < 1.5 * few + 500


def test_claim_takes_few_turns_of_the_interpreter_however_many_it_takes(store: Store) -> None:
    """Every row that SQLite gives is a turn, and so is every statement: on a busy loop a millisecond each."""
    for number in range(30):
        put_workspace(store, f"tenant {number}", concurrency=10)
    add(store, *(new_item(workspace=f"tenant {number % 30}") for number in range(300)))
    assert isinstance(store, SQLiteStore)
    assert store._writer is not None
    turns, connection = 0, store._writer._connection

    def count(_cursor: object, row: tuple[object, ...]) -> tuple[object, ...]:
        nonlocal turns
        turns += 1
        return row

    def statement(_cursor: object, _sql: str, _bound: object) -> bool:
        nonlocal turns
        turns += 1
        return True

    connection.row_trace, connection.exec_trace = count, statement
    assert len(claim_items(store, 200)) == 200
    connection.row_trace = connection.exec_trace = None
    assert turns <= 7


@pytest.mark.parametrize("size", [0, 10, 4_080, 5_000, 200_000])
def test_claimed_item_has_its_input_as_it_was(store: Store, size: int) -> None:
    inputs = [canonical({"text": 'ü"\\\n\u2028\0' + "x" * size, "n": number}) for number in range(3)]
    add(store, *(new_item(input=data) for data in inputs))
    assert [item.input for item in claim_items(store, 3)] == inputs


@given(passes=st.lists(st.builds(truediv, st.integers(1, 10**9), st.integers(1, 10**6)), min_size=1, max_size=20))
def test_passes_lose_no_digit_between_claims(passes: list[float]) -> None:
    """So this store's order is that of the one in memory, to the last item."""
    connection = apsw.Connection(":memory:")
    for _, script in read_schema("stepwell.stores.sqlite"):
        connection.execute(script)
    columns = "item_id, workspace_id, workflow_id, version, execution_id, input, queue, status, priority, enqueued_ms, run_at_ms"
    for number, passed in enumerate(passes):
        name = f"tenant {number}"
        connection.execute("INSERT INTO workspaces VALUES (?, 'free', 0, 0, NULL, ?, 0)", (name, passed))
        item = (name, name, "orders", 1, name, b"1", "default", "QUEUED", 0, 0, 0)
        connection.execute(
            f"INSERT INTO items ({columns}, body_digest, max_attempts, is_ready) VALUES ({'?,' * 11} '', 3, 1)", item
        )
    found = {
        each[0]: float(each[-1]) for each in json.loads(connection.execute(SQL["outlook"], (0, None, None, 10)).fetchall()[0][4])
    }
    assert found == {f"tenant {number}": passed for number, passed in enumerate(passes)}


def steps_of_claim(store: Store) -> int:
    """How much work a claim is."""
    assert isinstance(store, SQLiteStore)
    assert store._writer is not None
    steps, connection = 0, store._writer._connection

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    connection.set_progress_handler(count, 1)
    claim_items(store, 2)
    connection.set_progress_handler(None)
    return steps
