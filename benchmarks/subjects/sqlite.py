"""The SQLite store beside apsw alone: WAL, synchronous=FULL, rows of the same size, a file in the same folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import apsw

from benchmarks import history, sqlite_floor, workload
from benchmarks.measurement import Measurement, Target, at_least
from benchmarks.plan import Plan

__all__ = ["MEASURES"]

_INSERT = "INSERT INTO rows (data) VALUES (?)"


class RawTable:
    """A table of blobs, written by apsw alone."""

    single_is = "rows/s, autocommitted one by one"
    grouped_is = f"rows/s, in transactions of {workload.COROUTINES}"

    def __init__(self, plan: Plan) -> None:
        self._db: Any = apsw.Connection(str(plan.folder / "raw.db"))
        self._db.execute("PRAGMA journal_mode = wal").fetchall()
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")
        self._row = (b"x" * workload.row_bytes(),)

    def single(self, rows: int) -> float:
        """Insert rows one by one, each in its own transaction. Return rows per second."""
        cursor, began = self._db.cursor(), time.perf_counter()
        for _ in range(rows):
            cursor.execute(_INSERT, self._row)
        return rows / (time.perf_counter() - began)

    def grouped(self, rows: int, group: int) -> float:
        """Insert rows in transactions of ``group``. Return rows per second."""
        cursor, began = self._db.cursor(), time.perf_counter()
        for first in range(0, rows, group):
            cursor.execute("BEGIN IMMEDIATE")
            cursor.executemany(_INSERT, [self._row] * min(group, rows - first))
            cursor.execute("COMMIT")
        return rows / (time.perf_counter() - began)


def _url(plan: Plan) -> str:
    return f"sqlite:///{plan.folder / 'well.db'}"


def _building_url(plan: Plan) -> str:
    """Return a URL for building what is measured later: the same file, without an fsync per commit."""
    return f"{_url(plan)}?synchronous=NORMAL"


def alone(plan: Plan) -> Iterator[Measurement]:
    """Measure commits one after another, blocking."""
    yield from workload.alone(plan, _url(plan), RawTable(plan), lambda _value, _raw, ratio: at_least("ratio", ratio, 0.7))


def floor(plan: Plan) -> Iterator[Measurement]:
    """Measure the upper bound of ``alone``: the statement of a commit, and the least work that creates one."""
    yield from sqlite_floor.floor(plan, RawTable(plan))


def awaited(plan: Plan) -> Iterator[Measurement]:
    """Measure commits one after another, awaited."""
    yield from workload.awaited(plan, _url(plan), RawTable(plan), lambda _value, _raw, ratio: at_least("ratio", ratio, 0.4))


def threads(plan: Plan) -> Iterator[Measurement]:
    """Measure commits from eight threads."""
    yield from workload.from_threads(plan, _url(plan), lambda _value, _raw, ratio: at_least("ratio", ratio, 3))


def coroutines(plan: Plan) -> Iterator[Measurement]:
    """Measure commits from two hundred coroutines."""

    def judge(value: float, raw: float, _ratio: float) -> Target:
        return Target("value >= 20,000 or 0.2 of raw, whichever is lower", value >= min(20_000, 0.2 * raw))

    yield from workload.from_coroutines(plan, _url(plan), RawTable(plan), judge)


def state_size(plan: Plan) -> Iterator[Measurement]:
    """Measure a commit with a large state."""
    yield from history.by_state_size(plan, _url(plan))


def revisions(plan: Plan) -> Iterator[Measurement]:
    """Measure a commit after a long history."""
    yield from history.by_history(plan, _url(plan), _building_url(plan))


def load(plan: Plan) -> Iterator[Measurement]:
    """Measure loading an execution of 10,000 commits."""
    yield from history.load(plan, _url(plan), _building_url(plan))


def verify(plan: Plan) -> Iterator[Measurement]:
    """Measure verifying a receipt chain."""
    yield from history.verify(plan, _url(plan), _building_url(plan))


MEASURES = {
    "alone": alone,
    "floor": floor,
    "awaited": awaited,
    "threads": threads,
    "coroutines": coroutines,
    "state_size": state_size,
    "revisions": revisions,
    "load": load,
    "verify": verify,
}
