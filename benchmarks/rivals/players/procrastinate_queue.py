"""procrastinate: async tasks over psycopg, and a worker with concurrent jobs that NOTIFY wakes."""

from __future__ import annotations

import asyncio
import logging
import time

from procrastinate import App, PsycopgConnector

from benchmarks.rivals.player import Place
from benchmarks.rivals.players.arrival import PAUSE_SECONDS, Arrivals
from benchmarks.rivals.players.pace import rate

__all__ = ["ProcrastinateQueue"]

_CONCURRENCY = 50


class ProcrastinateQueue:
    """One process that enqueues and works."""

    def __init__(self, place: Place) -> None:
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        self._runner, self._arrivals = asyncio.Runner(), Arrivals()
        self._app = App(connector=PsycopgConnector(conninfo=place.url, min_size=4, max_size=_CONCURRENCY))

        @self._app.task(name="job")
        async def job(number: int) -> None:
            self._arrivals.record()

        self._job = job
        self._runner.run(self._open())
        self.works = {"enqueue": self.enqueue, "bulk": self.bulk, "drain": self.drain, "latency": self.latency}

    async def _open(self) -> None:
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()

    async def _empty(self) -> None:
        await self._app.connector.execute_query_async("TRUNCATE procrastinate_jobs CASCADE")

    async def _one_by_one(self, size: int) -> None:
        for number in range(size):
            await self._job.defer_async(number=number)

    async def _at_once(self, size: int) -> None:
        await self._job.batch_defer_async(*({"number": number} for number in range(size)))

    def enqueue(self, size: int) -> list[float]:
        """Enqueue one by one."""
        figures = rate(size, lambda: self._runner.run(self._one_by_one(size)))
        self._runner.run(self._empty())
        return figures

    def bulk(self, size: int) -> list[float]:
        """Enqueue all in one call."""
        figures = rate(size, lambda: self._runner.run(self._at_once(size)))
        self._runner.run(self._empty())
        return figures

    def drain(self, size: int) -> list[float]:
        """Fill the queue, then work it off."""

        async def fill_and_drain() -> list[float]:
            self._arrivals.expect(size)
            await self._at_once(size)
            await self._app.run_worker_async(wait=False, concurrency=_CONCURRENCY, install_signal_handlers=False)
            return self._arrivals.drain_rate()

        return self._runner.run(fill_and_drain())

    def latency(self, size: int) -> list[float]:
        """Enqueue one item at a time on an idle system."""
        return self._runner.run(self._latencies(size))

    async def _latencies(self, size: int) -> list[float]:
        working = asyncio.create_task(self._app.run_worker_async(concurrency=_CONCURRENCY, install_signal_handlers=False))
        await asyncio.sleep(0.5)  # wait until it listens
        taken: list[float] = []
        for number in range(size):
            await asyncio.sleep(PAUSE_SECONDS)
            self._arrivals.expect(1)
            began = time.perf_counter()
            await self._job.defer_async(number=number)
            taken.append(await asyncio.to_thread(self._arrivals.wait) - began)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return taken

    def close(self) -> None:
        """Close the connections."""
        self._runner.run(self._app.close_async())
        self._runner.close()
