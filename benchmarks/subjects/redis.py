"""The Redis store beside redis-py alone: a script that appends the same bytes on the same server, without a disk.

``alone`` is what a user of ``well.transaction`` gets. It reads the newest head first, since any process may have written, so it
costs one round trip more than ``prepared``, where the chain is known and only the commit itself is left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

from benchmarks import chain, servers, workload
from benchmarks.measurement import Measurement, Target, at_least
from benchmarks.plan import Plan

__all__ = ["MEASURES"]

_APPEND = "return redis.call('RPUSH', KEYS[1], ARGV[1])"
_lists = count()


class RawScript:
    """A list of blobs, written by redis-py alone, one script per row."""

    single_is = "EVALSHA/s of a script that appends the same bytes"
    grouped_is = f"EVALSHA/s of a script that appends the same bytes, {workload.COROUTINES} in a packet"

    def __init__(self, plan: Plan) -> None:
        self._client = servers.redis_client(plan)
        self._sha = str(self._client.script_load(_APPEND))
        self._list, self._row = f"raw-{next(_lists)}", b"x" * workload.row_bytes()

    def single(self, rows: int) -> float:
        """Append rows one by one. Return rows per second."""
        began = time.perf_counter()
        for _ in range(rows):
            self._client.evalsha(self._sha, 1, self._list, self._row)
        return rows / (time.perf_counter() - began)

    def grouped(self, rows: int, group: int) -> float:
        """Append rows in pipelines of ``group``. Return rows per second."""
        began = time.perf_counter()
        for first in range(0, rows, group):
            with self._client.pipeline(transaction=False) as packet:
                for _ in range(min(group, rows - first)):
                    packet.evalsha(self._sha, 1, self._list, self._row)
                packet.execute()
        return rows / (time.perf_counter() - began)


def _close_to_raw(_value: float, _raw: float, ratio: float) -> Target:
    return at_least("ratio", ratio, 0.6)


def alone(plan: Plan) -> Iterator[Measurement]:
    """Measure commits one after another, blocking."""
    yield from workload.alone(plan, servers.URLS["redis"](plan), RawScript(plan), _close_to_raw)


def prepared(plan: Plan) -> Iterator[Measurement]:
    """Measure commits one after another, blocking, on a known chain."""
    yield from chain.prepared(plan, servers.URLS["redis"](plan), RawScript(plan), _close_to_raw)


def awaited(plan: Plan) -> Iterator[Measurement]:
    """Measure commits one after another, awaited."""
    yield from workload.awaited(plan, servers.URLS["redis"](plan), RawScript(plan))


def threads(plan: Plan) -> Iterator[Measurement]:
    """Measure commits from eight threads."""
    yield from workload.from_threads(plan, servers.URLS["redis"](plan))


def coroutines(plan: Plan) -> Iterator[Measurement]:
    """Measure commits from two hundred coroutines."""
    yield from workload.from_coroutines(plan, servers.URLS["redis"](plan), RawScript(plan))


MEASURES = {"alone": alone, "prepared": prepared, "awaited": awaited, "threads": threads, "coroutines": coroutines}
