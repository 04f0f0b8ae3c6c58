"""The lower bound of a queue: rows inserted and deleted by the driver alone. No product: nothing is run or retried."""

from __future__ import annotations

from typing import Any

import apsw
import psycopg

from benchmarks.rivals.player import Place
from benchmarks.rivals.players.pace import rate

__all__ = ["FloorQueue"]

_BATCH = 100
_ROW = b"x" * 100
_STATEMENTS = {
    "sqlite": (
        "CREATE TABLE items (id INTEGER PRIMARY KEY, data BLOB NOT NULL)",
        "INSERT INTO items (data) VALUES (?)",
        "DELETE FROM items WHERE id IN (SELECT id FROM items ORDER BY id LIMIT ?) RETURNING data",
    ),
    "postgres": (
        "CREATE TABLE items (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, data bytea NOT NULL)",
        "INSERT INTO items (data) SELECT unnest(%b::bytea[])",
        "DELETE FROM items WHERE id IN (SELECT id FROM items ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED) RETURNING data",
    ),
}


class FloorQueue:
    """Rows without any processing."""

    def __init__(self, place: Place) -> None:
        self._is_sqlite = place.store == "sqlite"
        create, self._insert_sql, self._delete_sql = _STATEMENTS[place.store]
        if self._is_sqlite:
            connection: Any = apsw.Connection(str(place.file))
            connection.execute("PRAGMA journal_mode = wal").fetchall()
            connection.execute("PRAGMA synchronous = FULL")
        else:
            connection = psycopg.connect(place.url, autocommit=True)
        connection.execute(create)
        self._cursor = connection.cursor()
        self.works = {"enqueue": self.enqueue, "bulk": self.bulk, "drain": self.drain}

    def _insert(self, count: int) -> None:
        if not self._is_sqlite:
            self._cursor.execute(self._insert_sql, ([_ROW] * count,), prepare=True)
            return
        self._cursor.execute("BEGIN IMMEDIATE")
        self._cursor.executemany(self._insert_sql, [(_ROW,)] * count)
        self._cursor.execute("COMMIT")

    def _take(self) -> bool:
        self._cursor.execute(self._delete_sql, (_BATCH,))
        return bool(self._cursor.fetchall())

    def _drain(self) -> None:
        while self._take():
            pass

    def enqueue(self, size: int) -> list[float]:
        """Insert one by one."""
        figures = rate(size, lambda: [self._insert(1) for _ in range(size)])
        self._drain()
        return figures

    def bulk(self, size: int) -> list[float]:
        """Insert all in one statement."""
        figures = rate(size, lambda: self._insert(size))
        self._drain()
        return figures

    def drain(self, size: int) -> list[float]:
        """Delete in batches of a hundred."""
        self._insert(size)
        return rate(size, self._drain)

    def close(self) -> None:
        """Do nothing: the end of the process releases everything."""
