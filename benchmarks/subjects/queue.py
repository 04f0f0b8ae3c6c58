"""The queue: enqueue one by one and in bulk, drain throughput, and start latency on an idle system.

``drain`` is 5,000 workflows without steps of 50 workspaces, run by one process, each a durable execution with its receipt.
``latency`` is the time from ``enqueue`` in an idle process until the workflow's code runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from benchmarks import servers
from benchmarks.measurement import Measurement, Target, at_least, at_most
from benchmarks.plan import Plan
from stepwell import AsyncStepwell, QueueRequest, workflow
from stepwell.flow.function import Workflow, registered_alone

__all__ = ["MEASURES"]

_WORKSPACES = 50
_started: dict[int, float] = {}
_DRAIN = {"postgres": 6_600, "sqlite": 6_600, "memory": 6_600, "redis": 6_600}
_LATENCY_MS = {"postgres": 3, "sqlite": 5, "memory": 3, "redis": 3}


async def nothing(number: int) -> None:
    _started[number] = time.perf_counter()


@contextmanager
def _flow() -> Generator[Workflow[..., Any]]:
    """Register the workflow inside the block only: with it, every well of this process would have a worker."""
    with registered_alone():
        yield workflow(name="benchmark-nothing")(nothing)


async def _enqueue(url: str, flow: Workflow[..., Any], count: int) -> float:
    async with AsyncStepwell(url, worker=False) as well:
        began = time.perf_counter()
        for number in range(count):
            await well.enqueue(flow, number)
        return count / (time.perf_counter() - began)


async def _bulk(well: AsyncStepwell, flow: Workflow[..., Any], count: int) -> float:
    requests = [QueueRequest(workflow=flow, value=number, workspace=f"w{number % _WORKSPACES}") for number in range(count)]
    began = time.perf_counter()
    await well.enqueue_many(requests)
    return count / (time.perf_counter() - began)


async def _drain(url: str, flow: Workflow[..., Any], count: int) -> tuple[float, float]:
    """Return requests enqueued and executions drained per second."""
    _started.clear()
    well = AsyncStepwell(url, worker=False)
    for name in range(_WORKSPACES):
        await well.workspaces.put(f"w{name}", tier="enterprise")
    bulk = await _bulk(well, flow, count)
    well.worker = True
    began = time.perf_counter()
    await well.__aenter__()
    while len(_started) < count or (await well.queue.demand()).running:  # noqa: ASYNC110 - nobody tells of the last end
        await asyncio.sleep(0.005)
    took = time.perf_counter() - began
    await well.close()
    return bulk, count / took


async def _latency(url: str, flow: Workflow[..., Any], count: int) -> list[float]:
    _started.clear()
    took: list[float] = []
    async with AsyncStepwell(url) as well:
        for number in range(count):
            began = time.perf_counter()
            item = await well.enqueue(flow, number)
            await item.result(60)
            took.append(_started[number] - began)
    return sorted(took)


def _measure(plan: Plan, store: str) -> Iterator[Measurement]:
    new = servers.URLS[store]
    with _flow() as flow:
        enqueued = [asyncio.run(_enqueue(new(plan), flow, plan.size(1_000, 10))) for _ in range(plan.rounds)]
        yield Measurement(f"{plan.name}.enqueue", median(enqueued), "items/s", note="one call each, awaited in turn")
        rounds = [asyncio.run(_drain(new(plan), flow, plan.size(5_000, 100))) for _ in range(plan.rounds)]
        bulk, drain = median(each[0] for each in rounds), median(each[1] for each in rounds)
        yield Measurement(f"{plan.name}.bulk", bulk, "items/s", target=at_least("items/s", bulk, 40_000))
        yield Measurement(f"{plan.name}.drain", drain, "executions/s", target=at_least("executions/s", drain, _DRAIN[store]))
        took = asyncio.run(_latency(new(plan), flow, plan.size(500, 10)))
        middle, worst = 1000 * median(took), 1000 * took[int(0.99 * len(took))]
        wanted = at_most("median ms", middle, _LATENCY_MS[store])
        both = Target(f"{wanted.text}, p99 ms <= 15", wanted.met and worst <= 15)
        yield Measurement(f"{plan.name}.latency", middle, "ms", target=both, note=f"p99 {worst:.2f} ms")


def memory(plan: Plan) -> Iterator[Measurement]:
    """Measure the queue in memory."""
    yield from _measure(plan, "memory")


def sqlite(plan: Plan) -> Iterator[Measurement]:
    """Measure the queue in a SQLite file."""
    yield from _measure(plan, "sqlite")


def postgres(plan: Plan) -> Iterator[Measurement]:
    """Measure the queue on PostgreSQL."""
    yield from _measure(plan, "postgres")


def redis(plan: Plan) -> Iterator[Measurement]:
    """Measure the queue on Redis."""
    yield from _measure(plan, "redis")


MEASURES = {"memory": memory, "sqlite": sqlite, "postgres": postgres, "redis": redis}
