"""The lower bound of a commit to SQLite: its statement, and the least work that creates one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

import apsw
import msgspec

from benchmarks import workload
from benchmarks.measurement import Measurement
from benchmarks.plan import Plan
from benchmarks.rounds import in_turns
from stepwell import Stepwell
from stepwell.model.execution_state import MASK, element, sha256_hex, state_digest
from stepwell.model.ids import new_commit_id, new_id
from stepwell.model.mutation import RecordStep, encode_mutations
from stepwell.model.receipt import ReceiptHeader, encode_header
from stepwell.model.record import encode_step
from stepwell.stores.sqlite.store import SQL

__all__ = ["floor"]

_ID, _WORKSPACE = "floor", "default"


class _Bare:
    """An execution in a file, written by apsw alone: no transaction, checks or locks, and no receipt is returned."""

    def __init__(self, plan: Plan) -> None:
        path = plan.folder / "floor.db"
        with Stepwell(f"sqlite:///{path}") as well:
            well.create(_ID)
        self._db: Any = apsw.Connection(str(path))
        self._db.execute("PRAGMA synchronous = FULL")
        self._number, self._digest = self._db.execute("SELECT number, digest FROM executions").fetchone()
        self._revision, self._numbers, self._sum, self._after = 0, count(), 0, state_digest(0)

    def statements(self, rows: int) -> float:
        """Run the statement of a commit on prebuilt bytes. Return commits per second."""
        bytes_of_one = self._encoded(next(self._numbers))
        digests = [sha256_hex(b"%d" % next(self._numbers)) for _ in range(rows)]
        began = time.perf_counter()
        for digest in digests:
            self._write(digest, *bytes_of_one)
        return rows / (time.perf_counter() - began)

    def commits(self, rows: int) -> float:
        """Run it with the work of each commit: canonical bytes, id and digests. Return commits per second."""
        began = time.perf_counter()
        for _ in range(rows):
            commit_id, header, body = self._encoded(next(self._numbers))
            self._write(sha256_hex(header), commit_id, header, body)
        return rows / (time.perf_counter() - began)

    def _encoded(self, number: int) -> tuple[str, bytes, bytes]:
        step = workload.step(number)
        data = encode_step(step)
        body = encode_mutations([RecordStep(step.node_name, msgspec.Raw(data))])
        before = self._after
        self._sum = (self._sum + element(b"steps", step.node_name, data)) & MASK
        self._after = state_digest(self._sum)
        revision = self._revision + 1
        commit_id, now = new_commit_id(revision, new_id()), datetime.now(UTC)
        parts = ReceiptHeader(1, _ID, _WORKSPACE, revision, commit_id, now, sha256_hex(body), before, self._after, self._digest)
        return commit_id, encode_header(parts), body

    def _write(self, digest: str, commit_id: str, header: bytes, body: bytes) -> None:
        revision = self._revision + 1
        row = (self._number, revision, self._digest, None, digest, None, 0, commit_id, False, header, body)
        self._db.execute(SQL["commits"], row)
        self._revision, self._digest = revision, digest


def floor(plan: Plan, raw: workload.Yardstick) -> Iterator[Measurement]:
    """Measure the statement alone, and with the least work. No commit from Python can be faster."""
    size, bare = plan.size(300, 20), _Bare(plan)
    statements, commits, raws = in_turns(
        plan.rounds, lambda: bare.statements(size), lambda: bare.commits(size), lambda: raw.single(size)
    )
    yield workload.beside(f"{plan.name}.statement", statements, raws, raw_is=raw.single_is)
    yield workload.beside(f"{plan.name}.commit", commits, raws, raw_is=raw.single_is)
