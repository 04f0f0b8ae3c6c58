"""Stepwell's queue: no-op workflows of fifty workspaces, each item a durable execution with its receipts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack

from benchmarks.rivals.player import Place
from benchmarks.rivals.players.arrival import PAUSE_SECONDS, WORKSPACES, Arrivals
from benchmarks.rivals.players.pace import rate
from benchmarks.rivals.players.stepwell_steps import url_of
from stepwell import AsyncStepwell, Stepwell, StepwellError, workflow
from stepwell.queue.requests import QueueRequest
from stepwell.runtime.host_tuning import host_tuning

__all__ = ["AsyncQueue", "BlockingQueue"]

_CONCURRENCY = 400
_LOOK_SECONDS = 0.005
_arrivals = Arrivals()


@workflow
async def job(number: int) -> None:
    """Do nothing."""
    _arrivals.record()


def _workspace(number: int) -> str:
    return f"workspace-{number % WORKSPACES}"


def _requests(size: int) -> list[QueueRequest]:
    return [QueueRequest(workflow=job, value=number, workspace=_workspace(number)) for number in range(size)]


def _check(answers: list[object]) -> None:
    refused = [answer for answer in answers if isinstance(answer, StepwellError)]
    if refused:
        raise refused[0]


def _expect_none(failed: Sequence[object]) -> None:
    if failed:
        raise AssertionError(f"not all jobs were done: {failed[0]}")


class AsyncQueue:
    """One process with the async API: one well that enqueues, and one with a worker while there is work."""

    def __init__(self, place: Place) -> None:
        self._tuning = ExitStack()
        self._tuning.enter_context(host_tuning())
        self._runner, self._url = asyncio.Runner(), url_of(place)
        self._enqueuing = AsyncStepwell(self._url, worker=False)
        self._runner.run(self._open())
        self.works = {"enqueue": self.enqueue, "bulk": self.bulk, "drain": self.drain, "latency": self.latency}

    async def _open(self) -> None:
        await self._enqueuing.__aenter__()
        for number in range(WORKSPACES):
            await self._enqueuing.workspaces.put(_workspace(number), tier="unlimited")

    async def _one_by_one(self, size: int) -> None:
        for number in range(size):
            await self._enqueuing.enqueue(job, number, workspace=_workspace(number))

    async def _at_once(self, size: int) -> None:
        _check([*await self._enqueuing.enqueue_many(_requests(size))])

    async def _worked_off(self) -> list[float]:
        async with AsyncStepwell(self._url, concurrency=_CONCURRENCY) as well:
            await asyncio.to_thread(_arrivals.wait)
            while await well.executions.list(status="RUNNING", limit=1):  # noqa: ASYNC110 - the end of others is asked for
                await asyncio.sleep(_LOOK_SECONDS)
            figures = _arrivals.drain_rate()
            _expect_none(await well.executions.list(status="FAILED", limit=1))
            return figures

    def enqueue(self, size: int) -> list[float]:
        """Enqueue one by one."""
        _arrivals.expect(size)
        figures = rate(size, lambda: self._runner.run(self._one_by_one(size)))
        self._runner.run(self._worked_off())
        return figures

    def bulk(self, size: int) -> list[float]:
        """Enqueue all in one call."""
        _arrivals.expect(size)
        figures = rate(size, lambda: self._runner.run(self._at_once(size)))
        self._runner.run(self._worked_off())
        return figures

    def drain(self, size: int) -> list[float]:
        """Fill the queue, then work it off."""
        _arrivals.expect(size)
        self._runner.run(self._at_once(size))
        return self._runner.run(self._worked_off())

    def latency(self, size: int) -> list[float]:
        """Enqueue one item at a time on an idle system."""
        return self._runner.run(self._latencies(size))

    async def _latencies(self, size: int) -> list[float]:
        taken: list[float] = []
        async with AsyncStepwell(self._url, concurrency=_CONCURRENCY) as well:
            await asyncio.sleep(0.5)  # until it listens
            for number in range(size):
                await asyncio.sleep(PAUSE_SECONDS)
                _arrivals.expect(1)
                began = time.perf_counter()
                await well.enqueue(job, number, workspace=_workspace(number))
                taken.append(await asyncio.to_thread(_arrivals.wait) - began)
        return taken

    def close(self) -> None:
        """Close the well."""
        self._runner.run(self._enqueuing.close())
        self._runner.close()
        self._tuning.close()


class BlockingQueue:
    """One process with the blocking API and its worker in a thread."""

    def __init__(self, place: Place) -> None:
        self._tuning = ExitStack()
        self._tuning.enter_context(host_tuning())
        self._url = url_of(place)
        self._enqueuing = Stepwell(self._url, worker=False)
        for number in range(WORKSPACES):
            self._enqueuing.workspaces.put(_workspace(number), tier="unlimited")
        self.works = {"enqueue": self.enqueue, "bulk": self.bulk, "drain": self.drain, "latency": self.latency}

    def _one_by_one(self, size: int) -> None:
        for number in range(size):
            self._enqueuing.enqueue(job, number, workspace=_workspace(number))

    def _at_once(self, size: int) -> None:
        _check([*self._enqueuing.enqueue_many(_requests(size))])

    def _worked_off(self) -> list[float]:
        with Stepwell(self._url, concurrency=_CONCURRENCY) as well:
            _arrivals.wait()
            while well.executions.list(status="RUNNING", limit=1):
                time.sleep(_LOOK_SECONDS)
            figures = _arrivals.drain_rate()
            _expect_none(well.executions.list(status="FAILED", limit=1))
            return figures

    def enqueue(self, size: int) -> list[float]:
        """Enqueue one by one."""
        _arrivals.expect(size)
        figures = rate(size, lambda: self._one_by_one(size))
        self._worked_off()
        return figures

    def bulk(self, size: int) -> list[float]:
        """Enqueue all in one call."""
        _arrivals.expect(size)
        figures = rate(size, lambda: self._at_once(size))
        self._worked_off()
        return figures

    def drain(self, size: int) -> list[float]:
        """Fill the queue, then work it off."""
        _arrivals.expect(size)
        self._at_once(size)
        return self._worked_off()

    def latency(self, size: int) -> list[float]:
        """Enqueue one item at a time on an idle system."""
        taken: list[float] = []
        with Stepwell(self._url, concurrency=_CONCURRENCY) as well:
            time.sleep(0.5)  # until it listens
            for number in range(size):
                time.sleep(PAUSE_SECONDS)
                _arrivals.expect(1)
                began = time.perf_counter()
                well.enqueue(job, number, workspace=_workspace(number))
                taken.append(_arrivals.wait() - began)
        return taken

    def close(self) -> None:
        """Close the well."""
        self._enqueuing.close()
        self._tuning.close()
