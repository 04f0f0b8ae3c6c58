"""Executions that wait for a time or a signal in one store: a worker's memory for them, and how soon one resumes.

``growth`` is the memory that the worker's process gains per waiting execution, once its bounded caches are full. ``resume`` is
the time from ``run.signal`` for an execution that waits among all the others until its code continues. ``timer`` is how late a
sleep of one second ends.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import stepwell
from benchmarks import servers
from benchmarks.measurement import Measurement, at_most
from benchmarks.plan import Plan
from stepwell import AsyncStepwell, Status, step, workflow
from stepwell.flow.function import Workflow, registered_alone

__all__ = ["MEASURES"]

_AT_ONCE = 2_000
_resumed: dict[str, float] = {}


@step
async def resume(name: str) -> None:
    _resumed[name] = time.perf_counter()


async def waits_for_a_signal(name: str) -> None:
    await stepwell.wait_signal("go")
    await resume(name)


async def waits_for_a_time(arguments: list[str]) -> None:
    name, span = arguments
    await stepwell.sleep(span)
    await resume(name)


class Flows(NamedTuple):
    """The workflows, registered only while they are measured: with them, every well of this process would have a worker."""

    signal: Workflow[..., None]
    timer: Workflow[..., None]


@contextmanager
def _flows() -> Generator[Flows]:
    with registered_alone():
        yield Flows(workflow(name="benchmark-signal")(waits_for_a_signal), workflow(name="benchmark-timer")(waits_for_a_time))


def _resident_bytes() -> int:
    gc.collect()
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


async def _start(well: AsyncStepwell, flows: Flows, first: int, last: int) -> None:
    """Start executions, half of each kind, and wait until all of them wait."""
    for begin in range(first, last, _AT_ONCE):
        numbers = range(begin, min(begin + _AT_ONCE, last))
        runs = await asyncio.gather(*(_start_one(well, flows, number) for number in numbers))
        for run in runs:
            while await run.status() != Status.WAITING:  # noqa: ASYNC110 - it rests in the store, which tells nobody
                await asyncio.sleep(0.01)


async def _start_one(well: AsyncStepwell, flows: Flows, number: int) -> stepwell.AsyncRun:
    name = f"waiting-{number}"
    if number % 2:
        return await well.start(flows.timer, [name, "1d"], execution_id=name)
    return await well.start(flows.signal, name, execution_id=name)


async def _resume_seconds(well: AsyncStepwell, count: int, signals: int) -> list[float]:
    """Return the time from signal to code of some executions, one after another."""
    took: list[float] = []
    for number in random.Random(7).sample(range(0, count, 2), signals):
        name = f"waiting-{number}"
        began = time.perf_counter()
        await well.run(name).signal("go")
        while name not in _resumed:  # noqa: ASYNC110 - the step may run on another loop
            await asyncio.sleep(0.0005)
        took.append(_resumed[name] - began)
        await well.run(name).result(60)
    return took


async def _late_seconds(well: AsyncStepwell, flows: Flows, count: int) -> list[float]:
    """Return how late one-second sleeps of waiting executions end."""
    began: dict[str, float] = {}
    for number in range(count):
        name = f"timer-{number}"
        began[name] = time.perf_counter()
        await well.start(flows.timer, [name, "1s"], execution_id=name)
    while not began.keys() <= _resumed.keys():  # noqa: ASYNC110 - the same
        await asyncio.sleep(0.01)
    return [_resumed[name] - since - 1 for name, since in began.items()]


async def _measure(plan: Plan, url: str) -> list[Measurement]:
    _resumed.clear()
    count, full = plan.size(120_000, 40), plan.size(100_000, 20)
    with _flows() as flows:
        async with AsyncStepwell(url, concurrency=_AT_ONCE) as well:
            plan.say(f"{count:,} executions come to rest")
            await _start(well, flows, 0, full)
            before = _resident_bytes()
            await _start(well, flows, full, count)
            growth = (_resident_bytes() - before) / max(count - full, 1)
            took = await _resume_seconds(well, count, plan.size(300, 5))
            late = await _late_seconds(well, flows, plan.size(50, 2))
    resume_ms, late_ms = 1000 * median(took), 1000 * median(late)
    worst = 1000 * sorted(took)[int(0.99 * len(took))]
    note = f"{count:,} executions wait, half for a signal, half for a time"
    small, soon = at_most("bytes/execution", growth, 200), at_most("median ms", resume_ms, 20)
    return [
        Measurement(f"{plan.name}.growth", growth, "bytes/execution", target=small, note=note),
        Measurement(f"{plan.name}.resume", resume_ms, "ms", target=soon, note=f"p99 {worst:.1f} ms; {note}"),
        Measurement(f"{plan.name}.timer", late_ms, "ms late", note=note),
    ]


def sqlite(plan: Plan) -> Iterator[Measurement]:
    """Measure executions that wait in a SQLite file."""
    yield from asyncio.run(_measure(plan, servers.URLS["sqlite"](plan)))


def postgres(plan: Plan) -> Iterator[Measurement]:
    """Measure executions that wait in a PostgreSQL database."""
    yield from asyncio.run(_measure(plan, servers.URLS["postgres"](plan)))


MEASURES = {"sqlite": sqlite, "postgres": postgres}
