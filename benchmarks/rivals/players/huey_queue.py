"""huey on SQLite and Redis with its defaults: WAL and SQLite's default synchronous on a file, blocking reads on Redis."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from huey import RedisHuey, SqliteHuey
from huey.consumer import Consumer

from benchmarks.rivals.player import Place
from benchmarks.rivals.players.arrival import PAUSE_SECONDS, Arrivals
from benchmarks.rivals.players.pace import rate

__all__ = ["HueyQueue"]


class HueyQueue:
    """One process that enqueues, and works in threads. It has no bulk enqueue."""

    def __init__(self, place: Place) -> None:
        logging.getLogger("huey").setLevel(logging.ERROR)
        is_redis, self._workers = place.store == "redis", int(str(place.options["workers"]))
        self._huey = RedisHuey("rivals", url=place.url) if is_redis else SqliteHuey("rivals", filename=str(place.file))
        self._arrivals = Arrivals()

        @self._huey.task()
        def job(number: int) -> None:
            self._arrivals.record()

        self._job = job
        self.works = {"enqueue": self.enqueue, "drain": self.drain, "latency": self.latency}

    @contextmanager
    def _working(self) -> Iterator[None]:
        consumer = Consumer(self._huey, workers=self._workers, periodic=False, worker_type="thread")
        consumer.start()
        try:
            yield
        finally:
            consumer.stop(graceful=True)

    def _fill(self, size: int) -> None:
        self._arrivals.expect(size)
        for number in range(size):
            self._job(number)

    def enqueue(self, size: int) -> list[float]:
        """Enqueue one by one."""
        figures = rate(size, lambda: self._fill(size))
        self._huey.flush()
        return figures

    def drain(self, size: int) -> list[float]:
        """Fill the queue, then work it off."""
        self._fill(size)
        with self._working():
            return self._arrivals.drain_rate()

    def latency(self, size: int) -> list[float]:
        """Enqueue one item at a time on an idle system."""
        taken: list[float] = []
        with self._working():
            for number in range(size):
                time.sleep(PAUSE_SECONDS)
                self._arrivals.expect(1)
                began = time.perf_counter()
                self._job(number)
                taken.append(self._arrivals.wait() - began)
        return taken

    def close(self) -> None:
        """Do nothing: the end of the process releases everything."""
