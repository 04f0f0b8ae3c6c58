"""DBOS queues with no-op workflows. DBOS has no bulk enqueue, and polls once a second by default."""

from __future__ import annotations

import random
import time
from itertools import count

from dbos import DBOS

from benchmarks.rivals.player import Place
from benchmarks.rivals.players.arrival import Arrivals
from benchmarks.rivals.players.dbos_steps import launch
from benchmarks.rivals.players.pace import rate

__all__ = ["DbosQueue"]

_CONCURRENCY = 200
_MOST = 1_000
"""The rate does not depend on the number of items, and more would take minutes."""
_arrivals = Arrivals()


@DBOS.workflow()
def job(number: int) -> None:
    """Do nothing."""
    _arrivals.record()


class DbosQueue:
    """One process that enqueues and works. Only registered queues are dispatched."""

    def __init__(self, place: Place) -> None:
        launch(place)
        self._names = count()
        DBOS.register_queue("latency")
        self.works = {"enqueue": self.enqueue, "drain": self.drain, "latency": self.latency}

    def _fill(self, size: int) -> str:
        name = f"queue-{next(self._names)}"
        _arrivals.expect(size)
        for number in range(size):
            DBOS.enqueue_workflow(name, job, number)
        return name

    def enqueue(self, size: int) -> list[float]:
        """Enqueue one by one to a queue without a worker."""
        return rate(size, lambda: self._fill(size))

    def drain(self, size: int) -> list[float]:
        """Fill a queue, then work it off."""
        name = self._fill(min(size, _MOST))
        # With a limit: without one it starts a thread per item, which is slower.
        DBOS.register_queue(name, polling_interval_sec=0.01, worker_concurrency=_CONCURRENCY)
        _arrivals.wait()
        while DBOS.list_workflows(queue_name=name, status=["ENQUEUED", "PENDING"], limit=1, load_input=False, load_output=False):
            time.sleep(0.02)
        figures = _arrivals.drain_rate()
        DBOS.delete_queue(name)
        return figures

    def latency(self, size: int) -> list[float]:
        """Enqueue one item at a time on an idle system."""
        taken: list[float] = []
        for number in range(min(size, 5)):  # each takes half a second
            # Enqueue at a random moment between two polls: right after a poll, each item would wait longest.
            time.sleep(random.uniform(0, 1))
            _arrivals.expect(1)
            began = time.perf_counter()
            DBOS.enqueue_workflow("latency", job, number)
            taken.append(_arrivals.wait() - began)
        return taken

    def close(self) -> None:
        """Stop DBOS."""
        DBOS.destroy()
