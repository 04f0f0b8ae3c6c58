"""``bench``: how fast this store is from this machine."""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

import click

from stepwell.cli.main import command
from stepwell.cli.options import settings
from stepwell.cli.output import printable
from stepwell.config import choose_url, without_secrets
from stepwell.model.ids import new_id

__all__ = ["bench"]

_STEPS = 10


@command("bench")
@click.option("--runs", type=click.IntRange(1, 100_000), default=200, show_default=True, help="How many runs to start.")
@click.option("--at-once", type=click.IntRange(1, 1_000), default=50, show_default=True, help="How many of them at a time.")
def bench(runs: int, at_once: int) -> None:
    """Measure this store from this machine: runs of ten steps each, and single commits. It deletes what it creates.

    With --json, one object. The figures of other libraries and of the bare disk are in the repository: see `make bench`.
    """
    given = settings()
    found = asyncio.run(_measured(given.url, runs, at_once))
    if given.is_json:
        given.screen.json(found)
        return
    screen = given.screen
    screen.write(f"store       {printable(without_secrets(choose_url(given.url)[0]))}")
    screen.write(f"runs        {found['runs_per_second']:,.0f}/s, {_STEPS} steps each, {at_once} at a time")
    screen.write(f"steps       {found['steps_per_second']:,.0f}/s")
    screen.write(f"one commit  p50 {found['commit_p50_ms']:.2f} ms, p99 {found['commit_p99_ms']:.2f} ms")


async def _measured(url: str | None, runs: int, at_once: int) -> dict[str, Any]:
    from stepwell import AsyncStepwell, step, workflow

    mark = f"bench-{new_id()}"

    @step(name=f"{mark}-step")
    async def one(number: int) -> int:
        return number

    @workflow(name=mark)
    async def ten() -> int:
        for number in range(_STEPS):
            await one(number)
        return _STEPS

    async with AsyncStepwell(url) as well:
        names = [f"{mark}-{number}" for number in range(runs + 1)]
        room = asyncio.Semaphore(at_once)

        async def run(name: str) -> None:
            async with room:
                await (await well.start(ten, execution_id=name)).result()

        try:
            await run(names[-1])  # warm
            began = time.perf_counter()
            await asyncio.gather(*map(run, names[:-1]))
            took = time.perf_counter() - began
            commits = await _commits(well, f"{mark}-commits", min(runs, 500))
        finally:
            for name in (*names, f"{mark}-commits"):
                await well.delete(name)
    commits.sort()
    return {
        "runs": runs,
        "runs_per_second": runs / took,
        "steps_per_second": runs * _STEPS / took,
        "commit_p50_ms": median(commits),
        "commit_p99_ms": commits[max(int(len(commits) * 0.99) - 1, 0)],
    }


async def _commits(well: Any, name: str, count: int) -> list[float]:
    """Return how many milliseconds each of some commits took, one after another."""
    await well.create(name)
    took: list[float] = []
    for number in range(count):
        began = time.perf_counter()
        async with well.transaction(name) as tx:
            tx.set_variable("number", number)
        took.append((time.perf_counter() - began) * 1000)
    return took
