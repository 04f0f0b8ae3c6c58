"""How fast something went."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from benchmarks.rivals.contest import STEPS_EACH

__all__ = ["expect_result", "rate", "step_rate"]


def rate(count: int, work: Callable[[], object]) -> list[float]:
    """Do a work that is ``count`` things; how many of them it did in a second."""
    began = time.perf_counter()
    work()
    return [count / (time.perf_counter() - began)]


def step_rate(workflows: int, work: Callable[[], Sequence[object]]) -> list[float]:
    """Run workflows of ten steps and give their results; steps in a second."""
    results: list[object] = []
    figures = rate(workflows * STEPS_EACH, lambda: results.extend(work()))
    expect_result(results, workflows)
    return figures


def expect_result(results: Sequence[object], workflows: int) -> None:
    """Every workflow counts its steps, so that nobody is fast by leaving some out."""
    if list(results) != [STEPS_EACH] * workflows:
        raise AssertionError(f"{workflows} workflows of {STEPS_EACH} steps gave {list(results)[:5]}...")
