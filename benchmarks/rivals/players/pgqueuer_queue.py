"""pgqueuer over asyncpg on uvloop, as its command line runs it, with its default batch of 10 or another."""

from __future__ import annotations

import asyncio
import logging
import time

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from benchmarks.rivals.player import Place
from benchmarks.rivals.players.arrival import PAUSE_SECONDS, Arrivals
from benchmarks.rivals.players.pace import rate

__all__ = ["PgqueuerQueue"]


class PgqueuerQueue:
    """One process that enqueues over one connection, and works over another."""

    def __init__(self, place: Place) -> None:
        logging.getLogger("pgqueuer").setLevel(logging.ERROR)
        self._url, self._batch, self._arrivals = place.url, int(str(place.options.get("batch", 10))), Arrivals()
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._runner.run(self._open())
        self.works = {"enqueue": self.enqueue, "bulk": self.bulk, "drain": self.drain, "latency": self.latency}

    async def _open(self) -> None:
        self._connection = await asyncpg.connect(self._url)
        self._queries = Queries(AsyncpgDriver(self._connection))
        await self._queries.install()

    async def _worker(self) -> PgQueuer:
        working = PgQueuer.from_asyncpg_connection(await asyncpg.connect(self._url))

        @working.entrypoint("job")
        async def job(job: Job) -> None:
            self._arrivals.record()

        return working

    async def _one_by_one(self, size: int) -> None:
        for number in range(size):
            await self._queries.enqueue("job", b"%d" % number)

    async def _at_once(self, size: int) -> None:
        await self._queries.enqueue(["job"] * size, [b"%d" % number for number in range(size)], [0] * size)

    def _emptied(self, figures: list[float]) -> list[float]:
        self._runner.run(self._queries.clear_queue())
        return figures

    def enqueue(self, size: int) -> list[float]:
        """Enqueue one by one."""
        return self._emptied(rate(size, lambda: self._runner.run(self._one_by_one(size))))

    def bulk(self, size: int) -> list[float]:
        """Enqueue all in one call."""
        return self._emptied(rate(size, lambda: self._runner.run(self._at_once(size))))

    def drain(self, size: int) -> list[float]:
        """Fill the queue, then work it off."""

        async def fill_and_drain() -> list[float]:
            self._arrivals.expect(size)
            await self._at_once(size)
            await (await self._worker()).qm.run(batch_size=self._batch, mode=QueueExecutionMode.drain)
            return self._arrivals.drain_rate()

        return self._runner.run(fill_and_drain())

    def latency(self, size: int) -> list[float]:
        """Enqueue one item at a time on an idle system."""
        return self._runner.run(self._latencies(size))

    async def _latencies(self, size: int) -> list[float]:
        worker = await self._worker()
        working = asyncio.create_task(worker.qm.run(batch_size=self._batch))
        await asyncio.sleep(0.5)  # wait until it listens
        taken: list[float] = []
        for number in range(size):
            await asyncio.sleep(PAUSE_SECONDS)
            self._arrivals.expect(1)
            began = time.perf_counter()
            await self._queries.enqueue("job", b"%d" % number)
            taken.append(await asyncio.to_thread(self._arrivals.wait) - began)
        worker.shutdown.set()
        await working
        return taken

    def close(self) -> None:
        """Close the connection."""
        self._runner.run(self._connection.close())
        self._runner.close()
