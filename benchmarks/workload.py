"""The work that is measured on every store, through the public API. A store adds its URL and its raw yardstick."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count
from statistics import median
from typing import Protocol

from benchmarks.measurement import Measurement, Target
from benchmarks.plan import Plan
from benchmarks.rounds import in_turns, median_ratio, per_second
from stepwell import AsyncStepwell, StepOutput, Stepwell

__all__ = [
    "COROUTINES",
    "THREADS",
    "Judge",
    "Yardstick",
    "alone",
    "awaited",
    "beside",
    "from_coroutines",
    "from_threads",
    "grow",
    "row_bytes",
    "step",
]

THREADS = 8
COROUTINES = 200
Judge = Callable[[float, float, float], Target]
"""Returns the target for a value, its raw limit and their ratio."""

_WHEN = datetime(2026, 1, 1, tzinfo=UTC)


class Yardstick(Protocol):
    """The lower bound of a commit on a store: rows of the same size, written by its driver alone."""

    single_is: str
    """What ``single`` does, in words."""
    grouped_is: str
    """What ``grouped`` does, in words."""

    def single(self, rows: int) -> float:
        """Write rows one by one, each durable before the next. Return rows per second."""
        ...

    def grouped(self, rows: int, group: int) -> float:
        """Write rows in transactions of ``group``. Return rows per second."""
        ...


def step(number: int) -> StepOutput:
    """Return an ordinary step's output."""
    return StepOutput(f"node-{number}", f"step-{number}", "COMPLETED", {"id": number, "ok": True}, _WHEN, 12)


def row_bytes() -> int:
    """Return the size of an ordinary step's receipt and mutations, in bytes."""
    with Stepwell("memory://") as well:
        well.create("x" * 12)
        with well.transaction("x" * 12) as transaction:
            transaction.record_step(step(1_000))
        return len(well.export("x" * 12).splitlines()[-1])


def _commit_step(well: Stepwell, execution_id: str, number: int) -> None:
    transaction = well.transaction(execution_id)
    transaction.record_step(step(number))
    transaction.commit()


async def _commit_step_async(well: AsyncStepwell, execution_id: str, number: int) -> None:
    async with well.transaction(execution_id) as transaction:
        transaction.record_step(step(number))


def alone(plan: Plan, url: str, raw: Yardstick, judge: Judge | None = None) -> Iterator[Measurement]:
    """Measure commits one after another by a blocking caller."""
    size, numbers = plan.size(300, 20), count()
    with Stepwell(url) as well:
        well.create("alone")
        ours, raws = in_turns(
            plan.rounds,
            per_second(size, lambda _: _commit_step(well, "alone", next(numbers))),
            lambda: raw.single(size),
        )
    yield beside(plan.name, ours, raws, raw_is=raw.single_is, judge=judge)


def awaited(plan: Plan, url: str, raw: Yardstick, judge: Judge | None = None) -> Iterator[Measurement]:
    """Measure commits one after another by an async caller."""
    size, numbers = plan.size(300, 20), count()

    async def commits(well: AsyncStepwell) -> None:
        for _ in range(size):
            await _commit_step_async(well, "awaited", next(numbers))

    with asyncio.Runner() as runner:
        well = AsyncStepwell(url)
        runner.run(well.create("awaited"))
        ours, raws = in_turns(plan.rounds, _timed(size, lambda: runner.run(commits(well))), lambda: raw.single(size))
        runner.run(well.close())
    yield beside(plan.name, ours, raws, raw_is=raw.single_is, judge=judge)


def from_threads(plan: Plan, url: str, judge: Judge | None = None) -> Iterator[Measurement]:
    """Measure commits from eight threads, beside single ones."""
    size, numbers = plan.size(100, 10), count()
    with Stepwell(url) as well, ThreadPoolExecutor(THREADS) as threads:
        for execution in ("single", *(f"thread-{each}" for each in range(THREADS))):
            well.create(execution)

        def commits(each: int) -> None:
            for _ in range(size):
                _commit_step(well, f"thread-{each}", next(numbers))

        ours, raws = in_turns(
            plan.rounds,
            _timed(size * THREADS, lambda: list(threads.map(commits, range(THREADS)))),
            per_second(size, lambda _: _commit_step(well, "single", next(numbers))),
        )
    yield beside(plan.name, ours, raws, raw_is="commits/s of Stepwell one after another, blocking", judge=judge)


def from_coroutines(plan: Plan, url: str, raw: Yardstick, judge: Judge | None = None) -> Iterator[Measurement]:
    """Measure commits from two hundred coroutines."""
    size, tasks, numbers = plan.size(20, 2), plan.size(COROUTINES, 20), count()

    async def commits(well: AsyncStepwell, each: int) -> None:
        for _ in range(size):
            await _commit_step_async(well, f"task-{each}", next(numbers))

    async def together(well: AsyncStepwell) -> None:
        await asyncio.gather(*(commits(well, each) for each in range(tasks)))

    async def create(well: AsyncStepwell) -> None:
        await asyncio.gather(*(well.create(f"task-{each}") for each in range(tasks)))

    with asyncio.Runner() as runner:
        well = AsyncStepwell(url)
        runner.run(create(well))
        total = size * tasks
        ours, raws = in_turns(
            plan.rounds, _timed(total, lambda: runner.run(together(well))), lambda: raw.grouped(total, COROUTINES)
        )
        runner.run(well.close())
    yield beside(plan.name, ours, raws, raw_is=raw.grouped_is, judge=judge)


def grow(plan: Plan, url: str, execution_id: str, commits: int, *, with_steps: bool = False) -> None:
    """Bring a new execution to a revision: by steps, which add to the state, or by variables, which replace each other."""
    with Stepwell(url) as well:
        well.create(execution_id)
        for number in range(1, commits + 1):
            transaction = well.transaction(execution_id)
            if with_steps:
                transaction.record_step(step(number))
            else:
                transaction.set_variable(f"v{number % 50}", number)
            transaction.commit()
            if number % 20_000 == 0:
                plan.say(f"{number:,} of {commits:,} commits made")


def beside(
    name: str, ours: list[float], raws: list[float], *, raw_is: str, judge: Judge | None = None, unit: str = "commits/s"
) -> Measurement:
    """Return the measurement of figures that alternated with their yardstick's."""
    value, raw, ratio = median(ours), median(raws), median_ratio(ours, raws)
    return Measurement(name, value, unit, raw, raw_is, ratio, None if judge is None else judge(value, raw, ratio))


def _timed(total: int, work: Callable[[], object]) -> Callable[[], float]:
    def rate() -> float:
        began = time.perf_counter()
        work()
        return total / (time.perf_counter() - began)

    return rate
