"""The PostgreSQL store beside psycopg alone: rows of the same size on the same server with the same durability.

``alone`` is what a user of ``well.transaction`` gets. In ``prepared`` the chain is known, and only the commit itself is left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

from psycopg import sql

from benchmarks import chain, servers, workload
from benchmarks.measurement import Measurement, Target, at_least
from benchmarks.plan import Plan

__all__ = ["MEASURES", "RawTable"]

_tables = count()


class RawTable:
    """A table of blobs, written by psycopg alone: prepared binary statements on a connection of its own."""

    single_is = "rows/s, autocommitted one by one"
    grouped_is = f"rows/s, by statements that insert an array of {workload.COROUTINES}"

    def __init__(self, plan: Plan) -> None:
        name = sql.Identifier(f"raw_{next(_tables)}")
        self._cursor = servers.postgres_connection(plan).cursor()
        create = sql.SQL("CREATE TABLE {} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, data bytea NOT NULL)")
        self._cursor.execute(create.format(name))
        self._insert = sql.SQL("INSERT INTO {} (data) VALUES (%b)").format(name).as_bytes()
        self._insert_all = sql.SQL("INSERT INTO {} (data) SELECT unnest(%b::bytea[])").format(name).as_bytes()
        self._row = b"x" * workload.row_bytes()

    def single(self, rows: int) -> float:
        """Insert rows one by one, each in its own transaction. Return rows per second."""
        began = time.perf_counter()
        for _ in range(rows):
            self._cursor.execute(self._insert, (self._row,), prepare=True)
        return rows / (time.perf_counter() - began)

    def grouped(self, rows: int, group: int) -> float:
        """Insert rows by statements of ``group``. Return rows per second."""
        began = time.perf_counter()
        for first in range(0, rows, group):
            self._cursor.execute(self._insert_all, ([self._row] * min(group, rows - first),), prepare=True)
        return rows / (time.perf_counter() - began)


def _close_to_raw(_value: float, _raw: float, ratio: float) -> Target:
    return at_least("ratio", ratio, 0.7)


def alone(plan: Plan) -> Iterator[Measurement]:
    """Measure commits one after another, blocking."""
    yield from workload.alone(plan, servers.URLS["postgres"](plan), RawTable(plan), _close_to_raw)


def prepared(plan: Plan) -> Iterator[Measurement]:
    """Measure commits one after another, blocking, without the read of the newest head."""
    yield from chain.prepared(plan, servers.URLS["postgres"](plan), RawTable(plan), _close_to_raw)


def awaited(plan: Plan) -> Iterator[Measurement]:
    """Measure commits one after another, awaited."""
    yield from workload.awaited(plan, servers.URLS["postgres"](plan), RawTable(plan))


def threads(plan: Plan) -> Iterator[Measurement]:
    """Measure commits from eight threads."""
    yield from workload.from_threads(plan, servers.URLS["postgres"](plan))


def coroutines(plan: Plan) -> Iterator[Measurement]:
    """Measure commits from two hundred coroutines."""

    def judge(value: float, raw: float, _ratio: float) -> Target:
        return Target("value >= 10,000 or 0.15 of raw, whichever is lower", value >= min(10_000, 0.15 * raw))

    yield from workload.from_coroutines(plan, servers.URLS["postgres"](plan), RawTable(plan), judge)


MEASURES = {"alone": alone, "prepared": prepared, "awaited": awaited, "threads": threads, "coroutines": coroutines}
