"""The memory store: the cost of a commit without a disk."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator

import msgspec

from benchmarks import workload
from benchmarks.measurement import Measurement
from benchmarks.plan import Plan
from benchmarks.rounds import per_second

__all__ = ["MEASURES"]

_encode = msgspec.json.Encoder(order="deterministic").encode


class PlainChain:
    """The least that a chained commit needs: encode the step, hash it, chain the hash, and store both under a lock."""

    single_is = grouped_is = "steps/s encoded, hashed, chained and kept under a lock"

    def __init__(self) -> None:
        self._lock, self._rows, self._head = threading.Lock(), list[tuple[bytes, bytes]](), ""

    def _append(self, number: int) -> None:
        body = _encode(workload.step(number))
        header = _encode([number, hashlib.sha256(body).hexdigest(), self._head])
        with self._lock:
            self._head = hashlib.sha256(header).hexdigest()
            self._rows.append((header, body))

    def single(self, rows: int) -> float:
        """Append rows. Return rows per second."""
        return per_second(rows, self._append)()

    def grouped(self, rows: int, group: int) -> float:
        """Append rows; without a disk, a group shares nothing."""
        return self.single(rows)


def alone(plan: Plan) -> Iterator[Measurement]:
    """Measure commits one after another, blocking."""
    yield from workload.alone(plan, "memory://", PlainChain())


def awaited(plan: Plan) -> Iterator[Measurement]:
    """Measure commits one after another, awaited."""
    yield from workload.awaited(plan, "memory://", PlainChain())


MEASURES = {"alone": alone, "awaited": awaited}
