"""The lower bound of durable steps: rows written by the driver alone. No product: nothing could be resumed from them.

Each step is a row of the size that Stepwell writes, durable before the next step of its workflow. In ``together``, all workflows
at the same step share one transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import apsw
import msgspec
import psycopg

from benchmarks.rivals.contest import STEPS_EACH
from benchmarks.rivals.player import Place
from benchmarks.rivals.players.pace import step_rate

__all__ = ["FloorSteps"]

_ROW = b"x" * 700
_encode = msgspec.json.Encoder(order="deterministic").encode
Write = Callable[[int], None]
"""Makes a number of rows durable."""


def _in_memory(_place: Place) -> Write:
    rows, head = list[tuple[bytes, str]](), [""]

    def write(count: int) -> None:
        for number in range(count):
            body = _encode({"number": number, "name": "add", "output": number, "previous": head[0]})
            head[0] = hashlib.sha256(body).hexdigest()
            rows.append((body, head[0]))

    return write


def _to_sqlite(place: Place) -> Write:
    db: Any = apsw.Connection(str(place.file))
    db.execute("PRAGMA journal_mode = wal").fetchall()
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    cursor = db.cursor()

    def write(count: int) -> None:
        cursor.execute("BEGIN IMMEDIATE")
        cursor.executemany("INSERT INTO rows (data) VALUES (?)", [(_ROW,)] * count)
        cursor.execute("COMMIT")

    return write


def _to_postgres(place: Place) -> Write:
    connection = psycopg.connect(place.url, autocommit=True)
    connection.execute("CREATE TABLE rows (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, data bytea NOT NULL)")

    def write(count: int) -> None:
        connection.execute("INSERT INTO rows (data) SELECT unnest(%b::bytea[])", ([_ROW] * count,), prepare=True)

    return write


class FloorSteps:
    """Rows without any processing."""

    def __init__(self, place: Place) -> None:
        self._write = {"memory": _in_memory, "sqlite": _to_sqlite, "postgres": _to_postgres}[place.store](place)
        self.works = {"alone": self.alone, "together": self.together}

    def _ten(self, count: int) -> list[int]:
        for _ in range(STEPS_EACH):
            self._write(count)
        return [STEPS_EACH] * count

    def alone(self, size: int) -> list[float]:
        """Write row by row."""
        return step_rate(size, lambda: [result for _ in range(size) for result in self._ten(1)])

    def together(self, size: int) -> list[float]:
        """Write one transaction for all workflows per step."""
        return step_rate(size, lambda: self._ten(size))

    def close(self) -> None:
        """Do nothing: the end of the process releases everything."""
