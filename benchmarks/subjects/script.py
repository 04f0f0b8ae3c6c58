"""Lua scripts: what a warm script adds to a run, how soon a runaway is ended, and what it does to other runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from statistics import median, quantiles

from benchmarks.measurement import Measurement, at_most
from benchmarks.plan import Plan
from benchmarks.rounds import in_turns, median_ratio, seconds_each
from stepwell import ExecutionFailed, Limits, Stepwell, step
from stepwell.flow import call, define, script

__all__ = ["MEASURES"]

_LIMIT_MS = 500
_WAIT = 60


@step(name="benchmark.nothing")
async def nothing() -> int:
    """Return a number, as the scripts do."""
    return 1


_PLAIN = define("benchmark-plain", call(nothing, {}))
_SCRIPT = define("benchmark-script", script("return 1", {}))
_STATE = define("benchmark-state", script("State.set('n', (State.get('n') or 0) + 1) return 1", {}))
_RUNAWAY = define("benchmark-runaway", script("Tool.execute('benchmark.began') while true do end", {}))
began_at: list[float] = []


@step(name="benchmark.began")
async def began() -> None:
    """Note when the script computes: the start of its process is not its own time."""
    began_at[:] = [time.perf_counter()]


def warm(plan: Plan) -> Iterator[Measurement]:
    """Measure a run of one script beside a run of one Python step."""
    times = plan.size(200, 5)
    with Stepwell("memory://") as well:

        def once(definition: object) -> float:
            return seconds_each(times, lambda _: well.start(definition, {}).result(_WAIT))() * 1000

        figures = in_turns(plan.rounds, lambda: once(_SCRIPT), lambda: once(_STATE), lambda: once(_PLAIN))
    for name, column in (("script", figures[0]), ("script_with_state", figures[1])):
        added = median(value - raw for value, raw in zip(column, figures[2], strict=True))
        target = at_most("ms more than a step in Python", added, 2) if name == "script" else None
        yield Measurement(
            f"{plan.name}.{name}",
            median(column),
            "ms per run",
            raw=median(figures[2]),
            raw_is="a run of one async step",
            ratio=median_ratio(column, figures[2]),
            target=target,
            note=f"adds {added:.2f} ms",
        )


def runaway(plan: Plan) -> Iterator[Measurement]:
    """Measure the end of scripts that never end, and the p99 of other runs beside them."""
    times = plan.size(2_000, 50)
    with Stepwell("memory://", limits=Limits(script_ms=_LIMIT_MS)) as well:
        late: list[float] = []
        stop = threading.Event()

        def keep_running_away() -> None:
            while not stop.is_set():
                with suppress(ExecutionFailed):
                    well.start(_RUNAWAY, {}).result(_WAIT)
                late.append((time.perf_counter() - began_at[0]) * 1000 - _LIMIT_MS)

        def p99() -> float:
            took: list[float] = []
            for _ in range(times):
                before = time.perf_counter()
                well.start(_PLAIN, {}).result(_WAIT)
                took.append((time.perf_counter() - before) * 1000)
            return quantiles(took, n=100)[98]

        def beside() -> float:
            stop.clear()
            thread = threading.Thread(target=keep_running_away)
            thread.start()
            try:
                return p99()
            finally:
                stop.set()
                thread.join()

        alone, disturbed = in_turns(plan.rounds, p99, beside)
    worst = max(late)
    yield Measurement(
        f"{plan.name}.end",
        median(late),
        "ms after its limit",
        target=at_most("ms after the limit, at worst", worst, 100),
        note=f"{len(late)} runaways, {worst:.0f} ms at worst",
    )
    ratio = median(value / raw for value, raw in zip(disturbed, alone, strict=True))
    yield Measurement(
        f"{plan.name}.others_p99",
        median(disturbed),
        "ms, p99",
        raw=median(alone),
        raw_is="without a runaway",
        ratio=ratio,
        target=at_most("times the p99 without a runaway", ratio, 1.1),
    )


MEASURES = {"warm": warm, "runaway": runaway}
